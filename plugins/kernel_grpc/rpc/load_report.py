"""Reports of load in the trailers of calls that ask for one: ORCA, in the words of Triton's `/generate`.

A client asks by the metadata `endpoint-load-metrics-format`; the answer is the field `endpoint-load-metrics`, in its words:
`TEXT application_utilization=0.5, named_metrics.pending=2`, or `JSON` and an object. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from kernel_grpc.http2 import literal

__all__ = ["ASKED", "FORMATS", "load_report"]

#: The metadata that ask for a report, and what they may say; anything else asks for none.
ASKED = b"endpoint-load-metrics-format"
FORMATS = frozenset((b"text", b"json"))

FIELD = b"endpoint-load-metrics"
UTILIZATION = "application_utilization"


def load_report(form: str, utilization: float, named: Mapping[str, int]) -> bytes:
    """Return the field of a header block. `utilization`: 1.0 where all that can work does; above it, others wait.

    `form`: of FORMATS. `named`: what else is told, by name.
    """
    used = round(utilization, 3)
    if form == "json":
        text = "JSON " + json.dumps({UTILIZATION: used, "named_metrics": dict(named)})
    else:
        text = ", ".join([f"TEXT {UTILIZATION}={used:g}", *(f"named_metrics.{name}={value}" for name, value in named.items())])
    return literal(FIELD, text.encode("ascii"))
