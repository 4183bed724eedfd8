"""Why a call took as long as it did, told to who asks by metadata: in the response and in the trailers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from frontends.fakes_grpc import FakeCall, Service, data_of, floats, parameters_of, request, run_jobs
from virtual import BASE, TestBackend, run, sleeping, write_repository

from kernel import Code, Explanation, Interval, Kernel, ServingError
from kernel_grpc.http2 import literal
from kernel_grpc.http2.blocks import Blocks
from kernel_grpc.inference.trailing import told
from kernel_grpc.rpc.meanings import Asked, Kind, Meaning, Meanings
from kernel_grpc.rpc.status import MAX_MESSAGE
from kernel_grpc.services.methods import inference_methods

WORDS = "request 'a' of model 'm' version 1, 20 ms: began at once; executed 20 ms"


def asking(report: str = "", *, stream: bool = False) -> FakeCall:
    call = FakeCall()
    kind = Kind()
    kind.asked = Asked(report, True)
    call.meaning = Meaning(kind)
    call.is_stream = stream
    return call


def trailers(call: Any, room: int = MAX_MESSAGE) -> dict[str, str]:
    """Return what is told in the trailers of a call that is over."""
    block = call.meaning.trailing(room)
    head = Blocks().decode(REQUEST + block)
    return {name.decode(): value.decode() for name, value in head.fields if not name.startswith(b":")}


#: What a block must begin with to be one of a request: POST, /, http.
REQUEST = b"\x83\x84\x86"


def test_an_answer_that_says_why(tmp_path: Path) -> None:
    def fail(batch: object) -> None:
        raise ServingError(Code.INVALID_ARG, "no such row")

    async def main() -> None:
        write_repository(tmp_path, {"m": BASE, "wrong": BASE})
        backend = TestBackend({"m": sleeping(0.02), "wrong": fail})
        async with Kernel(tmp_path, control_mode="explicit", load_models=["*"], plugins=[backend]) as kernel:
            service: Any = Service(kernel)  # type: ignore[arg-type]
            infer, streamed = inference_methods(kernel)
            message = data_of(request("m", ("X", "FP32", [1]), raw=[floats(5)], id="a"))
            for report in ("", "text"):  # the second one's head is known
                call: Any = asking(report)
                infer.handler(call, message)
                shared = call.meaning
                await asyncio.sleep(1)
                assert parameters_of(call.response) == {"explain": WORDS}
                assert shared is not call.meaning, "what belongs to one call is not stored in what others share"
                found = trailers(call)
                assert found["server-timing"] == 'total;dur=20.000;desc="ANSWERED", execute;dur=20.000;desc="executed 20 ms"'
                assert unquote(found["x-explain"]) == WORDS
                assert found.get("endpoint-load-metrics", "")[:4] == report.upper()
            call = asking(stream=True)
            stream = streamed.handler(call)
            stream.message(message)
            run_jobs(service.kernel)
            await asyncio.sleep(1)
            (data,) = call.take()
            assert WORDS.encode() in data and call.meaning.trailing is None
            call = asking()
            infer.handler(call, data_of(request("wrong", ("X", "FP32", [1]), raw=[floats(5)], id="b")))
            await asyncio.sleep(1)
            assert call.failure == (Code.INVALID_ARG, "no such row")
            assert unquote(trailers(call)["x-explain"]).endswith("failed after 0 µs: INVALID_ARG: no such row")

    run(main())


def test_an_explanation_that_fails_costs_no_answer(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": BASE})
        backend = TestBackend({"m": sleeping(0.02)})
        async with Kernel(tmp_path, control_mode="explicit", load_models=["*"], plugins=[backend]) as kernel:
            infer, _ = inference_methods(kernel)
            kernel.explain = lambda asked: 1 // 0  # type: ignore[assignment]
            call: Any = asking()
            infer.handler(call, data_of(request("m", ("X", "FP32", [1]), raw=[floats(5)], id="a")))
            await asyncio.sleep(1)
            assert dict(call.response.parameters) == {}

    run(main())


def test_only_who_asks_is_told() -> None:
    infer = inference_methods(SimpleNamespace(gate=None))[0]  # type: ignore[arg-type]
    meanings = Meanings({infer.path.encode(): infer})

    def asked(*fields: tuple[bytes, bytes]) -> Any:
        own = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", infer.path.encode()), (b"te", b"trailers"))
        return meanings(Blocks().decode(b"".join(literal(*field) for field in (*own, *fields)))).asked

    assert asked() is None and asked((b"x-explain", b"0")) is None and asked((b"x-explained", b"1")) is None
    assert asked((b"x-explain", b"1")) == Asked("", True)
    assert asked((b"x-explain", b"1"), (b"endpoint-load-metrics-format", b"JSON")) == Asked("json", True)


@pytest.mark.parametrize("room", [0, 50, 200, 2100, 2200, MAX_MESSAGE])
def test_a_client_takes_so_much(room: int) -> None:
    interval = Interval("wait", 0.0, 1.0, "long " * 100)
    explanation = Explanation("m", 1, "ü", 0.0, "ANSWERED", 1.0, (interval,) * 20, "m_0", 1, "ä" * 5000)
    explanation = replace(explanation, calls=(explanation,))
    block = told(SimpleNamespace(), "", explanation, room)  # type: ignore[arg-type]
    head = Blocks().decode(REQUEST + block)
    there = dict(head.fields)
    assert sum(len(name) + len(value) + 32 for name, value in head.fields if name[:1] != b":") <= room
    assert (b"x-explain" in there) == (room >= 200) and (b"server-timing" in there) == (room >= 2100)
    if room == MAX_MESSAGE:
        assert unquote(there[b"x-explain"].decode()).endswith("...")
