"""`kernel tune`, but for its servers: what is looked at and chosen, and fields of a config that are changed in place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format

from kernel.cli.tune import tune
from kernel.config import Message, edited
from kernel.loadtest import Expected, Settings, choose, reasons

BEFORE = """\
# What it is for.
backend: "python"
max_batch_size: 16  # the largest
dynamic_batching { preferred_batch_size: 4  preferred_batch_size: 8 }  # as measured once
instance_group [
  {
    # on the processor
    kind: KIND_CPU
    count: 1
  }
]
parameters { key: "other" value { string_value: "x" } }
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
"""

CHANGES = {
    ("max_batch_size",): "8",
    ("dynamic_batching", "max_queue_delay_microseconds"): "2000",
    ("dynamic_batching", "preferred_batch_size"): "[ 2, 4 ]",
    ("instance_group", "count"): "3",
    ("parameters=placement", "value", "string_value"): '"process"',
}


def test_fields_are_changed_and_all_else_stays() -> None:
    text = edited(BEFORE, CHANGES)
    assert text == """\
# What it is for.
backend: "python"
max_batch_size: 8  # the largest
dynamic_batching { preferred_batch_size: [ 2, 4 ]  max_queue_delay_microseconds: 2000 }  # as measured once
instance_group [
  {
    # on the processor
    kind: KIND_CPU
    count: 3
  }
]
parameters { key: "other" value { string_value: "x" } }
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
parameters { key: "placement" value { string_value: "process" } }
"""
    assert edited(text, CHANGES) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        'name: "m"',
        "dynamic_batching {\n  # nothing yet\n}\n",
        "dynamic_batching < >; instance_group: [ { count: 1 }, { count: 2 } ]",
        "dynamic_batching: { preferred_batch_size: [ 1,\n 2 ], max_queue_delay_microseconds: 5, }",
        'parameters: { key: "placement", value: { string_value: "lo" "op" } } max_batch_size: 4',
        'parameters [ { key: "a" value { string_value: "}" } }, { key: \'placement\' value { } } ] # the end',
    ],
)
def test_what_is_written_is_what_was_wanted(text: str) -> None:
    message = text_format.Parse(edited(text, CHANGES), Message())
    assert message.max_batch_size == 8 and message.dynamic_batching.max_queue_delay_microseconds == 2000
    assert list(message.dynamic_batching.preferred_batch_size) == [2, 4] and message.instance_group[0].count == 3
    assert message.parameters["placement"].string_value == "process"
    before = text_format.Parse(text, Message())
    assert len(message.instance_group) == max(1, len(before.instance_group))
    assert set(before.parameters) <= set(message.parameters)
    assert text.count("#") == edited(text, CHANGES).count("#")


def queue(settings: Settings) -> Expected:
    """Stand for a simulation: an instance does 50 batches a second, of 200 requests a second."""
    rows = 1 if settings.delay is None else min(settings.most, 2 + settings.delay // 1000)
    busy = 200 / (50 * rows * settings.count)
    return Expected(5.0 if busy >= 1 else 0.02 + (settings.delay or 0) / 1e6 + 0.05 * busy, busy=min(busy, 1.0))


def test_the_least_that_does_comes_first() -> None:
    before = Settings(most=16)
    first, *others = choose(before, 0.1, [1, 2, 4, 8], queue)
    assert (first[0].count, first[0].preferred, first[0].most) == (1, (), 16) and first[0].delay
    assert first[1].meets(0.1) and [one[0].count for one in others[:2]] == [2, 4]
    lines = reasons(before, first[0], queue)
    assert [path[-1] for path in lines] == ["max_queue_delay_microseconds"]
    assert not lines["dynamic_batching", "max_queue_delay_microseconds"].meets(0.1)
    # What does as it is stays; what can't be comes with the nearest.
    assert choose(replace(before, count=8), 0.1, [1, 8], queue)[0][0] == replace(before, count=8)
    nearest = choose(before, 0.001, [1, 2], queue)
    assert not any(outcome.meets(0.001) for _, outcome in nearest)
    assert nearest[0][1].p99 == min(outcome.p99 for _, outcome in nearest)
    # Without a batch dimension there are instances alone.
    assert [one[0] for one in choose(Settings(), 0.1, [1, 8], queue)] == [Settings(count=8), Settings()]


def test_what_can_not_be_tuned_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel.cli.tune.set_up_log", lambda options: None)
    tensors = " ".join(f'{kind} {{ name: "{kind}" data_type: TYPE_FP32 dims: [ 1 ] }}' for kind in ("input", "output"))
    decoupled = "model_transaction_policy { decoupled: true }"
    for name, more in (("seq", "sequence_batching { }"), ("many", decoupled), ("bad", "x: 1")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(f'backend: "python" {tensors} {more}')
    goal = ("--p99", "20ms", "--rate", "10")
    for arguments, words in (
        ((tmp_path, "seq"), "model 'seq' is one for sequences"),
        ((tmp_path, "many"), "model 'many' is decoupled"),
        ((tmp_path, "bad"), "config.pbtxt:1:"),
        ((tmp_path, "sek"), f"{tmp_path} has no model 'sek'; did you mean 'seq'?"),
        ((tmp_path / "nowhere", "seq"), "is no folder; wanted is a model repository of this machine"),
        (("localhost:8000", "seq"), "'localhost:8000' is no folder"),
    ):
        assert tune([*map(str, arguments), *goal]) == 1
        assert words in capsys.readouterr().err
    for p99, rate, more, words in (
        ("20", "1", [], "with its unit"),
        ("1s", "0", [], "are to be above 0"),
        ("1s", "x", [], "wanted is a number"),
        ("1s", "1e9", [], "--rate is '1e9', wanted is a number from 0.01 to 1000000"),
        ("1s", "1", ["--seed=-1"], "--seed is -1, wanted is an integer of at least 0"),
        ("1s", "1", ["--max-instances=1025"], "wanted is an integer from 1 to 1024"),
        ("1s", "1", ["--window=1e300s"], "--window is '1e300s', wanted are at most 3600 s"),
    ):
        with pytest.raises(SystemExit):
            tune([str(tmp_path), "seq", "--p99", p99, "--rate", rate, *more])
        assert words in capsys.readouterr().err
