"""A child does not outlive its server, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["die_with"]

PR_SET_PDEATHSIG = 1


def die_with(server: int) -> None:
    """Have the system kill us when the server's process ends, where it can. (Elsewhere we see it when we next read.)"""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != server:  # it has ended before we said so
        os._exit(1)
