"""The HTTP wire: plain `http.client`, so that also what no client library would send can be sent.

Two ways to say the same: data in JSON, or as binary data behind it.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any

from .asks import Answered, Ask, Outcome, Refused, Tensor, unpacked

__all__ = ["CODES", "HttpWire", "Reply"]

LIMIT_S = 10.0
LENGTH = "Inference-Header-Content-Length"

#: Code -> status (contract: http_protocol, section 1.1). Several share 400: a refusal over HTTP tells no more than that.
CODES = {
    "INTERNAL": 500, "NOT_FOUND": 404, "UNAVAILABLE": 503, "UNSUPPORTED": 501,
    "UNKNOWN": 400, "INVALID_ARG": 400, "ALREADY_EXISTS": 400, "CANCELLED": 400,
}  # fmt: skip


class Reply:
    """One answer, read to its end."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.type = response.headers.get_content_type()
        length = response.headers.get(LENGTH)
        self.body = response.read()
        self.head = len(self.body) if length is None else int(length)

    @property
    def json(self) -> Any:
        return json.loads(self.body[: self.head]) if self.body else None

    def refused(self, document: Any = None) -> Refused:
        names = [name for name, status in CODES.items() if status == self.status]
        return Refused(names[0] if len(names) == 1 else str(self.status), (document or self.json)["error"])


class HttpWire:
    """One way to ask over HTTP. `binary`: how tensors travel."""

    wire = "http"

    def __init__(self, port: int, *, binary: bool = False) -> None:
        self.port = port
        self.binary = binary
        self.way = "http binary" if binary else "http json"

    def close(self) -> None:
        pass

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, limit: float = LIMIT_S
    ) -> Reply:
        """Send one request on a connection of its own; a body that isn't bytes goes as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit)
        try:
            connection.request(method, path, data, dict(headers or {}))
            return Reply(connection.getresponse())
        finally:
            connection.close()

    # --- inference

    def infer(self, ask: Ask, headers: Mapping[str, str] | None = None) -> Outcome:
        document, tail = self.document(ask)
        body = json.dumps(document, ensure_ascii=False).encode()
        given = dict(headers or {})
        if tail:
            given[LENGTH] = str(len(body))
        reply = self.request("POST", f"{path_of(ask)}/infer", body + tail, given)
        return self.answered(reply) if reply.status == 200 else reply.refused()

    def document(self, ask: Ask) -> tuple[dict[str, Any], bytes]:
        """Return a request's JSON part and its binary part."""
        document: dict[str, Any] = {"id": ask.id} if ask.id else {}
        parameters = dict(ask.parameters)
        if self.binary:
            parameters["binary_data_output"] = True
        if parameters:
            document["parameters"] = parameters
        pieces = []
        document["inputs"] = inputs = []
        for tensor in ask.inputs:
            given: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
            if tensor.part is not None:
                given["parameters"] = part_of(tensor)
            elif tensor.values is None and tensor.data is None:
                pass
            elif self.binary or tensor.data is not None:
                given["parameters"] = {"binary_data_size": len(tensor.bytes)}
                pieces.append(tensor.bytes)
            else:
                assert tensor.values is not None
                given["data"] = [each.decode() if isinstance(each, bytes) else each for each in tensor.values]
            inputs.append(given)
        if ask.outputs is not None:
            document["outputs"] = outputs = []
            for want in ask.outputs:
                named: dict[str, Any] = {"name": want.name}
                if want.part is not None:
                    named["parameters"] = part_of(want)
                elif self.binary or want.classes:
                    named["parameters"] = {"binary_data": self.binary}
                if want.classes:
                    named["parameters"]["classification"] = want.classes
                outputs.append(named)
        return document, b"".join(pieces)

    def answered(self, reply: Reply) -> Answered:
        document, at = reply.json, reply.head
        outputs = []
        for each in document["outputs"]:
            name, datatype, shape = each["name"], each["datatype"], tuple(each["shape"])
            size = each.get("parameters", {}).get("binary_data_size")
            if size is not None:
                outputs.append(unpacked(name, datatype, shape, reply.body[at : at + size]))
                at += size
            elif "data" in each:
                outputs.append(Tensor(name, datatype, shape, tuple(values_of(each["data"]))))
            else:  # it is in shared memory
                outputs.append(Tensor(name, datatype, shape, None))
        assert at == len(reply.body)
        more = document.get("parameters", {})
        return Answered(tuple(outputs), document.get("id", ""), document["model_name"], document["model_version"], more)

    # --- streams

    def stream(self, ask: Ask) -> list[Outcome]:
        """Ask by generate_stream; an error in front of the stream is its one message."""
        reply = self.generate(ask, "generate_stream")
        if reply.type == "application/json":
            return [reply.refused()]
        messages: list[Outcome] = []
        for event in reply.body.decode().split("\n\n")[:-1]:
            document = json.loads(event.removeprefix("data: "))
            if "error" in document:
                messages.append(Refused(reply.refused(document).code if not messages else "", document["error"]))
            else:
                messages.append(flat(document))
        return messages

    def generate(self, ask: Ask, what: str) -> Reply:
        body: dict[str, Any] = {"id": ask.id} if ask.id else {}
        body |= ask.parameters
        for tensor in ask.inputs:
            values = list(values_of(tensor.values or ()))
            body[tensor.name] = [each.decode() if isinstance(each, bytes) else each for each in values]
        return self.request("POST", f"{path_of(ask)}/{what}", body)


def path_of(ask: Ask) -> str:
    return f"/v2/models/{ask.model}" + (f"/versions/{ask.version}" if ask.version else "")


def part_of(place: Any) -> dict[str, Any]:
    part = place.part
    given = {"shared_memory_region": part.region, "shared_memory_byte_size": part.size}
    return {**given, "shared_memory_offset": part.offset} if part.offset else given


def values_of(data: Any) -> Iterator[Any]:
    for each in data:
        yield each.encode() if isinstance(each, str) else each


def flat(document: dict[str, Any]) -> Answered:
    """Return an answer of generate; it tells neither datatypes nor shapes."""
    known = {name: document.pop(name) for name in ("id", "model_name", "model_version") if name in document}
    outputs = [
        Tensor(name, "", (), tuple(values_of(each if isinstance(each, list) else [each])))
        for name, each in document.items()
    ]
    return Answered(tuple(outputs), known.get("id", ""), known["model_name"], known["model_version"])
