"""A model whose number of instances follows its load, on virtual time: with the real scheduler, and what it has to be with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from live import ENSEMBLE, Answering, model, write
from virtual import BASE, Client, run, sleeping

from kernel import ConfigErrors, InstanceContext, Kernel, ServerScale, ServingError
from kernel.config import read_config
from kernel.server.scaling import FIXED, together


def scaled(text: str = BASE, **parameters: object) -> str:
    """Return a config with parameters `autoscale_…`."""
    values = {"max": 4, "cooldown": 30, **parameters}
    lines = (f'parameters {{ key: "autoscale_{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items())
    return text + "\n".join(lines)


def explicit(folder: Path, backend: Answering, **options: Any) -> Kernel:
    return Kernel(folder, plugins=[backend], control_mode="explicit", load_models=["*"], **options)


def count(kernel: Kernel) -> int:
    return len(kernel.model("m").scheduler.instances)


class Load:
    """Sends `rate` requests a second, until it is changed or stopped."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.sent = 0

    async def send(self, rate: float, seconds: float, **fields: Any) -> None:
        for _ in range(round(rate * seconds)):
            self.client.send("m", str(self.sent), **fields)
            self.sent += 1
            await asyncio.sleep(1 / rate)

    def check(self) -> None:
        """Every request has its one answer, and it is a good one."""
        outcomes = self.client.outcomes()
        assert len(outcomes) == self.sent and {words for _, words in outcomes.values()} == {"ok"}


def test_instances_come_with_the_load_and_go_when_it_has_gone(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1, config=scaled())
        backend = Answering({"m": sleeping(0.1)})
        async with explicit(tmp_path, backend) as kernel:
            before, load = kernel.model("m"), Load(Client(kernel))
            await load.send(2, 10)
            assert count(kernel) == 1
            await load.send(22, 10)  # more than two can do
            assert count(kernel) == 4  # of which each has seven tenths to do, as far as it goes
            await load.send(22, 60)
            assert count(kernel) == 4
            await load.send(1, 80)
            assert count(kernel) == 1
            await asyncio.sleep(60)
            load.check()
            assert kernel.model("m") is before and kernel.statistics("m")[0].inference_count == load.sent
            assert sorted(backend.instances("initialize")) == ["m_0_0", "m_0_1", "m_0_2", "m_0_3"]
            assert sorted(backend.instances("finalize")) == ["m_0_1", "m_0_2", "m_0_3"]
            assert before.config.as_dict()["instance_group"][0]["count"] == 1

    run(main())


def test_a_burst_is_not_waited_for_in_vain(tmp_path: Path) -> None:
    """By how long a request has waited, where what is in flight says nothing: each instance is to have a hundred."""

    async def main() -> None:
        model(tmp_path, "m", 1, config=scaled(target=100, queue_age=1))
        async with explicit(tmp_path, Answering({"m": sleeping(1.0)})) as kernel:
            client = Client(kernel)
            for number in range(20):
                client.send("m", str(number))
            await asyncio.sleep(1.5)
            assert count(kernel) == 2
            await asyncio.sleep(60)
            assert max(when for when, _ in client.outcomes().values()) < 10

    run(main())


def test_what_it_tells(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1, config=scaled(min=2, max=3))
        model(tmp_path, "other", 1)
        backend = Answering({"m": sleeping(1.0)})
        async with explicit(tmp_path, backend) as kernel:
            report = kernel.scale()
            first, second = report.models
            assert (first.name, first.version, first.current, first.wanted, first.min, first.max) == ("m", 1, 2, 2, 2, 3)
            assert (first.reason, first.in_flight, first.utilization, first.queue_age) == ("as at the start", 0.0, 0.0, 0.0)
            assert (second.current, second.wanted, second.min, second.max, second.reason) == (1, 1, 1, 1, FIXED)
            assert (report.current, report.wanted, report.min, report.max) == (1, 1, 1, 1)
            client = Client(kernel)
            for number in range(40):
                client.send("m", str(number))
            await asyncio.sleep(0.8)
            line = kernel.scale().models[0]
            assert (line.wanted, line.queue_age) == (3, 0.8) and line.utilization > 0.5
            await asyncio.sleep(5)
            line = kernel.scale().models[0]
            assert (line.current, line.max) == (3, 3)
            assert line.reason == "26 in flight, of 0.7 for each: 34 were needed, 3 are the most"
            await asyncio.sleep(100)
            assert kernel.scale().models[0].current == 2

    run(main())


def test_nobody_looks_where_nothing_follows_its_load(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with explicit(tmp_path, Answering()) as kernel:
            scaling = kernel.supervision.scaling
            assert not scaling._looking
            kernel.scale()
            await asyncio.sleep(200)
            assert scaling._looking
            await asyncio.sleep(200)
            assert not scaling._looking

    run(main())


def test_a_model_that_goes_is_forgotten_and_one_that_stays_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1, config=scaled())
        async with explicit(tmp_path, Answering({"m": sleeping(0.1)})) as kernel:
            load = Load(Client(kernel))
            await load.send(22, 5)
            assert count(kernel) == 4
            await kernel.load("m")  # nothing has changed
            assert count(kernel) == 4
            text = scaled().replace("count: 1", "count: 2")
            write(tmp_path / "m" / "config.pbtxt", text)
            await kernel.load("m")  # its group alone: the number follows the load
            assert count(kernel) == 4
            write(tmp_path / "m" / "config.pbtxt", text.replace('string_value: "4"', 'string_value: "3"'))
            await kernel.load("m")  # anew
            assert count(kernel) == 2
            await asyncio.sleep(1)
            load.check()
            await kernel.unload("m")
            await asyncio.sleep(1)
            assert not kernel.supervision.scaling._scaled and not kernel.scale().models

    run(main())


class Failing(Answering):
    """Can make `room` instances."""

    room = 1

    def create(self, context: InstanceContext) -> Any:
        if len(self.instances("initialize")) >= self.room:
            raise ServingError("INTERNAL", "no memory is left") from None  # type: ignore[arg-type]
        return super().create(context)


def test_an_instance_that_can_not_be_had_is_told_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1, config=scaled(max=2))
        backend = Failing({"m": sleeping(0.1)})
        async with explicit(tmp_path, backend) as kernel:
            load = Load(Client(kernel))
            await load.send(9, 6)
            assert count(kernel) == 1
            assert "model 'm' keeps its 1 instances, 2 were wanted: no memory is left" in caplog.messages
            backend.room = 2
            await load.send(9, 6)
            assert count(kernel) == 2
            await asyncio.sleep(5)
            load.check()

    run(main())


def test_a_stop_while_instances_come_finalizes_them(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1, config=scaled())
        backend = Answering({"m": sleeping(0.1)})
        async with explicit(tmp_path, backend) as kernel:
            load = Load(Client(kernel))
            await load.send(40, 1.3)
        load.check()
        assert sorted(backend.instances("initialize")) == sorted(backend.instances("finalize"))

    run(main())


def test_the_rate_limiter_is_not_outwitted(tmp_path: Path) -> None:
    """What waits for a resource of which there is one waits as long with four instances."""

    async def main() -> None:
        text = BASE.replace("count: 1", 'count: 1 rate_limiter { resources [ { name: "R" count: 1 } ] }')
        model(tmp_path, "m", 1, config=scaled(text))
        async with explicit(tmp_path, Answering({"m": sleeping(0.1)}), rate_limit="execution_count") as kernel:
            load = Load(Client(kernel))
            await load.send(20, 20)
            assert count(kernel) <= 2
            assert "executions wait for resources of the rate limiter" in kernel.scale().models[0].reason
            await asyncio.sleep(60)
            load.check()

    run(main())


def test_a_batch_that_waits_for_company_needs_no_instance(tmp_path: Path) -> None:
    async def main() -> None:
        text = "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 2000000 }\n" + BASE
        model(tmp_path, "m", 1, config=scaled(text))
        async with explicit(tmp_path, Answering({"m": sleeping(0.05)})) as kernel:
            load = Load(Client(kernel))
            await load.send(2, 30, value=[[1.0]])
            assert count(kernel) == 1  # though requests wait for two seconds
            await asyncio.sleep(5)
            load.check()

    run(main())


SEQUENCES = """
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ]
}
"""


def test_sequences_stay_where_they_are_until_they_end(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1, config=scaled(BASE + SEQUENCES, cooldown=5))
        backend = Answering({"m": sleeping(0.01)})
        async with explicit(tmp_path, backend) as kernel:
            client, wanted = Client(kernel), 4
            for number in range(1, wanted + 1):
                client.send("m", f"{number}:0", correlation_id=number, flags=1)
            await asyncio.sleep(5)
            assert count(kernel) == 4  # each holds an instance, though none of them executes
            for number in (1, 2, 4):
                client.send("m", f"{number}:1", correlation_id=number, flags=2)
            await asyncio.sleep(20)
            assert count(kernel) == 2  # of which one is for who comes
            for step in range(1, 30):
                client.send("m", f"3:{step}", correlation_id=3)
                await asyncio.sleep(1)
            client.send("m", "3:30", correlation_id=3, flags=2)
            await asyncio.sleep(60)
            assert count(kernel) == 1
            assert {words for _, words in client.outcomes().values()} == {"ok"}
            assert sorted(backend.instances("initialize"))[1:] == sorted(backend.instances("finalize"))

    run(main())


# -- what a config can't say ---------------------------------------------------------------------------------------------------

RAY = 'parameters { key: "placement" value { string_value: "ray" } }\n'
CANT = "the number of instances of model 'm' can't follow its load — "


@pytest.mark.parametrize(
    ("text", "parameters", "words"),
    [
        (BASE, {"min": 5}, CANT + "'autoscale_min' is 5, and 'autoscale_max' is 4"),
        (BASE, {"max": 1025}, "parameter 'autoscale_max' of model 'm' is '1025' — wanted an integer from 1 to 1024"),
        (BASE, {"target": 0}, "'autoscale_target' of model 'm' is '0' — wanted a number of requests in flight for each"),
        (BASE, {"queue_age": "nan"}, "'autoscale_queue_age' of model 'm' is 'nan' — wanted a number of seconds, above 0"),
        (ENSEMBLE % "a", {}, CANT + "an ensemble has no instances of its own: give the parameter to its models"),
        (BASE + RAY, {}, CANT + "its instances are another server's; wanted 'autoscale_target' and 'autoscale_cooldown' alone"),
        (BASE + "instance_group [ { kind: KIND_CPU } ]", {}, CANT + "it has 2 instance groups"),
        (BASE.replace("count: 1", "passive: true"), {}, CANT + "its instances are passive: they take no requests"),
    ],
)
def test_what_a_config_can_not_say(tmp_path: Path, text: str, parameters: Mapping[str, object], words: str) -> None:
    write(tmp_path / "m" / "config.pbtxt", scaled(text, **parameters))
    with pytest.raises(ConfigErrors) as caught:
        read_config(tmp_path / "m")
    assert words in str(caught.value)


def test_a_parameter_without_the_one_that_counts(tmp_path: Path) -> None:
    text = scaled().replace('parameters { key: "autoscale_max" value { string_value: "4" } }', "")
    write(tmp_path / "m" / "config.pbtxt", text)
    with pytest.raises(ConfigErrors, match=r"parameter 'autoscale_cooldown' of model 'm' has no effect — wanted 'autoscale_max'"):
        read_config(tmp_path / "m")


# -- as one of several ---------------------------------------------------------------------------------------------------------


def test_what_replicas_tell_is_one_answer(tmp_path: Path) -> None:
    async def main() -> ServerScale:
        model(tmp_path, "m", 1, config=scaled())
        async with explicit(tmp_path, Answering({"m": sleeping(1.0)})) as kernel:
            kernel.scale()
            client = Client(kernel)
            for number in range(4):
                client.send("m", str(number))
            await asyncio.sleep(0.5)
            return kernel.scale()

    one = run(main())
    both = together([one, one])
    (line,) = both.models
    assert (both.current, both.wanted, both.min, both.max) == (2, 2, 2, 2)
    assert both.in_flight == pytest.approx(2 * one.in_flight, abs=0.01) and both.utilization == one.utilization
    assert (line.min, line.max, line.current) == (2, 8, 2 * one.models[0].current)
    assert (line.queue_age, line.reason) == (one.models[0].queue_age, one.models[0].reason)
    assert json.dumps(line.in_flight)
