"""docs/metrics.md is true: families and kinds stand there as they are, and every flag is there."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from kernel_metrics import add_options
from kernel_metrics.machine import Machine
from kernel_metrics.models import ModelFamilies
from kernel_metrics.page import SERVER

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "metrics.md").read_text()


def test_families() -> None:
    rows = re.findall(r"^\| (`(?:nv|kernel)_.*?) \| (\w+) \|", TEXT, re.MULTILINE)
    told = {name: kind for names, kind in rows for name in re.findall(r"`(\w+)`", names)}
    machine = Machine(cpu=False, gpus=None, interval=1.0)
    families = {family.name: family.kind for family in (*ModelFamilies().by_name.values(), *machine.families)}
    assert told == families | {name: kind for name, kind, _ in SERVER}


def test_flags() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    missing = [action.option_strings[-1] for action in parser._actions if f"`{action.option_strings[-1]}" not in TEXT]
    assert missing == ["--help"]
