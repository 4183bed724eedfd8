"""What the tests of sequences share: a config, a kernel that serves it, and a client's requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from virtual import BASE, Behaviour, Client, TestBackend, echo, write_repository

from kernel import InferenceRequest, Kernel

__all__ = ["CONTROLS", "END", "START", "STATE", "config", "send", "serving"]

START, END = 1, 2
CONTROLS = """
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END bool_false_true: [false, true] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY fp32_false_true: [0, 5] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 } ] }
  ]
"""
STATE = """
  state [ { input_name: "S" output_name: "S_NEXT" data_type: TYPE_INT32 dims: [ 2 ] } ]
"""


def config(rows: int = 1, batching: str = "direct { }", more: str = CONTROLS, count: int = 1) -> str:
    """Return the config of a model `m` with input X and output Y."""
    text = BASE.replace("count: 1", f"count: {count}")
    return f"{text} max_batch_size: {rows}\nsequence_batching {{ {batching} {more} }}\n"


@asynccontextmanager
async def serving(
    folder: Path, text: str, behaviour: Behaviour = echo, **options: Any
) -> AsyncIterator[tuple[Client, TestBackend]]:
    """Serve the model `m`; nothing of it may be left behind at the end."""
    backend = TestBackend({"m": behaviour})
    write_repository(folder, {"m": text})
    async with Kernel(folder, plugins=[backend], control_mode="explicit", load_models=["*"], **options) as kernel:
        yield Client(kernel), backend
        for model in kernel.models():
            assert model.scheduler.in_flight == 0 or not kernel.accepting, "requests are left behind"
            assert model.scheduler.pending == 0


def send(
    client: Client, name: str, id: int | str = 0, flags: int = 0, value: Any = ((1.0,),), **fields: Any
) -> InferenceRequest:
    """Send one request of the sequence `id`."""
    return client.send("m", name, value, correlation_id=id, flags=flags, **fields)
