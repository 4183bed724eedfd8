"""What `kernel serve` makes of a command line of tritonserver's, flag by flag: its own parser reads them, so that no
second list is kept.

Starts nothing. What cannot be told from the line alone, such as a value that is the shell's, is not judged.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from kernel.cli.cache_config import cache_options
from kernel.cli.flags import is_missing, is_without_effect
from kernel.cli.parser import Parser, boolean
from kernel.cli.serve import check_options, serve_parser
from kernel.cli.trace_config import OLD
from kernel.errors import ServingError
from kernel.interfaces import Backend
from kernel.plugins import Plugins
from kernel.server import Kernel

__all__ = ["REFUSED", "CommandLine", "Flag", "read_line"]

#: What becomes of a flag: it means the same; it is taken, and has a newer name; it is taken, and does nothing; the server would
#: not start with it.
SAME, OTHER_NAME, NO_EFFECT, REFUSED = "same here", "other name", "no effect", "refused"

#: Where a repository is named in a line of tritonserver's.
_REPOSITORY = "repositories", "model_repository"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag as it was written; `verdict`, one of the four; `what` becomes of it, and the `remedy`, "" for none.

    `instead`: what stands for it in a line of `kernel serve`.
    """

    text: str
    verdict: str
    what: str = ""
    remedy: str = ""
    instead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A line of tritonserver's: its flags, the line to use instead, and what that comes to."""

    flags: tuple[Flag, ...]
    serve: tuple[str, ...]
    options: argparse.Namespace

    def shown(self) -> str:
        """Return the line to use, as a shell reads it."""
        return " ".join(f'"{word}"' if "$" in word else shlex.quote(word) for word in self.serve)


#: Backend -> setting -> value.
Settings = Mapping[str, Mapping[str, str]]


class _Mistake(Exception):
    """What the parser would have ended the process with."""


class _Trial(Parser):
    """The parser of `kernel serve`, whose mistakes can be told."""

    def error(self, message: str) -> NoReturn:
        raise _Mistake(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _Mistake(message or "prints and ends")


def read_line(line: str, repositories: Sequence[str]) -> CommandLine:
    """Judge a line such as `docker run … tritonserver --http-port=9000`.

    `repositories`: what is to be served in place of those that it names. Raises ValueError where it is no such line.
    """
    parser = serve_parser(Plugins(), _Trial)
    groups = list(_groups(parser, _arguments(line)))
    settings = _backend_settings(parser, groups)
    flags = [_judged(parser, group, settings) for group in groups]
    words = [word for flag in flags for word in flag.instead]
    # What the shell puts in place of a `$` can't be read here.
    options = _read(parser, [*repositories, *(word for flag in flags if "$" not in flag.text for word in flag.instead)])
    try:
        check_options(parser, options)
    except _Mistake as mistake:
        flags.append(Flag("the flags together", REFUSED, str(mistake), "correct the line below"))
    return CommandLine(tuple(flags), ("kernel", "serve", *repositories, *words), options)


def _arguments(line: str) -> list[str]:
    """Return what stands behind `tritonserver`, up to the end of that command."""
    try:
        words = shlex.split(line.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ValueError(f"the line can't be read as a shell's: {error}") from None
    start = next((k + 1 for k, word in enumerate(words) if word.rpartition("/")[2] == "tritonserver"), None)
    if start is None:
        if words and not words[0].startswith("--"):
            raise ValueError(f"there is no 'tritonserver' in it, nor does it begin with a flag: {line.strip()[:80]}")
        start = 0
    ends = (k for k in range(start, len(words)) if words[k] in ("&", "&&", ";", "|", "||", ">", "2>&1"))
    return words[start : next(ends, len(words))]


def _groups(parser: Parser, words: Sequence[str]) -> Iterator[list[str]]:
    """Yield each flag with its value."""
    at = 0
    while at < len(words):
        count = 2 if at + 1 < len(words) and _takes(parser, words[at], words[at + 1]) else 1
        yield list(words[at : at + count])
        at += count


def _takes(parser: Parser, flag: str, behind: str) -> bool:
    """Whether the word behind a flag is its value."""
    if not flag.startswith("-") or "=" in flag:
        return False
    action = parser.action(flag)
    if action is None:
        return not behind.startswith("-")
    if action.nargs == "?":
        return behind.lower() in ("true", "false", "1", "0")
    return action.nargs is None


def _judged(parser: Parser, group: list[str], settings: Settings) -> Flag:
    text, name = " ".join(group), group[0].partition("=")[0]
    action = parser.action(name)
    if not name.startswith("-"):
        return Flag(text, REFUSED, "stands alone: tritonserver takes no such argument either", "leave it out")
    if action is None:
        return Flag(text, REFUSED, "`kernel serve` has no such flag", "leave it out")
    if is_without_effect(action):
        return Flag(text, NO_EFFECT, "taken, but there is nothing here that it could act on", "leave it out")
    if action.dest in _REPOSITORY:
        return Flag(text, SAME, "the repository that you have named stands for it below")
    if "$" not in text:
        try:
            options = _read(parser, group)
        except _Mistake as mistake:
            return Flag(text, REFUSED, str(mistake), "leave it out" if is_missing(action) else "correct its value")
        found = _cache_flag(text, options) or _backend_flag(text, options.backend_config, settings)
        if found is not None:
            return found
    if name in _NEWER or name in OLD:
        value = group[1] if len(group) > 1 else group[0].partition("=")[2]
        newer = (f"--trace-config={OLD[name]}={value}",) if name in OLD else _NEWER[name](value)
        return Flag(text, OTHER_NAME, "the older form is taken, too", f"write {newer[0]}" if newer else "leave it out", newer)
    return Flag(text, SAME, instead=tuple(group))


def _strict(value: str) -> tuple[str, ...]:
    return ("--disable-auto-complete-config",) if not value or "$" in value or boolean(value) else ()


def _cache_size(value: str) -> tuple[str, ...]:
    return () if value == "0" else (f"--cache-config=local,size={value}",)


#: Older flags that are still taken -> what says the same; `trace_config.OLD` has those of traces.
_NEWER: Mapping[str, Callable[[str], tuple[str, ...]]] = {
    "--strict-model-config": _strict,
    "--response-cache-byte-size": _cache_size,
}


def _read(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    """Return what some words of a line come to; what is said of older forms is said here in another way."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        return parser.read(words)


def _cache_flag(text: str, options: argparse.Namespace) -> Flag | None:
    """Judge a flag that asks for a cache: None where somebody makes it."""
    chosen = cache_options(options)
    try:
        if chosen is not None:
            Plugins().cache(*chosen)
    except ServingError as error:
        return Flag(text, REFUSED, error.message, "use --cache-config=local,size=BYTES")
    return None


class _Sentences(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _backend_settings(parser: Parser, groups: Sequence[Sequence[str]]) -> Settings:
    """Return what all flags of a line that can be read say of backends: one may have an effect by another."""
    found: dict[str, dict[str, str]] = {}
    for group in groups:
        if group[0].startswith("--backend-config"):
            with contextlib.suppress(_Mistake):
                for name, settings in _read(parser, group).backend_config.items():
                    found.setdefault(name, {}).update(settings)
    return found


def _backend_flag(text: str, given: Settings, settings: Settings) -> Flag | None:
    """Judge a flag that sets up a backend, by what the backend says of it: None where it says nothing.

    `settings`: those of all flags.
    """
    if not given:
        return None
    try:
        backends, lines = _made(settings)
    except ServingError as error:
        if any(key in error.message for of in given.values() for key in of):
            return Flag(text, REFUSED, error.message, "correct its value")
        return None
    if unknown := given.keys() - backends.keys() - {""}:
        words = f"there is no backend '{min(unknown)}' here; there are {', '.join(sorted(backends))}"
        return Flag(text, NO_EFFECT, words, "leave it out")
    told = [line for line in lines for name in given for key in given[name] if line.startswith(f"backend-config {name},{key} ")]
    return Flag(text, NO_EFFECT, told[0], "leave it out") if told else None


def _made(settings: Settings) -> tuple[Mapping[str, Backend], list[str]]:
    """Return the backends with these settings, and what they log of them. Raises ServingError."""
    root, sentences = logging.getLogger(), _Sentences()
    level = root.level
    root.addHandler(sentences)
    root.setLevel(logging.INFO)
    try:
        return Plugins().backends(Kernel(backend_config=settings)), sentences.lines
    finally:
        root.removeHandler(sentences)
        root.setLevel(level)
