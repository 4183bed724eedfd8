"""What the protocols call the datatypes of a config."""

from __future__ import annotations

from kernel.config.model_config_pb2 import DataType

__all__ = ["datatype"]


def datatype(number: int) -> str:
    """Return the protocols' name of a DataType: without `TYPE_`, and BYTES for STRING."""
    name = DataType.Name(number).removeprefix("TYPE_") if number in range(15) else str(number)
    return "BYTES" if name == "STRING" else name
