"""What is asked about sequences: one story, of one request after another. What depends on the clock, or on who comes first, is
not here but in virtual time (tests/core/test_sequence*.py).
"""

from __future__ import annotations

from dataclasses import replace

from .cases import infer, post, stats, tensor
from .wire import Case

__all__ = ["SEQUENCES"]

ROW = [tensor("X", "FP32", [1, 1], [7])]
ROWS = [tensor("X", "FP32", [2, 1], [7, 8])]


def ask(name: str, model: str, id: int | str = 0, start: bool = False, end: bool = False, rows: bool = False) -> Case:
    """Return a request of a sequence."""
    parameters = {"sequence_id": id, "sequence_start": start, "sequence_end": end}
    return infer(name, model, ROWS if rows else ROW, parameters=parameters)


def of(model: str) -> list[Case]:
    """Return the story of one strategy."""
    return [
        Case(f"{model}: config", path=f"/v2/models/{model}/config"),
        Case(f"{model}: metadata", path=f"/v2/models/{model}"),
        ask(f"{model}: two rows", model, 7, True, rows=True),
        ask(f"{model}: two rows, no id", model, rows=True),
        infer(f"{model}: no id", model, ROW),
        ask(f"{model}: an empty id", model, ""),
        ask(f"{model}: no start", model, 7),
        ask(f"{model}: an end without a start", model, 7, end=True),
        infer(f"{model}: a control that the client gives", model, [*ROW, tensor("START", "INT32", [1, 1], [1])]),
        ask(f"{model}: start", model, 4, True),
        ask(f"{model}: start of another", model, 5, True),
        ask(f"{model}: start of a third", model, 6, True),
        ask(f"{model}: the second goes on", model, 5),
        ask(f"{model}: the first goes on", model, 4),
        ask(f"{model}: the third ends", model, 6, end=True),
        ask(f"{model}: the third after its end", model, 6),
        ask(f"{model}: the second starts again", model, 5, True),
        ask(f"{model}: another in the place of the third", model, 9, True),
        ask(f"{model}: the first ends", model, 4, end=True),
        ask(f"{model}: start and end in one", model, 8, True, True),
        ask(f"{model}: after start and end in one", model, 8),
        ask(f"{model}: the second ends", model, 5, end=True),
        ask(f"{model}: the last ends", model, 9, end=True),
        stats(f"{model}: statistics", f"/v2/models/{model}/stats"),
        ask(f"{model}: an id of letters", model, "abc", True, True),
        ask(f"{model}: an id too large for the control", model, (1 << 63) + 5, True, True),
    ]


SEQUENCES = [
    *of("direct"),
    *of("oldest"),
    Case("iterative: config", path="/v2/models/iterative/config"),
    infer("iterative: no id", "iterative", ROW, id="a"),
    infer("iterative: again", "iterative", ROW, id="b"),
    ask("iterative: an id without a start", "iterative", 77),
    ask("iterative: an id with a start", "iterative", 77, True),
    ask("iterative: the id after that", "iterative", 77),
    infer("iterative: two rows", "iterative", ROWS, id="c"),
    replace(
        stats("iterative: statistics", "/v2/models/iterative/stats"),
        chance=r"model_stats\[0\]\.batch_stats",  # whether steps of two sequences go together
    ),
    post("decoupled: a response an execution", "/v2/models/decoupled/generate_stream", {"id": "d", "X": [[7.0]]}),
    stats("decoupled: statistics", "/v2/models/decoupled/stats"),
]
