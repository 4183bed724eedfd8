"""The first steps with a model's class: found in its module, made and initialized, or its config completed.

The same in every placement, and in the reference's words (contract: python_backend, 2.2, 2.3). Whatever model code raises passes;
who calls turns it into the load's failure. Knows nothing of where instances run, and runs in children, too.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernel import Code, ServingError
from kernel_python.api.model_config import PbModelConfig

if TYPE_CHECKING:
    from kernel import InstanceContext, ModelConfig

__all__ = ["arguments_of", "async_capacity", "complete", "initialized", "model_class"]

ASYNC_CAPACITY = 64


def model_class(module: Any, shown: str) -> Any:
    """Return the TritonPythonModel of a module, which the reference calls `shown`."""
    try:
        return module.TritonPythonModel
    except AttributeError:
        raise ServingError(
            Code.INTERNAL, f"AttributeError: module '{shown}' has no attribute 'TritonPythonModel'"
        ) from None


def initialized(found: Any, file: str | os.PathLike[str], arguments: Mapping[str, str]) -> Any:
    """Return an initialized object of the class, which can execute; it may have been given that by `initialize`.

    `found` may as well be a function that makes a model, as in the reference.
    """
    model = found()
    if hasattr(model, "initialize"):
        if inspect.iscoroutinefunction(model.initialize):
            raise ServingError(
                Code.INTERNAL, f"initialize of {file} is `async def`, which nobody awaits; it has to be a plain `def`"
            )
        model.initialize(arguments)
    if not callable(getattr(model, "execute", None)):
        raise ServingError(Code.INTERNAL, f"Python model {file} does not implement `execute` method.")
    return model


def complete(found: Any, model_name: str, config: str) -> dict[str, Any] | None:
    """Return what `auto_complete_config` of the class makes of a config in JSON; None where it has none."""
    fill_in = getattr(found, "auto_complete_config", None)
    if fill_in is None:
        return None
    filled = fill_in(PbModelConfig(config))
    if not isinstance(filled, PbModelConfig):
        raise ServingError(
            Code.INTERNAL,
            f"auto_complete_config function in model '{model_name}' must return a valid pb.ModelConfig object.",
        )
    return filled.as_dict()


def arguments_of(context: InstanceContext) -> dict[str, str]:
    """Return what `initialize` is given (contract: python_backend, 2.1): all of it text."""
    return {
        "model_config": json.dumps(context.config.as_dict(), separators=(",", ":")),
        "model_instance_kind": context.kind,
        "model_instance_name": context.instance_name,
        "model_instance_device_id": str(context.device_id),
        "model_repository": str(context.model_folder.absolute()),
        "model_version": str(context.version),
        "model_name": context.config.name,
    }


def async_capacity(config: ModelConfig) -> int:
    """Return how often an `async def execute` may run at a time."""
    # With a batcher one execution at a time: with more, each request would be started alone, and no batch would form.
    batches = config.dynamic_batching is not None or config.sequence_batching is not None
    default = 1 if batches and not config.decoupled else ASYNC_CAPACITY
    return int(config.parameters.get("max_concurrency", default))
