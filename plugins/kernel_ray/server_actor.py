"""What runs in an actor of `kernel ray deploy`: a `kernel serve` of its own process, as long as the actor lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_ray.child import Child
from kernel_ray.files import Listing, keep, listing, stamp_of

__all__ = ["Repository", "ServerActor", "Serving"]

#: Addresses that mean each of a machine.
ANY = ("0.0.0.0", "[::]")


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository: a URL of an object store, or a folder with its `files`."""

    path: str
    files: Listing | None


@dataclass(frozen=True, slots=True)
class Serving:
    """What is known of a server. `endpoints`: service -> host:port. `problem`: why it does not serve, "" where it does."""

    host: str
    pid: int = 0
    endpoints: Mapping[str, str] | None = None
    problem: str = ""


class ServerActor:
    """One server. `host`: the node's address. No method is a coroutine, see KernelActor."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._child: Child | None = None
        self._stopping = False

    def needs(self, repositories: Sequence[Repository]) -> list[str]:
        """Return the paths of repositories whose files have to be sent: they don't lie there."""
        return [one.path for one in repositories if one.files is not None and not self._is_here(one)]

    @staticmethod
    def _is_here(one: Repository) -> bool:
        try:
            return stamp_of(listing(Path(one.path), None)) == stamp_of(one.files or {})
        except OSError:
            return False

    def start(
        self, repositories: Sequence[Repository], contents: Mapping[str, Mapping[str, bytes]], flags: Sequence[str]
    ) -> Serving:
        """Serve repositories, and return when that is so, or has failed. `contents`: path -> files that have been sent."""
        try:
            paths = [self._path(one, contents.get(one.path)) for one in repositories]
        except OSError as error:
            return Serving(self._host, problem=f"its files can't be kept: {error}")
        child = self._child = Child([*paths, *flags])
        while not child.ready.wait(0.1):
            if child.over.is_set():
                return Serving(self._host, problem=child.why())
        return self.serving()

    def _path(self, one: Repository, contents: Mapping[str, bytes] | None) -> str:
        if contents is None or one.files is None:
            return one.path
        return str(keep(Path(one.path).name or "repository", None, one.files, contents))

    def serving(self) -> Serving:
        """Return where it serves."""
        child = self._child
        if child is None:
            return Serving(self._host, problem="it was not started")
        host = f"[{self._host}]" if ":" in self._host else self._host
        found = {service: _reached(where, host) for service, where in child.endpoints.items()}
        return Serving(self._host, child.pid, found)

    def wait(self) -> str:
        """Return why it has ended, once it has; "" where it was told to."""
        child = self._child
        assert child is not None
        child.over.wait()
        return "" if self._stopping else child.why()

    def stop(self, seconds: float) -> None:
        """End it: what is in flight has so many seconds."""
        self._stopping = True
        if self._child is not None:
            self._child.stop(seconds)


def _reached(where: str, host: str) -> str:
    """Return where others reach what listens at `where`."""
    address, _, port = where.rpartition(":")
    return f"{host}:{port}" if address in ANY else where
