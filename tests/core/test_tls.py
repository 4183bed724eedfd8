"""Server contexts: who may connect with what, in memory; and mistakes in the files, each named with its file."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Certificates, make_certificates

from kernel import Code, ServingError
from kernel.frontends.tls import server_context


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
