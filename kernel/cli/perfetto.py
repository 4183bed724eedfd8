"""Explanations as a trace of Chrome's form, which Perfetto, speedscope and chrome://tracing open. Pure.

A process of the trace is a model, a thread of it an instance, or where its requests wait; arrows lead from an execution to the
calls that it has made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

__all__ = ["trace_of"]

#: The thread of a model on which its requests wait.
WAITING = 0


def trace_of(requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the trace of requests, as `/v2/kernel/explain` tells of them."""
    return {"traceEvents": _Tracks().events(requests), "displayTimeUnit": "ms"}


class _Tracks:
    def __init__(self) -> None:
        self._models: dict[str, int] = {}
        self._instances: dict[str, int] = {}
        self._arrow = count(1).__next__
        self._found: list[dict[str, Any]] = []

    def events(self, requests: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        for request in requests:
            self._request(request, None)
        names = [("process_name", pid, WAITING, f"model '{model}'") for model, pid in self._models.items()]
        names += [("thread_name", pid, WAITING, "waiting") for pid in self._models.values()]
        names += [("thread_name", self._pid_of(name), tid, name.split(" ", 1)[1]) for name, tid in self._instances.items()]
        told = [{"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}} for kind, pid, tid, name in names]
        return told + self._found

    def _pid_of(self, instance: str) -> int:
        return int(instance.split(" ", 1)[0])

    def _request(self, request: Mapping[str, Any], caller: tuple[int, int, float] | None) -> None:
        """`caller`: the track and the beginning of the execution that has made it."""
        model = f"{request['model']} {request['version']}"
        pid = self._models.setdefault(model, len(self._models) + 1)
        tid = WAITING
        if request["instance"]:
            tid = self._instances.setdefault(f"{pid} {request['instance']}", len(self._instances) + 1)
        title = request["id"] or request["model"]
        arrived = request["arrived"] * 1e6
        executed: tuple[int, int, float] | None = None
        for interval in request["intervals"]:
            begin, on_instance = arrived + interval["at"] * 1e6, interval["kind"] == "execute"
            track = tid if on_instance else WAITING
            if on_instance:
                executed = pid, tid, begin
            self._found.append({
                "ph": "X", "name": f"{title}: {interval['kind']}", "cat": interval["kind"], "pid": pid, "tid": track, "ts": begin,
                "dur": interval["seconds"] * 1e6, "args": {"why": interval["words"], "state": request["state"]},
            })  # fmt: skip
        if caller is not None:
            number = self._arrow()
            at = executed or (pid, WAITING, arrived)
            for kind, (of, on, when) in (("s", caller), ("f", at)):
                self._found.append({
                    "ph": kind, "bp": "e", "id": number, "name": "call", "cat": "call", "pid": of, "tid": on, "ts": when,
                })  # fmt: skip
        for call in request["calls"]:
            self._request(call, executed)
