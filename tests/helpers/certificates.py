"""Certificates for tests of TLS, made by the `openssl` command: an authority, a server's and a client's that it has signed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

__all__ = ["Certificates", "make_certificates"]

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Certificates(NamedTuple):
    """Paths of PEM files. `stranger`: signed by itself, so by nobody that is trusted."""

    ca: str
    server: str
    server_key: str
    client: str
    client_key: str
    stranger: str
    stranger_key: str


def make_certificates(folder: Path) -> Certificates:
    """Make them; the server's is for `localhost` and 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("tests of TLS need the `openssl` command to make certificates")
    for name in ("ca", "stranger"):
        names = ("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
        _openssl(folder, "req", "-x509", *KEY, "-days", "30", *names)
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("server", "client"):
        _openssl(folder, "req", *KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        _openssl(
            folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "30", "-extfile", "names", "-out", f"{name}.pem",
        )  # fmt: skip
    names = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key", "stranger.pem", "stranger.key")
    return Certificates(*(str(folder / name) for name in names))


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
