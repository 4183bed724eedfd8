"""Where the values of a config come from: `ModelConfig.origins`, and what is known of models without a look at the repository."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from virtual import BASE, Client, TestBackend, run, sleeping, write_repository

from kernel import Kernel, ObservedCalls, with_changes
from kernel.config import read_config

TEXT = """\
backend: "b"
max_batch_size: 4
input { name: "X"
  data_type: TYPE_FP32 dims: [ 2,
    3 ] }
output [ { name: "Y" data_type: TYPE_FP32 dims: 1 },
  { name: "Z" data_type: TYPE_INT8 dims: [ -1 ] } ]
parameters { key: "a"
  value: { string_value: "x" } }
dynamic_batching { }
"""


def origins(folder: Path, **options: Any) -> dict[str, tuple[Any, str, int | None]]:
    return {one.field: (one.value, one.origin, one.line) for one in read_config(folder, **options).origins()}


def test_lines_of_a_file_and_defaults(tmp_path: Path) -> None:
    folder = write_repository(tmp_path, {"m": TEXT}) / "m"
    found = origins(folder)
    assert found["max_batch_size"] == (4, "file", 2)
    assert found["input[0].name"] == ("X", "file", 3)
    assert found["input[0].data_type"] == ("TYPE_FP32", "file", 4)
    assert found["input[0].dims"] == ([2, 3], "file", 4)
    assert found["output[1].name"] == ("Z", "file", 7)
    assert found["output[0].dims"] == ([1], "file", 6)
    assert found['parameters["a"].string_value'] == ("x", "file", 9)
    assert found["name"] == ("m", "default", None)
    assert found["platform"] == ("", "default", None)
    assert found["instance_group[0].count"] == (1, "default", None)
    assert found["dynamic_batching.preferred_batch_size"] == ([4], "default", None)
    assert found["dynamic_batching.max_queue_delay_microseconds"] == (0, "default", None)


def test_what_the_model_has_said(tmp_path: Path) -> None:
    config = read_config(write_repository(tmp_path, {"m": TEXT}) / "m")

    def change(message: Any) -> None:
        message.max_batch_size = 8

    found = {one.field: (one.value, one.origin, one.line) for one in with_changes(config, change).origins()}
    assert found["max_batch_size"] == (8, "model", None) and found["backend"] == ("b", "file", 1)


def test_what_came_with_a_load(tmp_path: Path) -> None:
    folder = write_repository(tmp_path, {"m": TEXT}) / "m"
    tensor = {"name": "X", "data_type": "TYPE_FP32", "dims": [1]}
    override = json.dumps({"backend": "b", "max_batch_size": 2, "input": [tensor], "output": [{**tensor, "name": "Y"}]})
    found = origins(folder, override=override)
    assert found["max_batch_size"] == (2, "override", None) and found["input[0].dims"] == ([1], "override", None)
    assert found["instance_group[0].count"] == (1, "default", None)


def test_states_requests_and_calls_as_they_are_seen(tmp_path: Path) -> None:
    ensemble = """platform: "ensemble"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step { model_name: "m" model_version: -1 input_map { key: "X" value: "X" }
  output_map { key: "Y" value: "Y" } } }
"""
    write_repository(tmp_path, {"m": BASE, "e": ensemble, "bad": "backend: 7"})

    async def main() -> None:
        options: Any = {"exit_on_error": False, "plugins": [TestBackend({})]}
        async with Kernel(tmp_path, **options) as kernel:
            client = Client(kernel)
            for number in range(3):
                client.send("m", f"m{number}")
            client.send("e", "e0")
            assert kernel.known() == ["bad", "e", "m"]
            assert [(line.version, line.state) for line in kernel.states("m")] == [("1", "READY")]
            assert kernel.states("bad")[0].reason and kernel.states("nobody")[0].state == ""
            assert kernel.observed_calls() == [ObservedCalls("e", "m", 1)]
            assert [record[7] for record in kernel.recent(kernel.model("m"), 3)] == ["m1", "m2", "e0"]
            assert kernel.recent(kernel.model("m"), 3, since=kernel.clock() + 1) == []
            assert kernel.inflight(most=1) == []

    run(main())


def test_the_oldest_in_flight(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": BASE})
        async with Kernel(tmp_path, plugins=[TestBackend({"m": sleeping(5.0)})]) as kernel:
            client = Client(kernel)
            for number in range(4):
                client.send("m", str(number))
                await asyncio.sleep(0.5)
            assert [one.id for one in kernel.inflight(2)] == ["0", "1"] == [one.id for one in kernel.inflight()][:2]
            await asyncio.sleep(60)

    run(main())
