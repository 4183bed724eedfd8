"""`--backend-config=onnxruntime,<setting>=<value>`: what holds for all models. Names and meaning are the reference's."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kernel import Code, ServingError
from kernel_onnx.autocomplete import DEFAULT_MAX_BATCH_SIZE
from kernel_onnx.settings import as_boolean

__all__ = ["BackendSettings", "read_backend_settings"]

log = logging.getLogger("kernel_onnx")

KNOWN = ("default-max-batch-size", "enable-global-threadpool", "intra_op_thread_count", "inter_op_thread_count")


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """`default_max_batch_size`: for models that can batch and whose config doesn't say how far. `threads`: those within and
    between operators that all sessions of the process share, 0 for one a core; None where each session has its own.
    """

    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE
    threads: tuple[int, int] | None = None


def read_backend_settings(given: Mapping[str, str]) -> BackendSettings:
    """Return what the settings come to. Raises ServingError(INVALID_ARG)."""
    for key in given:
        if key not in KNOWN:
            log.warning("backend-config onnxruntime,%s is not known; there are %s", key, ", ".join(KNOWN))
    size, intra, inter = (_number(key, given.get(key)) for key in (KNOWN[0], *KNOWN[2:]))
    text = given.get(KNOWN[1], "0")
    try:
        shared = as_boolean(text)
    except ValueError:
        raise _wrong(KNOWN[1], text, "0 or 1") from None
    if not shared and (intra, inter) != (None, None):
        log.warning(
            "backend-config onnxruntime,%s has no effect without enable-global-threadpool=1; a model has parameters of that name",
            KNOWN[2] if intra is not None else KNOWN[3],
        )
    threads = (intra or 0, inter or 0) if shared else None
    return BackendSettings(DEFAULT_MAX_BATCH_SIZE if size is None else size, threads)


def _number(key: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,9}", text, re.ASCII):
        raise _wrong(key, text, "a whole number, 0 or more")
    return int(text)


def _wrong(key: str, text: str, wanted: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, f"backend-config onnxruntime,{key} is '{text}', wanted {wanted}")
