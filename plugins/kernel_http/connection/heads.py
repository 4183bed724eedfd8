"""A request's head: from its raw bytes to a record that says everything the connection and the handlers need.

Parsing is httptools'. Equal bytes mean an equal head, so the front end keeps the records by their bytes; nothing that
differs from one request to the next may be stored in one.

A body that is chunked is read so, whatever Content-Length says beside it, as the reference does and RFC 9112 (6.1, 6.3) allows.
As that demands, the connection is closed behind the answer: somebody in between may have believed the other length, and take what
follows for another client's request.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import httptools

from kernel import Door
from kernel_http.connection.compression import accepted

__all__ = ["CHUNKED", "FIRST", "Forwarding", "Head", "HeadError", "explains", "parse_head", "read_headers"]

#: `content_length` of a head whose body is chunked.
CHUNKED = -1

#: Keys that a forwarded header may not have (they mean something in a request's parameters).
RESERVED = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)

#: How much of the header Connection is looked at, in bytes.
MAX_OPTIONS = 1024

_TOKEN = rb"!#$%&'*+.^_`|~0-9A-Za-z-"
_REQUEST_LINE = re.compile(rb"[" + _TOKEN + rb"]+ [^ \r\n]+ HTTP/1\.[01]\r\n")

#: The bytes that a request may begin with: those of a method (RFC 9110, 5.6.2).
FIRST = frozenset(byte for byte in range(128) if re.match(rb"[" + _TOKEN + rb"]", bytes([byte])))


class HeadError(Exception):
    """A head that can't be served. `status` 0 means: close without a word, this is not HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Head:
    """The head of one request.

    `block`: its raw bytes up to and including the empty line. `json_length`: Inference-Header-Content-Length, None when
    absent; `json_length_error`: the words for one that is no number. `as_is`: HTTP/1.1, connection kept, not HEAD: the
    response goes out as its handler made it. `forwarded`: headers that become request parameters.
    `encoding`: the body's content coding; `accept`: the one the answer should have, "" for none; `coded`: there is either, or the
    answer is to say why it took as long as it did (`explains`).
    `headers`: all of them as they came. The router fills in the rest: `route`, the name of the route, or `refusal`, the whole
    response to what isn't served; `limit`: how large a body may be at the route, where that is less than at others, in bytes;
    `json_errors`, whether the route tells errors as application/json from the start; and what the path names, "" for nothing:
    `model`, `version`, `region`. `door`: a gate's; where there is no gate nobody sets it.
    """

    __slots__ = (
        "accept",
        "as_is",
        "block",
        "close",
        "coded",
        "content_length",
        "door",
        "encoding",
        "expect",
        "forward_error",
        "forwarded",
        "head_only",
        "headers",
        "http10",
        "json_errors",
        "json_length",
        "json_length_error",
        "limit",
        "method",
        "model",
        "path",
        "refusal",
        "region",
        "route",
        "version",
    )

    door: Door

    def __init__(self, block: bytes) -> None:
        self.block = block
        self.method = ""
        self.path = ""
        self.content_length = 0
        self.json_length: int | None = None
        self.json_length_error = ""
        self.limit = sys.maxsize
        self.encoding = ""
        self.accept = ""
        self.coded = False
        self.http10 = False
        self.close = False
        self.head_only = False
        self.as_is = True
        self.expect = False
        self.forwarded: tuple[tuple[str, str], ...] = ()
        self.forward_error = ""
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        self.route = ""
        self.json_errors = False
        self.refusal: bytes | None = None
        self.model = ""
        self.version = ""
        self.region = ""


class Forwarding:
    """Which request headers become request parameters (`--http-header-forward-pattern`)."""

    def __init__(self, pattern: str) -> None:
        if pattern.startswith("(?-i)"):
            self.search = re.compile(pattern[5:]).search
        else:
            self.search = re.compile(pattern, re.IGNORECASE).search

    def __call__(self, headers: list[tuple[str, str]], head: Head) -> None:
        chosen = tuple((name, value) for name, value in headers if self.search(name))
        for name, _ in chosen:
            if name in RESERVED or name.startswith("triton_"):
                head.forward_error = f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
                return
        head.forwarded = chosen


class _Sink:
    """What httptools calls back."""

    __slots__ = ("complete", "headers", "url")

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.complete = True


def parse_head(block: bytes, forwarding: Forwarding | None = None) -> Head:
    """Parse the bytes of a head, empty line included. Raises HeadError."""
    sink = _Sink()
    parser = httptools.HttpRequestParser(sink)
    parser.set_dangerous_leniencies(lenient_chunked_length=True)  # two lengths in one head: see _note_framing
    try:
        parser.feed_data(block)
    except httptools.HttpParserUpgrade:
        pass  # an offer to change the protocol, which we decline by answering in this one
    except httptools.HttpParserError as error:
        raise _refused(block, error) from None
    if not sink.complete:
        raise _refused(block, None)
    head = Head(block)
    head.method = parser.get_method().decode()
    version = parser.get_http_version()
    if version not in ("1.0", "1.1"):
        raise HeadError(0, f"HTTP/{version}")
    if not _REQUEST_LINE.match(block):  # httptools lets other protocols' names and doubled spaces through
        raise HeadError(400, "the request line is not METHOD PATH HTTP/1.1, with one space between each")
    head.http10 = version == "1.0"
    head.head_only = head.method == "HEAD"
    head.path = _path(sink.url)
    hosts = read_headers(head, sink.headers, forwarding)
    if hosts != 1 and (hosts or not head.http10):
        raise HeadError(400, f"the request has {f'{hosts} fields Host' if hosts else 'no Host'}, wanted is one")
    return head


def explains(head: Head) -> bool:
    """Whether the answer is to say why it took as long as it did."""
    return head.coded and any(name.lower() == b"x-explain" and value.strip() == b"1" for name, value in head.headers)


def read_headers(head: Head, headers: Sequence[tuple[bytes, bytes]], forwarding: Forwarding | None = None) -> int:
    """Note in `head` what its header fields say; return how many of them are Host. Raises HeadError."""
    head.headers = headers
    connection = accept = b""
    chunked = announced = explain = False
    hosts = 0
    for name, value in headers:
        match name.lower():
            case b"host":
                hosts += 1
            case b"content-length":
                head.content_length = int(value)
                announced = True
            case b"transfer-encoding":
                if value.strip().lower() != b"chunked":
                    raise HeadError(501, "Transfer-Encoding is not supported, except for 'chunked'")
                if head.http10:
                    raise HeadError(400, "HTTP/1.0 knows no Transfer-Encoding")
                chunked = True
            case b"connection":
                connection += b"," + value.lower()
            case b"expect":
                head.expect = value.strip().lower() == b"100-continue" and not head.http10
            case b"content-encoding":
                head.encoding = value.strip().decode("latin-1").lower()
            case b"accept-encoding":
                accept += b"," + value
            case b"x-explain":
                explain = value.strip() == b"1"
            case b"inference-header-content-length":
                _set_json_length(head, value.strip())
    _note_framing(head, {option.strip() for option in connection[:MAX_OPTIONS].split(b",")}, chunked, announced)
    head.accept = accepted(accept.decode("latin-1")) if accept else ""
    head.coded = bool(head.accept) or explain or head.encoding not in ("", "identity")
    head.as_is = not (head.close or head.http10 or head.head_only)
    if forwarding is not None:
        names = [(name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in headers]
        forwarding(names, head)
    return hosts


def _note_framing(head: Head, options: set[bytes], chunked: bool, announced: bool) -> None:
    """Note how the body ends, and whether the connection ends after the answer, as it does where the head tells two lengths.

    `options`: of the header Connection. `announced`: there is a Content-Length.
    """
    head.close = b"close" in options or (head.http10 and b"keep-alive" not in options)
    if chunked:
        head.content_length = CHUNKED
        head.close = head.close or announced


def _set_json_length(head: Head, value: bytes) -> None:
    if re.fullmatch(rb"[+-]?[0-9]{1,18}", value):
        head.json_length = int(value)
    else:
        head.json_length = 0
        head.json_length_error = f"Unable to parse Inference-Header-Content-Length, got: {value.decode('latin-1')}"


def _path(url: bytes) -> str:
    """Return the raw path: no query, no decoding of percent escapes (the reference matches undecoded paths)."""
    if not url.startswith(b"/"):
        try:
            url = httptools.parse_url(url).path or b"/"
        except httptools.HttpParserInvalidURLError:
            raise HeadError(400, "the request's URL can't be parsed") from None
    return url.partition(b"?")[0].partition(b"#")[0].decode("utf-8", "replace")


def _refused(block: bytes, error: Exception | None) -> HeadError:
    """Say what to answer to a head that httptools refuses."""
    if not _REQUEST_LINE.match(block):
        return HeadError(0, "not HTTP")
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return HeadError(405, "Method Not Allowed")
    return HeadError(400, f"the request's head can't be parsed: {error or 'it is incomplete'}")
