"""The audit: one line for each operation that changes the server, and for each refusal, as far as these are not too many.

Lines are `audit result=… client=… peer=… operation=… model=…`, values with anything odd as JSON strings. No line has a key.
"""

from __future__ import annotations

import json
import logging
import re

from kernel import Denial
from kernel_auth.rules import Bucket

__all__ = ["Audit"]

log = logging.getLogger("kernel_auth.audit")

#: Lines about refusals of one kind: so many a second, and at once. Those that are left out are counted in the next one.
LINES = 5.0
LINES_AT_ONCE = 50.0

#: How much of a value is shown, in characters.
LONGEST = 256

_PLAIN = re.compile(r"[\w./:*@+\[\]-]+", re.ASCII).fullmatch


class Audit:
    """Writes the lines to the log `kernel_auth.audit`."""

    def __init__(self) -> None:
        self._buckets = {denial: Bucket(LINES, LINES_AT_ONCE) for denial in Denial}
        self._left_out = dict.fromkeys(Denial, 0)

    def changed(self, client: str, peer: str, operation: str, model: str) -> None:
        """A client may change the server, and is about to."""
        log.info("%s", line("allowed", client, peer, operation, model))

    def refused(self, now: float, denial: Denial, client: str, peer: str, operation: str, model: str, why: str) -> None:
        """A request was refused. `client`: "" for nobody that is known."""
        if self._buckets[denial].take(now):
            self._left_out[denial] += 1
            return
        left_out, self._left_out[denial] = self._left_out[denial], 0
        more = f" left_out={left_out}" if left_out else ""
        log.warning("%s", line(denial.value, client, peer, operation, model) + f" why={shown(why)}{more}")


def line(result: str, client: str, peer: str, operation: str, model: str) -> str:
    values = {"result": result, "client": client, "peer": peer, "operation": operation, "model": model}
    return "audit " + " ".join(f"{name}={shown(value)}" for name, value in values.items() if value)


def shown(value: str) -> str:
    if len(value) > LONGEST:
        value = value[: LONGEST - 3] + "..."
    return value if _PLAIN(value) else json.dumps(value)
