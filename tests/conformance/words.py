"""The words of refusals that several cases wait for, in the contract's spelling."""

from __future__ import annotations

from .asks import Refused

__all__ = ["BYTE_SIZE", "expected", "missing", "with_id", "wrong"]

BYTE_SIZE = "input byte size mismatch for input '{}' for model '{}'. Expected {}, got {}"

NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input "
    "shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def wrong(message: str, code: str = "INVALID_ARG") -> Refused:
    return Refused(code, message)


def with_id(message: str, id: str = "<id_unknown>") -> Refused:
    return wrong(f"[request id: {id}] {message}")


def expected(got: str, wanted: str = "[-1,2]", model: str = "batch8", note: str = NOTE) -> str:
    return f"unexpected shape for input 'X' for model '{model}'. Expected {wanted}, got {got}. {note}"


def missing(counts: str, got: str, missing: str, model: str) -> str:
    return (
        f"expected {counts} for model '{model}'. Got input(s) {got}, but missing required input(s) {missing}. "
        "Please provide all required input(s)."
    )
