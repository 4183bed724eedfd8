"""What a kernel is told: one record, frozen, whose words are those of class Kernel's arguments."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import pytest

from kernel import Code, Kernel, ServingError
from kernel.options import Options

#: Arguments of Kernel that are no plain values: what it is made of.
PARTS = {"self", "repositories", "plugins", "log_settings", "trace", "cache", "budget", "storage"}


def test_each_argument_stands_in_the_record_with_its_default() -> None:
    arguments = {name: one.default for name, one in inspect.signature(Kernel.__init__).parameters.items() if name not in PARTS}
    fields = {one.name: one.default for one in dataclasses.fields(Options)}
    assert fields.keys() == arguments.keys()
    del fields["backend_config"], arguments["backend_config"]  # None stands for {}
    assert fields == arguments


def test_what_a_kernel_is_told_does_not_change(tmp_path: Path) -> None:
    names = ["a"]
    options = Kernel(tmp_path, control_mode="explicit", load_models=names, drain_seconds=2.0, gpus=[1, 0]).options
    names.append("b")
    assert (options.explicit, options.load_models, options.drain_seconds, options.gpus) == (True, ("a",), 2.0, (1, 0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.drain_seconds = 3.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"control_mode": "no"}, "unknown model control mode 'no'; there are 'none', 'poll', 'explicit' and 'on-demand'"),
        ({"poll_seconds": -1.0}, "poll_seconds is -1.0, wanted at least 0"),
        ({"load_models": ["m"]}, "Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
        ({"rate_limit": "some"}, "unknown rate_limit 'some'; there are 'off' and 'execution_count'"),
        ({"rate_limit": "execution_count", "rate_limit_resources": ["x"]}, "rate_limit_resources: "),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(ServingError) as caught:
        Kernel(tmp_path, **options)  # type: ignore[arg-type]
    assert caught.value.code is Code.INVALID_ARG and caught.value.message.startswith(words)


def test_who_polls() -> None:
    assert Options(control_mode="poll").polls
    assert not Options(control_mode="poll", poll_seconds=0.0).polls and not Options().polls
