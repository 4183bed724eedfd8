"""Requests without an answer fail the test at once and say who holds them; virtual time; what is left of a model."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from core.written import CALLS, CALLS_ASYNC, DECOUPLED, ECHO, LOOP, NEVER, THREAD, write

from kernel import ServingError
from kernel.testing import Deadlock, Kit, Leak, LoadedModel, Unanswered, VirtualTime

KEPT = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
    def execute(self, requests):
        self.kept += [request.get_response_sender() for request in requests]
"""
#: Calls inner and goes through its responses, waiting for each.
ITERATES = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.call(request) for request in requests]
    def call(self, request):
        call = pb_utils.InferenceRequest(model_name="inner", requested_output_names=["Y"], inputs=request.inputs())
        return answer([len([one for one in call.exec(decoupled=True) if one.output_tensors()])])
"""
SLEEPS = """
class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.sleep(3600)
        return [answer([1]) for _ in requests]
"""


def deadlock(kit: Kit, model: LoadedModel) -> str:
    with pytest.raises(Deadlock) as caught:
        model.infer(X=[1], id="r")
    first, *lines = str(caught.value).splitlines()
    assert first == "deadlock: nothing is left that could happen"
    return "\n".join(lines)


@pytest.mark.parametrize("virtual_time", [False, True])
def test_an_execution_that_waits_for_nothing(virtual_time: bool, tmp_path: Path) -> None:
    folder = write(tmp_path, "m", NEVER)
    with Kit(virtual_time=virtual_time) as kit:
        words = deadlock(kit, kit.load_model(folder))
    assert words == (
        f"  request 'r' to model 'm' is executed by 'm_0', which stands at {folder}/1/model.py:10 in execute: "
        "await asyncio.Event().wait()"
    )


def test_an_execution_that_gathers(tmp_path: Path) -> None:
    """The place is that of the task which does not end, not that of the gathering."""
    code = """
        class TritonPythonModel:
            async def execute(self, requests):
                await asyncio.gather(self.soon(), self.never())
            async def soon(self):
                pass
            async def never(self):
                await asyncio.Future()
    """
    with Kit() as kit:
        assert "in never: await asyncio.Future()" in deadlock(kit, kit.load_model(write(tmp_path, "m", code)))


@pytest.mark.parametrize("code", [CALLS, CALLS_ASYNC], ids=["exec", "async_exec"])
@pytest.mark.parametrize("placement", [THREAD, LOOP], ids=["thread", "loop"])
def test_a_call(code: str, placement: str, tmp_path: Path) -> None:
    inner, outer = write(tmp_path, "inner", NEVER), write(tmp_path, "outer", code, placement)
    with Kit() as kit:
        kit.load_model(inner)
        first, second = deadlock(kit, kit.load_model(outer)).splitlines()
    line = "answer = call.exec()" if code is CALLS else "answer = await call.async_exec()"
    assert first.startswith(f"  request 'r' to model 'outer' is executed by 'outer_0', which stands at {outer}/1/model.py:")
    assert first.endswith(f"in call: {line}")
    assert second.startswith(f"    a request to model 'inner' is executed by 'inner_0', which stands at {inner}/1/model.py:10")


@pytest.mark.parametrize("placement", [THREAD, LOOP], ids=["thread", "loop"])
def test_a_call_with_many_responses(placement: str, tmp_path: Path) -> None:
    with Kit() as kit:
        kit.load_model(write(tmp_path, "inner", KEPT, DECOUPLED))
        words = deadlock(kit, kit.load_model(write(tmp_path, "outer", ITERATES, placement)))
    assert "a request to model 'inner' was executed by 'inner_0', but its response sender has not sent the final flag" in words


def test_a_sender_that_is_kept(tmp_path: Path) -> None:
    with Kit() as kit:
        words = deadlock(kit, kit.load_model(write(tmp_path, "m", KEPT, DECOUPLED)))
    assert words == (
        "  request 'r' to model 'm' was executed by 'm_0', but its response sender has not sent the final flag; "
        "it is kept in TritonPythonModel.kept"
    )


def test_a_queue(tmp_path: Path) -> None:
    folder = write(tmp_path, "m", NEVER, 'parameters { key: "max_concurrency" value { string_value: "1" } }')
    with Kit() as kit:
        model = kit.load_model(folder)
        model.submit(X=[1], id="first")
        assert deadlock(kit, model).splitlines()[1] == (
            "  request 'r' to model 'm' waits in the queue, behind what m_0 executes"
        )


def test_an_ensemble(tmp_path: Path) -> None:
    write(tmp_path, "inner", NEVER)
    (tmp_path / "pipe" / "1").mkdir(parents=True)
    (tmp_path / "pipe" / "config.pbtxt").write_text(
        'platform: "ensemble" input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "Y" data_type: TYPE_FP32 '
        'dims: [ -1 ] } ensemble_scheduling { step { model_name: "inner" model_version: -1 input_map { key: "X" value: "X" } '
        'output_map { key: "Y" value: "Y" } } }'
    )
    with Kit() as kit:
        first, second = deadlock(kit, kit.load_model(tmp_path / "pipe")).splitlines()
    assert first == "  request 'r' to model 'pipe' is executed by 'pipe', which waits for its steps"
    assert second.startswith("    request 'r' to model 'inner' is executed by 'inner_0', which stands at")


def test_a_thread_that_blocks_is_given_its_time(tmp_path: Path) -> None:
    """What a thread waits for nobody can tell; the limit of real time ends it."""
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                threading.Event().wait(0.5)
    """
    kit = Kit(limit=0.1)
    model = kit.load_model(write(tmp_path, "m", code))
    words = r"^no end after \d+\.\d s of real time\n.*which stands at .*model.py:10 in execute: threading.Event\(\).wait\(0.5\)$"
    with pytest.raises(Unanswered, match=words):
        model.infer(X=[1])
    kit.close()


# -- virtual time ------------------------------------------------------------------------------------------------------


def test_hours_take_no_time(tmp_path: Path) -> None:
    began = time.monotonic()
    with Kit(virtual_time=True) as kit:
        clock = VirtualTime(kit)
        model = kit.load_model(write(tmp_path, "m", SLEEPS))
        start = clock.now
        calls = [model.submit(X=[1]) for _ in range(3)]
        clock.advance(3599)
        assert not any(call.done for call in calls)
        clock.advance(1)
        assert all(call.done for call in calls) and clock.now - start == 3600
        for seconds in (-1, float("nan")):
            with pytest.raises(ValueError, match=f"time can't advance by {seconds} seconds"):
                clock.advance(seconds)
        with pytest.raises(ServingError, match=r"deadline .* passed after 10\.000 s while it was executing"):
            model.infer(X=[1], timeout=10)
    assert time.monotonic() - began < 5


def test_threads_take_no_virtual_time(tmp_path: Path) -> None:
    """A deadline in virtual time never passes while a thread computes."""
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                time.sleep(0.02)
                return [answer([1]) for _ in requests]
    """
    with Kit(virtual_time=True) as kit:
        start = VirtualTime(kit).now
        kit.load_model(write(tmp_path, "m", code)).infer(X=[1], timeout=0.001)
        assert VirtualTime(kit).now == start


def test_a_thread_that_waits_for_a_call_lets_time_pass(tmp_path: Path) -> None:
    with Kit(virtual_time=True) as kit:
        start = VirtualTime(kit).now
        kit.load_model(write(tmp_path, "inner", SLEEPS))
        kit.load_model(write(tmp_path, "outer", CALLS, THREAD)).infer(X=[1])
        assert VirtualTime(kit).now - start == 3600


def test_a_thread_of_the_models_own_answers(tmp_path: Path) -> None:
    """It is waited for as long as a request can only be answered by it, however near the next timer."""
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    threading.Thread(target=self.later, args=(request.get_response_sender(),)).start()
            def later(self, sender):
                for k in range(3):
                    time.sleep(0.03)
                    sender.send(answer([k]))
                sender.send(flags=1)
    """
    with Kit(virtual_time=True) as kit:
        model = kit.load_model(write(tmp_path, "m", code, DECOUPLED))
        assert [response["Y"].tolist() for response in model.stream(X=[1], timeout=0.001)] == [[0], [1], [2]]


def test_work_that_an_async_model_gives_to_threads(tmp_path: Path) -> None:
    code = """
        class TritonPythonModel:
            async def execute(self, requests):
                await asyncio.wait_for(asyncio.to_thread(time.sleep, 0.03), 0.001)
                return [answer([1]) for _ in requests]
    """
    with Kit(virtual_time=True) as kit:
        assert kit.load_model(write(tmp_path, "m", code)).infer(X=[1])["Y"].tolist() == [1]


def test_an_async_model_on_a_thread(tmp_path: Path) -> None:
    code = SLEEPS.replace("3600", "0.02")
    with Kit(virtual_time=True) as kit:
        assert kit.load_model(write(tmp_path, "m", code, THREAD)).infer(X=[1], timeout=0.001)["Y"].tolist() == [1]


# -- the end of a test -------------------------------------------------------------------------------------------------


def test_requests_left_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel.testing.ending.DRAIN_SECONDS", 0.05)
    left = "  request 'left' to model 'm' is executed by 'm_0', which stands at"
    with pytest.raises(Unanswered, match=rf"^no end after \d+\.\d s of real time\n{left}"), Kit() as kit:
        kit.load_model(write(tmp_path, "m", SLEEPS)).submit(X=[1], id="left")
    with pytest.raises(Deadlock, match=f"^deadlock: nothing is left that could happen\n{left}"), Kit() as kit:
        kit.load_model(write(tmp_path / "hangs", "m", NEVER)).submit(X=[1], id="left")


def test_what_nobody_waits_for_may_end_by_itself(tmp_path: Path) -> None:
    with Kit(virtual_time=True) as kit:
        call = kit.load_model(write(tmp_path, "m", SLEEPS)).submit(X=[1])
    assert call.done and call.responses[0]["Y"].tolist() == [1]


def test_cancelled_requests_are_not_left(tmp_path: Path) -> None:
    with Kit(virtual_time=True) as kit:
        model = kit.load_model(write(tmp_path, "m", SLEEPS))
        model.submit(X=[1]).cancel()


@pytest.mark.parametrize("code", [SLEEPS, NEVER])
def test_an_execution_that_goes_on(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel.testing.ending.DRAIN_SECONDS", 0.05)
    words = r"\n  instance 'm_0' executes for nobody, which stands at .*in execute: await asyncio"
    with pytest.raises(Unanswered, match=words), Kit() as kit:
        model = kit.load_model(write(tmp_path, "m", code))
        with pytest.raises(ServingError, match="deadline"):
            model.infer(X=[1], timeout=0.2)  # by when it has begun, also on a busy machine


def test_a_clock_that_ticks_for_ever(tmp_path: Path) -> None:
    """Virtual time would go on and on: real time ends it."""
    ticks = NEVER + "    def initialize(self, args):\n        self.ticks = None\n" + """
    async def tick(self):
        while True:
            await asyncio.sleep(1)
"""
    ticks = ticks.replace("await asyncio.Event", "self.ticks = asyncio.create_task(self.tick())\n        await asyncio.Event")
    kit = Kit(virtual_time=True, limit=0.1)
    model = kit.load_model(write(tmp_path, "m", ticks))
    with pytest.raises(Unanswered, match=r"no end after \d+\.\d s of real time\n  .*is executed by 'm_0', which stands at"):
        model.infer(X=[1])
    kit.close()


LEAKS = {
    "thread": (
        "def initialize(self, args):\n        threading.Thread(target=time.sleep, args=(0.3,), name='b').start()",
        r"  thread 'b' still runs, at .*",
    ),
    "module": (
        "def initialize(self, args):\n        import sys, types\n"
        "        module = sys.modules['left_by_m'] = types.ModuleType('x')\n        module.__file__ = __file__",
        r"  module 'left_by_m' \(.*model.py\) is still in sys.modules",
    ),
    "task": (
        "async def more(self):\n        await asyncio.sleep(60)\n"
        "    async def execute(self, requests):\n        self.task = asyncio.create_task(self.more())\n"
        "        return [answer([1]) for _ in requests]",
        r"  task '.*' still waits, at .*model.py:\d+ in more: await asyncio.sleep\(60\)",
    ),
    "finalize": (
        "def finalize(self):\n        1 / 0",
        r"  finalize of model instance 'm_0' failed: ZeroDivisionError: division by zero",
    ),
    "exception": (
        "async def more(self):\n        1 / 0\n"
        "    async def execute(self, requests):\n        asyncio.create_task(self.more())\n"
        "        await asyncio.sleep(0)\n        await asyncio.sleep(0)\n        return [answer([1]) for _ in requests]",
        r"  Task exception was never retrieved: ZeroDivisionError\('division by zero'\)",
    ),
}


@pytest.mark.parametrize("kind", LEAKS)
def test_leaks(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel.testing.ending.PATIENCE", 0.05)
    code, words = LEAKS[kind]
    folder = write(tmp_path, "m", ECHO + "    " + code + "\n")
    with pytest.raises(Leak, match=f"^of the models of this test something is left:\n{words}$"), Kit() as kit:
        kit.load_model(folder).infer(X=[1])
    with Kit(check_leaks=False) as kit:
        kit.load_model(folder).infer(X=[1])
    sys.modules.pop("left_by_m", None)


def test_what_the_model_has_done_well_is_no_leak(tmp_path: Path) -> None:
    """Own modules, pools that are shut down, threads that are joined."""
    code = """
        from concurrent.futures import ThreadPoolExecutor
        import helper
        class TritonPythonModel:
            def initialize(self, args):
                self.pool = ThreadPoolExecutor(2)
            def execute(self, requests):
                return list(self.pool.map(lambda request: answer([helper.VALUE]), requests))
            def finalize(self):
                self.pool.shutdown()
    """
    folder = write(tmp_path, "m", code)
    (folder / "1" / "helper.py").write_text("VALUE = 3\n")
    with Kit() as kit:
        assert kit.load_model(folder).infer(X=[1])["Y"].tolist() == [3]


def test_the_failure_of_a_test_is_not_followed_by_what_it_leaves(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Kit() as kit:
        kit.load_model(write(tmp_path, "m", SLEEPS)).submit(X=[1])
        raise ZeroDivisionError
