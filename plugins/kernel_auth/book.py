"""The file of keys: TOML to records, strictly, each mistake with its file, line and column. Knows no keys, only their hashes."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kernel import CATEGORIES, Code, ServingError
from kernel_auth.places import line_and_column, place_of
from kernel_auth.rules import Grant

__all__ = ["ALGORITHMS", "Book", "Client", "TokenSettings", "parse_book", "read_book"]

#: What may sign tokens: with a secret key that nobody has but who issues them.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")

#: Categories with operations that change something for everybody.
CHANGING = frozenset({"logging", "model-repository", "shared-memory", "trace"})

_KEY = re.compile(r"sha256:[0-9a-f]{64}").fullmatch
_AT = re.compile(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)$")

_FIELDS = {
    "": ("client", "jwt", "open"),
    "client": ("burst", "concurrency", "keys", "may", "name", "rate"),
    "may": ("categories", "models"),
    "jwt": ("algorithms", "audience", "burst", "claim", "concurrency", "issuer", "jwks", "prefix", "rate"),
}

Path_ = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """`rate`: requests a second, `burst` at once; `concurrency`: at a time. 0 for any number."""

    rate: float
    burst: float
    concurrency: int


@dataclass(frozen=True, slots=True)
class Client:
    """`digests`: of its keys, in hexadecimal."""

    name: str
    digests: tuple[str, ...]
    limits: Limits
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Which tokens are taken. `jwks`: a path or a URL; `claim`: has the scopes, those that begin with `prefix` count."""

    jwks: str
    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    claim: str
    prefix: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class Book:
    """`open`: categories that nobody needs a key for."""

    open: frozenset[str]
    clients: tuple[Client, ...]
    tokens: TokenSettings | None


def read_book(path: Path) -> Book:
    """Read the file. Raises ServingError."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ServingError(Code.INVALID_ARG, f"--auth-keys: {path} can't be read: {error}") from None
    return parse_book(text, str(path))


def parse_book(text: str, name: str) -> Book:
    """Read the text of the file called `name`. Raises ServingError with the place of the first mistake."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        words = str(error)
        found = _AT.search(words)
        line, column = (found[1], found[2]) if found and found[1] else line_and_column(text, len(text))
        raise ServingError(Code.INVALID_ARG, f"{name}:{line}:{column}: {_AT.sub('', words)}") from None
    return _KeysFile(text, name).book(document)


class _KeysFile:
    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name

    def fail(self, path: Path_, message: str) -> NoReturn:
        line, column = line_and_column(self._text, place_of(self._text, path))
        raise ServingError(Code.INVALID_ARG, f"{self._name}:{line}:{column}: {message}")

    # --- the records

    def book(self, document: Mapping[str, Any]) -> Book:
        self.known(document, "", ())
        open_ = self.categories(document, (), "open", "health")
        for one in sorted(open_ & CHANGING):
            self.fail(("open",), f"'{one}' can't be open: it changes the server, for which a key is needed")
        tables = document.get("client", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self.fail(("client",), "'client' is not a list of tables, as [[client]] makes one")
        clients = tuple(self.client(table, ("client", k)) for k, table in enumerate(tables))
        self.no_twins(clients)
        jwt = document.get("jwt")
        if jwt is not None and not isinstance(jwt, dict):
            self.fail(("jwt",), "'jwt' is not a table, as [jwt] makes one")
        tokens = None if jwt is None else self.tokens(jwt)
        if not clients and tokens is None:
            self.fail((), "there is neither a [[client]] nor [jwt]: nobody could be served")
        return Book(open_, clients, tokens)

    def client(self, table: Mapping[str, Any], path: Path_) -> Client:
        self.known(table, "client", path)
        name = self.text(table, path, "name")
        keys = self.texts(table, path, "keys")
        for key in keys:
            if not _KEY(key):
                words = f"'{key[:80]}' is not 'sha256:' and 64 hexadecimal digits; `python -m kernel_auth` makes one"
                self.fail((*path, "keys"), words)
        may = table.get("may")
        if not isinstance(may, list) or not may or not all(isinstance(grant, dict) for grant in may):
            words = f"'may' of client '{name}' is {_shown(may)}, wanted a list of tables with models and categories"
            self.fail((*path, "may"), words)
        grants = tuple(self.grant(grant, (*path, "may", k)) for k, grant in enumerate(may))
        return Client(name, tuple(key.removeprefix("sha256:") for key in keys), self.limits(table, path), grants)

    def grant(self, table: Mapping[str, Any], path: Path_) -> Grant:
        self.known(table, "may", path)
        return Grant(self.texts(table, path, "models"), self.categories(table, path, "categories"))

    def tokens(self, table: Mapping[str, Any]) -> TokenSettings:
        path = ("jwt",)
        self.known(table, "jwt", path)
        algorithms = self.texts(table, path, "algorithms") if "algorithms" in table else ("RS256", "ES256", "EdDSA")
        for one in algorithms:
            if one not in ALGORITHMS:
                self.fail((*path, "algorithms"), f"there is no algorithm '{one}' here; there are {', '.join(ALGORITHMS)}")
        jwks = self.text(table, path, "jwks")
        if "://" in jwks and not jwks.startswith("https://"):
            self.fail((*path, "jwks"), f"'{jwks}' is neither a path nor an https:// address")
        return TokenSettings(
            jwks=jwks,
            issuer=self.text(table, path, "issuer"),
            audience=self.text(table, path, "audience"),
            algorithms=algorithms,
            claim=self.text(table, path, "claim") if "claim" in table else "scope",
            prefix=self.text(table, path, "prefix", empty=True) if "prefix" in table else "kernel:",
            limits=self.limits(table, path),
        )

    # --- fields

    def known(self, table: Mapping[str, Any], kind: str, path: Path_) -> None:
        for field in table:
            if field not in _FIELDS[kind]:
                near = difflib.get_close_matches(field, _FIELDS[kind], 1)
                hint = f"; did you mean '{near[0]}'?" if near else f"; there are {', '.join(_FIELDS[kind])}"
                self.fail((*path, field), f"unknown field '{field}'{hint}")

    def text(self, table: Mapping[str, Any], path: Path_, field: str, *, empty: bool = False) -> str:
        value = table.get(field)
        if not isinstance(value, str) or not (value or empty):
            self.fail((*path, field), f"'{field}' is {_shown(value)}, wanted a string")
        return value

    def texts(self, table: Mapping[str, Any], path: Path_, field: str) -> tuple[str, ...]:
        value = table.get(field)
        if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
            self.fail((*path, field), f"'{field}' is {_shown(value)}, wanted a list of strings")
        return tuple(value)

    def categories(self, table: Mapping[str, Any], path: Path_, field: str, default: str = "") -> frozenset[str]:
        if default and field not in table:
            return frozenset({default})
        if default and table[field] == []:
            return frozenset()
        found = self.texts(table, path, field)
        for one in found:
            if one != "*" and one not in CATEGORIES:
                self.fail((*path, field), f"there is no category '{one}'; there are {', '.join(CATEGORIES)}, and * for all")
        return frozenset(CATEGORIES) if "*" in found else frozenset(found)

    def limits(self, table: Mapping[str, Any], path: Path_) -> Limits:
        rate = self.number(table, path, "rate")
        burst = self.number(table, path, "burst") or max(1.0, math.ceil(rate))
        if burst < 1.0:
            self.fail((*path, "burst"), f"'burst' is {burst:g}, wanted at least 1")
        if not rate and "burst" in table:
            self.fail((*path, "burst"), "there is a 'burst' without a 'rate'")
        concurrency = table.get("concurrency", 0)
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 0:
            self.fail((*path, "concurrency"), f"'concurrency' is {_shown(concurrency)}, wanted an integer, 0 for any number")
        return Limits(rate, burst, concurrency)

    def number(self, table: Mapping[str, Any], path: Path_, field: str) -> float:
        value = table.get(field, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            self.fail((*path, field), f"'{field}' is {_shown(value)}, wanted a number, 0 for no limit")
        return float(value)

    def no_twins(self, clients: tuple[Client, ...]) -> None:
        names: set[str] = set()
        clients_of: dict[str, str] = {}
        for k, client in enumerate(clients):
            if client.name in names:
                self.fail(("client", k, "name"), f"there are two clients '{client.name}'")
            names.add(client.name)
            for digest in client.digests:
                if digest in clients_of:
                    self.fail(("client", k, "keys"), f"'{client.name}' has a key that '{clients_of[digest]}' has, too")
                clients_of[digest] = client.name


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
