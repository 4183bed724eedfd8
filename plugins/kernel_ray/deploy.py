"""What `kernel ray` does: starts a server on each node, starts anew what has ended, ends them all.

The servers are named actors of the namespace `kernel`, and belong to the process of `deploy`: Ray ends them with it, however it
ends.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kernel import Code, ServingError
from kernel_ray.cluster import NAMESPACE, cause_of, connected
from kernel_ray.files import content, listing
from kernel_ray.server_actor import Repository, ServerActor, Serving

__all__ = ["deploy", "down"]

#: Seconds until a server that has ended, or doesn't start, is started anew; doubled each time up to the longest.
BACKOFF = 1.0
LONGEST = 30.0

#: Seconds after which a server that ends has served well.
STABLE = 30.0

#: How often is looked at what has ended; seconds.
LOOK = 1.0

#: Seconds that an end may take beyond what is in flight.
STOP_SECONDS = 15.0


def deploy(options: argparse.Namespace) -> int:
    """Start servers and keep them; returns when all have been ended."""
    repositories = [_repository(path) for path in options.repository]
    ray = connected(options.address, log=not options.quiet)[0]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray's own ends the process with a dump
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0.0) >= options.num_cpus]
    nodes = [node for node in nodes if node["Resources"].get("GPU", 0.0) >= options.num_gpus]
    if not nodes:
        asked = f"CPU {options.num_cpus:g}, GPU {options.num_gpus:g}"
        raise ServingError(Code.UNAVAILABLE, f"no node of the Ray cluster has what a server is to take: {asked}")
    running = _names(ray, options.name)
    if running:
        words = f"servers of the name '{options.name}' are there: {', '.join(running)}; `kernel ray down` ends them"
        raise ServingError(Code.ALREADY_EXISTS, f"{words}, --name gives these another one")
    count = options.servers or len(nodes)
    places = [_Place(ray, options, repositories, index, nodes[index % len(nodes)]["NodeID"]) for index in range(count)]
    try:
        return _keep(ray, places)
    except KeyboardInterrupt:
        print("stopping", file=sys.stderr)
        return 0
    finally:
        _end(ray, [place.handle for place in places if place.handle is not None], options.drain)


def down(options: argparse.Namespace) -> int:
    """End the servers of a name; return the exit status."""
    ray = connected(options.address, log=False)[0]
    names = _names(ray, options.name)
    if not names:
        print(f"there are no servers of the name '{options.name}'", file=sys.stderr)
        return 1
    handles = []
    for name in names:
        try:
            handles.append(ray.get_actor(name, namespace=NAMESPACE))
        except ValueError:  # it has ended meanwhile
            continue
    _end(ray, handles, options.drain)
    print(f"ended {', '.join(names)}")
    return 0


def _repository(path: str) -> Repository:
    if "://" in path:
        return Repository(path, None)
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise ServingError(Code.NOT_FOUND, f"there is no folder '{path}'")
    try:
        return Repository(str(folder), listing(folder, None))
    except OSError as error:
        raise ServingError(Code.INTERNAL, f"repository '{path}' can't be read: {error}") from error


def _names(ray: Any, name: str) -> list[str]:
    """Return the names of the servers that are there."""
    there = importlib.import_module("ray.util").list_named_actors(all_namespaces=True)
    return sorted(one["name"] for one in there if one["namespace"] == NAMESPACE and one["name"].startswith(f"{name}-"))


class _Place:
    """Where one server is to be."""

    def __init__(
        self, ray: Any, options: argparse.Namespace, repositories: Sequence[Repository], index: int, node: str
    ) -> None:
        self.name = f"{options.name}-{index}"
        self.handle: Any = None
        self.failures = 0
        self.since = 0.0
        self._ray = ray
        self._options = options
        self._repositories = repositories
        self._node = node

    def start(self) -> Serving:
        """Start the server, and return where it serves, or why it doesn't."""
        ray, limit = self._ray, self._options.start_timeout
        try:
            handle = self.handle = self._create()
            needed = ray.get(handle.needs.remote(self._repositories), timeout=limit)
            contents = {one.path: content(Path(one.path), one.files or {}) for one in self._repositories if one.path in needed}
            reference = ray.put(contents)
            serving: Serving = ray.get(handle.start.remote(self._repositories, reference, self._options.flags), timeout=limit)
        except Exception as error:
            late = type(error).__name__ == "GetTimeoutError"
            words = f"it does not serve within {limit:g} s (--start-timeout)" if late else cause_of(error)
            serving = Serving("", problem=words)
        if serving.problem:
            self.kill()
        self.since = time.monotonic()
        return serving

    def start_again(self) -> Serving:
        """Start it anew, after a pause."""
        self.kill()
        time.sleep(min(LONGEST, BACKOFF * 2.0 ** min(self.failures, 10)))
        self.failures += 1
        return self.start()

    def kill(self) -> None:
        """End the actor at once."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._ray.kill(handle)

    def _create(self) -> Any:
        options = self._options
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        return (
            self._ray.remote(_Remote)
            .options(
                name=self.name,
                namespace=NAMESPACE,
                num_cpus=options.num_cpus,
                num_gpus=options.num_gpus,
                max_concurrency=4,
                max_restarts=0,
                runtime_env=options.runtime_env or None,
                # Where the node has gone, another one will do.
                scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(self._node, soft=self.failures > 0),
            )
            .remote()
        )


def _keep(ray: Any, places: Sequence[_Place]) -> int:
    """Start all, and then anew what has ended by itself, until all have been ended."""
    threads = ThreadPoolExecutor(len(places))
    try:
        begun = list(threads.map(_Place.start, places))
        for place, serving in zip(places, begun):
            _tell(place, serving)
        if any(serving.problem for serving in begun):
            return 1
        print(f"{len(places)} servers; Ctrl-C, or `kernel ray down`, ends them", flush=True)
        _watch(ray, places, threads)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
    print("all servers have been ended")
    return 0


def _watch(ray: Any, places: Sequence[_Place], threads: ThreadPoolExecutor) -> None:
    """Start anew what has ended by itself; return when all have been told to end."""
    ends = {place.handle.wait.remote(): place for place in places}
    starting: dict[Future[Serving], _Place] = {}
    while ends or starting:
        for reference in ray.wait(list(ends), timeout=LOOK)[0] if ends else ():
            place = ends.pop(reference)
            why = _why(ray, reference)
            if why:
                if time.monotonic() - place.since >= STABLE:
                    place.failures = 0
                print(f"{place.name}: {why}\n{place.name} is started anew", flush=True)
                starting[threads.submit(place.start_again)] = place
        if starting and not ends:
            time.sleep(LOOK)
        for future in [one for one in starting if one.done()]:
            place, serving = starting.pop(future), future.result()
            _tell(place, serving)
            if serving.problem:
                starting[threads.submit(place.start_again)] = place
            else:
                ends[place.handle.wait.remote()] = place


def _why(ray: Any, reference: Any) -> str:
    """Return why a server has ended, "" where it was told to."""
    try:
        why: str = ray.get(reference)
        return why
    except Exception as error:
        return cause_of(error)


def _tell(place: _Place, serving: Serving) -> None:
    if serving.problem:
        print(f"{place.name} does not start: {serving.problem}", file=sys.stderr, flush=True)
    else:
        endpoints: Mapping[str, str] = serving.endpoints or {}
        where = ", ".join(f"{service} {endpoint}" for service, endpoint in endpoints.items())
        print(f"{place.name} on {serving.host}: {where or 'serves'}", flush=True)


def _end(ray: Any, handles: Sequence[Any], seconds: float) -> None:
    """End servers, side by side: what is in flight has so many seconds."""
    ends = [handle.stop.remote(seconds) for handle in handles]
    if ends:
        ray.wait(ends, num_returns=len(ends), timeout=seconds + STOP_SECONDS)
    for handle in handles:
        ray.kill(handle)


class _Remote(ServerActor):
    """The actor's class as Ray makes it: on the node, which knows its own address."""

    def __init__(self) -> None:
        super().__init__(importlib.import_module("ray.util").get_node_ip_address())
