"""Where the kernel has a gate: it is asked for an inference's model before anything is told of that, on streams for each request.

Nothing here is used without a gate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from kernel import Denied, InferenceRequest, ServingError
from kernel_grpc.inference.infer import Forwarded, Inference
from kernel_grpc.inference.stream import InferStream, StreamAnswer
from kernel_grpc.rpc.gated import GatedCall

if TYPE_CHECKING:
    from kernel import Kernel, Model
    from kernel_grpc.inference.large import Prepared
    from kernel_grpc.inference.parameters import Parameters
    from kernel_grpc.inference.recipe import Recipe
    from kernel_grpc.rpc.calls import Call
    from kernel_grpc.rpc.limits import Limits

__all__ = ["GatedInference", "GatedStream"]


class GatedInference(Inference):
    """Reads messages of calls that may be for some models only. `call`: the one whose message is being read."""

    def __init__(self, kernel: Kernel, limits: Limits | None = None) -> None:
        super().__init__(kernel, limits)
        self.call: GatedCall | None = None

    def infer(self, call: Call, message: Any, ready: Prepared | None = None) -> None:
        self.call = call  # type: ignore[assignment]  # where there is a gate all calls are; `cast` would be a frame more
        super().infer(call, message, ready)

    def read(self, message: Any, forwarded: Forwarded, streaming: bool) -> tuple[InferenceRequest, Recipe, Parameters]:
        made = super().read(message, forwarded, streaming)
        call = self.call
        assert call is not None
        door = call.meaning.door
        name = made[0].model_name
        if name != door.allowed or not door.standing.holds:
            self.ask(name)  # `model` asks, too, but is not called for a message that a recipe was found for
        return made

    def model(self, name: str, version: str) -> Model:
        """Return the model of that name. Raises ServingError; Denied before it can be told whether there is one."""
        self.ask(name)
        return super().model(name, version)

    def ask(self, model: str) -> None:
        """Raise Denied where the call may not be for that model."""
        call = self.call
        assert call is not None
        call.door.allow(call, model, False)


class StreamReading(GatedInference):
    """What one stream reads its messages with: all of it is the shared one's, but for whose call it is.

    `quiet`: the model is only asked for so that a refusal comes in its order.
    """

    def __init__(self, shared: GatedInference, call: GatedCall) -> None:
        vars(self).update(vars(shared))
        self.call = call
        self.quiet = False

    def ask(self, model: str) -> None:
        if not self.quiet:
            super().ask(model)


class GatedStream(InferStream):
    """A stream each of whose requests enters by the call's door, and is over when its answer is out."""

    __slots__ = ("_over", "_reading")

    def __init__(self, inference: GatedInference, call: Call) -> None:
        self._reading = StreamReading(inference, cast(GatedCall, call))
        #: Of requests that have entered. All are alike: where there are more of them than answers that are owed, some are over.
        self._over: list[Callable[[], None]] = []
        super().__init__(self._reading, call)

    def message(self, data: Any, ready: Prepared | None = None) -> None:
        call = cast(GatedCall, self.call)
        if ready is None and not call.done and not call.meaning.door.standing.holds:
            try:
                stay = call.door.enter(call)
            except Denied as denied:
                self._refuse(data, denied)
                return
            if stay is not None:
                self._over.append(stay())
        super().message(data, ready)
        self._settle()

    def _take_more(self) -> None:
        super()._take_more()  # a message that had to wait has become a request, or was refused
        self._settle()

    def answered(self, answer: StreamAnswer) -> None:
        super().answered(answer)
        self._settle()

    def cancel(self) -> None:
        super().cancel()
        self._settle(0)

    def _refuse(self, data: Any, error: ServingError) -> None:
        self._reading.quiet = True
        try:
            super()._refuse(data, error)
        finally:
            self._reading.quiet = False

    def _settle(self, owed: int | None = None) -> None:
        over = self._over
        if over:
            owed = len(self.answers) + self.preparing if owed is None else owed
            while len(over) > owed:
                over.pop()()
