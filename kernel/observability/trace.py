"""One traced request: what happened to it and when, and the traces of the requests that it has called. Pure: time is an argument.

The names of the moments are the reference's, and so is their order (observability, section 3.2). A trace is opened when its
request is accepted, and ended with its final answer; a tree is complete when the last of its traces has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kernel.tensor import Tensor

if TYPE_CHECKING:
    from kernel.requests import Batch

__all__ = ["HEADER", "Event", "Trace", "TraceSink", "moments_of"]

#: A name and a moment in seconds on the kernel's clock, or an activity and the tensor that it concerns.
Event: TypeAlias = "tuple[str, float | Tensor]"

#: Stands, among the events of a trace, where its request is named.
HEADER: Event = ("", 0.0)

#: Protocol -> what its front end's moments are called: a request begins and ends to come in, a response to go out.
_MOMENTS = {"GRPC": ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END")}


def moments_of(protocol: str) -> tuple[str, str, str, str]:
    """Return the names of a front end's four moments."""
    known = _MOMENTS.get(protocol)
    return known or tuple(f"{protocol}_{what}" for what in ("RECV_START", "RECV_END", "SEND_START", "SEND_END"))  # type: ignore[return-value]


class Trace:
    """The trace of one request. Made by the kernel; a TraceSink reads it.

    `sampler`: what decides on traces like this one and counts them. `times`, `tensors`: whether moments are noted, and tensors.
    `model_name`, `model_version`, `request_id`: whose request it is. `id`: a number of its own. `parent`: the trace of the
    request that made this one, None at the top. `events`: in order. `children`: the traces of calls, in order. `protocol`: of
    the front end that the request came by, "" for an app's own. `context`: what a model may tell others of this trace, in
    JSON; None where there is nothing to tell. `ids`: the sink's own. `failed`: what the request was answered with, where that
    was an error.

    The core's own: `note`, `note_tensors`, `arrived`, `accepted`, `answered`, `executed`, `end`.
    """

    __slots__ = (
        "children",
        "context",
        "events",
        "failed",
        "id",
        "ids",
        "is_ended",
        "model_name",
        "model_version",
        "open",
        "parent",
        "protocol",
        "request_id",
        "sampler",
        "tensors",
        "times",
        "top",
    )

    def __init__(self, id: int, parent: Trace | None, sampler: Any, *, times: bool, tensors: bool, protocol: str = "") -> None:
        self.id = id
        self.parent = parent
        self.sampler = sampler  # what decides on traces like this one, and counts them
        self.times = times  # whether moments are noted
        self.tensors = tensors  # whether tensors are
        self.protocol = protocol
        self.model_name = ""
        self.model_version = 0
        self.request_id = ""
        self.events: list[Event] = []
        self.children: list[Trace] = []
        self.context: str | None = None
        self.ids: Any = None
        self.failed = ""
        self.is_ended = False
        self.open = 1  # at the top: traces of this tree that have not ended
        self.top: Trace = self
        if parent is not None:
            self.top = parent.top
            self.top.open += 1
            parent.children.append(self)

    def note(self, name: str, moment: float) -> None:
        if self.times:
            self.events.append((name, moment))

    def note_tensors(self, activity: str, tensors: Any) -> None:
        """Keep copies: whose tensors these are may do with them as he likes."""
        if self.tensors:
            for tensor in tensors:
                self.events.append((activity, Tensor(tensor.name, tensor.datatype, tensor.array.copy())))

    def arrived(self, began: float, now: float) -> None:
        """Note when a front end's request came in. At the top, first of all."""
        if self.protocol:
            first, second, _, _ = moments_of(self.protocol)
            self.note(first, began)
            self.note(second, now)

    def accepted(self, model_name: str, model_version: int, request_id: str, now: float) -> None:
        """Note whose request this is, and that it begins to wait."""
        self.model_name = model_name
        self.model_version = model_version
        self.request_id = request_id
        if self.times:
            self.events.append(HEADER)
        self.note("REQUEST_START", now)
        self.note("QUEUE_START", now)

    def answered(self, now: float) -> None:
        """Note a response of the request; the reference does so only at the top."""
        if self.parent is None:
            self.note("INFER_RESPONSE_COMPLETE", now)

    def executed(self, batch: Batch | None, now: float) -> None:
        """Note the end of the request, and its execution's times where there was one. An ensemble's are its steps'."""
        if batch is not None and batch.started:
            ended = batch.ended or now
            self.note("COMPUTE_START", batch.started)
            self.note("COMPUTE_INPUT_END", batch.input_ended or batch.started)
            self.note("COMPUTE_OUTPUT_START", batch.output_started or ended)
            self.note("COMPUTE_END", ended)
        self.note("REQUEST_END", now)

    def end(self) -> bool:
        """Note that nothing more comes; return whether that completes the tree."""
        if self.is_ended:
            return False
        self.is_ended = True
        self.top.open -= 1
        return not self.top.open

    def walk(self) -> list[Trace]:
        """Return the traces of this tree, the latest first, as the reference writes them; this one is the last."""
        found = [self]
        for trace in found:
            found.extend(trace.children)
        return sorted(found, key=lambda trace: -trace.id)

    def moment(self, name: str) -> float | None:
        """Return the first moment of that name, None where it wasn't noted."""
        return next((value for key, value in self.events if key == name and isinstance(value, float)), None)


class TraceSink(Protocol):
    """Where traces go. One object per kernel; everything is called on the loop and must not hold it."""

    def opened(self, trace: Trace, traceparent: str) -> None:
        """A request is traced from now on; `traceparent`: what the client says of its own trace, "" for nothing.

        May set the trace's `context` and `ids`.
        """

    def completed(self, trace: Trace) -> None:
        """All is known of a trace without parent and of those below it."""

    def retired(self, sampler: Any) -> None:
        """The settings that `sampler` stands for have been replaced, and its last trace has ended."""

    async def close(self) -> None:
        """Write what is not written yet; nothing comes any more."""
