"""What is known at one moment of a walk, and how a tensor gets from its giver to its takers.

The law: nobody else ever sees the memory that a taker gets. The last taker of a tensor gets the memory itself, the others
copies, all of them before any taker runs. (Design: memory is private.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernel import Tensor
from kernel_ensemble.bound import Bound
from kernel_ensemble.graph import Feed, Plan, Step, fit
from kernel_ensemble.sequence import Sequence

__all__ = ["Frame", "Walk"]


class Frame:
    """What is known in one iteration: the request itself, or one response of a decoupled step and what follows from it.

    `waiting` and `inputs` by step index; `outputs` by index in the answer, `left` how many of them are not settled.
    `sequence`: step -> what its response said, where it differs from the request. `children`: the iterations that its
    decoupled step has begun and that are not wholly sent, in order; `closed`: it begins no more of them.
    """

    __slots__ = ("children", "closed", "inputs", "left", "outputs", "sequence", "waiting")

    def __init__(self, plan: Plan) -> None:
        self.waiting = list(plan.waiting)
        self.inputs: list[dict[str, Tensor]] = [{} for _ in plan.waiting]
        self.left = len(plan.outputs)
        self.outputs: list[Tensor | None] = [None] * self.left
        self.sequence: dict[int, Sequence] | None = None
        self.children: deque[Frame] | None = None
        self.closed = False


class Walk(Frame):
    """The first frame of a walk, and what is the same in all its frames.

    `bound` by step index: the model that runs the step. `batches`: whether the ensemble's own tensors have a batch dimension.
    `ready`: what can be started.
    """

    __slots__ = ("batches", "bound", "plan", "ready")

    def __init__(self, plan: Plan, bound: dict[int, Bound], batches: bool) -> None:
        super().__init__(plan)
        self.plan = plan
        self.bound = bound
        self.batches = batches
        self.ready: list[tuple[Frame, Step]] = []

    def spread(self, frame: Frame, feed: Feed, tensors: Mapping[str, Tensor], batched: bool) -> None:
        """Hand what `feed` gives to its takers in `frame`, and note which steps have become ready.

        `tensors`: by the giver's names; what is absent counts as settled too. `batched`: they have a batch dimension.
        """
        given: list[Any] | None = [] if feed.apart else None
        for name, route in feed.routes:
            tensor = tensors.get(name)
            if tensor is not None and given is not None:  # a model may answer with one array under two names
                if any(np.may_share_memory(tensor.array, other) for other in given):
                    tensor.array = tensor.array.copy()
                given.append(tensor.array)
            copies = len(route)
            for taker, target in route:
                copies -= 1
                if copies and tensor is not None:
                    self.give(frame, taker, target, Tensor(target, tensor.datatype, tensor.array.copy()), batched)
                else:
                    self.give(frame, taker, target, tensor, batched)

    def give(self, frame: Frame, taker: int, target: str, tensor: Tensor | None, batched: bool) -> None:
        """Give a tensor to its taker, under the taker's name and in its form. It is the taker's from now on.

        The object itself, not a second one with the same array: that would look like somebody else who sees the memory.
        """
        if taker < 0:
            if tensor is not None:
                tensor.name = target
                if batched is not self.batches:
                    tensor.array = fit(tensor.array, self.plan.dims[~taker], batched, self.batches)
                frame.outputs[~taker] = tensor
            frame.left -= 1
            return
        if tensor is not None:
            tensor.name = target
            model = self.bound[taker]
            if batched is not model.batches and target in model.dims:
                tensor.array = fit(tensor.array, model.dims[target], batched, model.batches)
            frame.inputs[taker][target] = tensor
        waiting = frame.waiting
        waiting[taker] -= 1
        if not waiting[taker]:
            self.ready.append((frame, self.plan.at[taker]))
