"""Where the kernel has a gate: each call asks it before anything of its message is looked at.

A door is made with what a call's header fields mean, and remembered with that. For which model a call is, only its message says:
who reads that (inference/gated.py, services/gated.py) asks the door once more. Nothing here is used without a gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernel import Denial, Denied, Door, Gate, ServingError
from kernel_grpc.http2 import Connection, Head
from kernel_grpc.rpc import status
from kernel_grpc.rpc.calls import Call, Payload, open_call, refusal
from kernel_grpc.rpc.meanings import Meaning, Meanings
from kernel_grpc.rpc.server import Server
from kernel_grpc.rpc.status import DENIED

__all__ = ["GatedCall", "GatedMeanings", "open_gated_call"]


class GatedMeanings(Meanings):
    """Finds out what fields mean, and makes the door of calls that have them.

    `changing`: the methods, by path, that change the server whatever they are told. `modelled`: those that are for a model.
    """

    def __init__(self, *args: Any, gate: Gate, changing: frozenset[str], modelled: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._gate = gate
        self._changing = changing
        self._modelled = modelled

    def _find(self, head: Head) -> Meaning:
        meaning = super()._find(head)
        method = meaning.method
        if method is not None and method.category:
            path = method.path
            model = None if path in self._modelled else ""
            changes = path in self._changing and model is not None  # of others the door learns when it knows the model
            meaning.door = self._gate.door(head.fields, method.category, path, model, changes)
        return meaning


class GatedCall(Call):
    """A call that has a door. `over`: what is to be called when it has ended."""

    __slots__ = ("over",)

    over: Callable[[], None] | None  # open_gated_call sets it first: a constructor would be one more frame for each call

    @property
    def door(self) -> Door:
        return self.meaning.door

    def reply(self, message: Payload) -> None:
        super().reply(message)
        if self.done and (over := self.over) is not None:
            self.over = None
            over()

    def fail(self, error: ServingError) -> None:
        if not isinstance(error, Denied) or self.done:
            super().fail(error)
        elif self.begun:
            self.finish(DENIED[error.denial], error.message)
        else:
            self.leave()
            if error.denial is not Denial.EXHAUSTED:
                self.connection.outgoing.worthless += 1
            self.end(status.denied(error, status.shortened(error.message, self.connection.control.header_list_limit)))

    def leave(self) -> None:
        super().leave()
        self._let_go()

    def _let_go(self) -> None:
        over, self.over = self.over, None
        if over is not None:
            over()


def _pass_door(call: GatedCall) -> bool:
    """Ask the door; where it says no, so does the call, and False is returned.

    A stream may have any number of requests, each of which is asked for: the stream itself counts as none.
    """
    meaning = call.meaning
    method = meaning.method
    assert method is not None
    try:
        if method.streaming:
            meaning.door.check(call)
        else:
            stay = meaning.door.enter(call)
            if stay is not None:  # the message, and with it the answer, is yet to come
                call.over = stay()
    except Denied as denied:
        call.fail(denied)
        return False
    return True


def open_gated_call(server: Server, connection: Connection, id: int, head: Head, ended: bool) -> Call:
    """Begin the call that a request asks for, if its door lets it pass; http2 calls this."""
    meaning = head.meaning
    if meaning is None:
        meaning = server.meanings(head)
    method = meaning.method
    if method is None or meaning.refusal is not None or not method.category:
        return open_call(server, connection, id, head, ended)
    if server.memory.send.used and (busy := refusal(server, connection, meaning)) is not None:
        refused = Call(server, connection, id, ended, head.content_length, busy)
        refused.begin()
        return refused
    call = GatedCall(server, connection, id, ended, head.content_length, meaning)
    call.over = None
    if (meaning.door.standing.holds or _pass_door(call)) and not meaning.ordinary:
        call.begin()
    return call
