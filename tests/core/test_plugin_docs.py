"""docs/plugins.md and the sink of docs/tracing.md are true: each example works as it stands there."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from virtual import BASE, TestBackend, run, write_repository

from kernel import Code, Kernel, ServingError, Trace, TraceOptions, hookimpl

ROOT = Path(__file__).parents[2]
MODELS = """
backend: "scale" max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
dynamic_batching { }
"""
FACTOR = 'parameters { key: "factor" value { string_value: "%s" } }\n'


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def plugin(page: str, number: int, name: str) -> ModuleType:
    """Return an example as the module that it is meant to be."""
    module = ModuleType(name)
    exec(compile(snippets(page)[number], f"docs/{page}", "exec"), module.__dict__)
    return module


def test_there_are_the_examples() -> None:
    assert len(snippets("plugins.md")) == 3
    assert len(snippets("tracing.md")) == 1


def test_backend(tmp_path: Path) -> None:
    scale = plugin("plugins.md", 0, "scale")

    async def main() -> None:
        write_repository(tmp_path, {"m": MODELS + FACTOR % "2.5"})
        async with Kernel(tmp_path, plugins=[scale]) as kernel:
            x = np.array([[1.0, 2.0]], np.float32)
            responses = await asyncio.gather(*(kernel.infer("m", {"X": x * k}) for k in range(3)))
            assert [response["Y"].tolist() for response in responses] == [(x * k * 2.5).tolist() for k in range(3)]

    asyncio.run(main())


def test_backend_completes_a_config(tmp_path: Path) -> None:
    scale = plugin("plugins.md", 0, "scale")

    async def main() -> None:
        write_repository(tmp_path, {"m": 'backend: "scale" max_batch_size: 4\n' + FACTOR % "2"})
        async with Kernel(tmp_path, plugins=[scale]) as kernel:
            assert (await kernel.infer("m", {"X": [[1, 2]]}))["Y"].tolist() == [[2.0, 4.0]]

    asyncio.run(main())


def test_backend_refuses_what_can_not_be_with_its_place(tmp_path: Path) -> None:
    scale = plugin("plugins.md", 0, "scale")

    async def main() -> None:
        write_repository(tmp_path, {"m": MODELS + FACTOR % "much"})
        with pytest.raises(ServingError):
            await Kernel(tmp_path, plugins=[scale]).start()
        async with Kernel(tmp_path, plugins=[scale], exit_on_error=False) as kernel:
            failure = kernel.failures()["m"]
            assert "parameter 'factor' of model 'm' is 'much', wanted a number" in failure.message
            assert failure.place is not None and str(failure.place).endswith("/m/config.pbtxt:6:1")

    asyncio.run(main())


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[Callable[..., object]], None]:
    """Run a story with the front end of lines, on a port that the system chooses: (kernel, front end, reader, writer)."""
    module = plugin("plugins.md", 1, "lines")

    def tell(story: Callable[..., object]) -> None:
        async def main() -> None:
            write_repository(tmp_path, {"m": BASE})
            async with Kernel(tmp_path, plugins=[TestBackend({}), module]) as kernel:
                parser = argparse.ArgumentParser()
                module.add_options(parser)
                assert module.register_frontends(kernel, parser.parse_args(["--allow-lines=false"])) == []
                options = parser.parse_args(["--lines-address=127.0.0.1", "--lines-port=0"])
                (frontend,) = module.register_frontends(kernel, options)
                await frontend.start()
                host, port = frontend.address.removeprefix("lines://").split(":")
                reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    await story(kernel, frontend, reader, writer)  # type: ignore[misc]
                finally:
                    writer.close()
                    await frontend.stop()

        asyncio.run(main())

    return tell


def test_front_end(lines: Callable[[Callable[..., object]], None]) -> None:
    async def story(kernel: Kernel, frontend: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def ask(line: str) -> object:
            writer.write(line.encode() + b"\n")
            return json.loads(await reader.readline())

        assert await ask('{"model": "m", "inputs": {"X": [1, 2]}}') == {"Y": [1.0, 2.0]}
        assert "unexpected inference input 'Z'" in str(await ask('{"model": "m", "inputs": {"Z": [1, 2]}}'))
        assert "unknown model: 'none'" in str(await ask('{"model": "none", "inputs": {}}'))
        for line in ("{", "[]", '{"model": "m", "inputs": {"X": ["a"]}}', '{"model": "m", "inputs": 3}'):
            assert "not a request" in str(await ask(line)), line

    lines(story)


def test_front_end_drains(lines: Callable[[Callable[..., object]], None]) -> None:
    async def story(kernel: Kernel, frontend: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"model": "m", "inputs": {"X": [1]}}\n')
        assert json.loads(await reader.readline()) == {"Y": [1.0]}
        assert not frontend.busy  # type: ignore[attr-defined]
        await frontend.drain()  # type: ignore[attr-defined]
        assert await reader.read() == b""

    lines(story)


def test_trace_sink(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = plugin("tracing.md", 0, "log_sink")

    async def main() -> None:
        write_repository(tmp_path, {"m": BASE})
        options = TraceOptions(level=("TIMESTAMPS",), rate=2, mode="log")
        async with Kernel(tmp_path, plugins=[TestBackend({}), sink], trace=options) as kernel:
            with caplog.at_level(logging.INFO, "log_sink"):
                for _ in range(4):
                    await kernel.infer("m", {"X": [1]})
            told = [record.getMessage() for record in caplog.records if record.name == "log_sink"]
            assert told == ["model 'm' took 0.0 ms"] * 2

    run(main())


def test_no_request_fails_of_a_trace_sink_that_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        def opened(self, trace: Trace, traceparent: str) -> None:
            raise OSError("no room")

        def completed(self, trace: Trace) -> None:
            raise OSError("no room")

        def retired(self, sampler: object) -> None: ...

        async def close(self) -> None: ...

    class Plugin:
        @hookimpl
        def make_trace_sink(self) -> Failing:
            return Failing()

    async def main() -> None:
        write_repository(tmp_path, {"m": BASE})
        options = TraceOptions(level=("TIMESTAMPS",), rate=1, mode="failing")
        async with Kernel(tmp_path, plugins=[TestBackend({}), Plugin()], trace=options) as kernel:
            assert (await kernel.infer("m", {"X": [1]}))["Y"].tolist() == [1]

    run(main())
    failed = ["the trace sink failed at a trace that was opened", "a trace is lost"]
    assert [record.getMessage() for record in caplog.records if record.exc_info] == failed


def test_a_mode_that_no_plugin_has_is_refused_at_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": BASE})
        words = "no plugin is installed for the trace mode 'log'; mode 'triton' needs none"
        with pytest.raises(ServingError, match=words) as raised:
            await Kernel(tmp_path, plugins=[TestBackend({})], trace=TraceOptions(mode="log")).start()
        assert raised.value.code is Code.UNSUPPORTED

    run(main())
