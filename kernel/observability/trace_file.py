"""Traces as files, in the form of Triton's mode `triton`: arrays of JSON fragments, written on a thread of their own.

With a log frequency of n, every n traces make a file `<file>.0`, `<file>.1`, …, and so do those of a count that is used up;
otherwise all go to `<file>`, whose array is closed when the server stops. Nothing here ever holds the loop, and a disk that fails
costs traces, not requests.
(Contract: observability, section 3.2.)
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from kernel.observability.trace import HEADER, Trace
from kernel.tensor import Tensor

__all__ = ["TraceFile", "fragments", "tensor_text"]

log = logging.getLogger("kernel")

#: Without a log frequency or a count: how many traces are kept in memory before they are written.
CHUNK = 64


class TraceFile:
    """The sink of mode `triton`. Traces are kept by the settings they belong to (`sampler`), as these say how often to write."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._kept: dict[Any, list[Trace]] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._index = 0
        self._begun = False  # `<file>` has been begun; only the thread looks at it
        self._failed = False

    def opened(self, trace: Trace, traceparent: str) -> None:
        """Do nothing: a file names no trace of a client, and is written when the tree is complete."""

    def completed(self, trace: Trace) -> None:
        """Keep a tree that is complete, and write what is kept when that is enough, or all there will be."""
        sampler = trace.sampler
        kept = self._kept.setdefault(sampler, [])
        kept.append(trace)
        if not sampler.left and not sampler.open:  # the count is used up, and these are the last
            self._flush(sampler, indexed=True)
        elif len(kept) >= (sampler.log_frequency or (CHUNK if sampler.left < 0 else math.inf)):
            self._flush(sampler)

    def retired(self, sampler: Any) -> None:
        """Write what is kept of settings that are replaced."""
        self._flush(sampler)

    async def close(self) -> None:
        for sampler in list(self._kept):
            self._flush(sampler)
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._end)
            thread.shutdown(wait=False)

    def _flush(self, sampler: Any, *, indexed: bool = False) -> None:
        """Have what is kept for `sampler` written; into a file of its own where its settings, or `indexed`, say so."""
        kept = self._kept.pop(sampler, None)
        if not kept:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="kernel-trace")
        path = ""
        if sampler.log_frequency or indexed:
            path = f"{self.path}.{self._index}"
            self._index += 1
        asyncio.get_running_loop().run_in_executor(self._thread, self._write, kept, path)

    # -- on the thread -------------------------------------------------------------------------------------------------

    def _write(self, traces: list[Trace], path: str) -> None:
        """Write traces to a file of their own, or behind those that are in `<file>`."""
        try:
            text = ",".join(fragment for top in traces for trace in top.walk() for fragment in fragments(trace))
            if path:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(f"[{text}]")
            else:
                with open(self.path, "a" if self._begun else "w", encoding="utf-8") as file:
                    file.write(f"{',' if self._begun else '['}{text}")
                self._begun = True
        except OSError as error:
            self._tell(path or self.path, error)
        except Exception:
            log.exception("traces can't be written to '%s'", path or self.path)

    def _end(self) -> None:
        if self._begun:
            try:
                with open(self.path, "a", encoding="utf-8") as file:
                    file.write("]")
            except OSError as error:
                self._tell(self.path, error)

    def _tell(self, path: str, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            log.error("traces can't be written to '%s', and are lost: %s", path, error.strerror or error)


def fragments(trace: Trace) -> Iterable[str]:
    """Yield what the file says of one trace, in order, each a JSON object."""
    for event in trace.events:
        name, what = event
        if event is HEADER:
            yield _header(trace)
        elif isinstance(what, Tensor):
            shape = ",".join(map(str, what.array.shape))
            yield (
                f'{{"id":{trace.id},"activity":"{name}","tensor":{{"name":{_json(what.name)},'
                f'"data":{_json(tensor_text(what))},"shape":"{shape}","dtype":"{what.datatype}"}}}}'
            )
        else:
            yield f'{{"id":{trace.id},"timestamps":[{{"name":"{name}","ns":{round(what * 1e9)}}}]}}'


def _header(trace: Trace) -> str:
    text = f'{{"id":{trace.id},"model_name":{_json(trace.model_name)},"model_version":{trace.model_version}'
    if trace.request_id:
        text += f',"request_id":{_json(trace.request_id)}'
    if trace.parent is not None:
        text += f',"parent_id":{trace.parent.id}'
    return text + "}"


def tensor_text(tensor: Tensor) -> str:
    """Return a tensor's elements with commas between them: floats with six digits as in C++, strings in quotes."""
    flat = tensor.array.reshape(-1)
    if tensor.datatype == "BYTES":
        return ",".join(f'"{bytes(item).decode("utf-8", "replace")}"' for item in flat)
    if tensor.datatype == "BOOL":
        return ",".join("1" if item else "0" for item in flat)
    if np.issubdtype(flat.dtype, np.integer):
        return ",".join(map(str, flat.tolist()))
    return ",".join(f"{float(item):g}" for item in flat)


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
