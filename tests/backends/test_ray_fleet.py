"""The actors of one model in virtual time, without Ray: who is started when, what becomes of requests, and of all at the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
from network import Far, Network, Request, run_network

from kernel import Code, InstanceContext, Kernel, ModelConfig, ServingError, hookimpl
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_ray.fleet import BACKOFF, HOPELESS, STABLE, Fleet
from kernel_ray.model import RayModel
from kernel_remote.elastic import Endpoints, Link, Settings, link_to

CONFIG = """
backend: "fleet"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
X = {"X": np.arange(3, dtype=np.float32)}


class FakeActor:
    """One that is told when it dies. `link`: to a far end of its own."""

    config = b""

    def __init__(self, cluster: FakeCluster, link: Link) -> None:
        self.cluster = cluster
        self.link = link
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def host(self) -> str:
        return self.link.address.host

    def die(self, why: str, unheard: bool = False) -> None:
        """End the process; `unheard`: nobody but its connections tells."""
        self.cluster.alive.discard(self)
        line = self.cluster.network.lines[self.host, 8001]
        line.refuses = True
        for connection in line.connections:
            connection.close()
        if not unheard:
            self.over.set_result(why)

    async def ended(self) -> str:
        return await asyncio.shield(self.over)

    async def stop(self, seconds: float) -> None:
        self.kill()

    def kill(self) -> None:
        self.cluster.alive.discard(self)


class FakeCluster:
    """Starts actors, each within a second; and is the backend and the plugin of the one model `m`. `follows`: their number
    follows the load, else it is what a test asks for.

    `failing`: how many starts fail from now on; `starts`: when there was one; `alive`: those that nobody has ended.
    """

    name = "fleet"
    creates_on_loop = True
    uses_gpus = False

    def __init__(self, network: Network, least: int = 1, most: int = 4, follows: bool = False) -> None:
        self.network = network
        self.follows = follows
        self.bounds = least, most
        self.failing = 0
        self.answering = True
        self.starts: list[float] = []
        self.actors: list[FakeActor] = []
        self.alive: set[FakeActor] = set()
        self.came: list[str] = []

    async def start(self) -> FakeActor:
        self.starts.append(self.network.time())
        await asyncio.sleep(1.0)
        if self.failing:
            self.failing -= 1
            raise ServingError(Code.UNAVAILABLE, "no actor of model 'm' starts: no room")
        host = f"n{len(self.actors)}"
        self.network.listen(host, Far(lambda request: self._take(host, request)))
        actor = FakeActor(self, link_to(host, 8001, host, {}))
        self.actors.append(actor)
        self.alive.add(actor)
        return actor

    def _take(self, host: str, request: Request) -> None:
        self.came.append(host)
        if self.answering:
            asked = pb.ModelInferRequest.FromString(bytes(request.body[5:]))
            message = pb.ModelInferResponse(model_name="m", raw_output_contents=asked.raw_input_contents)
            message.outputs.add(name="Y", datatype="FP32", shape=asked.inputs[0].shape)
            request.answer(message.SerializeToString())

    @hookimpl
    def register_backends(self, kernel: Kernel) -> dict[str, Any]:
        return {"fleet": self}

    def complete_config(self, config: ModelConfig, *_: Any) -> ModelConfig:
        return config

    def validate(self, *_: Any) -> None: ...

    def create(self, context: InstanceContext) -> RayModel:
        endpoints = Endpoints(context.kernel.loop)
        self.fleet = Fleet("m", self.start, *self.bounds)
        return RayModel(context.kernel, Settings((), "m"), False, lambda: endpoints, 1 << 20, self.fleet)

    def kernel(self, folder: Path) -> Kernel:
        (folder / "m/1").mkdir(parents=True)
        (folder / "m/config.pbtxt").write_text(CONFIG)
        kernel = Kernel(folder, plugins=[self], drain_seconds=1.0)
        if not self.follows:
            kernel.supervision.know = lambda model: None  # type: ignore[method-assign]
        return kernel


async def said(asked: Any) -> str:
    """Return "ok", or the error's words."""
    try:
        response = await asked
    except ServingError as error:
        return error.message
    assert response["Y"].tolist() == [0, 1, 2]
    return "ok"


def test_a_death_fails_what_is_open_there_and_another_actor_comes_at_once(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        cluster = FakeCluster(network)
        async with cluster.kernel(tmp_path) as kernel:
            await asyncio.sleep(STABLE + 2.0)
            cluster.answering = False
            opened = kernel.infer("m", X)
            await asyncio.sleep(0.1)
            cluster.answering = True
            died = network.time()
            cluster.actors[0].die("has died: its node is gone")
            await asyncio.sleep(0.1)
            waiting = [kernel.infer("m", X) for _ in range(3)]
            assert await said(opened) in ("endpoint n0 has closed the connection", "endpoint n0 has died: its node is gone")
            assert await asyncio.gather(*map(said, waiting)) == ["ok"] * 3
            assert network.time() - died < 1.2 and cluster.came[-3:] == ["n1"] * 3
        assert not cluster.alive

    run_network(main)


def test_one_that_cannot_be_connected_to_is_replaced_before_ray_tells(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        cluster = FakeCluster(network, least=2)
        async with cluster.kernel(tmp_path) as kernel:
            await asyncio.sleep(STABLE + 2.0)
            assert await said(kernel.infer("m", X)) == "ok"
            cluster.actors[0].die("", unheard=True)
            await asyncio.sleep(0.1)
            answers = await asyncio.gather(*(said(kernel.infer("m", X)) for _ in range(20)))
            assert answers == ["ok"] * 20 and set(cluster.came[-20:]) == {"n1"}
            await asyncio.sleep(2.0)
            assert cluster.fleet.serving == 2 and len(cluster.actors) == 3
        assert not cluster.alive

    run_network(main)


def test_starts_that_fail_come_ever_more_seldom_and_then_nobody_waits(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        cluster = FakeCluster(network)
        cluster.failing = HOPELESS + 1
        async with cluster.kernel(tmp_path) as kernel:
            waiting = kernel.infer("m", X)
            await asyncio.sleep(0.1)
            words = "[request id: <id_unknown>] no actor of model 'm' starts: no room"
            assert await said(waiting) == words == await said(kernel.infer("m", X))
            await asyncio.sleep(20.0)
            gaps = [after - before - 1.0 for before, after in zip(cluster.starts, cluster.starts[1:])]
            assert np.allclose(gaps, [BACKOFF, 2 * BACKOFF, 4 * BACKOFF, 8 * BACKOFF])
            assert await said(kernel.infer("m", X)) == "ok"
        assert not cluster.alive

    run_network(main)


def test_actors_that_die_as_soon_as_they_serve_are_not_started_at_full_speed(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        cluster = FakeCluster(network)
        async with cluster.kernel(tmp_path):
            began = network.time()
            while network.time() < began + 60.0:
                await asyncio.sleep(0.1)
                for actor in list(cluster.alive):
                    actor.die("has died: it always does")
        assert 5 <= len(cluster.starts) <= 9

    run_network(main)


def test_more_and_fewer_actors_within_the_bounds(tmp_path: Path) -> None:
    """One that goes finishes what it has."""

    async def main(network: Network) -> None:
        cluster = FakeCluster(network, least=1, most=3)
        async with cluster.kernel(tmp_path) as kernel:
            fleet = cluster.fleet
            assert fleet.resize(9) == 3
            await asyncio.sleep(2.0)
            assert fleet.serving == 3
            cluster.answering = False
            opened = [kernel.infer("m", X) for _ in range(9)]
            await asyncio.sleep(0.1)
            assert fleet.resize(0) == 1 and fleet.serving == 1
            await asyncio.sleep(1.0)
            assert len(cluster.alive) == 3 and not any(one.done() for one in opened)
            cluster.answering = True
            assert await said(kernel.infer("m", X)) == "ok" and cluster.came[-1] == "n0"
            await asyncio.sleep(60.0)
            assert len(cluster.alive) == 1  # the others were given their time
            for one in opened:
                one.cancel()
        assert not cluster.alive

    run_network(main)


def test_the_number_of_actors_follows_the_load(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        cluster = FakeCluster(network, least=1, most=3, follows=True)
        async with cluster.kernel(tmp_path) as kernel:
            await asyncio.sleep(2.0)
            line = kernel.scale().models[0]
            assert (line.current, line.wanted, line.min, line.max) == (1, 1, 1, 3)
            cluster.answering = False
            opened = [kernel.infer("m", X) for _ in range(8)]
            await asyncio.sleep(1.0)
            line = kernel.scale().models[0]
            assert (line.current, line.wanted) == (1, 2)  # one takes a second to come up
            await asyncio.sleep(9.0)
            line = kernel.scale().models[0]
            assert (line.current, line.wanted) == (3, 3) and "3 are the most" in line.reason
            assert line.utilization > 0.9 and kernel.scale().utilization > 0.9
            cluster.answering = True
            for one in opened:
                one.cancel()
            await asyncio.sleep(100.0)
            line = kernel.scale().models[0]
            assert (line.current, line.wanted, len(cluster.alive)) == (1, 1, 1)
            assert await said(kernel.infer("m", X)) == "ok"

    run_network(main)


def test_a_stop_in_the_midst_of_a_start_leaves_nothing(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        cluster = FakeCluster(network, least=3)
        async with cluster.kernel(tmp_path):
            await asyncio.sleep(0.5)
        await asyncio.sleep(5.0)
        assert not cluster.alive and len(cluster.starts) == 3

    run_network(main)
