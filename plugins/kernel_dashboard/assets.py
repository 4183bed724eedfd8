"""The files of the page, as they are sent: read and packed once, and what browsers are told that they may do.

The page runs its own scripts from this server and nothing else: none that stands in it, none from elsewhere, and no text becomes
markup (trusted types). Nobody may show it in a frame.
"""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

from kernel import Document

__all__ = ["assets"]

FOLDER = Path(__file__).parent / "assets"

KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' blob:", "connect-src 'self'",
    "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'",
    "trusted-types 'none'",
))  # fmt: skip

FIELDS = (
    ("Cache-Control", "no-cache"),
    ("Content-Security-Policy", POLICY),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
)


@cache
def assets() -> dict[str, Document]:
    """Return the documents by path. They are the same for all kernels of a process."""
    found = {}
    for file in sorted(FOLDER.iterdir()):
        if file.suffix in KINDS:
            body = file.read_bytes()
            path = "/" if file.name == "index.html" else f"/dashboard/{file.name}"
            found[path] = Document(body, KINDS[file.suffix], FIELDS, gzip.compress(body, mtime=0))
    return found
