"""How a mistake in a model's config is told: one class, one form of sentence.

`<file>:<line>:<column>: <the reference's words> — <what came, what was wanted>`, as compilers have it, for people; for the load
API and the index, which scripts search, the reference's words come first and the place last. Knows no rule: who finds the
mistake brings words.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from kernel.errors import Code, ServingError, clipped

__all__ = ["ConfigError", "ConfigErrors", "did_you_mean", "listed", "shown", "words_first"]

#: How many mistakes of one config its text tells; the rest are counted.
MAX_LINES = 30


class ConfigError(ServingError):
    """One mistake in one config.

    `stage`: "A" found while reading, "B" while loading one version, "C" while comparing an ensemble with its models.
    `path`: the file, or what stands for it. `line` and `column` count from 1 and are None where the value stands in no
    file. `field`: the path of the field, such as `input[0].dims[1]`. `words`: the reference's own sentence. `detail`:
    what came, what was wanted, near names. `code`: as of any ServingError.
    """

    def __init__(
        self,
        words: str,
        detail: str = "",
        *,
        stage: str = "B",
        path: str = "",
        line: int | None = None,
        column: int | None = None,
        field: str = "",
        code: Code = Code.INVALID_ARG,
    ) -> None:
        place = path
        if line is not None:
            place = f"{path}:{line}" if column is None else f"{path}:{line}:{column}"
        text = f"{words} — {detail}" if words and detail else words or detail
        super().__init__(code, f"{place}: {text}" if place else text)
        self.words_first = f"{text} ({place})" if place else text
        self.words = words
        self.detail = detail
        self.stage = stage
        self.path = path
        self.line = line
        self.column = column
        self.field = field

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        """This one: so that it is read as ConfigErrors are."""
        return (self,)


class ConfigErrors(ServingError):
    """All mistakes of one config: `errors`, at least one, in the order of the file. Its text is theirs, one a line."""

    def __init__(self, errors: Iterable[ConfigError]) -> None:
        self.errors: tuple[ConfigError, ...] = tuple(sorted(errors, key=_order))
        assert self.errors, "an error without a mistake"
        lines = [error.message for error in self.errors[:MAX_LINES]]
        if len(self.errors) > MAX_LINES:
            lines.append(f"… and {len(self.errors) - MAX_LINES} more mistakes")
        super().__init__(self.errors[0].code, "\n".join(lines))

    @property
    def words_first(self) -> str:
        """The text with the places last."""
        lines = [error.words_first for error in self.errors[:MAX_LINES]]
        return "\n".join([*lines, *self.message.splitlines()[MAX_LINES:]])

    @property
    def stage(self) -> str:
        """The earliest stage of its mistakes: what decides the status of a failed load."""
        return min(error.stage for error in self.errors)


def words_first(error: ServingError) -> str:
    """Return an error's text as scripts search it: the reference's words first."""
    return error.words_first if isinstance(error, (ConfigError, ConfigErrors)) else error.message


def _order(error: ConfigError) -> tuple[bool, int, int, str]:
    return error.line is None, error.line or 0, error.column or 0, error.stage


#: Among how many names is looked for one that is near.
MANY = 1000


def did_you_mean(name: str, names: Iterable[str], *, wrap: str = "'") -> str:
    """Return `; did you mean 'x' or 'y'?` for the names near to `name`, or nothing where none is, or there are very many."""
    known = {candidate.lower(): candidate for candidate in names}
    if len(known) > MANY:  # to compare two takes some ten microseconds
        return ""
    near = [known[match] for match in difflib.get_close_matches(name[:100].lower(), known, n=2, cutoff=0.6)]
    if len(near) == 2 and _ratio(name, near[0]) - _ratio(name, near[1]) > 0.15:
        near.pop()  # the second guess would only blur the first
    return f"; did you mean {' or '.join(f'{wrap}{match}{wrap}' for match in near)}?" if near else ""


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one[:100].lower(), other.lower()).ratio()


def listed(names: Iterable[str], *, limit: int = 20) -> str:
    """Return the names as a list for a sentence, cut where there are very many."""
    all_names = list(names)
    text = ", ".join(f"'{name}'" for name in all_names[:limit])
    return f"{text} and {len(all_names) - limit} more" if len(all_names) > limit else text or "none"


def shown(value: object, limit: int = 60) -> str:
    """Return a value that came from a file, short and on one line."""
    listed = isinstance(value, Sequence) and not isinstance(value, (str, list))
    text = str(list(value)) if listed else str(value)  # type: ignore[call-overload]
    text = clipped(text, len(text))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
