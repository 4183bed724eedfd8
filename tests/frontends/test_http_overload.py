"""What a client over HTTP is told where there is too much to do: 503, or 429 where that is asked for, and when to come again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernel import Code, Overloaded, ServingError
from kernel_http.connection import replies


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = replies.overload.status
    yield
    replies.overload.status = before


@pytest.mark.parametrize(("status", "line"), [(503, b"503 Service Unavailable"), (429, b"429 Too Many Requests")])
def test_too_many(status: int, line: bytes) -> None:
    replies.overload.status = status
    head, _, body = replies.error_of(Overloaded("too many in flight"), json=True).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + line) and b"\r\nRetry-After: 1\r\n" in head + b"\r\n"
    assert body == b'{"error":"too many in flight"}'


def test_other_reasons_stay_what_they_are() -> None:
    replies.overload.status = 429
    answer = replies.error_of(ServingError(Code.UNAVAILABLE, "stopping"), json=True)
    assert answer.startswith(b"HTTP/1.1 503 ") and b"Retry-After" not in answer
