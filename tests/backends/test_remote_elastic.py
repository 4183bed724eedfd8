"""Remote models whose endpoints come and go, in virtual time: who waits, who goes elsewhere, who fails, and with what."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
from network import Far, Line, Network, Request, run_network

from kernel import Code, InstanceContext, Kernel, ModelConfig, ServingError, hookimpl
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_remote.elastic import ElasticModel, Endpoints, Link, link_to
from kernel_remote.settings import Settings

CONFIG = """
backend: "elastic"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
X = {"X": np.arange(3, dtype=np.float32)}


class Elastic:
    """A backend, and a plugin that has it, with one model. `lost`: what was told of endpoints that can't be connected to."""

    name = "elastic"
    creates_on_loop = True
    uses_gpus = False

    def __init__(self, dropping: bool = True) -> None:
        self.lost: list[tuple[str, str]] = []
        self.dropping = dropping

    @hookimpl
    def register_backends(self, kernel: Kernel) -> dict[str, Any]:
        return {"elastic": self}

    def complete_config(self, config: ModelConfig, *_: Any) -> ModelConfig:
        return config

    def validate(self, *_: Any) -> None: ...

    def create(self, context: InstanceContext) -> ElasticModel:
        endpoints = Endpoints(context.kernel.loop)
        settings = Settings((), "m")
        self.model = ElasticModel(context.kernel, settings, False, lambda: endpoints, 1 << 20, self._unreachable)
        return self.model

    def _unreachable(self, link: Link, why: str) -> None:
        self.lost.append((link.name, why))
        if self.dropping:
            self.model.drop(link, why)


@contextlib.asynccontextmanager
async def near(folder: Path, elastic: Elastic) -> AsyncIterator[Kernel]:
    (folder / "m/1").mkdir(parents=True)
    (folder / "m/config.pbtxt").write_text(CONFIG)
    async with Kernel(folder, plugins=[elastic], drain_seconds=1.0) as kernel:
        yield kernel


class Ends:
    """Far ends that note what comes to them, and answer it where `answering` is set."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.came: list[tuple[str, Request]] = []
        self.answering = True

    def listen(self, host: str) -> tuple[Link, Line]:
        line = self.network.listen(host, Far(lambda request: self._take(host, request)))
        return link_to(host, 8001, f"{host}:8001 (actor)", {"kernel-key": "k"}), line

    def _take(self, host: str, request: Request) -> None:
        self.came.append((host, request))
        if self.answering:
            asked = pb.ModelInferRequest.FromString(bytes(request.body[5:]))
            message = pb.ModelInferResponse(model_name="m", raw_output_contents=asked.raw_input_contents)
            message.outputs.add(name="Y", datatype="FP32", shape=asked.inputs[0].shape)
            request.answer(message.SerializeToString())


async def said(asked: Any) -> str:
    """Return "ok", or the error's words."""
    try:
        response = await asked
    except ServingError as error:
        assert error.code is Code.UNAVAILABLE
        return error.message
    assert response["Y"].tolist() == [0, 1, 2]
    return "ok"


def test_requests_wait_for_the_first_endpoint_and_go_with_its_metadata(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        elastic, ends = Elastic(), Ends(network)
        async with near(tmp_path, elastic) as kernel:
            asked = [kernel.infer("m", X) for _ in range(3)]
            await asyncio.sleep(1.0)
            assert not any(one.done() for one in asked)
            elastic.model.add(ends.listen("a")[0])
            assert await asyncio.gather(*map(said, asked)) == ["ok"] * 3
            assert {request.fields[b"kernel-key"] for _, request in ends.came} == {b"k"}
            late = kernel.infer("m", X, timeout=1.0)
            assert await said(late) == "ok"

    run_network(main)


def test_what_is_open_at_an_endpoint_that_goes_fails_with_the_reason_and_nothing_else(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        elastic, ends = Elastic(), Ends(network)
        async with near(tmp_path, elastic) as kernel:
            (link, _), (other, _) = ends.listen("a"), ends.listen("b")
            elastic.model.add(link)
            ends.answering = False
            opened = [kernel.infer("m", X) for _ in range(2)]
            await asyncio.sleep(0.1)
            ends.answering = True
            elastic.model.drop(link, "has died: its node is gone")
            waiting = kernel.infer("m", X)
            assert [await said(one) for one in opened] == ["endpoint a:8001 (actor) has died: its node is gone"] * 2
            await asyncio.sleep(0.1)
            assert not waiting.done()
            elastic.model.add(other)
            assert await said(waiting) == "ok" and ends.came[-1][0] == "b"

    run_network(main)


def test_what_an_endpoint_has_not_looked_at_waits_for_the_next_one(tmp_path: Path) -> None:
    """It can't be connected to: that is told at once, and a request that was on its way there is not lost."""

    async def main(network: Network) -> None:
        elastic, ends = Elastic(), Ends(network)
        async with near(tmp_path, elastic) as kernel:
            link, line = ends.listen("a")
            elastic.model.add(link)
            assert await said(kernel.infer("m", X)) == "ok"
            line.refuses = True
            line.connections[0].close()
            await asyncio.sleep(0.1)
            asked = [kernel.infer("m", X) for _ in range(3)]
            await asyncio.sleep(1.0)
            assert elastic.lost == [(link.name, "can't be connected to (Connection refused)")]
            assert not any(one.done() for one in asked)
            elastic.model.add(ends.listen("b")[0])
            assert await asyncio.gather(*map(said, asked)) == ["ok"] * 3

    run_network(main)


def test_nobody_waits_where_there_is_no_hope(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        elastic, ends = Elastic(), Ends(network)
        async with near(tmp_path, elastic) as kernel:
            waiting = kernel.infer("m", X)
            await asyncio.sleep(0.1)
            elastic.model.refuse(ServingError(Code.UNAVAILABLE, "no actor of model 'm' starts: no GPU"))
            words = "[request id: <id_unknown>] no actor of model 'm' starts: no GPU"
            assert await said(waiting) == await said(kernel.infer("m", X)) == words
            elastic.model.add(ends.listen("a")[0])
            assert await said(kernel.infer("m", X)) == "ok"

    run_network(main)


def test_a_sequence_stays_where_it_began(tmp_path: Path) -> None:
    """Whichever endpoints come; also at one that is retired, where nothing else goes. One that is dropped takes it along."""

    async def main(network: Network) -> None:
        elastic, ends = Elastic(), Ends(network)

        async def send(sequence: int, flags: int = 0) -> str:
            assert await said(kernel.infer("m", X, correlation_id=sequence, flags=flags)) == "ok"
            return ends.came[-1][0]

        async with near(tmp_path, elastic) as kernel:
            (a, _), (b, _), (c, _) = (ends.listen(host) for host in "abc")
            elastic.model.add(a)
            assert {await send(number, flags=1) for number in range(1, 21)} == {"a"}
            elastic.model.add(b)
            elastic.model.add(c)
            assert {await send(number) for number in range(1, 21)} == {"a"}
            assert Counter([await send(number, flags=1) for number in range(21, 81)]).keys() == set("abc")
            elastic.model.retire(a)
            assert {await send(number) for number in range(1, 21)} == {"a"}
            assert await send(1, flags=2) == "a" and elastic.model.outstanding(a) == 0
            assert "a" not in {await send(number, flags=3) for number in range(100, 120)}
            elastic.model.drop(a, "is ended")
            assert await send(2) != "a"

    run_network(main)
