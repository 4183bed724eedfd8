"""The gate: whose key or token a request shows, and whether the rules let it pass. What it says, it says by raising Denied.

What stands in the file is an Edition, which another one replaces when the file has changed; what clients use (Usage) lives on.
Everything is on the loop but for reading, which a thread does.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kernel import Asking, Denial, Denied, ServingError, Standing, Stay
from kernel_auth.audit import Audit
from kernel_auth.book import Book, Limits, read_book
from kernel_auth.rules import Identity, Usage
from kernel_auth.tokens import Token, Tokens, Wrong

if TYPE_CHECKING:
    import asyncio

    from kernel import Kernel

T = TypeVar("T")

__all__ = ["Edition", "KeyDoor", "KeyGate", "credential_of"]

log = logging.getLogger("kernel_auth")

#: How often, at most, the file is looked at, in seconds; only a request makes anybody look.
LOOK_SECONDS = 1.0

#: Why a request was refused that has as many beside it as may be: nobody knows when one of them is over.
RETRY_SECONDS = 1.0

#: Of how many subjects of tokens the usage is kept. Those that use nothing go first.
SUBJECTS = 4096

NO_KEY = "a key is needed: 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
WRONG_KEY = "the key is not known"

#: That of doors at which each request is asked.
NEVER = Standing(holds=False)


class Edition:
    """One state of the file, and the keys of its tokens' issuer. `mark`: what the file looked like."""

    def __init__(self, path: Path) -> None:
        """Read all of it. Raises ServingError."""
        self.mark = mark_of(path)
        self.book: Book = read_book(path)
        self.tokens = None if self.book.tokens is None else Tokens(self.book.tokens, path.parent)
        self.by_digest = {digest: client for client in self.book.clients for digest in client.digests}
        self.identities: dict[str, Identity] = {}  # of those of the file that have come, by name


def mark_of(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when the file does, None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def credential_of(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the key or token in a request's header fields, empty where there is none."""
    key = b""
    for name, value in fields:
        match name.lower():
            case b"authorization":
                scheme, _, rest = value.strip().partition(b" ")
                if scheme.lower() == b"bearer" and rest:
                    return rest.strip()
            case b"x-api-key" if not key:
                key = value.strip()
    return key


class KeyGate:
    """Who may do what, by the file at `path`. Raises ServingError where that can't be used at the start."""

    def __init__(self, kernel: Kernel, path: Path) -> None:
        self.clock = kernel.clock
        self.audit = Audit()
        self.edition = Edition(path)
        self.look_at = self.clock() + LOOK_SECONDS
        self.standing = NEVER  # of the doors that ask nothing before `look_at`
        self._kernel = kernel
        self._path = path
        self._seen = self.edition.mark  # the file as it was read last, or tried to
        self._reading = False
        self._usages: dict[str, Usage] = {}  # by the client's name
        self._subjects: dict[str, Usage] = {}  # by the token's

    def door(
        self, fields: Iterable[tuple[bytes, bytes]], category: str, operation: str, model: str | None, changes: bool
    ) -> KeyDoor:
        return KeyDoor(self, credential_of(fields), category, operation, model, changes)

    # --- the file

    def look(self, now: float) -> None:
        """See whether the file has changed; have a thread read it then."""
        self.look_at = now + LOOK_SECONDS
        self._ask_anew()
        tokens = self.edition.tokens
        if tokens is not None and tokens.is_due(now):
            self._aside(tokens.read).add_done_callback(lambda done: self._has_keys(tokens, done))
        mark = mark_of(self._path)
        if mark != self._seen and not self._reading:
            self._reading = True
            self._seen = mark
            self._aside(lambda: Edition(self._path)).add_done_callback(self._has_read)

    def stand(self, now: float) -> Standing:
        """Return what holds until the file is to be looked at again, or has changed."""
        if not self.standing.holds:
            self.standing = Standing(holds=True)
            self._kernel.loop.call_later(self.look_at - now, _end, self.standing)
        return self.standing

    def _ask_anew(self) -> None:
        self.standing.holds = False

    def _aside(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return self._kernel.loop.run_in_executor(None, work)

    def _has_read(self, done: asyncio.Future[Edition]) -> None:
        self._reading = False
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            said = error.message if isinstance(error, ServingError) else f"{type(error).__name__}: {error}"
            log.error("the file of keys has changed and can't be used, the old one stays in force: %s", said)
            return
        self.edition = edition = done.result()
        self._ask_anew()
        self._seen = edition.mark
        limits = {client.name: client.limits for client in edition.book.clients}
        now = self.clock()
        for name, usage in list(self._usages.items()):
            if name in limits:
                _change(usage, limits[name], now)
            elif not usage.running:
                del self._usages[name]
        if edition.book.tokens is not None:
            for usage in self._subjects.values():
                _change(usage, edition.book.tokens.limits, now)
        log.info("the file of keys was read anew: %d clients", len(edition.book.clients))

    def _has_keys(self, tokens: Tokens, done: asyncio.Future[bool]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            log.error("the keys of tokens can't be read, the old ones stay in force: %s", error)
        elif done.result() and tokens is self.edition.tokens:
            self.edition = copy.copy(self.edition)  # so that each door looks anew whose token it has
            self._ask_anew()

    # --- who it is

    def identify(self, credential: bytes, now: float) -> Identity:
        """Return whose key or token it is. Raises Wrong."""
        if not credential:
            raise Wrong(NO_KEY)
        edition = self.edition
        digest = hashlib.sha256(credential).hexdigest()
        client = edition.by_digest.get(digest)
        # The look-up is by the hash of what came, so its time tells nothing of a key; that they are equal is asked all the same.
        if client is not None and any(hmac.compare_digest(digest, one) for one in client.digests):
            identity = edition.identities.get(client.name)
            if identity is None:
                usage = _usage_of(self._usages, client.name, client.limits)
                identity = edition.identities[client.name] = Identity(client.name, client.grants, usage)
            return identity
        if edition.tokens is None:
            raise Wrong(WRONG_KEY)
        return self._identity_of(edition.tokens.token(credential, now), edition)

    def _identity_of(self, token: Token, edition: Edition) -> Identity:
        settings = edition.book.tokens
        assert settings is not None
        if len(self._subjects) >= SUBJECTS and token.subject not in self._subjects:
            for name in [name for name, usage in self._subjects.items() if not usage.running][: SUBJECTS // 4]:
                del self._subjects[name]
        usage = _usage_of(self._subjects, token.subject, settings.limits)
        return Identity(f"jwt:{token.subject}", token.grants, usage, token.until)


def _end(standing: Standing) -> None:
    standing.holds = False


def _usage_of(usages: dict[str, Usage], name: str, limits: Limits) -> Usage:
    usage = usages.get(name)
    if usage is None:
        usage = usages[name] = Usage(limits.rate, limits.burst, limits.concurrency)
    return usage


def _change(usage: Usage, limits: Limits, now: float) -> None:
    usage.change(limits.rate, limits.burst, limits.concurrency, now)


class KeyDoor:
    """What the gate says to requests with one head. Who they are from is looked up once for each edition of the file.

    `_look_at`: when the file is to be looked at again, or the token ends. `_usage`: None where of a request nothing is counted
    or told: then `standing` holds until the file is looked at again, and nobody asks before.
    `allowed`: the model that `allow` has let pass last; holds for `_identity`, and goes with it.
    """

    __slots__ = (
        "_category",
        "_changes",
        "_credential",
        "_edition",
        "_gate",
        "_identity",
        "_look_at",
        "_model",
        "_operation",
        "_usage",
        "allowed",
        "standing",
    )  # fmt: skip

    def __init__(
        self, gate: KeyGate, credential: bytes, category: str, operation: str, model: str | None, changes: bool
    ) -> None:
        self._gate = gate
        self._credential = credential
        self._category = category
        self._operation = operation
        self._model = model
        self._changes = changes
        self._edition: Edition | None = None
        self._identity: Identity | None = None  # None: of an open category, whoever it is from
        self._look_at = 0.0
        self._usage: Usage | None = None
        self.allowed: str | None = None
        self.standing = NEVER

    def check(self, asking: Asking) -> None:
        now = self._gate.clock()
        if now >= self._look_at or self._edition is not self._gate.edition:
            self._look(asking, now)

    def enter(self, asking: Asking) -> Stay | None:
        gate = self._gate
        now = gate.clock()
        if now >= self._look_at or self._edition is not gate.edition:
            self._look(asking, now)
        usage = self._usage
        if usage is None:
            return None
        if usage.running >= usage.most:
            words = f"has {usage.running} requests under way, which are as many as it may have"
            self._exhaust(asking, now, words, RETRY_SECONDS)
        if wait := usage.bucket.take(now):
            rate = usage.bucket.rate
            self._exhaust(asking, now, f"may send {rate:g} requests a second; try again in {wait:.3g} s", wait)
        if self._changes:
            assert self._identity is not None
            gate.audit.changed(self._identity.name, asking.client, self._operation, self._model or "")
        return usage.stay

    def allow(self, asking: Asking, model: str, changes: bool) -> None:
        gate = self._gate
        # It has entered: a token that ends while its message comes does it no harm, a file that knows it no more does.
        if model == self.allowed and self._edition is gate.edition and not changes:
            return
        now = gate.clock()
        if now >= self._look_at or self._edition is not gate.edition:
            self._look(asking, now)
        identity = self._identity
        if identity is None:
            return
        if not identity.may(self._category, model):
            self._forbid(asking, now, identity, model)
        self.allowed = model
        if changes:
            gate.audit.changed(identity.name, asking.client, self._operation, model)

    def _look(self, asking: Asking, now: float) -> None:
        """Have the file looked at, find out who it is and whether he may. Raises Denied; the next request asks anew then."""
        gate = self._gate
        self.standing = NEVER
        if now >= gate.look_at:
            gate.look(now)
        edition = gate.edition
        identity = self._identity
        if self._edition is not edition or (identity is not None and now >= identity.until):
            self._edition = self.allowed = None
            identity = None if self._category in edition.book.open else self._identified(asking, now)
            self._identity = identity
            counted = identity is not None and (self._changes or identity.usage.limited)
            self._usage = identity.usage if identity is not None and counted else None
            self._edition = edition
        self._look_at = gate.look_at if identity is None else min(gate.look_at, identity.until)
        if self._usage is None and self._look_at == gate.look_at:
            self.standing = gate.stand(now)

    def _identified(self, asking: Asking, now: float) -> Identity:
        """Return who it is, and may. Raises Denied."""
        try:
            identity = self._gate.identify(self._credential, now)
        except Wrong as error:
            raise self._denied(asking, now, Denial.UNKNOWN, "", self._model or "", str(error)) from None
        if not identity.may(self._category, self._model):
            self._forbid(asking, now, identity, self._model)
        return identity

    def _forbid(self, asking: Asking, now: float, identity: Identity, model: str | None) -> None:
        of = f" of model '{model[:200]}'" if model else " of any model" if model is None else " of what belongs to no one model"
        words = f"client '{identity.name}' may not use '{self._category}'{of}"
        raise self._denied(asking, now, Denial.FORBIDDEN, identity.name, model or "", words)

    def _exhaust(self, asking: Asking, now: float, words: str, wait: float) -> None:
        assert self._identity is not None
        name = self._identity.name
        raise self._denied(asking, now, Denial.EXHAUSTED, name, self._model or "", f"client '{name}' {words}", wait)

    def _denied(
        self, asking: Asking, now: float, denial: Denial, client: str, model: str, words: str, wait: float = 0.0
    ) -> Denied:
        self._gate.audit.refused(now, denial, client, asking.client, self._operation, model, words)
        return Denied(denial, words, wait)
