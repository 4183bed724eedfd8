"""Which model runs a step right now, and what a run has to know of that model. No walk, no request."""

from __future__ import annotations

from kernel import Model
from kernel_ensemble.graph import Step

__all__ = ["Bound"]


class Bound:
    """A step bound to the model version that runs it. Kept in the model's attachments, so it goes when the model goes.

    `dims`: the model's inputs. `requested`: the outputs to ask for, None where that is all it has. `batches`: whether its
    tensors have a batch dimension.
    """

    __slots__ = ("batches", "dims", "model", "requested", "step", "version")

    def __init__(self, step: Step, model: Model) -> None:
        self.step = step
        self.model = model
        self.version = str(model.version)
        self.batches = model.config.max_batch_size > 0
        self.dims = {spec.name: spec.dims for spec in model.config.inputs}
        self.requested = None if model.output_names <= step.outputs.keys() else tuple(step.outputs)
