"""What a BLS call asks, as those read it who make the call: bls.py, and in children process/child/bls.py.

The model's object is requests.py's, whose `exec` and `async_exec` make the calls: so it knows them, and they know only this.
"""

from __future__ import annotations

from typing import Any, Protocol

from kernel_python.api.preferred import PreferredMemory
from kernel_python.api.tensors import Tensor
from kernel_python.calling import Site

__all__ = ["Asked", "Trace"]


class Trace(Protocol):
    """pb_utils.InferenceTrace. `_trace`: the core's trace, None where there is none."""

    _trace: Any


class Asked(Protocol):
    """A request to another model.

    `_version`: -1 for the latest. `_outputs`: none for all. `_timeout`: microseconds, 0 for none. `_memory`: where the outputs
    are to lie, None where that is all the same. `_site`: the execution that it was made in, None where it was made in none.
    """

    _model: str
    _version: int
    _inputs: list[Tensor]
    _outputs: list[str]
    _id: str
    _correlation: int | str
    _flags: int
    _timeout: int
    _parameters: dict[str, Any] | None
    _memory: PreferredMemory | None
    _site: Site | None

    @property
    def _trace(self) -> Trace | None: ...
