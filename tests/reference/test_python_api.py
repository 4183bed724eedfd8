"""What a model's code can do with pb_utils: the same model asks the same of the real Triton, and of ours in each placement.

Each question is a method whose answer goes out as JSON. What holds for all of them: threads that know of no execution, tasks,
coroutines that `execute` returns, iterators, what can be pickled.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from .cases import infer, post, tensor
from .comparing import compare
from .conftest import Answers, Pairs, ask
from .differences import Difference
from .wire import Case

pytestmark = pytest.mark.reference

PLACEMENTS = ("thread", "loop", "process")

HEAD = """
import asyncio, copy, dataclasses, functools, json, pickle, pydoc, sys, threading, typing
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import c_python_backend_utils as c_utils
import triton_python_backend_utils as pb_utils

@dataclasses.dataclass
class Own:
    a: "int" = 1
    b: "typing.ClassVar[int]" = 2

def make(model, x=(1.0,), names=("Y",)):
    return pb_utils.InferenceRequest(
        model_name=model, inputs=[pb_utils.Tensor("X", np.array(x, np.float32))], requested_output_names=list(names))

def show(response):
    if response.has_error():
        return response.error().message()
    return [one.as_numpy().tolist() for one in response.output_tensors()]

def said(function):
    try:
        return function()
    except BaseException as error:
        return f"{type(error).__module__}.{type(error).__name__}: {error}"

def tell(requests, value):
    text = np.array([json.dumps(value)], dtype=object)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("S", text)]) for _ in requests]

def number_of(requests):
    return int(pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0])

IN_INITIALIZE = {}
"""

#: question -> what a plain `execute` returns for it
SYNC = {
    "calls in initialize": "IN_INITIALIZE",
    "a request made in initialize": "show(self.kept.exec())",
    "an iterator that is left": """[
        (lambda it: [[show(r) for r, _ in zip(it, range(2))], [show(r) for r in it], [show(r) for r in it],
            said(lambda: next(it))])(make("gen", [4.0]).exec(decoupled=True))]""",
    "an iterator by next": """(lambda it: [[show(next(it)) for _ in range(4)], said(lambda: next(it)), [show(r) for r in it],
        show(next(iter(it)))])(make("gen", [3.0]).exec(decoupled=True))""",
    "a loop after the last was taken": """(lambda it: [[show(next(it)) for _ in range(4)], [show(r) for r in it]])(
        make("gen", [3.0]).exec(decoupled=True))""",
    "a loop after the only one was taken": """(lambda it: [show(next(it)), [show(r) for r in it]])(
        make("inner").exec(decoupled=True))""",
    "a response with an error": """[show(r) for r in make("nope").exec(decoupled=True)][0][:76]""",
    "pickles of pb_utils": """[said(lambda: repr(pickle.loads(pickle.dumps(pb_utils.TritonModelException("x", 3))))),
        repr(copy.copy(pb_utils.TritonModelException("y"))), pb_utils.TritonModelException.__module__]""",
    "own classes by name": """[repr(pickle.loads(pickle.dumps(Own(3)))), pickle.dumps(Own(3)).hex(), repr(copy.deepcopy(Own(4))),
        {key: str(hint) for key, hint in typing.get_type_hints(Own).items()}, pydoc.locate("1.model.Own") is Own]""",
    "c_python_backend_utils": """[sorted(name for name in dir(c_utils) if name[0] != "_"
        and name != "async_event_future_done_callback"), type(c_utils.shared_memory.free_memory()).__name__,
        said(c_utils.SharedMemory)]""",
    "a capsule holds its tensor": """(
        lambda x: [sys.getrefcount(x), (lambda c: sys.getrefcount(x))(x.to_dlpack()), sys.getrefcount(x)])(
            pb_utils.Tensor("X", np.arange(4, dtype=np.float32)))""",
}
#: Those that wait for a thread, which is refused on the loop.
THREADS = {
    "pool.submit(request.exec)": 'show(ThreadPoolExecutor(1).submit(make("inner").exec).result(10))',
    "pool.submit(lambda)": 'show(ThreadPoolExecutor(1).submit(lambda: make("inner").exec()).result(10))',
    "pool.map": '[show(r) for r in ThreadPoolExecutor(2).map(lambda r: r.exec(), [make("inner", [i]) for i in range(4)])]',
    "an iterator on a thread": """ThreadPoolExecutor(1).submit(
        lambda: [show(r) for r in make("gen", [2.0]).exec(decoupled=True)]).result(10)""",
}
#: question -> the coroutine that answers it in an `async def execute`
ASYNC = {
    "gather of exec": "asyncio.gather(*(one(i) for i in range(3)))",
    "gather of streams": "asyncio.gather(stream(2), stream(3))",
    "create_task": "asyncio.create_task(one(5))",
    "TaskGroup": "group()",
    "run_in_executor": "executor()",
    "to_thread": "asyncio.to_thread(lambda: show(make('inner').exec()))",
    "wait_for": "asyncio.wait_for(one(3), 10)",
}
COROUTINES = """
async def one(i):
    await asyncio.sleep(0)
    return show(make("inner", [i]).exec())
async def stream(n):
    return [show(r) for r in await make("gen", [n]).async_exec(decoupled=True)]
async def group():
    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(one(1)), tasks.create_task(stream(1))]
    return [task.result() for task in made]
async def executor():
    return show(await asyncio.get_running_loop().run_in_executor(None, make("inner").exec))
"""
#: how `execute` comes to return a coroutine -> the class
RETURNS = {
    "decorator": """
        def retry(f):
            @functools.wraps(f)
            def call(*args): return f(*args)
            return call
        class TritonPythonModel:
            @retry
            async def execute(self, requests):
                await asyncio.sleep(0)
                return tell(requests, show(make("inner").exec()))
    """,
    "partial": """
        async def work(more, requests):
            return tell(requests, [show(await make("inner").async_exec()), await asyncio.gather(asyncio.sleep(0, more))])
        class TritonPythonModel:
            def initialize(self, args): self.execute = functools.partial(work, 1)
            def execute(self, requests): pass
    """,
    "raises": """
        class TritonPythonModel:
            def execute(self, requests): return self.work()
            async def work(self): raise ValueError("no")
    """,
    "awaitable": """
        class Later:
            def __await__(self): yield
        class TritonPythonModel:
            def execute(self, requests): return Later()
    """,
    "future": """
        class TritonPythonModel:
            def execute(self, requests): return asyncio.new_event_loop().create_future()
    """,
    "dictionary": """
        class TritonPythonModel:
            def execute(self, requests): return [{"S": 1}]
    """,
}

#: Decoupled, by a coroutine that a plain `execute` returns.
STREAMS = """
class TritonPythonModel:
    def execute(self, requests): return self.work(requests)
    async def work(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for i in range(number_of([request])):
                await asyncio.sleep(0)
                text = json.dumps(show(await make("inner", [i]).async_exec()))
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("S", np.array([text], dtype=object))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

INNER = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy() + 1)]) for r in requests]
"""
GEN = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for i in range(number_of([request])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([i], np.float32))]))
            sender.send(flags=1)
"""
INITIALIZE = """
    def initialize(self, args):
        async def call(): return show(await make("inner").async_exec())
        self.kept = make("inner", [8.0])
        IN_INITIALIZE.update({
            "exec": said(make("inner").exec), "decoupled": said(lambda: make("gen").exec(decoupled=True)),
            "async_exec": said(lambda: asyncio.run(call())),
            "thread": said(lambda: ThreadPoolExecutor(1).submit(make("inner").exec).result(10)),
        })
"""


def sync_model(questions: dict[str, str]) -> str:
    lines = "".join(f"            {number}: lambda: {body},\n" for number, body in enumerate(questions.values()))
    execute = f"    def execute(self, requests):\n        questions = {{\n{lines}        }}\n"
    return (
        f"class TritonPythonModel:{INITIALIZE}{execute}        return tell(requests, questions[number_of(requests)]())\n"
    )


def async_model() -> str:
    lines = "".join(f"            {number}: lambda: {body},\n" for number, body in enumerate(ASYNC.values()))
    execute = f"    async def execute(self, requests):\n        questions = {{\n{lines}        }}\n"
    answer = "        return tell(requests, await questions[number_of(requests)]())\n"
    return f"{COROUTINES}\nclass TritonPythonModel:\n{execute}{answer}"


def question(name: str, model: str, number: int = 0) -> Case:
    return infer(name, model, [tensor("X", "FP32", [1], [number])])


CASES: list[Case] = []
MODELS: dict[str, tuple[str, str]] = {}  # name -> code, and where it runs in ours
for _place in PLACEMENTS:
    _sync = SYNC if _place == "loop" else SYNC | THREADS
    MODELS[f"sync_{_place}"] = sync_model(_sync), _place
    CASES += [question(f"{name}, {_place}", f"sync_{_place}", number) for number, name in enumerate(_sync)]
    MODELS[f"async_{_place}"] = async_model(), _place
    CASES += [question(f"{name}, {_place}", f"async_{_place}", number) for number, name in enumerate(ASYNC)]
    MODELS[f"streams_{_place}"] = STREAMS, _place
    _stream = f"/v2/models/streams_{_place}/generate_stream"
    CASES += [post(f"a decoupled coroutine, {count} responses, {_place}", _stream, {"X": [count]}) for count in (3, 0)]
    for _how, _code in RETURNS.items():
        MODELS[f"{_how}_{_place}"] = textwrap.dedent(_code), _place
        CASES.append(question(f"returns: {_how}, {_place}", f"{_how}_{_place}"))

DIFFERENCES: dict[str, Difference] = {}


def write(folder: Path) -> None:
    for name, (code, placement) in {**MODELS, "inner": (INNER, "thread"), "gen": (GEN, "thread")}.items():
        output = 'name: "Y" data_type: TYPE_FP32' if name in ("inner", "gen") else 'name: "S" data_type: TYPE_STRING'
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(HEAD + code)
        (folder / name / "config.pbtxt").write_text(
            'backend: "python" max_batch_size: 0 instance_group { kind: KIND_CPU count: 1 }\n'
            f'input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }} output {{ {output} dims: [ -1 ] }}\n'
            f'parameters {{ key: "placement" value {{ string_value: "{placement}" }} }}\n'
            f"model_transaction_policy {{ decoupled: {str(name == 'gen' or name.startswith('streams')).lower()} }}\n"
        )


@pytest.fixture(scope="module")
def answers(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("python_api") / "models"
    write(folder)
    return ask(pairs.start("python_api", folder), CASES)


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_python_api(name: str, answers: Answers) -> None:
    compare(name, answers[name], DIFFERENCES)
