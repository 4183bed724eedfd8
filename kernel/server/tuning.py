"""What a process that serves is set to, once for all of it: its interpreter, allocator and collector; how many cores it has.

The law: called by who owns the process (`kernel serve`, an actor, an app that wants it), never by `Kernel`, which may be a guest.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

__all__ = ["tune_collector", "tune_process", "usable_cores"]

#: How long a thread may keep the interpreter lock while the loop waits for it. With CPython's 5 ms, one model that computes in
#: pure Python on its thread would add 5 ms to every turn of the loop.
SWITCH_INTERVAL = 0.001

#: A request leaves no reference cycles behind, so collections cost time and find next to nothing. What lives after the load will
#: live on: it is frozen, out of the collector's sight. What comes later is looked at seven times less often than by default: as
#: 5000 objects more are alive, each fifth time 25 000 together, and hardly ever all. The loop waits 0.3 microseconds for each.
GC_THRESHOLDS = (5_000, 3, 500)

#: What glibc's `malloc` keeps for later instead of giving it back to the system, and up to which size it serves from that; bytes.
#: By default it gives back what a large request has used, and asks for it again, page by page, for the next one.
KEPT_FREE = 128 * 1024 * 1024
LARGEST_KEPT = 32 * 1024 * 1024  # the most that glibc takes
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

#: Where the system says how much of the machine's time this process's group may have: control groups of version 2, and of 1.
CPU_MAX = (Path("/sys/fs/cgroup/cpu.max"),)
CPU_MAX_1 = (Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"))


def tune_process() -> None:
    """Set the interpreter and the allocator of this process for a server. To be called before the loop runs, by who owns it."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    _keep_memory()
    _use_small_pages()


def tune_collector() -> None:
    """Put what is there out of the collector's sight, and have it look less often. To be called when models are loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def usable_cores(*quotas: Sequence[Path]) -> int:
    """Return on how many cores this process may run, and no fewer than one: by its affinity, and by its control group's quota.

    `quotas`: the files with a quota and its period; by default those of both versions of control groups.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for paths in quotas or (CPU_MAX, CPU_MAX_1):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = " ".join(path.read_text() for path in paths).split()
            if quota not in ("max", "-1"):
                cores = min(cores, round(int(quota) / int(period)))
    return max(1, cores)


def _keep_memory() -> None:
    """Have the allocator keep what is free; without effect where the C library has no `mallopt`."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    set_option(_M_MMAP_THRESHOLD, LARGEST_KEPT)
    set_option(_M_TRIM_THRESHOLD, KEPT_FREE)
    set_option(_M_ARENA_MAX, 1)  # what threads have used can't be given back from arenas of their own


def _use_small_pages() -> None:
    """Have numpy not ask for huge pages, as it does for arrays above 4 MB; NUMPY_MADVISE_HUGEPAGE may still say otherwise.

    Where free memory is in pieces, Linux moves others about until there is one, and the loop, which receives into it, waits.
    """
    if "NUMPY_MADVISE_HUGEPAGE" not in os.environ:
        with contextlib.suppress(AttributeError, ImportError):
            name = "numpy._core.multiarray" if find_spec("numpy._core") else "numpy.core.multiarray"
            import_module(name)._set_madvise_hugepage(False)
