"""What the server and a model say of themselves: the protocol's extensions, and a model's versions, inputs and outputs.

Records for the front ends, which only put them on their wires. (Contract: http_protocol, sections 2.1 and 2.2.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernel.interfaces import Host

if TYPE_CHECKING:
    from kernel.config import TensorSpec

__all__ = ["EXTENSIONS", "ModelMetadata", "TensorMetadata", "model_metadata"]

#: The protocol's extensions that the server names as its own: the reference's list, in its order.
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """An input or output as a client sees it: `name`, `datatype`; `shape` has the batch dimension, -1, where the model
    batches.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a model says of itself: `name`, `platform`, `inputs` and `outputs`.

    `versions`: all READY ones ascending, or the one that was asked for, as observed on the reference.
    """

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


def model_metadata(kernel: Host, name: str, version: str = "") -> ModelMetadata:
    """Return what a READY model says of itself. Raises ServingError as `Kernel.model` does."""
    model = kernel.model(name, version)
    config = model.config
    batch = (-1,) if config.max_batch_size > 0 else ()

    def shown(specs: tuple[TensorSpec, ...]) -> tuple[TensorMetadata, ...]:
        return tuple(TensorMetadata(spec.name, spec.datatype, (*batch, *spec.dims)) for spec in specs)

    versions = [model.version] if version else [other.version for other in kernel.models() if other.name == model.name]
    return ModelMetadata(
        model.name, tuple(map(str, versions)), config.metadata_platform, shown(config.inputs), shown(config.outputs)
    )
