"""The metrics page of a kernel on virtual time: what series there are, and their values. Times are exact."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from virtual import BASE, Behaviour, Client, TestBackend, answer, run, sleeping, write_repository

from kernel import Batch, Kernel, LocalCache, MetricKind, Result, ServingError
from kernel_metrics import page as pages
from kernel_metrics.gpus import Gpus
from kernel_metrics.lag import LoopLag
from kernel_metrics.machine import Machine
from kernel_metrics.options import MetricsSettings
from kernel_metrics.page import Page

BATCHING = BASE + "max_batch_size: 6\ndynamic_batching { }\n"
DECOUPLED = BASE + "model_transaction_policy { decoupled: true }\n"
QUIET = MetricsSettings(cpu=False, gpu=False)
PINNED = {"nv_pinned_memory_pool_total_bytes", "nv_pinned_memory_pool_used_bytes"}


class Scraped:
    """A kernel's page, taken apart."""

    def __init__(self, kernel: Kernel, settings: MetricsSettings, machine: Machine | None = None) -> None:
        self.client = Client(kernel)
        self.kernel = kernel
        self.lag = LoopLag(kernel.loop, kernel.clock)
        self.page = Page(kernel, settings, self.lag, machine)

    async def text(self) -> str:
        return (await self.page.make()).decode()

    async def values(self, pattern: str) -> dict[str, str]:
        """Return series whose names match the pattern -> value, as printed."""
        lines = [line.rpartition(" ") for line in (await self.text()).splitlines() if not line.startswith("#")]
        return {series: value for series, _, value in lines if re.match(pattern, series)}

    async def value(self, series: str) -> str:
        return (await self.values(re.escape(series)))[series]


@asynccontextmanager
async def scraped(
    folder: Path,
    models: Mapping[str, str],
    behaviours: Mapping[str, Behaviour] | None = None,
    settings: MetricsSettings = QUIET,
    machine: Machine | None = None,
    **options: Any,
) -> AsyncIterator[Scraped]:
    write_repository(folder, models)
    backend = TestBackend(behaviours or {})
    async with Kernel(folder, plugins=[backend], control_mode="explicit", load_models=["*"], **options) as kernel:
        yield Scraped(kernel, settings, machine)


def test_a_model_and_its_counters(tmp_path: Path) -> None:
    async def main() -> None:
        async with scraped(tmp_path, {"m": BASE}, {"m": sleeping(0.5)}) as it:
            it.client.send("m", "a")
            it.client.send("m", "b")
            await asyncio.sleep(2)
            assert await it.values("nv_inference") == {
                'nv_inference_request_success{model="m",version="1"}': "2",
                'nv_inference_request_failure{model="m",reason="REJECTED",version="1"}': "0",
                'nv_inference_request_failure{model="m",reason="CANCELED",version="1"}': "0",
                'nv_inference_request_failure{model="m",reason="BACKEND",version="1"}': "0",
                'nv_inference_request_failure{model="m",reason="OTHER",version="1"}': "0",
                'nv_inference_count{model="m",version="1"}': "2",
                'nv_inference_exec_count{model="m",version="1"}': "2",
                'nv_inference_request_duration_us{model="m",version="1"}': "1500000",
                'nv_inference_queue_duration_us{model="m",version="1"}': "500000",
                'nv_inference_compute_input_duration_us{model="m",version="1"}': "0",
                'nv_inference_compute_infer_duration_us{model="m",version="1"}': "1000000",
                'nv_inference_compute_output_duration_us{model="m",version="1"}': "0",
                'nv_inference_pending_request_count{model="m",version="1"}': "0",
            }

    run(main())


def test_gauges_of_what_waits(tmp_path: Path) -> None:
    """BC71, on the page."""

    async def main() -> None:
        async with scraped(tmp_path, {"m": BASE}, {"m": sleeping(1.0)}) as it:
            for name in "abcde":
                it.client.send("m", name)
            await asyncio.sleep(0.25)
            assert await it.value('nv_inference_pending_request_count{model="m",version="1"}') == "4"
            assert await it.values("kernel_(queue_(depth|oldest)|requests_in)") == {
                'kernel_queue_depth{model="m",version="1"}': "4",
                'kernel_queue_oldest_seconds{model="m",version="1"}': "0.25",
                'kernel_requests_in_flight{model="m",version="1"}': "5",
            }
            it.kernel.cancel(it.client.requests["e"])
            assert await it.value('nv_inference_pending_request_count{model="m",version="1"}') == "3"
            await asyncio.sleep(10)
            assert await it.value('nv_inference_pending_request_count{model="m",version="1"}') == "0"
            assert await it.value('nv_inference_request_failure{model="m",reason="CANCELED",version="1"}') == "1"
            assert await it.value('kernel_queue_oldest_seconds{model="m",version="1"}') == "0"

    run(main())


def test_series_come_and_go_with_a_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with scraped(tmp_path, {"a": BASE, "b": BASE}) as it:
            success = "nv_inference_request_success"
            it.client.send("a", "1")
            assert list((await it.values(success)).values()) == ["1", "0"]
            it.kernel.unload("a")
            assert not any('model="a"' in series for series in await it.values(""))
            await it.kernel.load("a")
            it.client.send("a", "2")
            assert (await it.values(success))[f'{success}{{model="a",version="1"}}'] == "1", "a new count"
            it.kernel.unload("a")
            it.kernel.unload("b")
            await asyncio.sleep(1)
            left = {series.partition("{")[0] for series in await it.values("")}
            assert left == {*PINNED, *(f"kernel_loop_lag_seconds_{part}" for part in ("count", "sum", "bucket"))}
            assert "nv_inference" not in await it.text(), "no family without series"

    run(main())


def test_versions_and_tags(tmp_path: Path) -> None:
    config = BASE + (
        "version_policy { all { } }\n"
        'metric_tags { key: "team" value: "a \\"b\\" \\\\ c\\n" }\nmetric_tags { key: "area" value: "x" }\n'
    )

    async def main() -> None:
        write_repository(tmp_path, {"m": config}, versions=(1, 10))
        async with scraped(tmp_path, {"m": config}) as it:
            tags = r'_area="x",_team="a \"b\" \\ c\n",model="m"'
            assert list(await it.values("nv_inference_count")) == [
                f'nv_inference_count{{{tags},version="{version}"}}' for version in (1, 10)
            ]
            failures = await it.values("nv_inference_request_failure")
            assert f'nv_inference_request_failure{{{tags},reason="OTHER",version="10"}}' in failures

    run(main())


def test_a_tag_that_no_label_can_be_named_after(tmp_path: Path) -> None:
    config = BASE + 'metric_tags { key: "cost-center \\"\\n\u00e9" value: "x" }\n'

    async def main() -> None:
        async with scraped(tmp_path, {"m": config}) as it:
            labels = '_cost_center____="x",model="m",version="1"'
            assert list(await it.values("nv_inference_count")) == [f"nv_inference_count{{{labels}}}"]

    run(main())


def test_batch_sizes_and_queue_times(tmp_path: Path) -> None:
    async def main() -> None:
        async with scraped(tmp_path, {"m": BATCHING, "plain": BASE}, {"m": sleeping(0.02)}) as it:
            it.client.send("m", "a", [[1.0]])
            await asyncio.sleep(0.01)
            for name in "bcdef":
                it.client.send("m", name, [[1.0]])
            await asyncio.sleep(1)
            label = 'model="m",version="1"'
            assert await it.values("kernel_batch_size") == {
                f"kernel_batch_size_count{{{label}}}": "2",
                f"kernel_batch_size_sum{{{label}}}": "6",
                **{
                    f'kernel_batch_size_bucket{{{label},le="{bound}"}}': value
                    for bound, value in {"1": "1", "2": "1", "4": "1", "6": "2", "+Inf": "2"}.items()
                },
            }
            queue = await it.values(f"kernel_queue_seconds.*{label}")
            assert queue[f"kernel_queue_seconds_count{{{label}}}"] == "6"
            assert queue[f'kernel_queue_seconds_bucket{{{label},le="0.005"}}'] == "1"
            assert queue[f'kernel_queue_seconds_bucket{{{label},le="0.05"}}'] == "6"
            first = await it.values(f"kernel_first_response_seconds.*{label}")
            assert first[f'kernel_first_response_seconds_bucket{{{label},le="0.01"}}'] == "0"
            assert first[f'kernel_first_response_seconds_bucket{{{label},le="0.05"}}'] == "6"

    run(main())


async def three_responses(batch: Batch) -> Result:
    (request,) = batch.requests
    for _ in range(3):
        await asyncio.sleep(0.4)
        request.model.kernel.send(request, answer(request), False)
    request.model.kernel.send(request, None, True)
    return None


def test_the_first_response_of_a_decoupled_model(tmp_path: Path) -> None:
    """As later releases of the reference have it: for decoupled models alone, buckets as the model wishes."""
    own = DECOUPLED + (
        'model_metrics { metric_control { metric_identifier { family: "nv_inference_first_response_histogram_ms" } '
        "histogram_options { buckets: [ -1, 0, 399.5, 400.5 ] } } }\n"
    )
    models = {"m": DECOUPLED, "own": own, "plain": BASE}
    settings = MetricsSettings(cpu=False, gpu=False, histogram_latencies=True)

    async def main() -> None:
        behaviours: dict[str, Behaviour] = {"m": three_responses, "own": three_responses}
        async with scraped(tmp_path, models, behaviours, settings) as it:
            for name in models:
                it.client.send(name, name)
            await asyncio.sleep(5)
            name = "nv_inference_first_response_histogram_ms"
            label, other = 'model="m",version="1"', 'model="own",version="1"'
            found = await it.values(name)
            assert not any('model="plain"' in series for series in found)
            assert found.pop(f"{name}_sum{{{label}}}") == found.pop(f"{name}_sum{{{other}}}")
            assert found == {
                f"{name}_count{{{label}}}": "1",
                f'{name}_bucket{{{label},le="100"}}': "0",
                f'{name}_bucket{{{label},le="500"}}': "1",
                f'{name}_bucket{{{label},le="2000"}}': "1",
                f'{name}_bucket{{{label},le="5000"}}': "1",
                f'{name}_bucket{{{label},le="+Inf"}}': "1",
                f"{name}_count{{{other}}}": "1",
                f'{name}_bucket{{{other},le="-1"}}': "0",
                f'{name}_bucket{{{other},le="0"}}': "0",
                f'{name}_bucket{{{other},le="399.5"}}': "0",
                f'{name}_bucket{{{other},le="400.5"}}': "1",
                f'{name}_bucket{{{other},le="+Inf"}}': "1",
            }

    run(main())


def test_summaries_look_back_a_minute(tmp_path: Path) -> None:
    settings = MetricsSettings(cpu=False, gpu=False, summary_latencies=True, summary_quantiles={0.5: 0.05, 1.0: 0.0})

    async def main() -> None:
        async with scraped(tmp_path, {"m": BASE}, {"m": sleeping(0.25)}, settings) as it:
            name, label = "nv_inference_request_summary_us", 'model="m",version="1"'
            half, most = f'{name}{{{label},quantile="0.5"}}', f'{name}{{{label},quantile="1"}}'
            assert await it.values(name) == {
                f"{name}_count{{{label}}}": "0", f"{name}_sum{{{label}}}": "0", half: "Nan", most: "Nan",
            }  # fmt: skip
            for k in range(3):
                it.client.send("m", f"{k}")
            await asyncio.sleep(2)
            found = await it.values(name)
            assert found[f"{name}_count{{{label}}}"] == "3" and found[f"{name}_sum{{{label}}}"] == "1500000"
            assert float(found[half]) == pytest.approx(500_000, rel=0.01)
            assert float(found[most]) == pytest.approx(750_000, rel=0.01)
            computed = await it.values("nv_inference_compute_infer_summary_us")
            assert float(computed[half.replace("request", "compute_infer")]) == pytest.approx(250_000, rel=0.01)
            await asyncio.sleep(75)
            found = await it.values(name)
            assert (found[half], found[f"{name}_count{{{label}}}"]) == ("Nan", "3")

    run(main())


def test_durations_can_be_left_out(tmp_path: Path) -> None:
    settings = MetricsSettings(cpu=False, gpu=False, counter_latencies=False)

    async def main() -> None:
        async with scraped(tmp_path, {"m": BASE}, settings=settings) as it:
            assert await it.values("nv_.*duration_us") == {}
            assert await it.values("nv_inference_request_success") != {}

    run(main())


def test_what_was_refused_and_who_held_the_loop(tmp_path: Path) -> None:
    config = BATCHING.replace("{ }", "{ default_queue_policy { max_queue_size: 1 } }")

    async def main() -> None:
        async with scraped(tmp_path, {"m": config}, {"m": sleeping(1.0)}) as it:
            for k in range(4):
                it.client.send("m", f"{k}", [[1.0]] * 6)
                await asyncio.sleep(0.1)
            assert await it.value('kernel_requests_refused_total{model="m",version="1"}') == "2"
            it.kernel.model("m").scheduler.instances[0].warn_held(0.2)
            it.kernel.model("m").scheduler.instances[0].warn_held(0.3)
            assert await it.value('kernel_loop_held_total{model="m",version="1"}') == "2"
            assert await it.value('kernel_loop_held_seconds_total{model="m",version="1"}') == "0.5"

    run(main())


def test_the_lag_of_the_loop(tmp_path: Path) -> None:
    async def main() -> None:
        async with scraped(tmp_path, {"m": BASE}) as it:
            it.lag.start()
            await asyncio.sleep(1.1)
            it.lag.stop()
            await asyncio.sleep(1.1)
            assert await it.value("kernel_loop_lag_seconds_count") == "4"
            assert await it.value('kernel_loop_lag_seconds_bucket{le="0.001"}') == "4", "virtual timers are punctual"

    run(main())


def test_a_large_page_lets_others_have_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PIECE_SECONDS", -1.0)

    async def main() -> None:
        models = {f"m{k}": BASE for k in range(20)}
        async with scraped(tmp_path, models) as it:
            turns = 0

            def turn() -> None:
                nonlocal turns
                turns += 1
                if not making.done():
                    it.kernel.loop.call_soon(turn)

            making = asyncio.ensure_future(it.page.make())
            it.kernel.loop.call_soon(turn)
            other = asyncio.ensure_future(it.page.make())
            await asyncio.sleep(0)
            it.kernel.unload("m19")  # in the middle
            assert await making is await other, "one page for all who ask meanwhile"
            assert turns > 20
            assert (await it.text()).count("nv_inference_count{") == 19

    run(main())


def test_a_page_that_failed_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with scraped(tmp_path, {"a": BASE, "b": BASE}) as it:
            whole = await it.text()
            scheduler = it.kernel.model("b").scheduler
            with monkeypatch.context() as patch:
                patch.setattr(scheduler.life, "statistics", None)
                with pytest.raises(AttributeError):
                    await it.text()
            assert await it.text() == whole

    run(main())


def test_the_response_cache(tmp_path: Path) -> None:
    """Of the models that use it, and of itself; the reference's own figures stay at 0."""
    models = {"m": BASE + "response_cache { enable: true }\n", "plain": BASE}
    settings = MetricsSettings(cpu=False, gpu=False, summary_latencies=True)

    async def main() -> None:
        cache = LocalCache(1 << 16)
        async with scraped(tmp_path, models, {"m": sleeping(0.25)}, settings, cache=cache) as it:
            for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
                it.client.send("m", name, [value])
                await asyncio.sleep(1)
            counted = await it.values("nv_cache_num_.*_per_model")
            assert counted == {
                'nv_cache_num_hits_per_model{model="m",version="1"}': "1",
                'nv_cache_num_misses_per_model{model="m",version="1"}': "2",
            }
            found = await it.values("nv_cache_(num_[a-z]+|util|[a-z]+_duration) ?$")
            usage = cache.usage()
            assert found == {
                "nv_cache_util": f"{usage.used / usage.size:.16g}",
                "nv_cache_num_entries": "2",
                "nv_cache_num_hits": "1",
                "nv_cache_num_misses": "2",
                "nv_cache_num_lookups": "3",
                "nv_cache_num_evictions": "0",
                "nv_cache_lookup_duration": "0",
                "nv_cache_insertion_duration": "0",
            }
            count = '_count{model="m",version="1"}'
            assert await it.value(f"nv_inference_request_success{count.removeprefix('_count')}") == "3"
            assert await it.value(f"nv_inference_request_summary_us{count}") == "3", "with the one that was kept"
            assert await it.value(f"nv_inference_compute_infer_summary_us{count}") == "2", "without it"
            assert await it.value(f"nv_cache_hit_summary_per_model{count}") == "1"
            assert await it.value(f"nv_cache_miss_summary_per_model{count}") == "2"
            assert await it.value(f"kernel_queue_seconds{count}") == "3"
            assert not any("plain" in series for series in await it.values("nv_cache"))

    run(main())


def test_no_response_cache(tmp_path: Path) -> None:
    async def main() -> None:
        async with scraped(tmp_path, {"m": BASE + "response_cache { enable: true }\n"}) as it:
            assert await it.values("nv_cache") == {}

    run(main())


def test_metrics_that_models_make(tmp_path: Path) -> None:
    async def main() -> None:
        async with scraped(tmp_path, {"m": BASE}) as it:
            custom = it.kernel.custom_metrics
            counted = custom.family("my_requests", 'all "of" \\ them\nat once', MetricKind.COUNTER)
            counted.metric({"b": 'x"y\\z\nq', "a": "1"}).increment(0.1 + 0.2)
            counted.metric({}).increment(1e20)
            times = custom.family("my_seconds", "t", MetricKind.HISTOGRAM).metric({"model": "m"}, [0.1, 1])
            for value in (0.1, 0.5, 7):
                times.observe(value)
            custom.family("unused", "without a series", MetricKind.GAUGE)
            text = await it.text()
            assert text.endswith(
                "# HELP my_requests all \"of\" \\\\ them\\nat once\n"
                "# TYPE my_requests counter\n"
                'my_requests{a="1",b="x\\"y\\\\z\\nq"} 0.3\n'
                "my_requests 1e+20\n"
                "# HELP my_seconds t\n"
                "# TYPE my_seconds histogram\n"
                'my_seconds_count{model="m"} 3\n'
                'my_seconds_sum{model="m"} 7.6\n'
                'my_seconds_bucket{model="m",le="0.1"} 1\n'
                'my_seconds_bucket{model="m",le="1"} 2\n'
                'my_seconds_bucket{model="m",le="+Inf"} 3\n'
            )
            counted.close()
            assert "my_requests" not in await it.text()
            for name in ("nv_inference_count", "nv_cpu_utilization", "nv_cache_util", "kernel_loop_lag_seconds"):
                with pytest.raises(ServingError, match="the server's own metrics"):
                    custom.family(name, "", MetricKind.GAUGE)

    run(main())


def test_others_can_read_it(tmp_path: Path) -> None:
    """By prometheus_client's parser, which takes names and labels as Prometheus does."""
    parser = pytest.importorskip("prometheus_client.parser")
    settings = MetricsSettings(cpu=False, gpu=False, summary_latencies=True, histogram_latencies=True)
    models = {"m": BASE + 'metric_tags { key: "t" value: "a \\"b\\" \\\\ c" }\n', "d": DECOUPLED, "b": BATCHING}

    async def main() -> None:
        async with scraped(tmp_path, models, settings=settings) as it:
            it.client.send("m", "1")
            text = (await it.text()).replace(" Nan", " NaN")  # which is how the reference writes it
            families = {family.name: family for family in parser.text_string_to_metric_families(text)}
            success = families["nv_inference_request_success"]
            assert (success.type, len(success.samples)) == ("counter", 3)
            assert {sample.labels["model"]: sample.value for sample in success.samples} == {"m": 1, "d": 0, "b": 0}
            assert {sample.labels.get("_t") for sample in success.samples} == {None, 'a "b" \\ c'}
            kinds = {family.type for family in families.values()}
            assert kinds == {"counter", "gauge", "histogram", "summary"}

    run(main())


# -- the machine -------------------------------------------------------------------------------------------------------


def write_proc(folder: Path, busy: int, idle: int) -> Path:
    (folder / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1 1 1\n")
    (folder / "meminfo").write_text("MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable:   400 kB\nHugePages_Total: 0\n")
    return folder


def figures(machine: Machine) -> dict[str, float]:
    lines = (line.split(" ") for line in machine.lines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def test_cpu_and_memory(tmp_path: Path) -> None:
    machine = Machine(cpu=True, gpus=None, interval=2.0, proc=write_proc(tmp_path, 10, 90))
    machine.read()
    assert figures(machine) == {
        "nv_cpu_utilization": 0.1,
        "nv_cpu_memory_total_bytes": 1024_000,
        "nv_cpu_memory_used_bytes": 600 * 1024,
    }
    write_proc(tmp_path, 85, 115)
    machine.read()
    assert figures(machine)["nv_cpu_utilization"] == 0.75, "since the last reading"
    machine.read()
    assert figures(machine)["nv_cpu_utilization"] == 0.75, "no time has passed"


def test_figures_are_read_once_an_interval(tmp_path: Path) -> None:
    async def main() -> None:
        machine = Machine(cpu=True, gpus=None, interval=2.0, proc=write_proc(tmp_path, 0, 100))
        await machine.refresh(10.0)
        write_proc(tmp_path, 100, 100)
        await machine.refresh(11.9)
        assert figures(machine)["nv_cpu_utilization"] == 0.0
        await machine.refresh(12.0)
        assert figures(machine)["nv_cpu_utilization"] == 1.0

    asyncio.run(main())


@pytest.mark.parametrize("content", ["", "cpu  1 2\n", "cpu  a b c d e f g h\n"])
def test_another_kind_of_proc(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "stat").write_text(content)
    machine = Machine(cpu=True, gpus=None, interval=2.0, proc=tmp_path)
    machine.read()
    machine.read()
    assert figures(machine) == {}
    assert len([record for record in caplog.records if "no CPU metrics" in record.message]) == 1


def test_no_proc(tmp_path: Path) -> None:
    machine = Machine(cpu=True, gpus=None, interval=2.0, proc=tmp_path)
    machine.read()
    assert figures(machine) == {}


class FakeNvml:
    """Two GPUs; the second is a slice, which has no power of its own."""

    energy = 5_000.0

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> Any:
        return b"GPU-0" if handle == 0 else "MIG-1"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=37)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=1000, used=250)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._whole(handle, 71_500)

    def nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:
        return self._whole(handle, 700_000)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> float:
        return self._whole(handle, self.energy)

    def _whole(self, handle: int, value: Any) -> Any:
        if handle:
            raise RuntimeError("Not Supported")
        return value


def test_gpus() -> None:
    nvml = FakeNvml()
    machine = Machine(cpu=False, gpus=Gpus(nvml), interval=2.0)
    nvml.energy = 7_500.0
    machine.read()
    lines = "\n".join(machine.lines()).splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'nv_gpu_utilization{gpu_uuid="GPU-0"} 0.37',
        'nv_gpu_utilization{gpu_uuid="MIG-1"} 0.37',
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-0"} 1000',
        'nv_gpu_memory_total_bytes{gpu_uuid="MIG-1"} 1000',
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-0"} 250',
        'nv_gpu_memory_used_bytes{gpu_uuid="MIG-1"} 250',
        'nv_gpu_power_usage{gpu_uuid="GPU-0"} 71.5',
        'nv_gpu_power_limit{gpu_uuid="GPU-0"} 700',
        'nv_energy_consumption{gpu_uuid="GPU-0"} 2.5',
    ]
    assert "# TYPE nv_energy_consumption counter" in lines and "# TYPE nv_gpu_power_usage gauge" in lines


def test_the_size_of_a_pool_that_was_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        settings = MetricsSettings(cpu=False, gpu=False, pinned_bytes=4096)
        async with scraped(tmp_path, {"m": BASE}, settings=settings) as it:
            assert await it.value("nv_pinned_memory_pool_total_bytes") == "4096"
            assert await it.value("nv_pinned_memory_pool_used_bytes") == "0"

    run(main())
