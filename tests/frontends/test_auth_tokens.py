"""Tokens as keys: what of a JWT is believed, by the keys of a local file. PyJWT is asked for real."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from frontends.callers import close_loops
from frontends.fakes import Client, FakeKernel, infer, request, tensor
from frontends.test_auth_grpc import NEWEST, UNAUTHENTICATED, Gated, Indexing, Streaming, entering
from frontends.test_auth_grpc import request as any_request
from hypothesis import example, given
from hypothesis import strategies as st

from kernel import ServingError
from kernel_auth.book import parse_book
from kernel_auth.gate import KeyGate
from kernel_auth.tokens import UNKNOWN_SECONDS, Token, Tokens, Wrong

jwt = pytest.importorskip("jwt")
ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")

BODY = {"inputs": [tensor("X", "FP32", [2], [1, 2])]}
FILE = '[jwt]\njwks = "jwks.json"\nissuer = "me"\naudience = "models"\n'
ONE, TWO, OTHER = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))


def write_jwks(folder: Path, **keys: Any) -> None:
    """Write the public halves of keys, by their ids."""
    made = [
        {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": id, "use": "sig", "alg": "ES256"}
        for id, key in keys.items()
    ]
    (folder / "jwks.json").write_text(json.dumps({"keys": made}))


def token(key: Any = ONE, kid: str | None = "one", algorithm: str = "ES256", **claims: Any) -> bytes:
    """Sign a token; claims that are None are left out."""
    whole = {"iss": "me", "aud": "models", "sub": "s", "exp": time.time() + 1000, "scope": "kernel:inference:mult*", **claims}
    headers = {"kid": kid} if kid else {}
    made: str = jwt.encode({k: v for k, v in whole.items() if v is not None}, key, algorithm, headers=headers)
    return made.encode()


def tokens(folder: Path) -> Tokens:
    settings = parse_book(FILE, "f").tokens
    assert settings is not None
    return Tokens(settings, folder)


def test_a_valid_one(tmp_path: Path) -> None:
    write_jwks(tmp_path, one=ONE)
    found = tokens(tmp_path)
    for kid in ("one", None):  # with one key there is no question which
        said = found.token(token(kid=kid), 50.0)
        assert said.subject == "s" and said.grants[0].models == ("mult*",) and 1050.0 <= said.until <= 1065.0
    with pytest.raises(Wrong, match="the token has expired"):
        found.token(made := token(), 50.0) and found.token(made, 2000.0)


def none() -> bytes:
    return jwt.encode({"sub": "s", "iss": "me", "aud": "models", "exp": time.time() + 9}, None, "none", {"kid": "one"}).encode()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: b"key", "it is no token"),
        (lambda: b"a.b.c", "Invalid header"),
        (lambda: token() + b"x" * 9000, "it is no token"),
        (lambda: token(OTHER), "Signature verification failed"),
        (lambda: token(OTHER, "other"), "signed with a key that is not known"),
        (lambda: token(exp=time.time() - 60), "Signature has expired"),
        (lambda: token(nbf=time.time() + 60), "not yet valid"),
        (lambda: token(iss="you"), "issuer"),
        (lambda: token(aud="others"), "Audience"),
        *((lambda name=name: token(**{name: None}), name) for name in ("exp", "sub", "iss", "aud")),
        (lambda: token("x" * 40, algorithm="HS256"), "signed by another algorithm than its key is for"),
        (none, "signed by another algorithm than its key is for"),
    ],
)
def test_what_is_not_believed(make: Any, why: str, tmp_path: Path) -> None:
    write_jwks(tmp_path, one=ONE)
    with pytest.raises(Wrong) as caught:
        tokens(tmp_path).token(make(), 0.0)
    assert why in str(caught.value)


def test_an_end_in_digits(tmp_path: Path) -> None:
    write_jwks(tmp_path, one=ONE)
    assert tokens(tmp_path).token(token(exp=str(int(time.time()) + 100)), 0.0).until > 100.0


@given(st.binary(max_size=60) | st.builds(lambda a, b, c: a + b"." + b + b"." + c, *[st.binary(max_size=40)] * 3))
@example(b'eyJhbGciOiJFUzI1NiJ9.' + b"W1tb" * 1000 + b".x")
def test_no_bytes_bring_about_anything_else(found: Tokens, data: bytes) -> None:
    with pytest.raises(Wrong):
        found.token(data, 0.0)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    folder = tmp_path_factory.mktemp("jwks")
    write_jwks(folder, one=ONE)
    return tokens(folder)


@pytest.mark.parametrize(
    ("text", "why"), [(None, "No such file"), ("{", "jwks.json: "), ('{"keys": []}', "jwks.json: "), ("5", "jwks.json: ")]
)
def test_without_keys_there_is_no_start(text: str | None, why: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "jwks.json").write_text(text)
    with pytest.raises(ServingError, match="the keys of tokens can't be read") as caught:
        tokens(tmp_path)
    assert why in caught.value.message


def test_the_end_comes_on_a_connection(tmp_path: Path) -> None:
    """To the second, though the file would not be looked at yet, and whatever the same bytes were answered before."""
    (tmp_path / "keys.toml").write_text(FILE)
    write_jwks(tmp_path, one=ONE)
    kernel: Any = FakeKernel()
    kernel.clock = kernel.loop.time
    kernel.gate = KeyGate(kernel, tmp_path / "keys.toml")
    client = Client(kernel)
    asked = infer("multi", BODY, f"Authorization: Bearer {token(exp=int(time.time()) + 1000).decode()}")
    assert [client.ask(asked).status for _ in range(3)] == [200, 200, 200]
    (found,) = kernel.gate.edition.tokens._known.values()
    kernel.loop.advance(found.until - 0.75 - kernel.loop.now)
    assert client.ask(asked).status == 200  # the file is looked at, and need not be for a second
    kernel.loop.advance(found.until - 0.25 - kernel.loop.now)
    assert client.ask(asked).status == 200
    kernel.loop.advance(found.until - kernel.loop.now)
    response = client.ask(asked)
    assert (response.status, response.error) == (401, "the token has expired")


def test_the_end_comes_on_a_grpc_connection_and_on_its_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the token stands in the connection's table of fields. What has been accepted before has its answer."""
    write_jwks(tmp_path, one=ONE)
    gated = Gated(tmp_path / "keys.toml", FILE)
    made = token(scope="kernel:inference:any", exp=int(time.time()) + 1000).decode()
    client = Indexing(gated)
    assert client.ask(entering("authorization", f"Bearer {made}")) == (0, "")
    stream = Streaming(gated, credential=made)
    assert stream.send(any_request("any")) == [""] and client.ask(NEWEST) == (0, "")
    tokens = gated.gate.edition.tokens
    assert tokens is not None
    (found,) = tokens._known.values()
    gated.kernel.loop.advance(found.until - 0.25 - gated.kernel.loop.now)
    assert client.ask(NEWEST) == (0, "") and stream.send(any_request("any")) == [""] * 2
    gated.kernel.hold = True
    waiting = client.begin(NEWEST)
    assert stream.send(any_request("any")) == [""] * 2
    gated.kernel.loop.advance(found.until - gated.kernel.loop.now)
    over = "the token has expired"

    def verified(data: bytes, now: float) -> Token:
        raise Wrong(over)  # as PyJWT would, which knows the real time only

    monkeypatch.setattr(tokens, "_verified", verified)
    for _ in range(2):
        assert client.ask(NEWEST) == (UNAUTHENTICATED, over)
    assert stream.send(any_request("any"))[2:] == []  # in their order: behind the one that waits
    while gated.kernel.held:
        gated.kernel.finish(gated.kernel.held.pop())
    assert stream.send() == ["", "", "", over] and waiting.status == 0
    gated.kernel.hold = False
    assert Streaming(gated, credential=made).answer.text == over
    close_loops()


def test_on_a_wire(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Limits are those of the subject; a new key of the issuer is found, and one that has gone takes its tokens along."""
    (tmp_path / "keys.toml").write_text(FILE + "rate = 1\nburst = 6\n")
    write_jwks(tmp_path, one=ONE)
    kernel: Any = FakeKernel()
    kernel.clock = kernel.loop.time
    kernel.gate = KeyGate(kernel, tmp_path / "keys.toml")
    client = Client(kernel)

    def ask(made: bytes, model: str = "multi") -> int:
        return client.ask(infer(model, BODY, f"Authorization: Bearer {made.decode()}")).status

    first, second = token(), token(TWO, "two")
    assert [ask(first), ask(first, "batch8"), ask(second), ask(token(sub="t"))] == [200, 403, 401, 200]
    write_jwks(tmp_path, two=TWO)
    kernel.loop.advance(UNKNOWN_SECONDS + 1)
    client.ask(request("GET", "/v2/health/live"))  # an open category is enough to make it look
    assert (ask(second), ask(first)) == (200, 401)
    assert sum(ask(second) == 200 for _ in range(10)) == 5  # `first` and `second` are of one subject
    (tmp_path / "jwks.json").unlink()
    kernel.loop.advance(1000.0)
    ask(second)
    assert "the keys of tokens can't be read, the old ones stay in force" in caplog.text
    assert ask(second) == 200
