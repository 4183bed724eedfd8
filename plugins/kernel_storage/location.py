"""Where a repository lies: the forms of a location that Triton knows, and that object stores have in common. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernel import Code, ServingError, clipped

__all__ = ["Location"]

FORMS = {
    "s3": "s3://bucket/path, or s3://host:port/bucket/path of a server of one's own, with https:// before the host for TLS",
    "gs": "gs://bucket/path",
    "as": "as://account/container/path",
    "az": "az://container/path, of the account that AZURE_STORAGE_ACCOUNT names",
}
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")
_ENDPOINT = re.compile(r"(?:(https?):/+)?((?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5}))/+(.*)", re.DOTALL)
_SECURE = re.compile(r"(https?):/+([A-Za-z0-9.-]+)/+(.*)", re.DOTALL)


@dataclass(frozen=True)
class Location:
    """`given`: as it is shown. `bucket`: Azure's container. `prefix`: of all keys, without slashes around it. `endpoint`: URL of
    the server, "" for the provider's own. `account`: Azure's.
    """

    given: str
    scheme: str
    bucket: str
    prefix: str
    endpoint: str = ""
    account: str = ""

    @classmethod
    def parse(cls, given: str) -> Location | None:
        """Return what a location says; None for one of another scheme. Raises ServingError."""
        scheme, _, rest = given.partition("://")
        if scheme not in FORMS:
            return None
        endpoint = account = ""
        if scheme == "s3" and (match := _ENDPOINT.fullmatch(rest) or _SECURE.fullmatch(rest)):
            endpoint, rest = f"{match[1] or 'http'}://{match[2]}", match[3]  # by default without TLS, as in the reference
        elif scheme == "as":
            account, _, rest = rest.partition("/")
        bucket, *parts = [part for part in rest.split("/") if part] or [""]
        if not _BUCKET.fullmatch(bucket) or (scheme == "as" and not _BUCKET.fullmatch(account)):
            raise _wrong(given, scheme, "a name of a bucket" if scheme in ("s3", "gs") else "names of an account and a container")
        if any(part in (".", "..") or not part.isprintable() for part in parts):
            raise _wrong(given, scheme, "a path without '.', '..' and control characters")
        return cls(given.rstrip("/"), scheme, bucket, "/".join(parts), endpoint, account)

    @property
    def identity(self) -> str:
        """What tells its bucket from all others."""
        return "|".join((self.scheme, self.endpoint, self.account, self.bucket))


def _wrong(given: str, scheme: str, what: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, f"the repository '{clipped(given)}' lacks {what}; wanted is {FORMS[scheme]}")
