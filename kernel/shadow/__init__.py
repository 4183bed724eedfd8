"""In front of another server: what passes is passed on as it is, and a sample of it compared with what a candidate answers.

Two processes: one passes everything on (proxy.py) and copies it to the other (tee.py), which looks on (exchanges.py,
calls.py, comparer.py). So nothing that looks on can hold up a client, or fail him.
"""

from __future__ import annotations

from kernel.shadow.comparer import Comparer, Mismatch, frames
from kernel.shadow.proxy import Proxy
from kernel.shadow.tee import Tee

__all__ = ["Comparer", "Mismatch", "Proxy", "Tee", "frames"]
