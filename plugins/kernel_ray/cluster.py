"""The Ray cluster: connects to it, starts actors in it, and hears of their ends. The only module beside `deploy` that calls Ray.

What may take long is done on threads: Ray's calls block, and the first one connects. An actor that was begun and does not come to
serve is ended, whatever the reason.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import importlib
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from kernel import Code, ServingError, clipped, how_to_install
from kernel_ray.actor import HEADER, KernelActor, Order, Started
from kernel_ray.files import content
from kernel_ray.settings import ClusterSettings, Settings
from kernel_remote.elastic import Link, link_to

__all__ = ["NAMESPACE", "Cluster", "RayActor", "cause_of", "connected", "import_ray"]

T = TypeVar("T")

#: Of all actors of ours.
NAMESPACE = "kernel"

#: Methods of an actor that run at a time: `wait` is one of them, always.
CONCURRENCY = 4

#: Seconds that ending an actor may take beyond what its requests are given.
STOP_SECONDS = 15.0

#: Seconds until an actor is asked again that is out of reach for Ray: its requests don't go through Ray.
ASK_AGAIN = 1.0

#: Characters of a cause that are told.
TOLD = 400


def import_ray() -> Any:
    """Return the module `ray`. Raises ServingError where it isn't installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        words = f"placement 'ray' needs the package ray, which can't be imported ({error})"
        raise ServingError(Code.UNSUPPORTED, f"{words}: {how_to_install('ray')}") from error


def connected(address: str, *, log: bool) -> tuple[Any, bool]:
    """Return the module `ray`, connected, and whether it was us who did that. `log`: what actors print is shown here.

    Raises ServingError where there is no Ray, or no cluster.
    """
    ray = import_ray()
    if ray.is_initialized():
        return ray, False
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=log)
    except Exception as error:
        words = f"can't connect to the Ray cluster at '{address}': {cause_of(error)}"
        if address == "auto" and isinstance(error, ConnectionError):  # Ray's own words name a flag of Ray's
            words = "no Ray cluster runs on this machine: `ray start --head` starts one; another is named by RAY_ADDRESS, "
            words += "--backend-config=ray,address=HOST:PORT (kernel serve), or --address HOST:PORT (kernel ray)"
        raise ServingError(Code.UNAVAILABLE, words) from error
    return ray, True


def _have_own_end() -> None:
    """Have SIGTERM be what it was before Ray: that one's handler prints a stack, and has the process aborted three seconds later.

    On the main thread only, where Python lets it be changed.
    """
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def cause_of(error: BaseException) -> str:
    """Return what an exception of Ray's says, on one line, without the fields that name what is known already."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    return clipped(" ".join(lines) or type(error).__name__, TOLD)


class Cluster:
    """The cluster as one kernel sees it; connected to with the first actor."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._ray: Any = None
        self._ours = False
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None

    def connect(self) -> Any:
        """Return the module `ray`, connected. Blocks. Raises ServingError."""
        with self._lock:
            if self._ray is None:
                self._ray, self._ours = connected(self._settings.address, log=self._settings.log_to_driver)
            return self._ray

    def close(self) -> None:
        """Disconnect, where it was us who had connected; blocks, for seconds where it was us who had started the cluster."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        if self._ours:
            self._ray.shutdown()

    async def do(self, step: Callable[..., T], *arguments: Any) -> T:
        """Do what blocks on a thread."""
        if self._threads is None:
            self._threads = concurrent.futures.ThreadPoolExecutor(4, "ray")
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(step, *arguments))

    async def start(self, order: Order, settings: Settings) -> RayActor:
        """Start an actor and have it serve. Raises ServingError."""
        model = order.model
        await self.do(self.connect)
        _have_own_end()
        handle = await self.do(self._create, settings)
        try:
            async with asyncio.timeout(settings.start_timeout):
                started = await self._started(handle, order)
        except BaseException as error:
            await asyncio.shield(self.do(self._kill, handle))
            if isinstance(error, TimeoutError):
                raise await self._too_late(model, settings) from None
            if not isinstance(error, Exception) or isinstance(error, ServingError):
                raise
            raise ServingError(Code.UNAVAILABLE, f"no actor of model '{model}' starts: {cause_of(error)}") from error
        return RayActor(self, handle, order, settings, started)

    async def _started(self, handle: Any, order: Order) -> Started:
        contents = None
        if await future_of(handle.needs.remote(order)):
            contents = await self.do(self._carried, order)
        started: Started = await future_of(handle.start.remote(order, contents))
        if started.problem:
            code = next((one for one in Code if one.value == started.code), Code.INTERNAL)
            raise ServingError(code, f"in its actor: {started.problem}")
        return started

    def _create(self, settings: Settings) -> Any:
        """Ask for an actor; it may wait for its resources."""
        ray = self.connect()
        options: dict[str, Any] = {
            "num_cpus": settings.cpus,
            "num_gpus": settings.gpus,
            "resources": dict(settings.resources),
            "runtime_env": dict(settings.runtime_env) or None,
            "max_concurrency": CONCURRENCY,
            "max_restarts": 0,
            "scheduling_strategy": self._strategy(settings.node) if settings.node else "SPREAD",
        }
        if settings.memory:
            options["memory"] = settings.memory
        try:
            return ray.remote(_Remote).options(**options).remote()
        except ValueError as error:
            raise ServingError(Code.INVALID_ARG, f"Ray refuses what is asked for: {cause_of(error)}") from error

    def _strategy(self, wanted: str) -> Any:
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        for node in nodes:
            if wanted in (node["NodeID"], node["NodeManagerAddress"], node["NodeManagerHostname"]):
                strategies = importlib.import_module("ray.util.scheduling_strategies")
                return strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        there = ", ".join(f"{node['NodeID'][:8]}… at {node['NodeManagerAddress']}" for node in nodes)
        words = f"the Ray cluster has no node '{wanted}' (ray_node) that is alive"
        raise ServingError(Code.UNAVAILABLE, f"{words}; there are {there}")

    def _carried(self, order: Order) -> Any:
        """Put the model's files where all nodes can have them."""
        return self._ray.put(content(Path(order.folder), order.files))

    def _kill(self, handle: Any) -> None:
        try:
            self._ray.kill(handle)
        except Exception:  # it has ended, or the cluster has
            pass

    async def _too_late(self, model: str, settings: Settings) -> ServingError:
        def left() -> str:
            free, whole = self._ray.available_resources(), self._ray.cluster_resources()
            names = sorted({"CPU", "GPU", *settings.resources} & whole.keys())
            return ", ".join(f"{name} {free.get(name, 0):g} of {whole[name]:g}" for name in names) or "nothing"

        words = f"no actor of model '{model}' serves within {settings.start_timeout:g} s (ray_start_timeout)"
        return ServingError(Code.UNAVAILABLE, f"{words}: one asks for {settings.shown}, free are {await self.do(left)}")


class RayActor:
    """An actor that serves."""

    def __init__(self, cluster: Cluster, handle: Any, order: Order, settings: Settings, started: Started) -> None:
        self._cluster = cluster
        self._handle = handle
        self.config = started.config
        host, port = started.host, started.port
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        name = f"{where} (Ray actor {handle._actor_id.hex()[:8]}, pid {started.pid})"
        metadata = {f"triton-grpc-protocol-{HEADER}": order.secret}
        self.link: Link = link_to(host, port, name, metadata, patience=settings.patience)

    async def ended(self) -> str:
        exceptions = importlib.import_module("ray.exceptions")
        while True:
            try:
                why: str = await future_of(self._handle.wait.remote())
                return f"has ended: {why}" if why else "has ended"
            except exceptions.ActorUnavailableError:
                await asyncio.sleep(ASK_AGAIN)
            except Exception as error:
                return f"has died: {cause_of(error)}"

    async def stop(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds + STOP_SECONDS):
                await future_of(self._handle.stop.remote(seconds))
        except Exception:  # it has died before, or takes too long: ended at once, then
            pass
        self.kill()

    def kill(self) -> None:
        self._cluster._kill(self._handle)


def future_of(reference: Any) -> asyncio.Future[Any]:
    """Return what an ObjectRef will be as a future of the running loop."""
    return asyncio.wrap_future(reference.future())


class _Remote(KernelActor):
    """The actor's class as Ray makes it: on the node, which knows its own address."""

    def __init__(self) -> None:
        super().__init__(importlib.import_module("ray.util").get_node_ip_address())
