"""docs/python.md and docs/sequences.md are held true: their models are served as they stand there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel import Kernel

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "python.md").read_text()
IO = 'input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ] output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]'


@pytest.mark.parametrize("placement", ["loop", "thread", "process"])
def test_the_model_with_metrics(repo: Any, placement: str) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    repo.add("counting", code, io=IO, head="", parameters={"placement": placement})

    async def main(kernel: Kernel) -> Any:
        await asyncio.wait_for(kernel.infer("counting", {"TEXT": np.array([b"three short words"], object)}), 60)
        words, lengths = kernel.custom_metrics.snapshot()
        return words, lengths

    words, lengths = repo.run(main)
    assert 'words_total{model="counting"} 3' in PAGE
    assert (words.name, words.series[0].labels, words.series[0].value) == ("words_total", (("model", "counting"),), 3)
    assert (lengths.help, lengths.series[0].counts) == ("Characters of a text", (0, 1, 1, 1))


@pytest.mark.parametrize("placement", ["loop", "thread", "process"])
def test_the_iterative_model(repo: Any, placement: str) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "sequences.md").read_text(), re.DOTALL)
    io = (
        'input { name: "N" data_type: TYPE_INT32 dims: [ 1 ] } output { name: "PASSES" data_type: TYPE_INT32 dims: [ 1 ] }\n'
        "sequence_batching { iterative_sequence: true }"
    )
    repo.add("passes", code, io=io, head="", parameters={"placement": placement})

    async def main(kernel: Kernel) -> Any:
        asked = [kernel.infer("passes", {"N": np.array([n], np.int32)}) for n in (3, 1)]
        answers = [(await asyncio.wait_for(one, 60))["PASSES"].item() for one in asked]
        return answers, kernel.statistics("passes")[0].execution_count

    assert repo.run(main) == ([3, 1], 4)
