"""The client's side of TLS: whose certificates are trusted."""

from __future__ import annotations

import functools
import ssl

__all__ = ["client_context"]


@functools.lru_cache(64)
def client_context(authorities: str) -> ssl.SSLContext:
    """Return the context for connecting; kept, as reading the system's authorities takes milliseconds. Raises ssl.SSLError.

    `authorities`: certificates as PEM, "" for those that the system trusts.
    """
    context = ssl.create_default_context(cadata=authorities or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    return context
