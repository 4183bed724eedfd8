"""BLS: every way to call, from every placement, and what goes wrong (contract: python_backend, 1.4, 1.5; cases BC12 to BC21)."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
import pytest
from telling import ADD_ONE, TEXT

from kernel import Kernel, ServingError

COUNT = """
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            x = pb_utils.get_input_tensor_by_name(r, "X").as_numpy()
            s = r.get_response_sender()
            for i in range(int(x[0])):
                s.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([i], np.float32))]))
            s.send(flags=1)
"""

#: What the models under test start with.
CALL = """
import asyncio
def make(model, x=(1.0,), names=("Y",), **more):
    return pb_utils.InferenceRequest(
        model_name=model, inputs=[pb_utils.Tensor("X", np.array(x, np.float32))], requested_output_names=list(names), **more)
def show(r):
    if r.has_error():
        return str(r.error().code()).partition(".")[2] + ": " + r.error().message()
    return [t.as_numpy().tolist() for t in r.output_tensors()]
def tell(requests, value):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("S", np.array([json.dumps(value)], dtype=object))]) for _ in requests]
"""


def caller(body: str, define: str = "def", rest: str = "") -> str:
    lines = "\n        ".join(body.strip().splitlines())
    return f"{CALL}\nclass TritonPythonModel:\n    {define} execute(self, requests):\n        {lines}\n{rest}"


async def ask(kernel: Kernel, helpers: Any, model: str = "outer", value: Any = (1.0,), **fields: Any) -> Any:
    answer = await helpers.ask(kernel, model, value, **fields)
    return json.loads(answer[0]) if isinstance(answer, list) else answer


#: define, placement: all the ways an execute may run
WAYS = [("def", "thread"), ("def", "loop"), ("async def", "loop"), ("async def", "thread")]


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0].split()[0]}-{way[1]}")
def way(request: Any) -> Any:
    return request.param


@pytest.fixture(params=["thread", "loop"], ids=lambda placement: f"callee-{placement}")
def callee(request: Any) -> str:
    return str(request.param)


def test_exec_works_wherever_the_model_runs(repo: Any, helpers: Any, way: Any, callee: str) -> None:
    define, placement = way
    repo.add("inner", ADD_ONE, parameters={"placement": callee})
    body = """
x = [1.0]
for _ in range(10):
    x = make("inner", x).exec().output_tensors()[0].as_numpy()
return tell(requests, x.tolist())
"""
    repo.add("outer", caller(body, define), io=TEXT, parameters={"placement": placement})

    async def main(kernel: Kernel) -> Any:
        return await asyncio.gather(*(ask(kernel, helpers) for _ in range(5)))

    assert repo.run(main) == [[11.0]] * 5


@pytest.mark.parametrize("placement", ["loop", "thread"])
def test_async_exec_works_wherever_the_model_runs(repo: Any, helpers: Any, placement: str, callee: str) -> None:
    repo.add("inner", ADD_ONE, parameters={"placement": callee})
    body = """
one = await make("inner").async_exec()
many = await asyncio.gather(*(make("inner", [i]).async_exec() for i in range(16)))
return tell(requests, [show(one), [show(r)[0][0] for r in many]])
"""
    repo.add("outer", caller(body, "async def"), io=TEXT, parameters={"placement": placement})

    async def main(kernel: Kernel) -> Any:
        return await asyncio.gather(*(ask(kernel, helpers) for _ in range(3)))

    assert repo.run(main) == [[[[2.0]], [i + 1.0 for i in range(16)]]] * 3


def test_fan_out_batches_at_the_callee(repo: Any, helpers: Any) -> None:
    """BC21."""
    inner = """
class TritonPythonModel:
    def execute(self, requests):
        n = np.array([[len(requests)]], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", n)]) for r in requests]
"""
    repo.add(
        "inner",
        inner,
        max_batch_size=64,
        extra="dynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: [ 40 ] }",
    )
    body = """
many = await asyncio.gather(*(make("inner", [[i]]).async_exec() for i in range(40)))
return tell(requests, sorted({show(r)[0][0][0] for r in many}))
"""
    repo.add("outer", caller(body, "async def"), io=TEXT)
    assert repo.run(lambda kernel: ask(kernel, helpers)) == [40.0]


def test_errors_are_responses(repo: Any, helpers: Any, way: Any) -> None:
    """BC16; the code is the callee's, the reference's words are kept."""
    define, placement = way
    path = repo.add("inner", ADD_ONE)
    repo.add("gen", COUNT, decoupled=True)
    body = """
T = pb_utils.Tensor
x = np.ones(1, np.float32)
def call(model, inputs, names, **more):
    r = pb_utils.InferenceRequest(model_name=model, inputs=inputs, requested_output_names=names, **more).exec()
    return show(r)
return tell(requests, [
    call("inner", [T("X", x)], []),
    call("nope", [T("X", x)], []),
    call("inner", [T("X", x)], [], model_version=7),
    call("inner", [T("Z", x)], []),
    call("inner", [T("X", x.astype(np.int32))], []),
    call("inner", [T("X", x)], ["W"]),
    call("inner", [T("X", x.reshape(1, 1))], [], request_id="rid"),
    call("inner", [T("X", -x)], []),
    call("inner", [T("X", -2 * x)], []),
    call("gen", [T("X", x)], []),
    call("inner", [T("X", x)], [], preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU)),
])
"""
    repo.add("outer", caller(body, define), io=TEXT, parameters={"placement": placement})
    before = "Model inner - Error when running inference: "
    boom, error = (
        path.read_text().splitlines().index('                raise ValueError("callee boom")') + 1,
        "ValueError",
    )
    ready = "Failed for execute the inference request. Model '{0}' is not ready. Request for unknown model: '{0}' "
    assert repo.run(lambda kernel: ask(kernel, helpers)) == [
        [[2.0]],
        f"NOT_FOUND: Model nope - Error when running inference: {ready.format('nope')}is not found",
        f"NOT_FOUND: {before}{ready.format('inner')}version 7 is not found",
        f"INVALID_ARG: {before}unexpected inference input 'Z' for model 'inner'",
        f"INVALID_ARG: {before}[request id: <id_unknown>] inference input 'X' data-type is 'INT32', "
        "but model 'inner' expects 'FP32'",
        f"INVALID_ARG: {before}unexpected inference output 'W' for model 'inner'",
        f"INVALID_ARG: {before}[request id: rid] unexpected shape for input 'X' for model 'inner'. Expected [-1], got [1,1]. ",
        "NOT_FOUND: callee says no",
        "INTERNAL: Failed to process the request(s) for model 'inner_0_0', message: "
        f"{error}: callee boom\n\nAt:\n  {path}({boom}): execute\n",
        "INTERNAL: Model gen - Error when running inference: Model gen is using the decoupled. The current BLS request call "
        "doesn't support models using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
        "'async_exec' calls for decoupled models.'",
        f"INTERNAL: {before}the outputs were asked for in GPU memory (preferred_memory), which this server does not have",
    ]


def test_what_travels(repo: Any, helpers: Any) -> None:
    """BC20."""
    inner = """
class TritonPythonModel:
    def execute(self, requests):
        r = requests[0]
        facts = [json.loads(r.parameters()), r.request_id(), r.timeout(), r.correlation_id(), r.flags()]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("S", np.array([json.dumps(facts)], dtype=object))])]
"""
    repo.add("inner", inner, io=TEXT)
    body = """
r = make("inner", names=[], parameters={"a": 1, "s": "x"}, request_id="rid", timeout=1234567, correlation_id=9, flags=3).exec()
return tell(requests, json.loads(r.output_tensors()[0].as_numpy()[0]))
"""
    repo.add("outer", caller(body), io=TEXT)
    assert repo.run(lambda kernel: ask(kernel, helpers)) == [{"a": 1, "s": "x"}, "rid", 1234567, 9, 3]


def test_a_received_string_is_bytes(repo: Any, helpers: Any) -> None:
    repo.add("inner", caller("return tell(requests, 'ü')"), io=TEXT)
    body = """
value = make("inner", names=[]).exec().output_tensors()[0].as_numpy()
return tell(requests, [str(value.dtype), type(value[0]).__name__])
"""
    repo.add("outer", caller(body), io=TEXT)
    assert repo.run(lambda kernel: ask(kernel, helpers)) == ["object", "bytes"]


# -- decoupled callees -------------------------------------------------------------------------------------------------

ITERATE = """
it = make("gen", [3]).exec(decoupled=True)
first = [show(r) for r in it]
again = [show(r) for r in it]
try:
    next(it)
except StopIteration as e:
    end = str(e)
single = [show(r) for r in make("inner").exec(decoupled=True)]
unknown = [show(r) for r in make("nope").exec(decoupled=True)]
partial = make("gen", [3]).exec(decoupled=True)
head = show(next(partial))
tail = [show(r) for r in partial]
return tell(requests, [first, again, end, single, unknown, head, tail])
"""


def test_the_iterator_of_responses(repo: Any, helpers: Any, way: Any, callee: str) -> None:
    define, placement = way
    repo.add("gen", COUNT, decoupled=True, parameters={"placement": callee})
    repo.add("inner", ADD_ONE, parameters={"placement": callee})
    repo.add("outer", caller(ITERATE, define), io=TEXT, parameters={"placement": placement})
    three = [[[0.0]], [[1.0]], [[2.0]], []]  # the final flag alone is one more, empty response
    unknown = (
        "NOT_FOUND: Model nope - Error when running inference: Failed for execute the inference request. "
        "Model 'nope' is not ready. Request for unknown model: 'nope' is not found"
    )
    assert repo.run(lambda kernel: ask(kernel, helpers)) == [
        three,
        three,
        "Iteration is done for the responses.",
        [[[2.0]]],
        [unknown],
        three[0],
        three[1:],
    ]


def test_a_loop_over_responses_goes_on_where_it_was_left(repo: Any, helpers: Any, way: Any) -> None:
    """As the reference, also for the loops that replay."""
    define, placement = way
    repo.add("gen", COUNT, decoupled=True)
    body = """
it = make("gen", [4]).exec(decoupled=True)
def some(count):
    taken = []
    for r in it:
        taken.append(show(r))
        if len(taken) == count:
            break
    return [one[0][0] if one else None for one in taken]
told = [some(2), some(9), some(1), some(2), some(9), some(9)]
try:
    next(it)
except StopIteration as e:
    told.append(str(e))
return tell(requests, [*told, iter(it) is it, show(next(it))])
"""
    repo.add("outer", caller(body, define), io=TEXT, parameters={"placement": placement})
    everything = [0.0, 1.0, 2.0, 3.0, None]
    assert repo.run(lambda kernel: ask(kernel, helpers)) == [
        everything[:2], everything[2:], everything[:1], everything[1:3], everything[3:], everything,
        "Iteration is done for the responses.", True, [[0.0]],
    ]  # fmt: skip


def test_the_module_that_classes_come_from(repo: Any, helpers: Any, way: Any) -> None:
    """`c_python_backend_utils`: importable, before pb_utils even; exceptions are pickled by it, and it tells of memory."""
    define, placement = way
    body = """
import pickle
error = pickle.loads(pickle.dumps(pb_utils.TritonModelException("a", 1)))
names = [getattr(type(o), "__name__") for o in (c.shared_memory, error)]
free = c.shared_memory.free_memory()
large = pb_utils.Tensor("X", np.zeros(1 << 20, np.float32))
pb_utils.InferenceRequest(model_name="inner", inputs=[large], requested_output_names=["Y"]).exec()
make("inner").exec()  # by now nobody looks at the large one any more
return tell(requests, [names, repr(error), c.Tensor is pb_utils.Tensor, c.GAUGE is pb_utils.MetricFamily.GAUGE,
                       c.shared_memory.free_memory() == free >= 1 << 20, type(error).__module__])
"""
    repo.add("inner", ADD_ONE)
    repo.add("outer", "import c_python_backend_utils as c\n" + caller(body, define), io=TEXT, parameters={"placement": placement})
    assert repo.run(lambda kernel: ask(kernel, helpers)) == [
        ["SharedMemory", "TritonModelException"], "TritonModelException('a', 1)", True, True, True, "c_python_backend_utils",
    ]  # fmt: skip


@pytest.mark.parametrize("placement", ["loop", "thread"])
def test_async_iteration(repo: Any, helpers: Any, placement: str) -> None:
    """BC13, and plain `for` in an async model, as the reference's own examples have it."""
    repo.add("gen", COUNT, decoupled=True)
    body = """
async_items = [show(r) async for r in await make("gen", [3]).async_exec(decoupled=True)]
items = [show(r) for r in await make("gen", [3]).async_exec(decoupled=True)]
return tell(requests, [async_items, items, show(await make("gen").async_exec())[:40]])
"""
    repo.add("outer", caller(body, "async def"), io=TEXT, parameters={"placement": placement})
    three = [[[0.0]], [[1.0]], [[2.0]], []]
    expected = [three, three, "INTERNAL: Model gen - Error when running"]
    assert repo.run(lambda kernel: ask(kernel, helpers)) == expected


def test_many_streams_at_once(repo: Any, helpers: Any) -> None:
    """BC12."""
    gen = """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        for r in requests:
            s = r.get_response_sender()
            for i in range(20):
                await asyncio.sleep(0)
                s.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([i], np.float32))]))
            s.send(flags=1)
"""
    repo.add("gen", gen, decoupled=True)
    body = """
n = 0
async for r in await make("gen").async_exec(decoupled=True):
    n += len(r.output_tensors())
return tell(requests, n)
"""
    repo.add("outer", caller(body, "async def"), io=TEXT, count=8)

    async def main(kernel: Kernel) -> Any:
        return [n for _ in range(3) for n in await asyncio.gather(*(ask(kernel, helpers) for _ in range(64)))]

    assert repo.run(main) == [20] * 192


@pytest.mark.parametrize("placement", ["thread", "loop"])
def test_cancelling_a_stream(repo: Any, helpers: Any, placement: str) -> None:
    """BC19."""
    gen = """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        s = requests[0].get_response_sender()
        for sent in range(3):
            s.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([sent], np.float32))]))
        while not s.is_cancelled():
            await asyncio.sleep(0.001)
        for sent in range(3, 50):
            s.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([sent], np.float32))]))
        s.send(flags=1)
"""
    repo.add("gen", gen, decoupled=True)
    body = """
it = make("gen").exec(decoupled=True)
n = [show(next(it)) for _ in range(2)]
it.cancel()
rest = [show(r) for r in it]
return tell(requests, [n, rest])
"""
    repo.add("outer", caller(body), io=TEXT, parameters={"placement": placement})
    items, rest = repo.run(lambda kernel: ask(kernel, helpers))
    assert items == [[[0.0]], [[1.0]]]
    assert rest[:-1] in ([], [[[2.0]]]), "what had come before; nothing that is sent to nobody"
    assert rest[-1].startswith("CANCELLED")


def test_cancelling_the_future_cancels_the_request(repo: Any, helpers: Any) -> None:
    inner = """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        while not requests[0].is_cancelled():
            await asyncio.sleep(0.001)
        pb_utils.Logger.log_warn("seen")
        return [None]
"""
    repo.add("inner", inner)
    body = """
try:
    await asyncio.wait_for(make("inner").async_exec(), 0.02)
except TimeoutError:
    return tell(requests, "timed out")
"""
    repo.add("outer", caller(body, "async def"), io=TEXT)
    assert repo.run(lambda kernel: ask(kernel, helpers)) == "timed out"


# -- from where --------------------------------------------------------------------------------------------------------


def test_from_a_thread_started_in_initialize(repo: Any, helpers: Any) -> None:
    """BC14."""
    repo.add("inner", ADD_ONE)
    code = (
        CALL
        + """
import queue, threading
class TritonPythonModel:
    def initialize(self, args):
        self.asked, self.told = queue.Queue(), queue.Queue()
        threading.Thread(target=self.work, daemon=True).start()
    def work(self):
        while self.asked.get():
            self.told.put(show(make("inner").exec()))
    def execute(self, requests):
        self.asked.put(True)
        return tell(requests, self.told.get(timeout=5))
    def finalize(self):
        self.asked.put(False)
"""
    )
    repo.add("outer", code, io=TEXT)
    assert repo.run(lambda kernel: ask(kernel, helpers)) == [[2.0]]


@pytest.mark.parametrize("placement", ["thread", "loop"])
def test_from_a_thread_started_in_execute(repo: Any, helpers: Any, placement: str) -> None:
    repo.add("inner", ADD_ONE)
    body = """
async def call():
    return await asyncio.to_thread(lambda: show(make("inner").exec()))
return tell(requests, await call())
"""
    repo.add("outer", caller(body, "async def"), io=TEXT, parameters={"placement": placement})
    assert repo.run(lambda kernel: ask(kernel, helpers)) == [[2.0]]


def test_initialize_may_make_requests_but_no_calls(repo: Any, helpers: Any, way: Any) -> None:
    """As the reference: whichever way it calls. What was made there can be called by `execute`."""
    define, placement = way
    repo.add("inner", ADD_ONE)
    code = caller(
        "return tell(requests, [self.told, show(self.kept.exec())])",
        define,
        rest="""
    def initialize(self, args):
        from concurrent.futures import ThreadPoolExecutor
        self.kept = make("inner", [5])
        async def call():
            return await make("inner").async_exec()
        def refused(f):
            try:
                return f()
            except pb_utils.TritonModelException as e:
                return str(e)
        with ThreadPoolExecutor(1) as pool:
            self.told = [
                refused(make("inner").exec), refused(lambda: make("inner").exec(decoupled=True)),
                refused(lambda: asyncio.run(call())), refused(lambda: pool.submit(make("inner").exec).result()),
            ]
""",
    )
    repo.add("outer", code, io=TEXT, parameters={"placement": placement})
    told, kept = repo.run(lambda kernel: ask(kernel, helpers))
    assert told == ["BLS is only supported during the 'execute' function."] * 4
    assert kept == [[6.0]]


# -- threads that know of no execution -----------------------------------------------------------------------------------

POOL = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    handed = [pool.submit(make("inner", [i]).exec) for i in range(3)]
    many = pool.submit(make("gen", [2]).exec, True)
    made_there = pool.submit(lambda: make("inner", [7]).exec())
    {wait}
    return tell(requests, [[show(f.result()) for f in handed], [show(r) for r in many.result()], show(made_there.result())])
"""


def test_calls_by_threads_of_a_pool(repo: Any, helpers: Any, way: Any) -> None:
    """`pool.submit(request.exec)`: the thread has nothing of the execution but the request, which remembers it."""
    define, placement = way
    if way == ("def", "loop"):
        pytest.skip("waits on the loop for its threads; see below")
    repo.add("inner", ADD_ONE)
    repo.add("gen", COUNT, decoupled=True)
    wait = "await asyncio.gather(*map(asyncio.wrap_future, [*handed, many, made_there]))" if define != "def" else ""
    repo.add("outer", caller(POOL.format(wait=wait), define), io=TEXT, parameters={"placement": placement})
    expected = [[[[1.0]], [[2.0]], [[3.0]]], [[[0.0]], [[1.0]], []], [[8.0]]]
    assert repo.run(lambda kernel: ask(kernel, helpers)) == expected


@pytest.mark.parametrize("placement", ["loop", "thread"])
def test_run_in_executor(repo: Any, helpers: Any, placement: str) -> None:
    repo.add("inner", ADD_ONE)
    body = """
loop = asyncio.get_running_loop()
one = await loop.run_in_executor(None, make("inner").exec)
return tell(requests, [show(one), *[show(r) for r in await asyncio.gather(
    *(loop.run_in_executor(None, make("inner", [i]).exec) for i in range(4)))]])
"""
    repo.add("outer", caller(body, "async def"), io=TEXT, parameters={"placement": placement})
    assert repo.run(lambda kernel: ask(kernel, helpers)) == [[[2.0]], *[[[i + 1.0]] for i in range(4)]]


def test_calls_by_a_library_on_a_thread_of_its_own(repo: Any, helpers: Any, tmp_path: Any, monkeypatch: Any) -> None:
    """Neither the thread nor any code on it is the model's."""
    (tmp_path / "library_for_test.py").write_text(
        "import queue, threading\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
        "asked, told = queue.Queue(), queue.Queue()\n"
        "def work():\n"
        "    while asked.get():\n"
        "        x = pb_utils.Tensor('X', np.ones(1, np.float32))\n"
        "        call = pb_utils.InferenceRequest(model_name='inner', inputs=[x], requested_output_names=[])\n"
        "        family = pb_utils.MetricFamily('by_a_library', 'of a thread', pb_utils.MetricFamily.COUNTER)\n"
        "        count = family.Metric()\n"
        "        count.increment(2)\n"
        "        told.put((call.exec(), pb_utils.is_model_ready('inner'), count.value()))\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "def call():\n    asked.put(True)\n    return told.get(timeout=20)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    repo.add("inner", ADD_ONE)
    body = """
response, ready, count = library_for_test.call()
return tell(requests, [show(response), ready, count])
"""
    code = caller(body, rest="\n    def finalize(self):\n        library_for_test.asked.put(False)\n")
    repo.add("outer", "import library_for_test\n" + code, io=TEXT)
    try:
        assert repo.run(lambda kernel: ask(kernel, helpers)) == [[[2.0]], True, 2.0]
    finally:
        sys.modules.pop("library_for_test", None)


def test_a_thread_that_calls_the_model_it_works_for_is_refused(repo: Any, helpers: Any) -> None:
    """The request knows the execution that waits for it, so the circle is seen."""
    body = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1) as pool:
    return tell(requests, show(pool.submit(make("outer", names=["S"]).exec).result()))
"""
    repo.add("outer", caller(body), io=TEXT)
    text = repo.run(lambda kernel: ask(kernel, helpers))
    assert "could only wait for itself" in text
    assert "outer -> outer" in text


@pytest.mark.parametrize("define", ["def", "async def"])
def test_who_waits_on_the_loop_for_a_thread_that_needs_it_is_told(
    repo: Any, helpers: Any, define: str, monkeypatch: Any
) -> None:
    """`future.result()` on the loop of what calls there: hung, and the server with it."""
    monkeypatch.setattr("kernel_python.waiting.HELD_SECONDS", 0.1)
    repo.add("inner", ADD_ONE)
    repo.add("gen", COUNT, decoupled=True)
    body = """
from concurrent.futures import ThreadPoolExecutor
it = make("gen", [2]).exec(decoupled=True)
def told(f):
    try:
        return pool.submit(f).result()
    except pb_utils.TritonModelException as e:
        return str(e)
with ThreadPoolExecutor(1) as pool:
    return tell(requests, [told(make("inner").exec), told(lambda: [show(r) for r in it])])
"""
    path = repo.add("outer", caller(body, define), io=TEXT, parameters={"placement": "loop"})

    async def main(kernel: Kernel) -> Any:
        return [await ask(kernel, helpers), await helpers.ask(kernel, "inner")]

    (call, iteration), after = repo.run(main)
    line = path.read_text().splitlines().index("                return pool.submit(f).result()") + 1
    assert call == (
        f"This call of a thread needs the event loop, which model 'outer' has been holding in {path}({line}) for over 0.1 s, "
        "as it would if it waited there for this very call: a model on the loop must not wait for threads of its own. "
        "Call `exec()` in `execute` itself, or keep the model off the loop: "
        'parameters { key: "placement" value { string_value: "thread" } }'
    )
    assert iteration == call.replace("0.1 s", "0.01 s"), "the next one is found out sooner"
    assert after == [2.0], "the loop goes on"


# -- tasks of the model's own --------------------------------------------------------------------------------------------

IN_TASKS = """
async def one(i):
    await asyncio.sleep(0)
    return show(make("inner", [i]).exec())
async def stream(n):
    return [show(r)[0] for r in await make("gen", [n]).async_exec(decoupled=True) if r.output_tensors()]
gathered = await asyncio.gather(*(one(i) for i in range(4)), stream(3))
task = asyncio.create_task(one(9), name="mine")
assert task.get_name() == "mine" and "one" in repr(task), task
async with asyncio.TaskGroup() as group:
    tasks = [group.create_task(stream(2)), group.create_task(one(5))]
async def nested():
    return await asyncio.gather(one(1), asyncio.wait_for(one(2), 20))
return tell(requests, [gathered, await task, [t.result() for t in tasks], await asyncio.create_task(nested())])
"""


@pytest.mark.parametrize("placement", ["loop", "thread"])
def test_synchronous_calls_in_tasks_of_the_models_own(repo: Any, helpers: Any, placement: str, callee: str) -> None:
    repo.add("inner", ADD_ONE, parameters={"placement": callee})
    repo.add("gen", COUNT, decoupled=True, parameters={"placement": callee})
    repo.add("outer", caller(IN_TASKS, "async def"), io=TEXT, parameters={"placement": placement})
    loops = []

    async def main(kernel: Kernel) -> Any:
        loops.append(asyncio.get_running_loop())
        return await asyncio.gather(*(ask(kernel, helpers) for _ in range(3)))

    gathered = [[[1.0]], [[2.0]], [[3.0]], [[4.0]], [[0.0], [1.0], [2.0]]]
    expected = [gathered, [[10.0]], [[[0.0], [1.0]], [[6.0]]], [[[2.0]], [[3.0]]]]
    assert repo.run(main) == [expected] * 3
    assert loops[0].get_task_factory() is None, "tasks are made as before"


def test_tasks_that_wait_in_a_call_can_be_cancelled(repo: Any, helpers: Any) -> None:
    inner = """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        while not requests[0].is_cancelled():
            await asyncio.sleep(0.001)
        return [None]
"""
    repo.add("inner", inner)
    body = """
async def wait():
    begun.set()
    try:
        make("inner").exec()
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise
seen, begun = [], asyncio.Event()
waiting, not_begun = asyncio.create_task(wait()), None
await begun.wait()
waiting.cancel()
not_begun = asyncio.create_task(wait())
not_begun.cancel()
done = await asyncio.gather(waiting, not_begun, return_exceptions=True)
return tell(requests, [seen, [type(e).__name__ for e in done]])
"""
    repo.add("outer", caller(body, "async def"), io=TEXT)
    answer = repo.run(lambda kernel: ask(kernel, helpers))
    assert answer == [["cancelled"], ["CancelledError", "CancelledError"]]


def test_an_apps_own_task_factory_goes_on(repo: Any, helpers: Any) -> None:
    repo.add("inner", ADD_ONE)
    repo.add("outer", caller(IN_TASKS, "async def"), io=TEXT)
    made: list[Any] = []
    loops = []

    def factory(loop: Any, coroutine: Any, **more: Any) -> Any:
        made.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **more)

    async def main(kernel: Kernel) -> Any:
        await kernel.load("inner")
        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory)
        await kernel.load("outer")
        made.clear()
        await ask(kernel, helpers)
        assert len(made) >= 8
        loops.append(loop)

    repo.run(main, control_mode="explicit")
    assert loops[0].get_task_factory() is factory


def test_context_variables_and_tasks_work_beside_exec(repo: Any, helpers: Any) -> None:
    """A coroutine that is driven in a greenlet is still an ordinary task."""
    repo.add("inner", ADD_ONE)
    body = """
var.set(int(pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0]))
async def child():
    await asyncio.sleep(0)
    return var.get()
task = asyncio.current_task()
mine = [await asyncio.create_task(child()), show(make("inner").exec()), var.get()]
async with asyncio.timeout(5):
    mine.append(show(make("inner", [4]).exec()))
assert asyncio.current_task() is task
return tell(requests, mine)
"""
    code = caller(body, "async def").replace(
        "import asyncio\n", "import asyncio, contextvars\nvar = contextvars.ContextVar('v')\n"
    )
    repo.add("outer", code, io=TEXT)

    async def main(kernel: Kernel) -> Any:
        return await asyncio.gather(*(ask(kernel, helpers, value=[i]) for i in range(5)))

    assert repo.run(main) == [[i, [[2.0]], i, [[5.0]]] for i in range(5)]


def test_an_error_in_the_middle_of_driven_code(repo: Any, helpers: Any) -> None:
    body = """
await asyncio.sleep(0)
make("inner").exec()
raise ValueError("after")
"""
    repo.add("inner", ADD_ONE)
    repo.add("outer", caller(body, "async def"), io=TEXT)

    async def main(kernel: Kernel) -> Any:
        return [await ask(kernel, helpers) for _ in range(3)]

    for text in repo.run(main):
        assert "message: ValueError: after\n\nAt:\n" in text
        assert "kernel_python" not in text


@pytest.mark.parametrize(("define", "placement"), WAYS)
def test_a_model_that_calls_itself(repo: Any, helpers: Any, define: str, placement: str) -> None:
    """BC15."""
    body = """
x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
if x[0] > 0:
    return tell(requests, show(make("outer", x - 1, names=[]).exec()))
return tell(requests, "end")
"""
    repo.add(
        "outer",
        caller(body, define).replace("[t.as_numpy().tolist()", "[str(t.as_numpy().tolist())"),
        io=TEXT,
        parameters={"placement": placement, "max_concurrency": "1"},
    )

    async def main(kernel: Kernel) -> Any:
        return [await ask(kernel, helpers, value=[1]), await ask(kernel, helpers, value=[0])]

    inner, end = repo.run(main)
    assert "could only wait for itself" in inner
    assert "outer -> outer" in inner
    assert end == "end"


def test_the_parents_cancellation_reaches_the_child(repo: Any, helpers: Any) -> None:
    inner = """
import asyncio, sys
class TritonPythonModel:
    async def execute(self, requests):
        sys.bls_for_test.set()
        while not requests[0].is_cancelled():
            await asyncio.sleep(0.001)
        return [None]
"""
    repo.add("inner", inner, parameters={"placement": "loop"})
    repo.add("outer", caller("return tell(requests, show(await make('inner').async_exec()))", "async def"), io=TEXT)

    async def main(kernel: Kernel) -> Any:
        call = helpers.Call(kernel, "outer", [1])
        await sys.bls_for_test.wait()  # type: ignore[attr-defined]
        kernel.cancel(call.request)
        return await call.result()

    sys.bls_for_test = asyncio.Event()  # type: ignore[attr-defined]
    try:
        (text,) = repo.run(main)
    finally:
        del sys.bls_for_test  # type: ignore[attr-defined]
    assert text.startswith("CANCELLED")


def test_exec_by_code_outside_of_the_model_is_driven_from_the_second_time_on(repo: Any, helpers: Any) -> None:
    """Whether a coroutine needs driving is read from the model's code; a library's is noticed when it calls."""
    from types import SimpleNamespace

    repo.add("inner", ADD_ONE)
    code = caller("return tell(requests, show(sys.library_for_test.call(make('inner'))))", "async def")
    repo.add("outer", "import sys\n" + code, io=TEXT, parameters={"placement": "loop"})
    sys.library_for_test = SimpleNamespace(call=lambda request: request.exec())  # type: ignore[attr-defined]

    async def main(kernel: Kernel) -> Any:
        return [await ask(kernel, helpers) for _ in range(2)]

    try:
        first, second = repo.run(main)
    finally:
        del sys.library_for_test  # type: ignore[attr-defined]
    assert "would block the event loop" in first
    assert second == [[2.0]]


def test_a_plain_execution_does_not_leave_the_greenlet_of_its_caller(
    repo: Any, helpers: Any, imported: dict[str, Any]
) -> None:
    """It stands on the one that drives its caller's coroutine, and is called without one of its own; it can't be left."""
    from types import SimpleNamespace

    repo.add("inner", helpers.ECHO, parameters={"placement": "thread"})
    body = CALL.replace(".exec", ".nothing")
    middle = body + "import sys\nclass TritonPythonModel:\n    def execute(self, requests):\n        "
    repo.add("middle", middle + "return tell(requests, show(sys.library_for_test.call(make('inner'))))", io=TEXT,
             parameters={"placement": "loop"})  # fmt: skip
    code = caller("return tell(requests, show(make('middle', names=['S']).exec()))", "async def")
    code = code.replace("[t.as_numpy().tolist()", "[str(t.as_numpy().tolist())")
    repo.add("outer", code, io=TEXT, parameters={"placement": "loop"})
    sys.library_for_test = SimpleNamespace(call=lambda request: request.exec())  # type: ignore[attr-defined]

    async def main(kernel: Kernel) -> Any:
        first = await ask(kernel, helpers)
        assert not kernel.turn.cant_wait
        return [str(first), str(await ask(kernel, helpers))]

    try:
        first, second = repo.run(main)
    finally:
        del sys.library_for_test  # type: ignore[attr-defined]
    assert "would block the event loop" in first
    assert "[[1.0]]" in second


def test_a_call_on_the_loop_leaves_its_callers_context_alone(repo: Any, helpers: Any) -> None:
    """The callee runs inside the caller's task: afterwards the caller is still itself, with its execution."""
    repo.add("callee", helpers.ECHO, parameters={"placement": "loop"})
    repo.add(
        "a",
        """
        from kernel_python.calling import EXECUTION

        class TritonPythonModel:
            async def execute(self, requests):
                before = EXECUTION.get()
                x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
                call = pb_utils.InferenceRequest(
                    model_name="callee", inputs=[pb_utils.Tensor("X", x)], requested_output_names=["Y"]
                )
                await call.async_exec()
                same = EXECUTION.get() is before
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([same], np.float32))])]
        """,
    )

    async def main(kernel: Kernel) -> None:
        assert (await kernel.infer("a", {"X": np.ones(1, np.float32)}))["Y"].tolist() == [1.0]

    repo.run(main)


def test_a_model_that_called_another_is_still_refused_the_call_of_itself(repo: Any, helpers: Any) -> None:
    repo.add("callee", helpers.ECHO, parameters={"placement": "loop"})
    repo.add(
        "a",
        """
        class TritonPythonModel:
            async def execute(self, requests):
                def call(name):
                    x = pb_utils.Tensor("X", np.zeros(1, np.float32))
                    return pb_utils.InferenceRequest(model_name=name, inputs=[x], requested_output_names=["Y"]).async_exec()

                await call("callee")
                response = await call("a")
                return [pb_utils.InferenceResponse(error=response.error())]
        """,
        parameters={"max_concurrency": "1"},
    )

    async def main(kernel: Kernel) -> None:
        async with asyncio.timeout(10):
            with pytest.raises(ServingError, match="could only wait for itself"):
                await kernel.infer("a", {"X": np.ones(1, np.float32)})

    repo.run(main)
