"""A child that dies takes along what it was executing and nothing else: who is told what, and how it comes back (BC67)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from telling import until

from kernel import InferenceRequest, Kernel, ServingError, Tensor

PROCESS = {"placement": "process"}
GONE = "INTERNAL: Stub process 'a_0_0' is not healthy. Process "

#: Y = X; what `deadly` says for X = -1.
MORTAL = """
import ctypes, os, signal, sys, time
class TritonPythonModel:
    {define} execute(self, requests):
        out = []
        for r in requests:
            x = pb_utils.get_input_tensor_by_name(r, "X").as_numpy()
            if x.ravel()[0] == -1:
                {deadly}
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return out
{rest}
"""


def mortal(deadly: str, define: str = "def", rest: str = "") -> str:
    return MORTAL.format(define=define, deadly="; ".join(deadly.splitlines()), rest=rest)


#: Is not loaded as long as there is this file.
WAITS = """
    def initialize(self, args):
        while os.path.exists({!r}):
            time.sleep(0.001)
"""


def pid_of(kernel: Kernel, model: str = "a", index: int = 0) -> int:
    life = kernel.model(model).scheduler.instances[index].executor._life  # type: ignore[attr-defined]
    return 0 if life is None else int(life.pid)


@pytest.mark.parametrize(
    ("deadly", "how"),
    [
        ("os._exit(3)", "exited with code 3"),
        ("os._exit(0)", "exited with code 0"),
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL (9), perhaps by the system for lack of memory"),
        ("os.kill(os.getpid(), signal.SIGUSR1)", f"was killed by SIGUSR1 ({int(signal.SIGUSR1)})"),
        (
            "ctypes.string_at(0)",
            "was killed by SIGSEGV (11); the last it wrote to stderr:\nFatal Python error: Segmentation fault",
        ),
        ("os.abort()", "was killed by SIGABRT (6); the last it wrote to stderr:\nFatal Python error: Aborted"),
        (
            "print('what I wanted to say', file=sys.stderr)\nos._exit(1)",
            "exited with code 1; the last it wrote to stderr:\nwhat I wanted to say",
        ),
    ],
)
def test_every_kind_of_death_is_told(repo: Any, helpers: Any, deadly: str, how: str) -> None:
    repo.add("a", mortal(deadly), parameters=PROCESS)

    async def main(kernel: Kernel) -> list[Any]:
        pid = pid_of(kernel)
        killed = await helpers.ask(kernel, "a", [-1])
        assert killed.startswith(f"{GONE}{pid} {how}"), killed
        return [await helpers.ask(kernel, "a", [5]), pid_of(kernel) != pid]

    assert repo.run(main) == [[5.0], True]


@pytest.mark.parametrize("data", [b"\xff" * 16, b"\x00\x00\x00\x7f" + bytes(16), b"\x04\x00\x00\x00abcd"])
def test_a_child_that_says_what_is_no_message_is_ended(repo: Any, helpers: Any, data: bytes) -> None:
    """Model code has written into a descriptor that is not its own; nobody waits for what it seems to announce."""
    rest = f"""
def scribble():
    for fd in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.write(fd, {data!r})
        except OSError:
            pass
"""
    repo.add("a", "import stat" + mortal("scribble()\ntime.sleep(60)", rest=rest), parameters=PROCESS)

    async def main(kernel: Kernel) -> Any:
        pid = pid_of(kernel)
        told = await asyncio.wait_for(helpers.ask(kernel, "a", [-1]), 30)
        assert told.startswith(f"{GONE}{pid} was ended, since something has come from it that is no message"), told
        return await helpers.ask(kernel, "a", [5])

    assert repo.run(main) == [5.0]


def test_a_segfault_names_the_models_line(repo: Any, helpers: Any) -> None:
    path = repo.add("a", mortal("ctypes.string_at(0)"), parameters=PROCESS)
    line = 1 + next(i for i, text in enumerate(path.read_text().splitlines()) if "string_at(0)" in text)
    assert f'File "{path}", line {line} in execute' in repo.run(lambda kernel: helpers.ask(kernel, "a", [-1]))


def test_an_async_model_that_dies(repo: Any, helpers: Any) -> None:
    repo.add("a", mortal("os._exit(3)", "async def"), parameters=PROCESS)

    async def main(kernel: Kernel) -> Any:
        return await asyncio.gather(*(helpers.ask(kernel, "a", [value]) for value in (-1, 1))), await helpers.ask(kernel, "a")

    (killed, _), alive = repo.run(main)
    assert killed.startswith(GONE)
    assert killed.endswith("exited with code 3")
    assert alive == [1.0]


def test_readiness_and_the_log_tell(repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture) -> None:
    """BC67: not ready from the death until it is back; other models notice nothing."""
    repo.add("a", mortal("os._exit(1)"), parameters=PROCESS)
    repo.add("other", helpers.ECHO, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        assert kernel.is_model_ready("a")
        assert kernel.is_ready()
        pids = pid_of(kernel), pid_of(kernel, "other")
        await helpers.ask(kernel, "a", [-1])
        assert not kernel.is_model_ready("a")
        assert not kernel.is_model_ready("a", 1)
        assert not kernel.is_ready()
        assert kernel.is_model_ready("other")
        assert await helpers.ask(kernel, "other", [2]) == [2.0]
        await until(lambda: kernel.is_model_ready("a"))
        assert kernel.is_ready()
        assert await helpers.ask(kernel, "a", [3]) == [3.0]
        assert pid_of(kernel) != pids[0]
        assert pid_of(kernel, "other") == pids[1]
        (instance,) = kernel.model("a").scheduler.instances
        assert instance.executor.restarts == 1  # type: ignore[attr-defined]

    with caplog.at_level(logging.INFO):
        repo.run(main)
    messages = [record.getMessage() for record in caplog.records if record.name == "kernel_python"]
    assert messages[0].startswith("model 'a', instance 'a_0_0': Stub process 'a_0_0' is not healthy. Process ")
    assert messages[0].endswith("exited with code 1; it is started again now")
    assert messages[1].startswith("model 'a', instance 'a_0_0', is back, as process ")
    assert len(messages) == 2


def test_statistics_count_it_as_the_backends_failure(repo: Any, helpers: Any) -> None:
    repo.add("a", mortal("os._exit(1)"), parameters=PROCESS)

    async def main(kernel: Kernel) -> Any:
        await helpers.ask(kernel, "a", [1])
        await helpers.ask(kernel, "a", [-1])
        (statistics,) = kernel.statistics("a")
        return statistics.success.count, statistics.fail.count, statistics.failures["BACKEND"], statistics.execution_count

    assert repo.run(main) == (1, 1, 1, 2)


def test_only_what_had_begun_fails(repo: Any, helpers: Any) -> None:
    """The rest of the run, and of the queue, waits for the next life."""
    repo.add("a", mortal("os._exit(1)"), parameters=PROCESS)

    async def main(kernel: Kernel) -> list[Any]:
        await asyncio.gather(*(helpers.ask(kernel, "a", [number]) for number in range(100)))  # are short: runs get long
        values = [*range(10), -1, *range(10, 100), -1, *range(100, 120)]
        return list(zip(values, await asyncio.gather(*(helpers.ask(kernel, "a", [value]) for value in values))))

    for value, answer in repo.run(main):
        if value == -1:
            assert answer.startswith(GONE)
        else:
            assert answer == [value]


def test_a_killed_child_under_load(repo: Any, helpers: Any) -> None:
    """kill -9, again and again: each time at most what was being executed fails, with the reason, and service is back."""
    repo.add("a", mortal("pass"), parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        over = False
        failures: list[str] = []
        answered = 0

        async def client(number: int) -> None:
            nonlocal answered
            while not over:
                answer = await helpers.ask(kernel, "a", [number])
                if answer == [number]:
                    answered += 1
                else:
                    failures.append(answer)

        clients = [asyncio.ensure_future(client(number)) for number in range(8)]
        for kills in range(1, 11):
            goal = answered + 50
            await until(lambda goal=goal: answered > goal)
            os.kill(pid_of(kernel), signal.SIGKILL)
            await until(lambda kills=kills: kernel.model("a").scheduler.instances[0].executor.restarts == kills)  # type: ignore[attr-defined]
            assert len(failures) <= kills  # at most what was being executed
        over = True
        await asyncio.gather(*clients)
        assert all(text.startswith(GONE) and "was killed by SIGKILL (9)" in text for text in failures)

    repo.run(main)


def test_what_a_dying_child_has_not_looked_at_waits(repo: Any, helpers: Any) -> None:
    """Handed over between the death and its discovery."""
    for name, define in (("a", "def"), ("b", "async def")):
        repo.add(name, mortal("pass", define), parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        for _ in range(5):
            for name in "ab":
                os.kill(pid_of(kernel, name), signal.SIGKILL)
                assert await helpers.ask(kernel, name, [1]) == [1.0]

    repo.run(main)


def test_other_instances_go_on(repo: Any, helpers: Any, tmp_path: Path) -> None:
    """One of two instances dies and takes its time to come back: the model is not ready, and serves."""
    repo.add("a", mortal("os._exit(1)", rest=WAITS.format(str(tmp_path / "wait"))), count=2, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        (tmp_path / "wait").touch()
        assert "is not healthy" in await helpers.ask(kernel, "a", [-1])
        assert not kernel.is_model_ready("a")
        for number in range(20):
            assert await helpers.ask(kernel, "a", [number]) == [number]
        assert not kernel.is_model_ready("a")
        (tmp_path / "wait").unlink()
        await until(lambda: kernel.is_model_ready("a"))

    repo.run(main)


def test_who_waits_is_served_when_it_is_back(repo: Any, helpers: Any, tmp_path: Path) -> None:
    repo.add("a", mortal("os._exit(1)", rest=WAITS.format(str(tmp_path / "wait"))), parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        (tmp_path / "wait").touch()
        await helpers.ask(kernel, "a", [-1])
        waiting = [helpers.Call(kernel, "a", [number]) for number in range(5)]
        kernel.cancel(waiting[2].request)
        assert not any(call.done.is_set() for call in waiting if call is not waiting[2])
        (tmp_path / "wait").unlink()
        results = [await call.result() for call in waiting]
        assert results.pop(2)[0].startswith("CANCELLED")
        assert results == [[[[number]]] for number in (0.0, 1.0, 3.0, 4.0)]

    repo.run(main)


def test_who_can_only_wait_in_vain_is_told(repo: Any, helpers: Any, tmp_path: Path) -> None:
    """A model that can't be started again refuses, with the reason, until it can."""
    rest = f"""
    def initialize(self, args):
        if os.path.exists({str(tmp_path / "broken")!r}):
            raise ValueError("no weights today")
"""
    repo.add("a", mortal("os._exit(1)", rest=rest), parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        (tmp_path / "broken").touch()
        first = helpers.Call(kernel, "a", [-1])
        queued = helpers.Call(kernel, "a", [1])
        (text,) = await first.result()
        assert text.startswith(GONE)
        (text,) = await queued.result()
        refused = (
            "UNAVAILABLE: [request id: <id_unknown>] model 'a' is not ready: instance 'a_0_0' ended and can't be started again, "
            "which is tried on: ValueError: no weights today\n\nAt:\n"
        )
        assert text.startswith(refused)
        assert (await helpers.ask(kernel, "a", [2])).startswith(refused)
        (tmp_path / "broken").unlink()
        await until(lambda: kernel.is_model_ready("a"))
        assert await helpers.ask(kernel, "a", [3]) == [3.0]

    repo.run(main)


def test_it_waits_longer_when_no_life_does_any_work(repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture) -> None:
    repo.add("a", mortal("os._exit(1)"), parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        for _ in range(4):
            await helpers.ask(kernel, "a", [-1])
        await helpers.ask(kernel, "a", [1])
        await helpers.ask(kernel, "a", [-1])

    repo.run(main)
    waits = [record.getMessage().rpartition("it is started again ")[2] for record in caplog.records]
    assert [wait for wait in waits if wait] == ["now", "in 0.1 s", "in 0.2 s", "in 0.4 s", "now"]


def test_a_decoupled_request_that_was_answered_in_part(repo: Any, helpers: Any, tmp_path: Path) -> None:
    """Also of an execution that has ended, and whose sender is in use elsewhere."""
    code = f"""
    import os, threading, time
    class TritonPythonModel:
        def execute(self, requests):
            for r in requests:
                threading.Thread(target=self.work, args=(r.get_response_sender(),), daemon=True).start()
        def work(self, sender):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones(1, np.float32))]))
            while not os.path.exists({str(tmp_path / "die")!r}):
                time.sleep(0.001)
            os._exit(7)
    """
    repo.add("a", code, decoupled=True, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        calls = [helpers.Call(kernel, "a", [1]) for _ in range(3)]
        await until(lambda: all(call.responses for call in calls))
        (tmp_path / "die").touch()
        for call in calls:
            first, last = await call.result()
            assert first == [[1.0]]
            assert last.startswith(GONE)
            assert "exited with code 7" in last

    repo.run(main)


def test_its_calls_end_with_it(repo: Any, helpers: Any, tmp_path: Path) -> None:
    inner = """
    import asyncio
    class TritonPythonModel:
        async def execute(self, requests):
            while not requests[0].is_cancelled():
                await asyncio.sleep(0.001)
            return [None]
    """
    repo.add("inner", inner)
    code = f"""
    import os, threading, time
    def die():
        while not os.path.exists({str(tmp_path / "die")!r}):
            time.sleep(0.001)
        os._exit(7)
    class TritonPythonModel:
        def execute(self, requests):
            threading.Thread(target=die, daemon=True).start()
            x = requests[0].inputs()[0]
            call = pb_utils.InferenceRequest(model_name="inner", inputs=[x], requested_output_names=[])
            return [pb_utils.InferenceResponse(error=call.exec().error())]
    """
    repo.add("a", code, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        call = helpers.Call(kernel, "a", [1])
        inner = kernel.model("inner").scheduler
        await until(lambda: inner.in_flight)
        (tmp_path / "die").touch()
        (text,) = await call.result()
        assert "exited with code 7" in text
        assert not inner.in_flight

    repo.run(main)


def test_who_calls_it_is_told(repo: Any, helpers: Any) -> None:
    """Through BLS, from the loop: an error response, as for any failure."""
    repo.add("a", mortal("os._exit(1)"), parameters=PROCESS)
    outer = """
    class TritonPythonModel:
        async def execute(self, requests):
            x = requests[0].inputs()[0]
            call = pb_utils.InferenceRequest(model_name="a", inputs=[x], requested_output_names=[])
            return [await call.async_exec()]
    """
    repo.add("outer", outer)
    answer = repo.run(lambda kernel: helpers.ask(kernel, "outer", [-1]))
    assert answer.startswith(GONE)


def test_large_tensors_outlive_the_child(repo: Any) -> None:
    """What it has answered stays what it was."""
    repo.add("a", mortal("os._exit(1)"), parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        array = np.arange(100_000, dtype=np.float32)
        kept = (await kernel.infer("a", {"X": array}))["Y"]
        with pytest.raises(ServingError, match="exited with code 1"):
            await kernel.infer("a", {"X": -np.ones(1, np.float32)})
        again = (await kernel.infer("a", {"X": array + 1}))["Y"]
        assert (kept == array).all()
        kept += 1
        assert (again == kept).all()

    repo.run(main)


# -- death at other times ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deadly", "how"),
    [("os._exit(5)", "exited with code 5"), ("os.kill(os.getpid(), 9)", "was killed by SIGKILL (9)")],
)
def test_death_in_initialize_fails_the_load(repo: Any, deadly: str, how: str) -> None:
    code = mortal("pass", rest=f"    def initialize(self, args):\n        {deadly}\n")
    repo.add("a", code, count=2, parameters=PROCESS)
    reason = repo.load_error("a")
    assert reason.startswith("Internal: Stub process 'a_0_")
    assert how in reason


def test_death_at_import_spares_the_server(repo: Any) -> None:
    """Nor is the model imported in the server to complete its config."""
    rest = "    @staticmethod\n    def auto_complete_config(config):\n        return config\n"
    repo.add("a", mortal("pass", rest=rest) + "\nos._exit(6)\n", parameters=PROCESS)
    assert "exited with code 6" in repo.load_error("a")


def test_death_in_finalize_is_logged(repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture) -> None:
    repo.add("a", mortal("pass", rest="    def finalize(self):\n        os._exit(4)\n"), parameters=PROCESS)
    assert repo.run(lambda kernel: helpers.ask(kernel, "a", [1])) == [1.0]
    (text,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert text.startswith("finalize of model instance 'a_0_0' did not come to its end: Stub process 'a_0_0' is not healthy.")
    assert text.endswith("exited with code 4")


def test_death_while_it_unloads(repo: Any, helpers: Any) -> None:
    """What waits is served by another life even then."""
    repo.add("a", mortal("os._exit(1)"), parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        calls = [helpers.Call(kernel, "a", [value]) for value in (-1, 1, 2)]
        kernel.unload("a")
        results = [await call.result() for call in calls]
        assert "exited with code 1" in results[0][0]
        assert results[1:] == [[[[1.0]]], [[[2.0]]]]
        await until(lambda: kernel.index()[0].state == "UNAVAILABLE")

    repo.run(main, control_mode="explicit", load_models=["a"])


def test_stop_while_it_starts_again(repo: Any, helpers: Any, tmp_path: Path) -> None:
    repo.add("a", mortal("os._exit(1)", rest=WAITS.format(str(tmp_path / "wait"))), parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        (tmp_path / "wait").touch()
        await helpers.ask(kernel, "a", [-1])
        executor = kernel.model("a").scheduler.instances[0].executor
        await until(lambda: executor._coming is not None)  # type: ignore[attr-defined]

    repo.run(main)


def test_a_thread_that_stays_does_not_keep_the_process(repo: Any, helpers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel_python.process.life.LEAVE_SECONDS", 0.01)
    rest = """
    def initialize(self, args):
        import threading
        threading.Thread(target=time.sleep, args=(1000,)).start()
"""
    repo.add("a", mortal("pass", rest=rest), parameters=PROCESS)
    assert repo.run(lambda kernel: helpers.ask(kernel, "a", [1])) == [1.0]


def test_a_grandchild_does_not_hide_the_death(repo: Any, helpers: Any, tmp_path: Path) -> None:
    """A fork of the child holds its socket and its stderr open."""
    fork = "pid = os.fork()\npid or (os.close(1), time.sleep(600), os._exit(0))"
    note = f"os.write(os.open({str(tmp_path / 'pid')!r}, os.O_CREAT | os.O_WRONLY), b'%d' % pid)"
    code = mortal(f"{fork}\n{note}\nos._exit(9)")
    repo.add("a", code, parameters=PROCESS)

    async def main(kernel: Kernel) -> Any:
        async with asyncio.timeout(60):
            return await helpers.ask(kernel, "a", [-1]), await helpers.ask(kernel, "a", [1])

    try:
        dead, alive = repo.run(main)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert "exited with code 9" in dead
    assert alive == [1.0]


def test_a_child_that_closes_everything_is_ended(repo: Any, helpers: Any) -> None:
    repo.add("a", mortal("os.closerange(3, 1000)\ntime.sleep(1000)"), parameters=PROCESS)

    async def main(kernel: Kernel) -> Any:
        return await helpers.ask(kernel, "a", [-1]), await helpers.ask(kernel, "a", [1])

    dead, alive = repo.run(main)
    assert "was killed by SIGKILL (9)" in dead
    assert alive == [1.0]


def test_a_message_that_cannot_be_dealt_with(
    repo: Any, helpers: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of ours hangs nobody either."""

    def fail(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("kernel_python.process.calls.Calls.ask", fail)
    repo.add("a", mortal("pb_utils.is_model_ready('a')"), parameters=PROCESS)

    async def main(kernel: Kernel) -> Any:
        return await helpers.ask(kernel, "a", [-1]), await helpers.ask(kernel, "a", [1])

    failed, fine = repo.run(main)
    assert "could not be dealt with: KeyError('ours')" in failed
    assert fine == [1.0]
    assert "a message of model instance 'a_0_0' can't be dealt with" in caplog.text


def test_noise_in_the_socket(repo: Any, helpers: Any) -> None:
    code = mortal("[os.write(fd, b'\\x04\\0\\0\\0nope') for fd in range(3, 40) if is_socket(fd)]\ntime.sleep(9)")
    is_socket = """
def is_socket(fd):
    import os, stat
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False
"""
    repo.add("a", is_socket + code, parameters=PROCESS)

    async def main(kernel: Kernel) -> Any:
        return await helpers.ask(kernel, "a", [-1]), await helpers.ask(kernel, "a", [1])

    failed, fine = repo.run(main)
    assert failed.startswith(GONE)
    assert fine == [1.0]


def test_all_of_a_batch_are_told(repo: Any) -> None:
    batching = "dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 500000 }"
    repo.add("a", mortal("os._exit(1)"), max_batch_size=2, extra=batching, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        errors = []
        for value in (-1, 1):
            tensor = Tensor("X", "FP32", np.full((1, 1), value, np.float32))
            kernel.submit(InferenceRequest("a", {"X": tensor}, lambda one, final: errors.append(one.error)))
        await until(lambda: len(errors) == 2)
        assert "exited with code 1" in str(errors[0])
        assert str(errors[0]) == str(errors[1])

    repo.run(main)


# -- a child that is there and does nothing ------------------------------------------------------------------------------

HANG = {"backend_config": {"python": {"stub-hang-seconds": "1.2"}}}


@pytest.mark.parametrize("define", ["def", "async def"])
def test_a_child_that_was_stopped_is_noticed_and_replaced(
    repo: Any, helpers: Any, define: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its requests are answered, the model is not ready until another is there; others notice nothing."""
    repo.add("a", mortal("os.kill(os.getpid(), signal.SIGSTOP)", define), parameters=PROCESS)
    repo.add("other", helpers.ECHO, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        pid = pid_of(kernel)
        assert (await helpers.ask(kernel, "a", [-1])).startswith(
            f"{GONE}{pid} was stopped: it has given no sign of life for 1.2 s (--backend-config=python,stub-hang-seconds), "
            "and is ended"
        )
        assert not kernel.is_model_ready("a")
        assert await helpers.ask(kernel, "other", [2]) == [2.0]
        assert await helpers.ask(kernel, "a", [3]) == [3.0]
        assert pid_of(kernel) != pid
        os.kill(pid_of(kernel), signal.SIGSTOP)  # nor does one stay that has nothing to do
        await until(lambda: not kernel.is_model_ready("a"))
        await until(lambda: kernel.is_model_ready("a"))

    repo.run(main, **HANG)
    assert "was stopped: it has given no sign of life" in caplog.text


def test_a_child_that_stops_while_it_loads(repo: Any, tmp_path: Path) -> None:
    code = mortal("pass", rest="    def initialize(self, args):\n        os.kill(os.getpid(), signal.SIGSTOP)\n")
    repo.add("a", code, parameters=PROCESS)

    async def main(kernel: Kernel) -> str:
        return str(kernel.index()[0].reason)

    assert "was stopped: it has given no sign of life for 1.2 s" in repo.run(main, exit_on_error=False, **HANG)


@pytest.mark.parametrize("define", ["def", "async def"])
def test_a_long_execution_is_no_hang(repo: Any, helpers: Any, define: str) -> None:
    """It sleeps, and works."""
    code = mortal("time.sleep(2)\nsum(range(10**7))", define)
    repo.add("a", code, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        pid = pid_of(kernel)
        assert await helpers.ask(kernel, "a", [-1]) == [-1.0]
        assert pid_of(kernel) == pid

    repo.run(main, **HANG)


# -- sequences -----------------------------------------------------------------------------------------------------------

COUNTS = """
import os
class TritonPythonModel:
    def initialize(self, args):
        self.seen = {}
    def execute(self, requests):
        out = []
        for r in requests:
            x, key = float(pb_utils.get_input_tensor_by_name(r, "X").as_numpy().ravel()[0]), r.correlation_id()
            if x == -1:
                os._exit(3)
            self.seen[key] = (0 if r.flags() & 1 else self.seen.get(key, 0)) + x
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 1), self.seen[key], np.float32))]))
        return out
"""


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
def test_the_sequences_of_a_child_end_with_it(repo: Any, helpers: Any, strategy: str) -> None:
    """What they had is gone: what waits of them has the reason, what comes without START is unknown, new ones begin."""
    io = 'input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]'
    extra = f"sequence_batching {{ {strategy} }}"
    repo.add("a", COUNTS, io=io, max_batch_size=4, extra=extra, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        async def send(id: int, value: float, flags: int = 0) -> Any:
            return await helpers.ask(kernel, "a", [[value]], correlation_id=id, flags=flags)

        assert await send(1, 5, 1) == [[5.0]]
        assert await send(2, 7, 1) == [[7.0]]
        answers = await asyncio.gather(send(1, -1), send(1, 1), send(1, 2), send(3, 1, 1))
        assert answers[0].startswith(GONE)
        assert all("exited with code 3" in answer and answer.startswith("INTERNAL") for answer in answers[1:3])
        assert answers[3] == [[1.0]] or "exited with code 3" in answers[3]  # it was executed together with the first
        for id in (1, 2):
            assert "must specify the START flag on the first request of the sequence" in await send(id, 1)
            assert await send(id, 3, 1) == [[3.0]]
            assert await send(id, 1) == [[4.0]]

    repo.run(main)
