"""Placement `process`: what a model in a child of its own sees, and what of it reaches clients. Real children, no sleeping."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from telling import TELL, TEXT, until

from kernel import DATATYPES, InferenceRequest, InferenceResponse, Kernel, Tensor
from kernel_python.process.fork_server import can_fork

PROCESS = {"placement": "process"}


def telling(body: str, define: str = "def", rest: str = "") -> str:
    lines = "\n        ".join(body.strip().splitlines())
    return f"{TELL}\nclass TritonPythonModel:\n    {define} execute(self, requests):\n        {lines}\n{rest}"


async def ask(kernel: Kernel, helpers: Any, model: str = "a", value: Any = (1.0,), **fields: Any) -> Any:
    answer = await helpers.ask(kernel, model, value, **fields)
    return json.loads(answer[0]) if isinstance(answer, list) else answer


async def send(kernel: Kernel, model: str, tensors: list[Tensor]) -> InferenceResponse:
    """Send tensors as they are and return the response."""
    future: asyncio.Future[InferenceResponse] = asyncio.get_running_loop().create_future()
    request = InferenceRequest(model, {one.name: one for one in tensors}, lambda one, final: future.set_result(one))
    kernel.submit(request)
    response = await asyncio.wait_for(future, 60)
    assert response.error is None, response.error
    return response


# -- where -------------------------------------------------------------------------------------------------------------


def test_every_instance_has_a_process_of_its_own(repo: Any, helpers: Any) -> None:
    body = """
import os, threading
global calls
calls += 1
import time
end = time.monotonic() + 60
while len(os.listdir(r.model_dir)) < 3 and time.monotonic() < end:  # until both instances have been here
    open(os.path.join(r.model_dir, f"pid-{os.getpid()}"), "w").close()
return tell(requests, [os.getpid(), os.getppid(), calls, threading.current_thread() is threading.main_thread()])
"""
    code = "calls = 0\n" + telling(body.replace("r.model_dir", "pb_utils.get_model_dir()"))
    repo.add("a", code, io=TEXT, count=2, parameters=PROCESS)

    async def main(kernel: Kernel) -> Any:
        return await asyncio.gather(ask(kernel, helpers), ask(kernel, helpers))

    first, second = repo.run(main)
    assert first[0] != second[0]
    assert os.getpid() not in (first[0], second[0])
    assert first[1:] == second[1:]
    assert first[1] != os.getpid() or not can_fork()  # they come from a fork server
    assert first[2:] == [1, True]


def test_print_goes_to_the_servers_stdout(repo: Any, helpers: Any, capfd: pytest.CaptureFixture[str]) -> None:
    body = "import sys\nprint('to stdout')\nprint('to stderr', file=sys.stderr)\nreturn tell(requests, 1)"
    repo.add("a", telling(body), io=TEXT, parameters=PROCESS)
    repo.run(lambda kernel: ask(kernel, helpers))
    out, error = capfd.readouterr()
    assert out == "to stdout\n"
    assert error == "to stderr\n"


def test_the_log_is_the_servers(repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture) -> None:
    body = """
import logging
pb_utils.Logger.log_info("info")
pb_utils.Logger.log_verbose("verbose")
logging.getLogger("library").warning("by %s", "a library")
try:
    raise ValueError("kept")
except ValueError:
    logging.getLogger("library").exception("with traceback")
return tell(requests, 1)
"""
    file = repo.add("a", telling(body), io=TEXT, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        await ask(kernel, helpers)
        caplog.set_level(logging.DEBUG, "kernel_python.model")  # heard of with the next execution
        await ask(kernel, helpers)
        await ask(kernel, helpers)

    with caplog.at_level(logging.INFO):
        repo.run(main)
    records = [record for record in caplog.records if record.pathname == str(file)]
    texts = [record.getMessage() for record in records]
    assert texts == ["info", "by a library", "with traceback", *(["info", "verbose", "by a library", "with traceback"] * 2)]
    assert records[0].lineno == file.read_text().splitlines().index('        pb_utils.Logger.log_info("info")') + 1
    assert records[0].model_instance == "a_0_0"  # type: ignore[attr-defined]
    assert "ValueError: kept" in str(records[2].exc_text)


def test_modules_are_found_in_the_models_folders(repo: Any, helpers: Any) -> None:
    body = """
import sys, late
return tell(requests, [helper.who, late.who, type(self).__module__, "triton_python_backend_utils" in sys.modules])
"""
    repo.add(
        "a",
        "import helper\n" + telling(body),
        io=TEXT,
        parameters=PROCESS,
        files={"1/helper.py": "who = 'version'", "helper.py": "who = 'model'", "late.py": "from helper import who"},
    )
    assert repo.run(lambda kernel: ask(kernel, helpers)) == ["version", "version", "1.model", True]
    assert not list(repo.folder.rglob("__pycache__"))


def test_the_servers_path_is_the_childs(repo: Any, helpers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "only_here.py").write_text("value = 7")
    monkeypatch.syspath_prepend(str(tmp_path / "library"))
    repo.add("a", "import only_here\n" + telling("return tell(requests, only_here.value)"), io=TEXT, parameters=PROCESS)
    assert repo.run(lambda kernel: ask(kernel, helpers)) == 7


def test_what_a_child_imports_of_ours_is_python_3_9(repo: Any, helpers: Any) -> None:
    """And none of it is the core's machinery."""
    body = """
import sys
files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
return tell(requests, {name: file for name, file in files.items() if name.startswith(("kernel", "triton_python"))})
"""
    repo.add("a", telling(body), io=TEXT, parameters=PROCESS)
    files = repo.run(lambda kernel: ask(kernel, helpers))
    for name, file in files.items():
        if file is not None:
            ast.parse(Path(file).read_text(), name, feature_version=(3, 9))
    assert {name for name in files if name.startswith("kernel.")} == {
        "kernel.errors", "kernel.tensor", "kernel.requests", "kernel.requests.request", "kernel.circles",
        "kernel.circles.wait_view",
    }  # fmt: skip


# -- tensors -----------------------------------------------------------------------------------------------------------

IDENTITY = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy())])
            for r in requests
        ]
"""
TYPES = [name for name in DATATYPES if name != "BF16"]


def typed(name: str, dims: str = "-1") -> str:
    kind = "STRING" if name == "BYTES" else name
    return (
        f'input [ {{ name: "X" data_type: TYPE_{kind} dims: [ {dims} ] }} ] '
        f'output [ {{ name: "Y" data_type: TYPE_{kind} dims: [ {dims} ] }} ]'
    )


def some(datatype: str, count: int) -> np.ndarray[Any, Any]:
    if datatype == "BYTES":
        array = np.empty(count, object)
        array[:] = [bytes([number % 256]) * (number % 7) for number in range(count)]
        return array
    return (np.arange(count) % 3).astype(DATATYPES[datatype])


def test_every_datatype_in_every_size(repo: Any) -> None:
    """In the message, through shared memory, and empty; all of them come back as they went."""
    for name in TYPES:
        repo.add(name.lower(), IDENTITY, io=typed(name), parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        for name in TYPES:
            for count in (0, 1, 3, 1000, 40_000):
                array = some(name, count)
                (tensor,) = (await send(kernel, name.lower(), [Tensor("X", name, array)])).outputs
                assert (tensor.name, tensor.datatype, tensor.array.dtype) == ("Y", name, array.dtype)
                assert tensor.array.tolist() == array.tolist()
                assert tensor.array.flags.writeable

    repo.run(main)


def test_shapes_of_all_ranks(repo: Any) -> None:
    repo.add("a", IDENTITY.replace("as_numpy()", "as_numpy().reshape([1, 2, -1])"), parameters=PROCESS)
    total = IDENTITY.replace("pb_utils.get_input", "np.array(pb_utils.get_input").replace("as_numpy()", "as_numpy().sum())")
    repo.add("sum", total, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        for count in (4, 30_000):
            array = np.arange(count, dtype=np.float32)
            (tensor,) = (await send(kernel, "a", [Tensor("X", "FP32", array)])).outputs
            assert tensor.array.shape == (1, 2, count // 2)
            assert tensor.array.ravel().tolist() == array.tolist()
        (tensor,) = (await send(kernel, "sum", [Tensor("X", "FP32", np.ones(3, np.float32))])).outputs
        assert tensor.array.shape == ()
        assert tensor.array == 3

    repo.run(main)


def test_bf16_goes_through(repo: Any) -> None:
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            x = requests[0].inputs()[0]
            assert x.triton_dtype() == 14
            return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", x.to_dlpack())])]
    """
    repo.add("a", code, io=typed("BF16"), parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        for count in (2, 20_000):
            bits = (np.arange(count) % 0x4000).astype(np.uint16)
            (tensor,) = (await send(kernel, "a", [Tensor("X", "BF16", bits)])).outputs
            assert (tensor.datatype, tensor.array.tolist()) == ("BF16", bits.tolist())

    repo.run(main)


def test_received_arrays_are_the_models_own(repo: Any, helpers: Any) -> None:
    """In place, kept for later, and handed out again: nobody else is touched, whatever the size."""
    code = """
    class TritonPythonModel:
        def initialize(self, args):
            self.kept = []
        def execute(self, requests):
            out = []
            for r in requests:
                x = pb_utils.get_input_tensor_by_name(r, "X").as_numpy()
                assert all((one == value).all() for one, value in self.kept)
                x += 1
                y = pb_utils.Tensor("Y", x)
                self.kept.append((x, x[0]))
                out.append(pb_utils.InferenceResponse([y]))
            return out
    """
    repo.add("a", code, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        given = []
        for number in range(6):
            for count in (4, 100_000):
                array = np.full(count, number, np.float32)
                (tensor,) = (await send(kernel, "a", [Tensor("X", "FP32", array)])).outputs
                tensor.array[:] += 0.5
                given.append((tensor.array, number + 1.5))
                assert (array == number).all()
        for array, value in given:
            assert (array == value).all()

    repo.run(main)


def test_an_output_buffer_that_is_used_again(repo: Any) -> None:
    code = """
    class TritonPythonModel:
        def initialize(self, args):
            self.buffer = np.zeros(50_000, np.float32)
        def execute(self, requests):
            out = []
            for r in requests:
                self.buffer[:] = pb_utils.get_input_tensor_by_name(r, "X").as_numpy()[0]
                out.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.buffer)]))
            return out
    """
    repo.add("a", code, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        one = [Tensor("X", "FP32", np.full(1, number, np.float32)) for number in range(20)]
        responses = await asyncio.gather(*(send(kernel, "a", [tensor]) for tensor in one))
        for number, response in enumerate(responses):
            assert (response["Y"] == number).all()

    repo.run(main)


def test_zero_copy_gives_read_only_views(repo: Any, helpers: Any) -> None:
    body = """
x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
return tell(requests, [x.flags.writeable, float(x.sum())])
"""
    repo.add("a", telling(body), io=TEXT, parameters={**PROCESS, "zero_copy": "true"})

    async def main(kernel: Kernel) -> Any:
        return [await ask(kernel, helpers, value=np.ones(count)) for count in (3, 10_000)]

    assert repo.run(main) == [[False, 3.0], [False, 10000.0]]


def test_everyone_gets_his_own_answer(repo: Any, helpers: Any) -> None:
    """BC31, with runs: several executions are handed over at once, and batches of several requests."""
    double = helpers.ECHO.replace("as_numpy())", "as_numpy() * 2)")
    repo.add("a", double, count=2, parameters=PROCESS)
    repo.add("b", double, max_batch_size=8, extra="dynamic_batching { }", parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        numbers = range(300)
        results = await asyncio.gather(
            *(helpers.ask(kernel, "a", [number] * (1 + number % 5)) for number in numbers),
            *(helpers.ask(kernel, "b", [[number, 1]] * (1 + number % 3)) for number in numbers),
        )
        for number in numbers:
            assert results[number] == [number * 2.0] * (1 + number % 5)
            assert results[300 + number] == [[number * 2.0, 2.0]] * (1 + number % 3)

    repo.run(main)


def test_parameters_of_all_kinds(repo: Any, helpers: Any) -> None:
    """BC30; also of types that only look like those a message knows."""
    body = "r = requests[0]\nreturn tell(requests, [json.loads(r.parameters()), r.correlation_id(), r.timeout()])"
    repo.add("a", telling(body), io=TEXT, parameters=PROCESS)

    class Name(str):
        """Not exactly a str."""

    async def main(kernel: Kernel) -> Any:
        values = {"b": True, "i": 1 << 40, "s": "ü", "f": 1.5, Name("n"): Name("x")}
        return await ask(kernel, helpers, parameters=values, correlation_id=Name("c"))

    assert repo.run(main) == [{"b": True, "i": 1 << 40, "s": "ü", "f": 1.5, "n": "x"}, "c", 0]


def test_strict_outputs_hold_in_a_process_too(repo: Any, helpers: Any) -> None:
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Z", np.ones(1))]) for r in requests]
    """
    repo.add("a", code, parameters=PROCESS)
    assert "output 'Z' is not in its config" in repo.run(lambda kernel: helpers.ask(kernel, "a"), strict_outputs=True)


# -- cancellation --------------------------------------------------------------------------------------------------------

WATCHING = """
import time
class TritonPythonModel:
    {define} execute(self, requests):
        pb_utils.Logger.log_info("begun")
        end = time.monotonic() + 60
        while not requests[0].is_cancelled() and time.monotonic() < end:
            {pause}
        pb_utils.Logger.log_info("seen" if requests[0].is_cancelled() else "missed")
        return [None for r in requests]
"""


@pytest.mark.parametrize(
    ("define", "pause"), [("def", "pass"), ("def", "time.sleep(0.001)"), ("async def", "await __import__('asyncio').sleep(0)")]
)
def test_cancellation_reaches_the_child(
    repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture, define: str, pause: str
) -> None:
    repo.add("a", WATCHING.format(define=define, pause=pause), parameters=PROCESS)

    def logged(text: str) -> bool:
        return any(record.getMessage() == text for record in caplog.records)

    async def main(kernel: Kernel) -> Any:
        call = helpers.Call(kernel, "a", [1])
        await until(lambda: logged("begun"))
        kernel.cancel(call.request)
        result = await call.result()
        await until(lambda: logged("seen"))
        return result

    with caplog.at_level(logging.INFO):
        (result,) = repo.run(main)
    assert result.startswith("CANCELLED")


def test_what_is_cancelled_while_it_waits_in_the_child_is_not_executed(
    repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Several executions are in the child; those that nobody waits for any more are skipped there."""
    code = f"""
    import os, time
    class TritonPythonModel:
        def execute(self, requests):
            x = requests[0].inputs()[0].as_numpy()
            pb_utils.Logger.log_info(f"executes {{int(x[0])}}")
            while x[0] == 1000 and not os.path.exists({str(tmp_path / "go")!r}):
                time.sleep(0.001)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]) for r in requests]
    """
    repo.add("a", code, parameters=PROCESS)

    def executed() -> list[int]:
        texts = [record.getMessage() for record in caplog.records]
        return [int(text.split()[1]) for text in texts if text.startswith("executes")]

    async def main(kernel: Kernel) -> Any:
        await asyncio.gather(*(helpers.ask(kernel, "a", [number]) for number in range(40)))  # are short: runs get long
        (instance,) = kernel.model("a").scheduler.instances
        assert instance.limit > 4
        calls = [helpers.Call(kernel, "a", [number]) for number in (1000, 1001, 1002, 1003)]
        await until(lambda: 1000 in executed())
        kernel.cancel(calls[1].request)
        kernel.cancel(calls[2].request)
        for _ in range(2):
            await asyncio.sleep(0)  # the second one goes out at the end of the turn: until then the child can't know
        (tmp_path / "go").touch()
        return [await call.result() for call in calls]

    with caplog.at_level(logging.INFO):
        first, second, third, fourth = repo.run(main)
    assert (first, fourth) == ([[[1000.0]]], [[[1003.0]]])
    assert second[0].startswith("CANCELLED")
    assert third[0].startswith("CANCELLED")
    assert executed()[40:] == [1000, 1003]


def test_a_run_that_is_held_up_goes_on_elsewhere(repo: Any, helpers: Any, tmp_path: Path) -> None:
    """One slow execution holds up nobody behind it where another instance is free."""
    code = f"""
    import os, time
    class TritonPythonModel:
        def execute(self, requests):
            x = requests[0].inputs()[0].as_numpy()
            while x[0] == 1000 and not os.path.exists({str(tmp_path / "go")!r}):
                time.sleep(0.001)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]) for r in requests]
    """
    repo.add("a", code, count=2, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        await asyncio.gather(*(helpers.ask(kernel, "a", [number]) for number in range(100)))
        slow = helpers.Call(kernel, "a", [1000])
        others = [helpers.Call(kernel, "a", [number]) for number in range(50)]
        assert [await call.result() for call in others] == [[[[float(number)]]] for number in range(50)]
        assert not slow.done.is_set()
        (tmp_path / "go").touch()
        assert await slow.result() == [[[1000.0]]]

    repo.run(main)


def test_more_than_the_socket_holds(repo: Any, helpers: Any, tmp_path: Path) -> None:
    """What a child does not read waits in the server, which goes on."""
    code = f"""
    import asyncio, os, time
    class TritonPythonModel:
        async def execute(self, requests):
            x = requests[0].inputs()[0].as_numpy()
            while x[0] == 0 and not os.path.exists({str(tmp_path / "go")!r}):
                time.sleep(0.001)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]) for r in requests]
    """
    repo.add("a", code, parameters={**PROCESS, "max_concurrency": "1000"})
    repo.add("other", helpers.ECHO)

    async def main(kernel: Kernel) -> None:
        calls = [helpers.Call(kernel, "a", np.full(4000, number)) for number in range(200)]
        assert await helpers.ask(kernel, "other", [1]) == [1.0]
        kernel.cancel(calls[150].request)
        (tmp_path / "go").touch()
        for number, call in enumerate(calls):
            (answer,) = await call.result()
            assert answer[0] == [float(number)] * 4000 if number != 150 else answer.startswith("CANCELLED")

    repo.run(main)


# -- calls of other models -----------------------------------------------------------------------------------------------

MAKE = """
def make(model, x=(1.0,), names=("Y",), **more):
    return pb_utils.InferenceRequest(
        model_name=model, inputs=[pb_utils.Tensor("X", np.array(x, np.float32))], requested_output_names=list(names), **more)
def show(r):
    return r.error().message() if r.has_error() else [t.as_numpy().tolist() for t in r.output_tensors()]
"""


@pytest.mark.parametrize("callee", ["process", "thread", "loop"])
@pytest.mark.parametrize("caller", ["process", "thread", "loop"])
def test_calls_between_all_placements(repo: Any, helpers: Any, caller: str, callee: str) -> None:
    """Small and large tensors, strings, from every placement to every other."""
    repo.add("numbers", helpers.ECHO, parameters={"placement": callee})
    repo.add("strings", IDENTITY, io=typed("BYTES"), parameters={"placement": callee})
    body = """
out = []
for count in (3, 50_000):
    y = make("numbers", np.arange(count)).exec().output_tensors()[0].as_numpy()
    y += 1
    out.append(float(y.sum(dtype=np.float64)))
    text = np.array([b"ab\\0", "ü"] * count, dtype=object)
    call = pb_utils.InferenceRequest(model_name="strings", inputs=[pb_utils.Tensor("X", text)], requested_output_names=[])
    s = call.exec().output_tensors()[0].as_numpy()
    out.append([len(s), s[0].hex(), s[-1].decode()])
return tell(requests, out)
"""
    repo.add("a", MAKE + telling(body), io=TEXT, parameters={"placement": caller})
    assert repo.run(lambda kernel: ask(kernel, helpers)) == [
        6.0, [6, "616200", "ü"], 1250025000.0, [100_000, "616200", "ü"],
    ]  # fmt: skip


def test_async_calls_in_a_plain_execute(repo: Any, helpers: Any) -> None:
    """asyncio.run in the middle of execute, and in a thread: loops of the model's own."""
    repo.add("inner", helpers.ECHO, parameters={"placement": "loop"})
    body = """
import asyncio, threading
async def many():
    return [show(r)[0][0] for r in await asyncio.gather(*(make("inner", [i]).async_exec() for i in range(20)))]
told = []
thread = threading.Thread(target=lambda: told.append(asyncio.run(many())))
thread.start()
mine = asyncio.run(many())
thread.join()
return tell(requests, [mine, *told])
"""
    repo.add("a", MAKE + telling(body), io=TEXT, parameters=PROCESS)

    async def main(kernel: Kernel) -> Any:
        first = await ask(kernel, helpers)  # executions of one run: what one has left to be sent is no reason not to send
        return [first, *await asyncio.gather(*(ask(kernel, helpers) for _ in range(8)))]

    assert repo.run(main) == [[[float(i) for i in range(20)]] * 2] * 9


def test_loops_that_end_with_a_call_on_its_way(repo: Any, helpers: Any) -> None:
    """What one loop was about to send when it was closed is no reason for another one not to send."""
    repo.add("inner", helpers.ECHO, parameters={"placement": "loop"})
    body = """
import asyncio, threading
async def leave():
    make("inner", [0]).async_exec()
async def one(i):
    return show(await make("inner", [i]).async_exec())[0][0]
told = []
def work(i):
    asyncio.run(leave())
    told.append(asyncio.run(one(i)))
for _ in range(5):
    threads = [threading.Thread(target=work, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
return tell(requests, sorted(told))
"""
    repo.add("a", MAKE + telling(body, "async def"), io=TEXT, parameters=PROCESS)
    assert repo.run(lambda kernel: ask(kernel, helpers)) == [float(i) for i in range(4) for _ in range(5)]


def test_many_threads_call_at_once(repo: Any, helpers: Any) -> None:
    """Whoever waits reads for the others."""
    repo.add("inner", helpers.ECHO)
    body = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    results = list(pool.map(lambda i: show(make("inner", [i]).exec())[0][0], range(200)))
return tell(requests, results)
"""
    repo.add("a", MAKE + telling(body), io=TEXT, parameters=PROCESS)

    async def main(kernel: Kernel) -> Any:
        return await asyncio.gather(ask(kernel, helpers), ask(kernel, helpers))

    assert repo.run(main) == [[float(i) for i in range(200)]] * 2


def test_response_parameters_travel(repo: Any, helpers: Any) -> None:
    """Both ways through a process. (Traces: tests/e2e/test_trace.py, in every placement.)"""
    inner = """
    class TritonPythonModel:
        def execute(self, requests):
            y = pb_utils.Tensor("Y", np.ones(1, np.float32))
            return [pb_utils.InferenceResponse([y], parameters={"told": "\u00fc", "n": 3, "yes": True})]
    """
    repo.add("inner", inner, parameters={"placement": "loop"})
    body = """
said = json.loads(make("inner").exec().parameters())
return [pb_utils.InferenceResponse([], parameters={**said, "own": requests[0].trace().get_context() is None})]
"""
    repo.add("a", MAKE + telling(body), io=TEXT, parameters=PROCESS)

    async def main(kernel: Kernel) -> Any:
        call = helpers.Call(kernel, "a", [1])
        await call.result()
        return call.responses[0].parameters

    assert repo.run(main) == {"told": "\u00fc", "n": 3, "yes": True, "own": True}


def test_a_caller_that_goes_takes_its_calls_along(repo: Any, helpers: Any) -> None:
    repo.add("inner", WATCHING.format(define="async def", pause="await __import__('asyncio').sleep(0.001)"))
    repo.add("a", MAKE + telling("return tell(requests, show(make('inner').exec()))"), io=TEXT, parameters=PROCESS)

    async def main(kernel: Kernel) -> Any:
        call = helpers.Call(kernel, "a", [1])
        inner = kernel.model("inner").scheduler
        await until(lambda: inner.in_flight)
        kernel.cancel(call.request)
        result = await call.result()
        assert not inner.in_flight
        await until(lambda: inner.is_idle)
        return result

    (text,) = repo.run(main)
    assert text.startswith("CANCELLED")


def test_a_circle_through_processes_is_spelt_out(repo: Any, helpers: Any) -> None:
    code = MAKE.replace("t.as_numpy().tolist()", "str(t.as_numpy().tolist())")
    for name, other in (("a", "b"), ("b", "a")):
        body = f"return tell(requests, show(make('{other}', names=[]).exec()))"
        repo.add(name, code + telling(body), io=TEXT, parameters=PROCESS)

    async def main(kernel: Kernel) -> Any:
        return [repr(await ask(kernel, helpers)) for _ in range(2)]

    for text in repo.run(main):
        assert "a -> b -> a" in text


def test_questions(repo: Any, helpers: Any) -> None:
    body = """
def ready(*args):
    try:
        return pb_utils.is_model_ready(*args)
    except pb_utils.TritonModelException as e:
        return str(e)
return tell(requests, [self.first, ready("a"), ready("a", "1"), ready("a", "2"), ready("nope"), ready("a", "abc")])
"""
    rest = "    def initialize(self, args):\n        self.first = pb_utils.is_model_ready('a')\n"
    repo.add("a", telling(body, rest=rest), io=TEXT, parameters=PROCESS)
    *answers, refused = repo.run(lambda kernel: ask(kernel, helpers))
    assert answers == [False, True, True, False, False]
    assert refused.startswith(
        "Failed to check model readiness: Failed to process the request for model 'a_0_0', message: "
        "failed to get model version from specified version string 'abc'"
    )


# -- decoupled -------------------------------------------------------------------------------------------------------------


def test_many_responses_and_from_threads(repo: Any, helpers: Any) -> None:
    code = """
    import threading
    class TritonPythonModel:
        def initialize(self, args):
            self.threads = []
        def execute(self, requests):
            for r in requests:
                x = r.inputs()[0].as_numpy()
                thread = threading.Thread(target=self.stream, args=(r.get_response_sender(), x))
                self.threads.append(thread)
                thread.start()
        def stream(self, sender, x):
            for i in range(20):
                data = np.full(1 if i % 2 else 30_000, x[0] + i, np.float32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", data)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        def finalize(self):
            for thread in self.threads:
                thread.join()
    """
    repo.add("a", code, decoupled=True, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        calls = [helpers.Call(kernel, "a", [100 * number]) for number in range(10)]
        for number, call in enumerate(calls):
            results = await call.result()
            assert [value[0][0] for value in results] == [100.0 * number + i for i in range(20)]
            assert [len(value[0]) for value in results] == [30_000, 1] * 10

    repo.run(main)


def test_a_stream_that_nobody_reads_any_more(repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture) -> None:
    code = """
    import time
    class TritonPythonModel:
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            for i in range(10_000):
                if sender.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(1, np.float32))]))
                time.sleep(0.001)
            sender.send(flags=1)
            pb_utils.Logger.log_info("seen" if sender.is_cancelled() else "missed")
    """
    repo.add("a", code, decoupled=True, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        call = helpers.Call(kernel, "a", [1])
        await until(lambda: len(call.responses) > 3)
        kernel.cancel(call.request)
        await until(lambda: any(record.getMessage() == "seen" for record in caplog.records))
        await until(lambda: kernel.model("a").scheduler.is_idle)

    with caplog.at_level(logging.INFO):
        repo.run(main)


# -- unload and stop -------------------------------------------------------------------------------------------------------


def test_unload_while_busy_finishes_first(repo: Any, helpers: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = f"""
    import os, time
    class TritonPythonModel:
        def execute(self, requests):
            while not os.path.exists({str(tmp_path / "go")!r}):
                time.sleep(0.001)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
        def finalize(self):
            pb_utils.Logger.log_info("finalized")
    """
    repo.add("a", code, parameters=PROCESS)

    async def main(kernel: Kernel) -> None:
        model = kernel.model("a")
        calls = [helpers.Call(kernel, "a", [number]) for number in range(5)]
        await until(lambda: any(one.running for one in model.scheduler.instances))
        kernel.unload("a")
        assert "is not found" in await helpers.ask(kernel, "a") or "no available" in await helpers.ask(kernel, "a")
        (tmp_path / "go").touch()
        assert [await call.result() for call in calls] == [[[[float(number)]]] for number in range(5)]
        await until(lambda: kernel.index()[0].state == "UNAVAILABLE")
        assert [record.getMessage() for record in caplog.records].count("finalized") == 1
        assert children() == before

    before = children()
    with caplog.at_level(logging.INFO):
        repo.run(main, control_mode="explicit", load_models=["a"])


def test_a_hanging_execution_does_not_keep_the_server(repo: Any, helpers: Any) -> None:
    code = """
    import time
    class TritonPythonModel:
        def execute(self, requests):
            time.sleep(1000)
    """
    repo.add("a", code, parameters=PROCESS)
    before = children()

    async def main(kernel: Kernel) -> Any:
        call = helpers.Call(kernel, "a", [1])
        await until(lambda: kernel.model("a").scheduler.instances[0].running)
        await kernel.stop(0.01)
        return await call.result()

    (text,) = repo.run(main)
    assert text == "UNAVAILABLE: Server is stopping, request to model 'a' was given up"
    assert children() == before


def test_reloads_leave_nothing_behind(repo: Any, helpers: Any) -> None:
    path = repo.add("a", helpers.ECHO, parameters=PROCESS)
    before, open_before = children(), len(os.listdir("/proc/self/fd"))

    async def main(kernel: Kernel) -> None:
        for number in range(3):
            path.write_text(path.read_text() + f"# {number}\n")
            await kernel.load("a")
            assert await helpers.ask(kernel, "a", [number]) == [number]

    repo.run(main, control_mode="explicit", load_models=["a"])
    assert children() == before
    assert len(os.listdir("/proc/self/fd")) <= open_before + 2


def children(process: str = "self") -> set[str]:
    """Return the processes that a process has started, also those that have ended and were not asked how.

    In the place of a fork server stand the processes that it has started.
    """
    found: set[str] = set()
    with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile, or a thread of it has
        for task in os.listdir(f"/proc/{process}/task"):
            for child in Path(f"/proc/{process}/task/{task}/children").read_text().split():
                is_fork_server = b"\0many\0" in Path(f"/proc/{child}/cmdline").read_bytes() and process == "self"
                found |= children(child) if is_fork_server else {child}
    return found


def test_a_models_own_classes_are_found_by_their_names(repo: Any, helpers: Any) -> None:
    code = """
    import pickle, pydoc
    class TritonPythonModel:
        def execute(self, requests):
            found = pydoc.locate("1.model.TritonPythonModel"), pickle.loads(pickle.dumps(type(self)))
            y = np.array([one is type(self) for one in found], np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)])]
    """
    repo.add("a", code, parameters={"placement": "process"})
    assert repo.run(lambda kernel: helpers.ask(kernel, "a")) == [1.0, 1.0]
