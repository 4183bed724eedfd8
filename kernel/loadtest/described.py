"""What a server says of a model: its inputs, and how it wants them. From what came over either wire; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError

from kernel.config import Message, TensorSpec
from kernel.errors import Code, ServingError
from kernel.tensor import DATATYPES

__all__ = ["Described", "described", "read_json_config"]


@dataclass(frozen=True)
class Described:
    """A model as its server describes it. `inputs`: those that a request needs to have, `optional` the others.

    `max_batch_size`: 0 where there is no batch dimension. `stateful`: its requests belong to sequences.
    """

    name: str
    version: str
    inputs: tuple[TensorSpec, ...]
    optional: tuple[TensorSpec, ...] = ()
    max_batch_size: int = 0
    decoupled: bool = False
    stateful: bool = False

    def spec(self, name: str) -> TensorSpec:
        """Return what is known of an input. Raises ServingError with the names of those that there are."""
        for one in (*self.inputs, *self.optional):
            if one.name == name:
                return one
        names = ", ".join(one.name for one in (*self.inputs, *self.optional)) or "none"
        raise ServingError(Code.INVALID_ARG, f"unexpected inference input '{name}' for model '{self.name}'; it has {names}")


def described(
    name: str, version: str, inputs: Iterable[tuple[str, str, Sequence[int]]], config: Message | None
) -> Described:
    """Put together what a server says. `inputs`: name, datatype and shape, as the metadata have them, batch dimension included.

    `config`: None where the server has none to tell; then shapes are taken as they are. Raises ServingError.
    """
    batches = config.max_batch_size if config is not None else 0
    optional = {one.name for one in config.input if one.optional} if config is not None else set()
    needed: list[TensorSpec] = []
    others: list[TensorSpec] = []
    for input, datatype, shape in inputs:
        if datatype not in DATATYPES:
            words = f"input '{input}' of model '{name}' has the datatype '{datatype}'; there are {', '.join(DATATYPES)}"
            raise ServingError(Code.UNSUPPORTED, words)
        dims = tuple(shape)[1:] if batches else tuple(shape)
        spec = TensorSpec(input, datatype, dims, optional=input in optional)
        (others if spec.optional else needed).append(spec)
    return Described(
        name,
        version,
        tuple(needed),
        tuple(others),
        batches,
        config is not None and config.model_transaction_policy.decoupled,
        config is not None and config.HasField("sequence_batching"),
    )


def read_json_config(document: Any) -> Message | None:
    """Return the config that HTTP's answer has; None where that is none."""
    try:
        return ParseDict(document, Message(), ignore_unknown_fields=True)
    except (ParseError, TypeError, ValueError):
        return None
