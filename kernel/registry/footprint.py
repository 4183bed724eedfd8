"""How much memory the server and its models' processes take, as `/proc` says. Any thread; may take milliseconds."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["bytes_in_use"]


def bytes_in_use(pid: int | None = None) -> int:
    """Return the bytes in memory of this process and of all that it has started; 0 where the system does not say.

    What several of them share is counted once, as far as the system divides it among them (`Pss`).
    """
    children = _children()
    todo = [os.getpid() if pid is None else pid]
    total = 0
    while todo:
        one = todo.pop()
        total += _bytes_of(one)
        todo += children.get(one, ())
    return total


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return found
    for number in numbers:
        try:
            stat = Path(f"/proc/{number}/stat").read_bytes()
        except OSError:
            continue  # it has ended
        parent = int(stat[stat.rindex(b")") + 2 :].split()[1])
        found.setdefault(parent, []).append(number)
    return found


def _bytes_of(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
