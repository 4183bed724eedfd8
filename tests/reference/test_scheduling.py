"""What goes together into a batch, and in which order: both servers, with requests that all wait before the first is taken.

$TRITONSERVER_DELAY_SCHEDULER holds each model's batcher back until so many wait; each request is sent once the pending gauge has
counted the one before. So nothing depends on who is quick.
"""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .conftest import Pair, Pairs, alive
from .servers import Server
from .wire import Case, exchange

pytestmark = pytest.mark.reference

HELD = 6  # requests that wait before any is taken
LIMIT_S = 20.0

CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.executions = 0

    def execute(self, requests):
        self.executions += 1
        answers = []
        for place, request in enumerate(requests):
            rows = request.inputs()[0].as_numpy().shape[0]
            told = np.tile(np.array([self.executions, len(requests), place], np.int32), (rows, 1))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", told)]))
        return answers
"""
CONFIG = """
backend: "python"
output {{ name: "Y" data_type: TYPE_INT32 dims: [ 3 ] }}
instance_group {{ kind: KIND_CPU count: 1 }}
max_batch_size: {size}
{inputs}
dynamic_batching {{ {batching} }}
"""
INPUT = 'input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }'


@dataclass(frozen=True)
class Ask:
    """One request: rows and length of X, whether it brings the optional input, and its priority."""

    rows: int = 1
    length: int = 2
    more: bool = False
    priority: int = 0

    def case(self, model: str) -> Case:
        names = ["X", "O"] if self.more else ["X"]
        inputs: list[dict[str, Any]] = [
            {"name": name, "datatype": "FP32", "shape": [self.rows, self.length], "data": [1.0] * self.rows * self.length}
            for name in names
        ]
        body = {"id": "me", "inputs": inputs, "parameters": {"priority": self.priority}}
        return Case("", "POST", f"/v2/models/{model}/infer", body=json.dumps(body).encode())


@dataclass(frozen=True)
class Story:
    """A model and what is asked of it. `told`: of each request, number and length of its execution and its place, or an error."""

    asks: Sequence[Ask]
    told: Sequence[tuple[int, int, int] | str]
    batching: str = ""
    size: int = 8
    inputs: str = INPUT


def lengths(*values: int) -> list[Ask]:
    return [Ask(length=value) for value in values]


FULL = "[request id: me] Exceeds maximum queue size"
STORIES = {
    "together": Story([Ask()] * 6, [(1, 6, place) for place in range(6)]),
    "preferred": Story(
        [Ask()] * 6, [(1, 4, 0), (1, 4, 1), (1, 4, 2), (1, 4, 3), (2, 2, 0), (2, 2, 1)], "preferred_batch_size: [ 4 ]"
    ),
    "rows": Story(
        [Ask(3), Ask(3), Ask(3), Ask(5), Ask(1), Ask(7)],
        [(1, 2, 0), (1, 2, 1), (2, 2, 0), (2, 2, 1), (3, 2, 0), (3, 2, 1)],
    ),
    "shapes": Story(lengths(2, 2, 3, 2, 2, 3), [(1, 2, 0), (1, 2, 1), (2, 1, 0), (3, 2, 0), (3, 2, 1), (4, 1, 0)]),
    "ragged": Story(
        lengths(2, 2, 3, 2, 2, 3), [(1, 6, place) for place in range(6)], inputs=INPUT.replace("]", "] allow_ragged_batch: true")
    ),
    "optional": Story(
        [Ask(), Ask(), Ask(more=True), Ask(more=True), Ask(), Ask()],
        [(1, 2, 0), (1, 2, 1), (2, 2, 0), (2, 2, 1), (3, 2, 0), (3, 2, 1)],
        inputs=INPUT + ' input { name: "O" data_type: TYPE_FP32 dims: [ -1 ] optional: true }',
    ),
    "priorities": Story(
        [Ask(priority=priority) for priority in (3, 0, 1, 9, 2, 1)],
        [(6, 1, 0), (3, 1, 0), (1, 1, 0), (4, 1, 0), (5, 1, 0), (2, 1, 0)],
        "priority_levels: 3 default_priority_level: 2",
        size=1,
    ),
    "mixed": Story(
        [Ask(priority=priority) for priority in (2, 1, 2, 1, 2, 1)],
        [(1, 4, 3), (1, 4, 0), (2, 2, 0), (1, 4, 1), (2, 2, 1), (1, 4, 2)],
        "priority_levels: 2 default_priority_level: 2",
        size=4,
    ),
    "ignored": Story(
        [Ask(priority=priority) for priority in (3, 2, 1, 3, 2, 1)], [(place, 1, 0) for place in range(1, 7)], size=1
    ),
    "limits": Story(
        [Ask(priority=priority) for priority in (1, 1, 1, 2, 2, 2, 1, 2)],
        [(1, 6, 0), (1, 6, 1), FULL, (1, 6, 2), (1, 6, 3), (1, 6, 4), FULL, (1, 6, 5)],
        "priority_levels: 2 default_priority_level: 2 priority_queue_policy { key: 1 value { max_queue_size: 2 } }",
    ),
}


@pytest.fixture(scope="module")
def held(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    repository = tmp_path_factory.mktemp("held")
    for name, story in STORIES.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(CODE)
        config = CONFIG.format(size=story.size, inputs=story.inputs, batching=story.batching)
        (version.parent / "config.pbtxt").write_text(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITONSERVER_DELAY_SCHEDULER", str(HELD))
        pair = pairs.start("held", Path(repository))
    for server in pair:
        wait_for_page(server)
    yield pair


def wait_for_page(server: Server) -> None:
    """The port of the metrics opens last."""
    limit = time.monotonic() + LIMIT_S
    while True:
        try:
            pending(server, "together")
            return
        except OSError:
            assert time.monotonic() < limit, f"{server.name} has no metrics page"
            time.sleep(0.05)


def pending(server: Server, model: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=30) as response:
        page = response.read().decode()
    found = re.search(rf'^nv_inference_pending_request_count{{.*model="{model}".*}} (\d+)', page, re.MULTILINE)
    assert found, f"{server.name} shows no pending requests of {model}"
    return int(found[1])


def tell(server: Server, model: str, story: Story) -> list[tuple[int, ...] | str]:
    """Return what the requests were told, sent one after the other."""
    answers: list[Future[Any]] = []
    waiting = 0
    with ThreadPoolExecutor(len(story.asks)) as pool:
        for ask, told in zip(story.asks, story.told, strict=True):
            answers.append(pool.submit(exchange, server.port, ask.case(model)))
            if told == FULL:  # the next must not come before it
                answers[-1].result()
                continue
            limit = time.monotonic() + LIMIT_S
            while not answers[-1].done() and pending(server, model) <= waiting and waiting + 1 < HELD:
                assert time.monotonic() < limit, f"{server.name} doesn't count request {len(answers)} of {model} as pending"
                time.sleep(0.005)
            waiting += not answers[-1].done()
        return [read(answer.result().lines) for answer in answers]


def read(lines: Sequence[str]) -> tuple[int, ...] | str:
    """Return the first row of Y, or the error."""
    text = "\n".join(lines)
    error = re.search(r'error = "(.*)"', text)
    if error:
        return error[1]
    data = re.search(r"^outputs\[0\]\.data = (.*)$", text, re.MULTILINE)
    assert data, text
    return tuple(json.loads(data[1])[:3])


@pytest.mark.parametrize("name", STORIES)
def test_both_take_the_same_requests_together(held: Pair, name: str) -> None:
    story = STORIES[name]
    reference, ours = [alive(server, lambda server=server: tell(server, name, story)) for server in held]
    assert reference == list(story.told), "the reference does something else than is told of it"
    assert ours == reference
