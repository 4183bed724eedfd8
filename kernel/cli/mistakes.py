"""Mistakes of models as other programs read them: one line each as compilers write, JSON, or SARIF. Finds none itself."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from kernel import __version__
from kernel.cli.table import printable
from kernel.config import ConfigError
from kernel.errors import ServingError

__all__ = ["FORMATS", "Mistake", "mistake_of", "warning_of", "written"]

#: Besides `text`, which is for people.
FORMATS = ("gcc", "json", "sarif")

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

#: How a sentence tells its place first.
_PLACE = re.compile(
    r"(?P<path>(?:/|\.|\w+://)?[^:\n]+?)(?::(?P<line>[0-9]{1,9}))?(?::(?P<column>[0-9]{1,9}))?: (?P<words>.*)", re.DOTALL
)


class Place(NamedTuple):
    path: str
    line: int | None
    column: int | None
    words: str


@dataclass(frozen=True)
class Mistake:
    """`severity`: error or warning. `path`: of the file, or of the model's folder. `field`: of the config, "" for none."""

    model: str
    severity: str
    path: str
    line: int | None
    column: int | None
    field: str
    message: str


def mistake_of(model: str, folder: str, error: ServingError) -> Mistake:
    """Return a mistake of a model that lies in `folder`."""
    if isinstance(error, ConfigError):
        words = f"{error.words} — {error.detail}" if error.words and error.detail else error.words or error.detail
        return Mistake(model, "error", error.path or folder, error.line, error.column, error.field, words)
    place = _placed(error.message, folder)
    return Mistake(model, "error", place.path, place.line, place.column, "", place.words)


def warning_of(model: str, folder: str, sentence: str) -> Mistake:
    """Return a warning, which is a sentence that may begin with its place."""
    place = _placed(sentence, folder)
    return Mistake(model, "warning", place.path, place.line, place.column, "", place.words)


def _placed(sentence: str, folder: str) -> Place:
    found = _PLACE.match(sentence)
    if found is None or not found["path"].startswith(folder):
        return Place(folder, None, None, sentence)
    line, column = (None if text is None else int(text) for text in (found["line"], found["column"]))
    return Place(found["path"], line, column, found["words"])


def written(form: str, mistakes: Sequence[Mistake], models: int) -> str:
    """Return all mistakes in one of FORMATS. `models`: how many were looked at."""
    if form == "gcc":
        return "\n".join(_gcc(mistakes))
    document = _sarif(mistakes) if form == "sarif" else {"models": models, "mistakes": [_record(one) for one in mistakes]}
    return json.dumps(document, indent=2)


def _gcc(mistakes: Iterable[Mistake]) -> Iterable[str]:
    """Yield a line each, which editors find the place by."""
    for one in mistakes:
        place = ":".join(str(part) for part in (one.path, one.line, one.column) if part is not None)
        yield printable(f"{place}: {one.severity}: {' '.join(one.message.split())} [{one.model}]")  # names may have line ends


def _record(one: Mistake) -> dict[str, Any]:
    return {name: _sendable(value) if isinstance(value, str) else value for name, value in asdict(one).items()}


def _sarif(mistakes: Iterable[Mistake]) -> dict[str, Any]:
    rules = {"error": "a model can't be served", "warning": "a model can be served and hardly is what was meant"}
    driver = {
        "name": "kernel check",
        "version": __version__,
        "rules": [{"id": f"model-{kind}", "shortDescription": {"text": words}} for kind, words in rules.items()],
    }
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": [_result(one) for one in mistakes]}],
    }


def _result(one: Mistake) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(one.path)}}
    if one.line:  # what is counted begins with 1
        place["region"] = {"startLine": one.line} | ({"startColumn": one.column} if one.column else {})
    return {
        "ruleId": f"model-{one.severity}",
        "level": one.severity,
        "message": {"text": _sendable(f"model '{one.model}': {one.message}")},
        "locations": [{"physicalLocation": place}],
    }


def _uri(path: str) -> str:
    """Return a path, or the address of an object in a store, as a reference, whatever bytes the name has."""
    if path.startswith("/"):
        return Path(path).as_uri()
    scheme, mark, rest = path.partition("://")
    if not (mark and re.fullmatch("[a-z][a-z0-9]*", scheme)):
        scheme, mark, rest = "", "", path
    return f"{scheme}{mark}{quote(os.fsencode(rest), safe='/@')}"


def _sendable(text: str) -> str:
    """Return a text as UTF-8 can carry it."""
    return text.encode(errors="backslashreplace").decode()
