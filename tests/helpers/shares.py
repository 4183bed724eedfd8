"""How tests are shared out to the processes of pytest-xdist: those of a file stay together and in order.

So what a file's tests share (a server, a folder, what one has counted when the next looks) is made once, and is as in a run in
one process. Tests that compare answers of one pair of servers are one share, whichever file they stand in;
each page of documents is one, too.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

__all__ = ["ByFile", "longest_first"]

#: In these files it is the name of the test that says which pair of servers it asks.
OF_PAIRS = tuple(f"tests/reference/test_{name}.py" for name in ("http", "grpc", "warmup"))
#: Each page has a folder and a server of its own.
OF_DOCUMENTS = "tests/e2e/test_documents.py"
#: What is told over both wires to one pair of servers counts on; see reference/conftest.py.
SAME_PAIR = {"test_rest": "test_plain"}


#: What takes longest goes first, so that nobody waits for it in the end: parts of paths, in this order, and then the rest.
LONG = ("tests/reference/", "property", "tests/e2e/", "_onnx_nodes")


def longest_first(items: list[pytest.Item]) -> None:
    """Put the files that take long first; within a file, and among others, all stays as it was."""
    items.sort(key=lambda item: next((place for place, part in enumerate(LONG) if part in item.nodeid), len(LONG)))


class ByFile(LoadScopeScheduling):
    """Shares as said above, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if file == OF_DOCUMENTS:
            return nodeid
        if file not in OF_PAIRS:
            return file
        name = test.partition("[")[0]
        return f"tests/reference::{SAME_PAIR.get(name, name)}"
