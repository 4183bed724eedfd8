"""Server contexts: who may connect with what, in memory; and mistakes in the files, each named with its file."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Certificates, make_certificates

from kernel import Code, ServingError
from kernel.frontends.listening import Endpoint, Listener
from kernel.frontends.tls import FEWEST, MOST_SHAKEN, Decrypted, server_context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certificates]:
    yield make_certificates(tmp_path_factory.mktemp("tls"))


def client_context(files: Certificates, certificate: str = "", key: str = "", alpn: tuple[str, ...] = ()) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    if certificate:
        context.load_cert_chain(certificate, key)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def connect(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Shake hands in memory and return the server's side. Raises ssl.SSLError of whichever side refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(10):
        for side in (theirs, ours):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    ours.do_handshake()
    return ours


def test_tls(files: Certificates) -> None:
    context = server_context(files.server, files.server_key, alpn=("h2", "http/1.1"))
    server = connect(context, client_context(files, alpn=("http/1.1", "h2")))
    assert server.selected_alpn_protocol() == "h2"
    assert server.version() in ("TLSv1.2", "TLSv1.3")
    assert connect(context, client_context(files)).selected_alpn_protocol() is None


def shaken(server: ssl.SSLContext, client: ssl.SSLContext, more: bytes = b"") -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Shake hands, where the client sends `more` at once with the end of its part; return both sides."""
    to_server, to_client, sent = ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, sent, server_hostname="localhost")
    for _ in range(4):
        with contextlib.suppress(ssl.SSLWantReadError):
            theirs.do_handshake()
            if more and theirs.version() == "TLSv1.3":
                theirs.write(more)
                more = b""
        to_server.write(sent.read())
        with contextlib.suppress(ssl.SSLWantReadError):
            ours.do_handshake()
            return ours, theirs
    raise AssertionError("the handshake has no end")


def test_a_handshake_takes_a_few_certificates(files: Certificates, tmp_path: Path) -> None:
    """A chain of hundreds would be looked through in one call, while all others wait."""
    context = server_context(files.server, files.server_key, files.ca, mutual=True)
    one = Path(files.client).read_text()
    (tmp_path / "chain.pem").write_text(one + Path(files.ca).read_text() * 5)
    shaken(context, client_context(files, str(tmp_path / "chain.pem"), files.client_key))
    (tmp_path / "long.pem").write_text(one + Path(files.ca).read_text() * 100)
    with pytest.raises(ssl.SSLError, match=f"more than {MOST_SHAKEN} bytes, and the handshake is not over"):
        shaken(context, client_context(files, str(tmp_path / "long.pem"), files.client_key))


@pytest.mark.parametrize("size", [1, MOST_SHAKEN - 100, 10 * MOST_SHAKEN])
def test_what_comes_with_the_end_of_a_handshake_is_none_of_it(files: Certificates, size: int) -> None:
    context = server_context(files.server, files.server_key, files.ca, mutual=True)
    server, _ = shaken(context, client_context(files, files.client, files.client_key), bytes(size))
    got = b""
    while len(got) < size:
        got += server.read(65536)
    assert got == bytes(size)


def test_a_handshake_of_single_bytes(files: Certificates) -> None:
    context = server_context(files.server, files.server_key, files.ca, mutual=True)
    to_server, to_client, sent = ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = context.wrap_bio(to_server, to_client, server_side=True)
    theirs = client_context(files, files.client, files.client_key).wrap_bio(to_client, sent, server_hostname="localhost")
    over = False
    for _ in range(4):
        with contextlib.suppress(ssl.SSLWantReadError):
            theirs.do_handshake()
        for byte in sent.read():
            to_server.write(bytes((byte,)))
            with contextlib.suppress(ssl.SSLWantReadError):
                ours.do_handshake()
                over = True
    assert over and ours.getpeercert()


def test_no_renegotiation(files: Certificates) -> None:
    """It costs the server far more than the client, who can ask for it without end."""
    assert server_context(files.server, files.server_key).options & ssl.OP_NO_RENEGOTIATION


class Receiver(asyncio.BufferedProtocol):
    """Takes what it is given, into a buffer without end."""

    def __init__(self) -> None:
        self.got = b""
        self._buffer = bytearray(4 * 1024 * 1024)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self.got += self._buffer[:count]


@pytest.mark.parametrize(("record", "most"), [(1, 2 * FEWEST), (16 * 1024, 100 * FEWEST)])
def test_so_many_records_are_decrypted_at_a_time(files: Certificates, record: int, most: int) -> None:
    """A record has a byte or 16 KB, and costs 3 microseconds. Ten thousand of them in each turn, from 16 clients, were 600 ms."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server_context(files.server, files.server_key).wrap_bio(to_server, to_client, server_side=True)
    theirs = client_context(files).wrap_bio(to_client, to_server, server_hostname="localhost")
    for side in (theirs, ours, theirs, ours):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    sent = bytes(range(250)) * 40 * (1 if record == 1 else 100)
    for at in range(0, len(sent), record):
        theirs.write(sent[at : at + record])
    now, records, turns = 0.0, 0, []
    inner = Receiver()
    protocol = Decrypted(inner, lambda: now)
    while len(inner.got) < len(sent):  # as a loop's TLS does in a turn
        buffer, filled, before = protocol.get_buffer(-1), 0, records
        while filled < len(buffer) and len(inner.got) + filled < len(sent):
            filled += ours.read(len(buffer) - filled, buffer[filled:])  # type: ignore[call-overload]
            records += 1
            now += 3e-6
        protocol.buffer_updated(filled)
        turns.append(records - before)
    assert inner.got == sent and max(turns) <= most
    if record > 1:
        assert len(turns) < 16, "twice as much each time"


def test_old_versions_are_refused(files: Certificates) -> None:
    assert server_context(files.server, files.server_key).minimum_version is ssl.TLSVersion.TLSv1_2


def test_mutual_tls(files: Certificates) -> None:
    context = server_context(files.server, files.server_key, files.ca, mutual=True)
    server = connect(context, client_context(files, files.client, files.client_key))
    assert server.getpeercert() is not None
    with pytest.raises(ssl.SSLError, match=r"(?i)peer did not return a certificate"):
        connect(context, client_context(files))
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate verify failed"):
        connect(context, client_context(files, files.stranger, files.stranger_key))


def test_a_client_certificate_may_be_optional(files: Certificates) -> None:
    context = server_context(files.server, files.server_key, files.ca)
    assert not connect(context, client_context(files)).getpeercert()
    assert connect(context, client_context(files, files.client, files.client_key)).getpeercert()
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate verify failed"):
        connect(context, client_context(files, files.stranger, files.stranger_key))


def refusal(*args: str, mutual: bool = False) -> str:
    with pytest.raises(ServingError) as caught:
        server_context(*args, mutual=mutual)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def test_flags_that_are_missing(files: Certificates) -> None:
    wanted = "TLS wants a server certificate and its private key; the {} is missing"
    assert refusal("", files.server_key) == refusal("", "") == wanted.format("certificate")
    assert refusal(files.server, "") == wanted.format("private key")
    assert refusal(files.server, files.server_key, mutual=True) == (
        "mutual TLS wants the root certificates of the clients; there is no file with them"
    )


def test_files_that_can_t_be_used(files: Certificates, tmp_path: Path) -> None:
    nothing, garbage, broken = (str(tmp_path / name) for name in ("nothing", "garbage", "broken"))
    Path(garbage).write_text("not a certificate")
    Path(broken).write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    key = files.server_key
    assert refusal(nothing, key) == f"TLS can't use the server certificate '{nothing}': No such file or directory"
    assert refusal(files.server, nothing) == f"TLS can't use the private key '{nothing}': No such file or directory"
    assert refusal(files.server, key, nothing) == f"TLS can't use the root certificates '{nothing}': No such file or directory"
    assert refusal(garbage, key) == f"TLS can't use the server certificate '{garbage}': it is not a PEM file"
    assert refusal(files.server, garbage) == f"TLS can't use the private key '{garbage}': it is not a PEM file"
    assert refusal(files.server, key, garbage) == f"TLS can't use the root certificates '{garbage}': it is not a PEM file"
    assert refusal(broken, key).startswith(f"TLS can't use the private key '{key}' with the certificate '{broken}': ")
    text = refusal(files.server, files.client_key)
    assert text.startswith(f"TLS can't use the private key '{files.client_key}' with the certificate '{files.server}': ")
    assert "mismatch" in text.lower()
    assert "_ssl.c" not in text


def test_an_encrypted_key_is_not_asked_for(files: Certificates, tmp_path: Path) -> None:
    encrypted = str(tmp_path / "encrypted.key")
    command = ["openssl", "pkey", "-in", files.server_key, "-aes256", "-passout", "pass:secret", "-out", encrypted]
    subprocess.run(command, check=True, capture_output=True)
    assert refusal(files.server, encrypted) == (
        f"TLS can't use the private key '{encrypted}' with the certificate '{files.server}': it is encrypted, and there is "
        "nobody to ask for its passphrase"
    )


# -- other files under the same names ------------------------------------------------------------------------------------


def shown(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """Shake hands in memory and return the certificate that the client sees."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(10):
        for side in (theirs, ours):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    found = theirs.getpeercert(binary_form=True)
    assert found is not None
    return found


def der_of(path: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(path).read_text())


def test_a_certificate_that_was_replaced_is_read_anew(
    files: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also by exchanging a link; what can't be used is told once, and the one before goes on."""
    caplog.set_level("INFO")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.symlink_to(files.server)
    key.symlink_to(files.server_key)
    context, client = server_context(str(certificate), str(key)), client_context(files)
    context.renew()
    assert not caplog.messages and shown(context, client) == der_of(files.server)
    (tmp_path / "new.crt").symlink_to(files.client)
    (tmp_path / "new.crt").rename(certificate)
    for _ in range(3):
        context.renew()  # the key is still that of the other
    assert len(caplog.messages) == 1 and "can't be read anew, the one before goes on" in caplog.messages[0]
    assert shown(context, client) == der_of(files.server)
    (tmp_path / "new.key").symlink_to(files.client_key)
    (tmp_path / "new.key").rename(key)
    context.renew()
    assert caplog.messages[1:] == [f"the certificate '{certificate}' has changed and was read anew"]
    assert shown(context, client) == der_of(files.client)
    certificate.unlink()
    certificate.write_text("none")
    context.renew()
    certificate.unlink()
    context.renew()
    assert "it is not a PEM file" in caplog.messages[2] and "No such file" in caplog.messages[3]
    assert shown(context, client) == der_of(files.client)


def test_a_listener_looks_at_it_from_time_to_time(
    files: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        context = server_context(files.server, files.server_key)
        monkeypatch.setattr("kernel.frontends.listening.RENEW_SECONDS", 0.0)
        monkeypatch.setattr(type(context), "renew", lambda self: looked.append(loop.time()))
        listener = Listener(Endpoint(f"unix:{tmp_path}/s", 0), "HTTP", tls=context)
        await listener.start(loop, asyncio.Protocol)
        while len(looked) < 3:  # noqa: ASYNC110 - each turn of the loop is one
            await asyncio.sleep(0)
        listener.close()
        count = len(looked)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(looked) == count

    asyncio.run(main())
