"""What ours answers otherwise about sequences, and why; as in differences.py."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .differences import Difference

__all__ = ["DIFFERENCES"]

ID = r"\[request id: <id_unknown>\] "


def _of(model: str) -> dict[str, Difference]:
    """Return the differences of one strategy."""
    return {
        f"{model}: a control that the client gives": Difference(
            "where nothing is missing, the list of what is missing is empty, not cut off",
            message=ID
            + re.escape(
                f"expected 1 inputs but got 2 inputs for model '{model}'. Got input(s) ['START','X'], but missing required "
                "input(s) []. Please provide all required input(s)."
            ),
        ),
        f"{model}: an id of letters": Difference(
            "later releases refuse it; this one gives the model an address for it",
            status=400,
            message=ID
            + f"sequence batching control 'CORRID' data-type is 'BYTES', but model '{model}' expects 'INT64'",
        ),
        f"{model}: an id too large for the control": Difference(
            "an integer out of its datatype's range is refused, not wrapped",
            status=400,
            message=ID
            + re.escape(
                f"correlation ID 9223372036854775813 does not fit sequence batching control 'CORRID' of model '{model}', which "
                "is INT64 (-9223372036854775808 to 9223372036854775807)"
            ),
        ),
    }


def _failures(count: int) -> Difference:
    return Difference(
        "the reference counts a failure for the request of its own with which it ends an iterative sequence",
        lines={
            f"model_stats[0].inference_stats.fail.count = {count}": "model_stats[0].inference_stats.fail.count = 0",
        },
    )


DIFFERENCES: Mapping[str, Difference] = {
    **_of("direct"),
    **_of("oldest"),
    "iterative: statistics": _failures(3),
    "decoupled: statistics": _failures(1),
}
