"""The messages of a call that don't come whole in one piece of data: assembled, unpacked, and given to the call's method.

Compressed messages that are long are unpacked on another thread, a portion at a time; the call takes no further data meanwhile.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from kernel import Account
from kernel_grpc.http2 import Data
from kernel_grpc.rpc.assembly import Assembly, Message, MessageError
from kernel_grpc.rpc.compression import PORTION, PORTION_ON_LOOP, UNPACKED_ON_LOOP, Unpacker
from kernel_grpc.rpc.meanings import Meaning
from kernel_grpc.rpc.methods import Receiver
from kernel_grpc.rpc.server import Server
from kernel_grpc.rpc.status import Status, name_of
from kernel_grpc.rpc.turns import FRAME_UNITS

__all__ = ["MESSAGES", "Incoming"]

#: How many messages of a streaming call are taken in one turn of the loop: they may be as short as five bytes.
MESSAGES = 16


class Taker(Protocol):
    """The call, as its messages need it."""

    done: bool
    held: bool
    meaning: Meaning
    server: Server

    @property
    def client(self) -> str:
        """Who has sent it, for people."""

    def handle(self, message: Message) -> None:
        """Have a unary call's method handle its message."""

    def crashed(self, error: BaseException) -> None:
        """A method has raised what it must not raise."""

    def finish(self, code: int, text: str) -> None:
        """End the call with a status."""

    def give_up(self, code: int, text: str) -> None:
        """End the call although its method has not."""

    def unhold(self) -> None:
        """Take data again."""

    def go_on(self) -> None:
        """Take data again, after a turn of the loop for others."""


class Incoming:
    """`receiver`: who takes a streaming call's messages. `holding`: the method wants none for the time being."""

    __slots__ = ("_account", "_first", "_lent", "_seen", "assembly", "holding", "receiver", "resting", "unpacking")

    def __init__(self, account: Account, limit: int) -> None:
        """`account`: where what comes and is unpacked is counted until `let_go`. `limit`: the largest message that is taken."""
        self.assembly = Assembly(account, limit)
        self._account = account
        self._lent = 0  # for what was unpacked
        self._seen = (-1, 0)  # which message was looked at last, and how much of it had come
        self.receiver: Receiver | None = None
        self.holding = False
        self.unpacking = False  # a message is being unpacked on another thread
        self.resting = False  # others have their turn of the loop
        self._first: Message | None = None  # the one message of a unary call

    def received(self, call: Taker, data: Data, start: int, stop: int, ended: bool) -> int | None:
        """Take data as `Stream.received` does."""
        assembly = self.assembly
        left = most = MESSAGES if call.server.turns.roomy else 1
        try:
            while start < stop:
                start = assembly.feed(data, start, stop)
                if assembly.message is not None:
                    self._take(call)
                    if call.done:
                        return None
                    left -= 1
                    if not (left or call.held) and start < stop:
                        self.resting = call.held = True
                        call.server.turns.spend(FRAME_UNITS * most)
                        call.server.turns.put_off(call)
                    if call.held:
                        return start
        except MessageError as error:
            self._refuse(call, error.status, error.text)
            return None
        except MemoryError:
            self._no_memory(call, f", of which {assembly.progress} have come")
            return None
        if ended:
            self._end(call)
        return None

    def space(self) -> memoryview | None:
        """Return where the rest of a message may be put directly."""
        try:
            return self.assembly.space()
        except MemoryError:
            return None  # the data goes to `received` then, which ends the call for that

    def filled(self, call: Taker, count: int) -> None:
        """`count` bytes were put into `space()`."""
        try:
            self.assembly.filled(count)
            if self.assembly.message is not None:
                self._take(call)
        except MessageError as error:
            self._refuse(call, error.status, error.text)
        except MemoryError:
            self._no_memory(call)

    def let_go(self) -> None:
        """Give back what was lent for the messages: they have their answer, or nobody waits for one."""
        self.assembly.give_back()
        if self._lent:
            self._account.give_back(self._lent)
            self._lent = 0

    def is_late(self, least: float) -> bool:
        """Whether less than `least` bytes have come of a message since this was asked last."""
        assembly = self.assembly
        (number, at), self._seen = self._seen, (assembly.begun, assembly.at)
        if self.receiver is not None and assembly.is_empty:
            return False
        return number == assembly.begun and assembly.at - at < least

    def half_close(self, call: Taker) -> None:
        """Tell a streaming call's method that nothing more comes."""
        if self.receiver is not None:
            try:
                self.receiver.half_closed()
            except Exception as error:
                call.crashed(error)

    def _take(self, call: Taker) -> None:
        """Take a complete message. Raises MessageError."""
        assembly = self.assembly
        message = assembly.fetch()
        if not assembly.compressed:
            self._give(call, message)
            return
        coding = call.meaning.coding
        if not coding:
            raise MessageError(Status.INTERNAL, "a compressed message, but no grpc-encoding that says how")
        unpacker = Unpacker(message, coding, assembly.limit)
        if len(message) <= UNPACKED_ON_LOOP:
            whole = unpacker.go_on(PORTION_ON_LOOP)
            if whole is not None:
                self._give(call, whole)
                return
        self.unpacking = call.held = True
        self._unpack(call, unpacker)

    def _unpack(self, call: Taker, unpacker: Unpacker) -> None:
        """Unpack more of a message on another thread, as much as the account allows. Raises MessageError."""
        if not self._account.take(PORTION):
            raise MessageError(Status.RESOURCE_EXHAUSTED, self._account.refusal().message)
        self._lent += PORTION
        job = call.server.kernel.loop.run_in_executor(call.server.unpackers, unpacker.go_on, PORTION)
        job.add_done_callback(partial(self._unpacked, call, unpacker))

    def _unpacked(self, call: Taker, unpacker: Unpacker, done: asyncio.Future[Message | None]) -> None:
        if done.cancelled() or call.done:  # the loop is closing; or nobody waits any more
            return
        if done.exception() is None and done.result() is None:
            try:
                self._unpack(call, unpacker)
            except MessageError as problem:
                self._refuse(call, problem.status, problem.text)
            return
        self.unpacking = False
        error = done.exception()
        if isinstance(error, MessageError):
            self._refuse(call, error.status, error.text)
        elif isinstance(error, MemoryError):
            self._no_memory(call)
        elif error is not None:
            call.crashed(error)
        else:
            message = done.result()
            assert message is not None
            try:
                self._give(call, message)
            except MessageError as problem:
                self._refuse(call, problem.status, problem.text)
            if not self.holding:
                call.unhold()

    def go_on(self, call: Taker) -> None:
        """Take further messages: others have had their turn."""
        self.resting = False
        if not (self.holding or self.unpacking):
            call.unhold()

    def _give(self, call: Taker, message: Message) -> None:
        """Give a message to the method; that of a unary call waits for the end of the data. Raises MessageError."""
        if self.receiver is not None:
            try:
                self.receiver.message(message)
            except Exception as error:
                call.crashed(error)
            self.let_go()  # whoever took it counts it
        elif self._first is None:
            self._first = message
        else:
            path = call.meaning.path
            raise MessageError(Status.UNIMPLEMENTED, f"more than one message, which '{path}' does not take")

    def _end(self, call: Taker) -> None:
        """The client has sent all."""
        if not self.assembly.is_empty:
            text = f"the request is cut off within a message, behind {self.assembly.progress}"
            self._refuse(call, Status.INTERNAL, text)
        elif self.receiver is not None:
            self.half_close(call)
        elif self._first is not None:
            message, self._first = self._first, None
            call.handle(message)
        else:
            call.finish(Status.UNIMPLEMENTED, f"no message; '{call.meaning.path}' takes one")

    def _no_memory(self, call: Taker, more: str = "") -> None:
        self._refuse(call, Status.RESOURCE_EXHAUSTED, f"there is no memory for the request{more}")

    def _refuse(self, call: Taker, status: int, text: str) -> None:
        """End a call whose message can't be read."""
        call.server.note_refused(call.client, call.meaning.path, name_of(status), text)
        call.give_up(status, text)
