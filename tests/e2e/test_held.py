"""Models that hold the loop of a server: told and counted, and signals end the process all the same."""

from __future__ import annotations

import http.client
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .serving import Server, serving, wait_until, write_model

#: Holds the loop for X[0] seconds, or -X[0] in a task of its own; 1: for ever; 2: in C, for ever.
HOLDS = """\
    async def execute(self, requests):
        import asyncio
        value = float(requests[0].inputs()[0].as_numpy()[0])

        async def own():
            time.sleep(-value)

        if value == 1:
            while True:
                pass
        elif value == 2:
            sum(range(10**15))
        elif value < 0:
            await asyncio.gather(own())
        else:
            time.sleep(value)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""

ON_THE_LOOP = 'parameters { key: "placement" value { string_value: "loop" } }'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    write_model(tmp_path / "models", "holds", HOLDS, more=ON_THE_LOOP)
    with serving(tmp_path, tmp_path / "models", "--exit-timeout-secs=60") as server:
        yield server


def held_total(server: Server) -> int:
    port = int(re.search(r"Started Metrics Service at 127\.0\.0\.1:(\d+)", server.text()).group(1))  # type: ignore[union-attr]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    finally:
        connection.close()
    return int(re.search(r'^kernel_loop_held_total\{model="holds",version="1"\} (\d+)', page, re.M).group(1))  # type: ignore[union-attr]


def test_an_async_model_that_holds_the_loop_is_named_and_counted(server: Server) -> None:
    assert server.infer("holds", 0.0)[0] == 200
    held = r"model 'holds', instance 'holds_0', held the event loop for (\d+) ms at model\.py:(\d+); "
    for value, line in ((0.5, "23"), (-0.5, "13")):
        for _ in range(10):  # on a machine that is short of time it may not be seen
            assert server.infer("holds", value)[0] == 200
            time.sleep(0.2)
            found = re.findall(held, server.text())
            if found and found[-1][1] == line:
                break
        assert found[-1][1] == line
        assert held_total(server) == len(found)
    assert all(100 <= int(milliseconds) < 900 for milliseconds, _ in found)


def test_an_async_model_that_holds_the_loop_is_moved_off_it(tmp_path: Path) -> None:
    """And one that keeps the interpreter is told of."""
    body = HOLDS.replace("value == 2:", "value >= 2:").replace("10**15", "int(value)")
    write_model(tmp_path / "models", "holds", body, more='parameters { key: "placement" value { string_value: "auto" } }')
    with serving(tmp_path, tmp_path / "models") as server:
        for _ in range(10):
            assert server.infer("holds", 0.3)[0] == 200
            if "its instances are made anew" in server.text():
                break
        wait_until(lambda: "model 'holds' runs on threads of its own now" in server.text())
        assert re.search(
            r"model 'holds' has held the event loop twice, for \d+ ms at model\.py:23 the second time; its instances are ",
            server.text(),
        )
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(server.infer, "holds", 0.9)
            assert server.request("GET", "/v2/health/live", timeout=0.5)[0] == 200
            assert asked.result(10)[0] == 200
        kept = r"model 'holds' has kept the interpreter from everybody else for \d+ ms at model\.py:\d+, by code that does not "
        for _ in range(20):  # whoever wakes up first afterwards may be too late to see it
            assert server.infer("holds", 6e7, 60.0)[0] == 200
            if re.search(kept, server.text()):
                break
        else:
            pytest.fail("it was never seen")


def test_a_second_signal_ends_the_process_while_the_loop_is_held(server: Server) -> None:
    with ThreadPoolExecutor() as pool:
        pool.submit(server.infer, "holds", 1.0, 60.0)
        told = r"loop held for 2 s by model 'holds' at model\.py:1[67]; nobody else is served meanwhile\"\n(    .*\n)*"
        wait_until(lambda: re.search(told, server.text()))
        stack = re.search(told, server.text()).group()  # type: ignore[union-attr]
        assert re.search(r'model\.py", line 1[67], in execute\n', stack)
        server.signal()
        time.sleep(0.2)
        assert server.process.poll() is None
        began = time.monotonic()
        server.signal()
        assert server.wait() == 1
        assert time.monotonic() - began < 4
    assert "SIGTERM again, while the loop is held: ending at once" in server.text()


def test_one_signal_ends_the_process_within_its_limit_while_the_loop_is_held(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "holds", HOLDS, more=ON_THE_LOOP)
    with serving(tmp_path, tmp_path / "models", "--exit-timeout-secs=0") as server, ThreadPoolExecutor() as pool:
        asked = pool.submit(server.infer, "holds", 1.0, 60.0)
        wait_until(lambda: asked.running())
        time.sleep(0.5)  # there is nobody to ask whether it has begun
        server.signal()
        assert server.wait() == 1
    assert (
        "failed to stop server: Internal - Exit timeout expired while the loop is held. Exiting immediately." in server.text()
    )


def test_a_second_signal_ends_the_process_while_nothing_of_python_runs(server: Server) -> None:
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(server.infer, "holds", 2.0, 60.0)
        time.sleep(1)  # there is nobody to ask whether it has begun
        for _ in range(2):
            server.signal(signal.SIGINT)
            time.sleep(0.1)
        assert server.wait() == -signal.SIGINT
        assert asked.exception(10) is not None
