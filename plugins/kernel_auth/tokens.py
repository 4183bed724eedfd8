"""Tokens (JWT): whose they are and what they allow, by the public keys of who issues them (JWKS). PyJWT says which are valid.

Keys are read at the start, and then on a thread, every few minutes and when a token names one that is not known. No call waits.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernel import CATEGORIES, Code, ServingError, how_to_install
from kernel_auth.book import TokenSettings
from kernel_auth.rules import Grant

__all__ = ["Token", "Tokens", "Wrong", "grants_of"]

#: How often the keys are read anew, in seconds; and how often at most because a token names one that is not known.
REFRESH_SECONDS = 300.0
UNKNOWN_SECONDS = 10.0

#: The longest token and the largest set of keys that are looked at, in bytes; how long a server of keys may take, in seconds.
LONGEST = 8192
LARGEST = 1024 * 1024
PATIENCE = 10.0

#: How far the clock of who issues tokens may be off, in seconds.
LEEWAY = 10.0

#: How many valid tokens are remembered.
REMEMBERED = 1024


class Wrong(Exception):
    """A key or a token that is none; the words are for who has sent it."""


class Token(NamedTuple):
    """What a valid token says. `until`: when it ends, on the kernel's clock."""

    subject: str
    grants: tuple[Grant, ...]
    until: float


class Tokens:
    """The tokens that settings take. Paths are relative to `folder`. Raises ServingError where the keys can't be had."""

    def __init__(self, settings: TokenSettings, folder: Path) -> None:
        try:
            import jwt
        except ImportError as error:
            raise ServingError(
                Code.UNAVAILABLE,
                f"[jwt] of --auth-keys needs a package that is not installed ({error}): {how_to_install('auth-jwt')}",
            ) from error
        self._jwt: Any = jwt
        self._settings = settings
        self._folder = folder
        self._keys: dict[str, Any] = {}  # by their id, "" for one without
        self._known: dict[bytes, Token] = {}
        self._refresh_at = float("-inf")
        self._asked_at = float("-inf")
        self._wanted = False  # a token has named a key that is not known
        self._busy = threading.Lock()
        try:
            self.read()
        except Exception as error:
            raise ServingError(Code.UNAVAILABLE, f"the keys of tokens can't be read: {error}") from error

    # --- keys

    def is_due(self, now: float) -> bool:
        """Whether the keys should be read now; says so once."""
        if self._refresh_at == float("-inf"):  # they were read just now, by whoever made this
            self._refresh_at = now + REFRESH_SECONDS
        if now < self._refresh_at and not (self._wanted and now >= self._asked_at + UNKNOWN_SECONDS):
            return False
        self._refresh_at = now + REFRESH_SECONDS
        self._asked_at = now
        self._wanted = False
        return True

    def read(self) -> bool:
        """Read the keys, and return whether they have changed. Not on the loop. Raises what hinders that, with the place."""
        with self._busy:
            source = self._settings.jwks
            try:
                found = self._jwt.PyJWKSet.from_json(self._text(source)).keys
            except Exception as error:
                raise ValueError(f"{source}: {error}") from error
            keys = {key.key_id or "": key for key in found if key.public_key_use in (None, "sig")}
            keys = {id: key for id, key in keys.items() if key.algorithm_name in self._settings.algorithms}
            if not keys:
                raise ValueError(f"{source}: none of {len(found)} keys is for {', '.join(self._settings.algorithms)}")
            changed = keys.keys() != self._keys.keys() or any(key.key != self._keys[id].key for id, key in keys.items())
            self._keys = keys
            if changed:
                self._known = {}  # a key that has gone takes its tokens along
            return changed

    def _text(self, source: str) -> str:
        if not source.startswith("https://"):
            return (self._folder / source).read_text("utf-8")
        with urllib.request.urlopen(source, timeout=PATIENCE) as answer:
            data: bytes = answer.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise ValueError(f"more than {LARGEST} bytes")
        return data.decode()

    # --- tokens

    def token(self, data: bytes, now: float) -> Token:
        """Return what a token says. Raises Wrong where it is not valid."""
        token = self._known.get(data)
        if token is None:
            token = self._verified(data, now)
            if len(self._known) >= REMEMBERED:
                self._known = {}
            self._known[data] = token
        if now >= token.until:
            self._known.pop(data, None)
            raise Wrong("the token has expired")
        return token

    def _verified(self, data: bytes, now: float) -> Token:
        settings, jwt = self._settings, self._jwt
        if len(data) > LONGEST or data.count(b".") != 2:
            raise Wrong("the key is not known, and it is no token")
        try:
            header = jwt.get_unverified_header(data)
            key = self._key(header.get("kid"))
            if header.get("alg") != key.algorithm_name:
                raise Wrong("the token is not valid: it is signed by another algorithm than its key is for")
            claims = jwt.decode(
                data,
                key.key,
                algorithms=[key.algorithm_name],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "sub", "iss", "aud"]},
            )
            until = now + int(claims["exp"]) + LEEWAY - time.time()  # perhaps a string of digits, which PyJWT takes, too
        except Wrong:
            raise
        except Exception as error:  # whatever a stranger's bytes bring about in others' parsers, it is no valid token
            raise Wrong(f"the token is not valid: {error}") from None
        return Token(str(claims["sub"]), grants_of(claims.get(settings.claim), settings.prefix), until)

    def _key(self, id: object) -> Any:
        if id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        key = self._keys.get(id) if isinstance(id, str) else None
        if key is None:
            self._wanted = True
            raise Wrong("the token is not valid: it is signed with a key that is not known")
        return key


def grants_of(claim: object, prefix: str) -> tuple[Grant, ...]:
    """Return what the scopes of a claim allow, such as `kernel:inference` or `kernel:inference:resnet*`.

    `claim`: words in one string, or a list of them. Those without the prefix are other servers' business.
    """
    words: Sequence[object] = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else ()
    found = []
    for word in words:
        if isinstance(word, str) and word.startswith(prefix):
            category, _, model = word.removeprefix(prefix).partition(":")
            categories = frozenset(CATEGORIES) if category == "*" else frozenset({category} & set(CATEGORIES))
            if categories:
                found.append(Grant((model or "*",), categories))
    return tuple(found)
