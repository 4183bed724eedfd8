"""The backend `my_plugin`: a model's outputs are its inputs, multiplied by the factor in its config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kernel import (
    Backend,
    Batch,
    InferenceResponse,
    InstanceContext,
    Kernel,
    Key,
    ModelConfig,
    Placement,
    Tensor,
    hookimpl,
)


@hookimpl
def register_backends(kernel: Kernel) -> Mapping[str, Backend]:
    """The one hook that is implemented here: backends by the name that a config's `backend` gives them."""
    return {"my_plugin": MyBackend()}


class MyBackend:
    """One object per kernel; makes the instances of models."""

    name = "my_plugin"
    creates_on_loop = False  # `create` may take its time: it runs on the instance's own thread

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        """Fill in what the model itself can tell of its config; here it tells nothing."""
        return config

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        """Refuse what can't be served; `kernel check` calls this as well, so it loads nothing."""
        factor_of(config)

    def create(self, context: InstanceContext) -> MyExecutor:
        """Make one instance: here a model's weights would be loaded, from `context.version_folder`."""
        return MyExecutor(factor_of(context.config))


class MyExecutor:
    """One model instance."""

    placement = Placement.THREAD  # where `execute` runs: on the thread that made the instance
    capacity = 1  # executions at a time
    may_wait = False  # asked only where the placement is LOOP

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def execute(self, batch: Batch) -> list[InferenceResponse]:
        """Return a response for each request of the batch."""
        return [
            InferenceResponse(
                [
                    Tensor("Y", tensor.datatype, (tensor.array * self._factor).astype(tensor.array.dtype))
                    for tensor in request.inputs.values()
                ]
            )
            for request in batch.requests
        ]

    def finalize(self) -> None:
        """Give back what the instance holds; called once, when it goes."""


def factor_of(config: ModelConfig) -> float:
    """Return the factor in the config, 2 by default. Raises ConfigError with its place where it is no number."""
    text = config.parameters.get("factor", "2")
    try:
        return float(text)
    except ValueError:
        words = f"parameter 'factor' of model '{config.name}' is '{text}', wanted a number"
        raise config.error("", words, at=("parameters", Key("factor"))) from None
