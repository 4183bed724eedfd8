"""What of a recorded request must not be told: who takes it out before anything is written. Called on the recorder's thread.

The law: a request whose redaction fails is not written.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from kernel.errors import Code, ServingError
from kernel.recording.form import Told
from kernel.tensor import Array, Tensor

__all__ = ["Redactor", "hashing"]

#: Takes a request that is about to be written and returns what is to be written of it, which may be the same one, changed; None:
#: nothing. Called on a thread of its own, one after another.
Redactor = Callable[[Told], "Told | None"]


def hashing(settings: Mapping[str, str]) -> Redactor:
    """Return the redactor `hash`, for ids (of sequences, too), words of errors, strings in parameters, elements of BYTES tensors.

    What was equal in one recording still is. Nobody has the key: it is made for this recording and kept nowhere.
    """
    if settings:
        raise ServingError(Code.INVALID_ARG, f"the redactor 'hash' has no settings; {', '.join(settings)} came")
    key = secrets.token_bytes(32)

    def hashed(text: str | bytes) -> str:
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        return blake2b(data, key=key, digest_size=8).hexdigest()

    def array(before: Array) -> Array:
        after = np.empty(before.size, dtype=np.object_)
        after[:] = [hashed(item).encode() for item in before.ravel().tolist()]
        return after.reshape(before.shape)

    def tensor(before: Tensor) -> Tensor:
        return Tensor(before.name, "BYTES", array(before.array)) if before.datatype == "BYTES" else before

    def value(before: Any) -> Any:
        return hashed(before) if isinstance(before, str) else before

    def redact(told: Told) -> Told:
        told.id = hashed(told.id) if told.id else ""
        if told.correlation_id:
            told.correlation_id = hashed(str(told.correlation_id))
        told.parameters = {name: value(one) for name, one in told.parameters.items()}
        told.inputs = [tensor(one) for one in told.inputs]
        told.answers = [[tensor(one) for one in answer] for answer in told.answers]
        if told.error is not None:  # words of errors may quote what a client has sent
            told.error.message = hashed(told.error.message)
        return told

    return redact
