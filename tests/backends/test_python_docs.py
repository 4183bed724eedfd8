"""docs/python.md is held true: its model is served as it stands there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel import Kernel

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
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
