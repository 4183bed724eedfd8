"""One HTTP exchange, byte for byte: what a case sends and what may be compared of the answer.

Sends over a socket of its own and lets `http.client` read the answer; knows nothing of models or servers. An answer is
turned into lines of text, one per value, so that two answers differ where a reader sees it: order of keys, doubled keys,
types and values count, white space in JSON does not.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import socket
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["KEY", "NO_ANSWER", "Answer", "Case", "exchange"]

#: The headers that clients act upon.
HEADERS = (
    "Content-Type",
    "Content-Encoding",
    "Inference-Header-Content-Length",
    "Transfer-Encoding",
    "Accept-Encoding",
    "Allow",
)
LIMIT_S = 30.0
#: What our statistics tell besides: where a model runs.
OURS = re.compile(r"model_stats\[[^]]*\]\.(placement|hop)\.")

#: Stands in a body, and in what is told of an answer, for the name of the server's own shared memory object.
KEY = "/@KEY@"


@dataclass(frozen=True)
class Case:
    """One request. With `raw`, these bytes are sent as they stand; otherwise a well-formed HTTP/1.1 request is made.

    `wait_s`: how long to wait before it is sent, where the reference finishes something only after its last answer.
    `settle`: after the answer, wait until no model is loading or unloading, since the reference unloads in its own time.
    `mask`: regular expressions of lines whose values are a matter of chance (durations, times); only their names count.
    `chance`: a regular expression of the beginnings of lines that are a matter of chance altogether.
    `unordered`: a regular expression of lines of which neighbours may come in any order (members of a protobuf map).
    """

    name: str
    method: str = "GET"
    path: str = "/"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    raw: bytes = b""
    wait_s: float = 0.0
    settle: bool = False
    mask: tuple[str, ...] = ()
    chance: str = ""
    unordered: str = ""

    def request(self) -> bytes:
        if self.raw:
            return self.raw
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: reference"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.body or self.method == "POST":
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode() + self.body


#: The status of an answer that never came.
NO_ANSWER = -1


@dataclass(frozen=True)
class Answer:
    """What came back. `status` 0: the server closed the connection without an answer."""

    status: int
    phrase: str = ""
    version: str = "HTTP/1.1"
    headers: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def error(self) -> str | None:
        """The message of an error answer."""
        for line in self.lines:
            if line.startswith("error = "):
                return str(json.loads(line.removeprefix("error = ")))
        return None


def exchange(port: int, case: Case, key: str = KEY) -> Answer:
    """Send `case` to the server on `port` of this machine and return its answer. Raises OSError when nothing comes in time.

    `key`: the name of its shared memory object.
    """
    case = replace(case, body=case.body.replace(KEY[1:].encode(), key[1:].encode()))
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
        connection.settimeout(LIMIT_S)
        connection.sendall(case.request())
        response = http.client.HTTPResponse(connection, method=case.method)
        try:
            response.begin()
            body = response.read()
        except (http.client.RemoteDisconnected, ConnectionResetError):
            return Answer(0)
        headers = tuple(f"{name}: {response.headers[name]}" for name in HEADERS if name in response.headers)
        if response.headers.get("Content-Encoding") in ("gzip", "deflate"):
            body = zlib.decompress(body, 47)  # either
        length = response.headers.get("Inference-Header-Content-Length")
        lines = tuple(told(body, None if length is None or not length.isdigit() else int(length)))
        lines = tuple(line.replace(key[1:], KEY[1:]) for line in lines if not OURS.match(line))
        for pattern in case.mask:
            lines = tuple(re.sub(rf"^({pattern}) = .*$", r"\1 = <masked>", line) for line in lines)
        if case.chance:
            lines = tuple(line for line in lines if not re.match(case.chance, line))
        if case.unordered:
            groups = itertools.groupby(lines, key=lambda line: re.match(case.unordered, line) is not None)
            lines = tuple(line for matched, group in groups for line in (sorted(group) if matched else group))
        version = "HTTP/1.1" if response.version == 11 else "HTTP/1.0"
        return Answer(response.status, response.reason, version, headers, lines)


def told(body: bytes, header_length: int | None) -> Iterator[str]:
    """Tell `body` in lines: the JSON part value by value, and what isn't JSON as it is."""
    head, tail = (body, b"") if header_length is None else (body[:header_length], body[header_length:])
    try:
        yield from walk("", json.loads(head, object_pairs_hook=Pairs))
    except ValueError:
        yield from (f"body = {line!r}" for line in head.splitlines())
    if tail:
        yield f"binary = {tail.hex(' ', 4)}"


class Pairs(list[tuple[str, Any]]):
    """A JSON object with the order and the number of its keys."""


def walk(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, Pairs):
        if not value:
            yield f"{path} = {{}}"
        for key, item in value:
            yield from walk(f"{path}.{key}" if path else key, item)
    elif isinstance(value, list) and any(isinstance(item, (list, Pairs)) for item in value):
        for index, item in enumerate(value):
            # The elements of an index are told apart by name, so that a model more doesn't change the others' lines.
            names = dict(item) if not path and isinstance(item, Pairs) else {}
            label = f"{names.get('name', index)}:{names['version']}" if "version" in names else names.get("name", index)
            yield from walk(f"{path}[{label}]", item)
    else:
        yield f"{path} = {json.dumps(value, ensure_ascii=False)}"
