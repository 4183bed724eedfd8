"""The only file that calls obstore: opens a store, lists it, gets parts of objects, and tells in plain words why it can't.

What a server says comes from outside: of its errors a code and a sentence are told, cut to a length, and never a URL's query,
which may hold a key. The words are the same each time the same thing fails, so that who repeats it can tell it once.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import obstore
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from kernel import Code, FilesChanged, ServingError, clipped
from kernel_storage.credentials import settings_of
from kernel_storage.location import Location

__all__ = ["BadKey", "Object", "Store", "names_below", "objects_below", "open_store", "part_of"]

Store = AzureStore | GCSStore | MemoryStore | S3Store

#: A request may take that long, and is tried again so often and for so long. A part of an object is one request.
CLIENT = {"timeout": "60s", "connect_timeout": "5s"}
RETRY: Any = {"max_retries": 4, "retry_timeout": datetime.timedelta(seconds=60)}


class Object(NamedTuple):
    """One object as it was listed. `tag`: changes with its content. `modified`: in nanoseconds, of the epoch."""

    key: str
    size: int
    tag: str
    modified: int


class BadKey(ServingError):
    """There is an object whose key is no path."""


def open_store(place: Location, environ: Mapping[str, str]) -> Store:
    """Return the store at a location; it is not asked yet. Raises ServingError."""
    settings = settings_of(place, environ)
    insecure = settings.get("endpoint", environ.get("AWS_ENDPOINT_URL") or environ.get("AWS_ENDPOINT") or "")
    client: Any = {**CLIENT, "allow_http": True} if insecure.startswith("http://") else CLIENT
    kind: Any = {"s3": S3Store, "gs": GCSStore}.get(place.scheme, AzureStore)
    try:
        store: Store = kind(place.bucket, client_options=client, retry_config=RETRY, **settings)
    except (BaseError, ValueError) as error:
        raise ServingError(Code.INVALID_ARG, f"the repository '{place.given}' can't be opened: {_cause(error)}") from None
    return store


def objects_below(store: Store, prefix: str, most: int, given: str) -> Iterator[Object]:
    """Yield the objects whose keys begin with `prefix` and a slash. Raises ServingError: also for more than `most`."""
    count = 0
    try:
        for page in obstore.list(store, prefix or None, chunk_size=1000):
            count += len(page)
            if count > most:
                words = f"there are more than {most} objects in '{given}'; --storage-max-objects says how many there may be"
                raise ServingError(Code.INTERNAL, words)
            for one in page:
                modified = int(one["last_modified"].timestamp()) * 10**9
                yield Object(one["path"], one["size"], one["e_tag"] or f"of {modified}", modified)
    except (BaseError, OSError, ValueError) as error:
        raise _told(error, f"failed to read '{given}'") from None


def names_below(store: Store, prefix: str, given: str) -> list[str]:
    """Return the first parts of the keys below `prefix` that have several. Raises ServingError."""
    try:
        found = obstore.list_with_delimiter(store, prefix or None)
    except (BaseError, OSError, ValueError) as error:
        raise _told(error, f"failed to read '{given}'") from None
    return [one.rstrip("/").rpartition("/")[2] for one in found["common_prefixes"]]


def part_of(store: Store, one: Object, begin: int, end: int) -> memoryview:
    """Return bytes `begin` to `end` of an object. Raises FilesChanged where it is not the one that was listed; ServingError."""
    options: Any = {"range": (begin, end)}
    strong = not one.tag.startswith(("W/", "of "))
    if strong:
        options["if_match"] = f'"{_bare(one.tag)}"'
    changed = FilesChanged(Code.UNAVAILABLE, f"the object '{clipped(one.key)}' was changed while it was fetched; load again")
    try:
        result = obstore.get(store, one.key, options=options)
        tag = result.meta["e_tag"]
        if result.meta["size"] != one.size or (tag and not one.tag.startswith("of ") and _bare(tag) != _bare(one.tag)):
            raise changed
        content = memoryview(result.bytes())
    except (PreconditionError, FileNotFoundError):
        raise changed from None
    except (BaseError, OSError, ValueError) as error:
        raise _told(error, f"failed to fetch the object '{clipped(one.key)}'") from None
    if len(content) != end - begin:
        words = f"failed to fetch the object '{clipped(one.key)}': {len(content)} bytes came, wanted {end - begin}"
        raise ServingError(Code.UNAVAILABLE, words)
    return content


def _bare(tag: str) -> str:
    return tag.removeprefix("W/").strip('"')


def _told(error: Exception, what: str) -> ServingError:
    if isinstance(error, InvalidPathError):
        return BadKey(Code.INTERNAL, f"{what}: a key is no path, {_cause(error)}")
    cause = _cause(error)
    scheme = re.search(r"'(s3|gs|as|az)://", what)
    if scheme is not None and _DENIED.search(cause):
        cause += f"; credentials: {_CREDENTIALS.get(scheme[1], _CREDENTIALS['az'])}"
    return ServingError(Code.INTERNAL, f"{what}: {cause}")


#: Where credentials are looked for first, by scheme: for who is refused and may have none.
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile of ~/.aws that has keys",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or what gcloud has left",
    "az": "AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY",
}
_DENIED = re.compile(r"answered 40[13]|^no permission")

#: Codes of servers -> what they mean.
_CODES = {
    "NoSuchBucket": "there is no such bucket",
    "ContainerNotFound": "there is no such container",
    "AccessDenied": "no permission",
    "InvalidAccessKeyId": "the key is not known there",
    "SignatureDoesNotMatch": "the secret does not belong to the key",
    "PermanentRedirect": "the bucket is in another region",
    "AuthorizationHeaderMalformed": "the bucket is in another region",
}
_REASONS = (
    (r"message: \"([^\"]+)\"", "{}"),  # of the operating system, below all others
    (r"dns error", "the name of the server is not known"),
    (r"(operation timed out|TimedOut)", "the server did not answer in time"),
    (r"status code: (\d{3}[^:\n\"]*)", "the server answered {}"),
)


def _cause(error: Exception) -> str:
    """Return why something failed, in words that do not change from time to time."""
    text = str(error)
    if isinstance(error, InvalidPathError):
        return clipped(re.sub(r"^Encountered object with invalid path: ", "", text.partition("\n\nDebug source")[0]))
    if code := re.search(r"<Code>([A-Za-z]+)</Code>(?:\s*<Message>([^<]*)</Message>)?", text):
        meaning = _CODES.get(code[1], "")
        return clipped(": ".join(one for one in (meaning, code[1], " ".join((code[2] or "").split())) if one))
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        meaning = "no permission"
    else:
        meaning = ""
    for pattern, words in _REASONS:
        if match := re.search(pattern, text):
            found = words.format(*match.groups())
            return clipped(f"{meaning}: {found}" if meaning else found)
    short = re.sub(r"https?://\S+", "the server", text.partition("\n\nDebug source")[0])
    return clipped(re.sub(r" in [0-9.]+m?s\b.*?(?= - |$)", "", short, flags=re.DOTALL))
