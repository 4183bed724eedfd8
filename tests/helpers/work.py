"""How much work the interpreter does: instructions of our own code, counted, so that a busy machine changes nothing.

What is done in C within one instruction counts as one: sizes of what is allocated say more there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OURS = (f"{ROOT}/kernel/", f"{ROOT}/plugins/")


def instructions(function: Callable[[], Any]) -> int:
    """Call `function`; return how many instructions of ours that was."""
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return passed

    def passed(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "opcode"
        return passed

    before = sys.gettrace()
    sys.settrace(called)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def is_linear(function: Callable[[Any], Any], once: Any, twice: Any, most: float = 2.5) -> bool:
    """Whether twice the input is at most `most` times the work."""
    return instructions(lambda: function(twice)) <= most * instructions(lambda: function(once))
