"""load_model, unload_model and is_model_ready, called by models wherever they run (contract: python_backend, 1.11).

The words were compared with what Triton 2.51 says; where it aborts instead, the core's own reason stands in its frame.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from telling import TEXT

from kernel import Kernel, ServingError

HEAD = """
def tell(requests, value):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("S", np.array([json.dumps(value)], dtype=object))]) for _ in requests]
def said(function, *args, **named):
    try:
        return function(*args, **named)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""

#: define, placement: all the ways a model may run
WAYS = [
    ("def", "thread"),
    ("def", "loop"),
    ("async def", "loop"),
    ("async def", "thread"),
    ("def", "process"),
    ("async def", "process"),
]
FRAME = "TritonModelException: Failed to {}: Failed to process the request for model 'a_0_0', message: {}"


def model(body: str, define: str = "def", rest: str = "") -> str:
    lines = "\n        ".join(body.strip().splitlines())
    return f"{HEAD}\nclass TritonPythonModel:\n    {define} execute(self, requests):\n        {lines}\n{rest}"


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0].split()[0]}-{way[1]}")
def way(request: Any) -> Any:
    return request.param


@pytest.fixture(params=["loop", "thread", "process"])
def placement(request: Any) -> str:
    return str(request.param)


async def ask(kernel: Kernel, helpers: Any, name: str = "a") -> Any:
    answer = await helpers.ask(kernel, name)
    return json.loads(answer[0]) if isinstance(answer, list) else answer


def run(repo: Any, helpers: Any) -> Any:
    return repo.run(lambda kernel: ask(kernel, helpers), control_mode="explicit", load_models=["a"])


def test_load_use_unload(repo: Any, helpers: Any, way: Any) -> None:
    define, placement = way
    body = """
ready = [pb_utils.is_model_ready("b")]
ready.append(pb_utils.load_model("b"))
ready += [pb_utils.is_model_ready("b"), pb_utils.is_model_ready("b", "1")]
ready.append(pb_utils.is_model_ready(model_name="b", model_version="2"))
ready.append(pb_utils.unload_model("b"))
ready.append(pb_utils.is_model_ready("b"))
ready.append(pb_utils.unload_model("b", unload_dependents=True))
ready.append(pb_utils.unload_model("nope"))
return tell(requests, ready)
"""
    repo.add("a", model(body, define), io=TEXT, parameters={"placement": placement})
    repo.add("b", helpers.ECHO)
    assert run(repo, helpers) == [False, None, True, True, False, None, False, None, None]


def test_a_config_and_files_of_its_own(repo: Any, helpers: Any, placement: str) -> None:
    code = f"import numpy as np\nimport triton_python_backend_utils as pb_utils\n{helpers.ECHO}".encode()
    body = f"""
config = json.dumps({{
    "backend": "python", "max_batch_size": 0,
    "input": [{{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}}],
    "output": [{{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}}],
}})
pb_utils.load_model("made", config=config, files={{"file:1/model.py": {code!r}}})
return tell(requests, None)
"""
    repo.add("a", model(body), io=TEXT, parameters={"placement": placement})

    async def main(kernel: Kernel) -> Any:
        return await ask(kernel, helpers), await helpers.ask(kernel, "made", (1.5,))

    assert repo.run(main, control_mode="explicit", load_models=["a"]) == (None, [1.5])


def test_loads_that_fail(repo: Any, helpers: Any, way: Any) -> None:
    define, placement = way
    body = """
return tell(requests, [
    said(pb_utils.load_model, "nope"),
    said(pb_utils.load_model, "broken"),
    said(pb_utils.load_model, "b", "{"),
    said(pb_utils.load_model, "b", files={"file:1/model.py": b""}),
    said(pb_utils.load_model, "b", "{}", [1]),
    said(pb_utils.load_model, "b", "{}", {1: b""}),
    said(pb_utils.load_model, "b", "{}", {"file:1/model.py": 7}),
    said(pb_utils.load_model, "b", "{}", {"file:../x": b""}),
    said(pb_utils.is_model_ready, "b", "abc"),
])
"""
    repo.add("a", model(body, define), io=TEXT, parameters={"placement": placement})
    repo.add("b", helpers.ECHO)
    repo.add("broken", "raise ValueError('no use')")
    nope, broken, config, files, listed, path, content, outside, version = run(repo, helpers)
    assert nope.startswith(FRAME.format("load model", "failed to load 'nope', failed to poll from model repository"))
    assert "model not found in any model repository" in nope
    start = "load failed for model 'broken': version 1 is at UNAVAILABLE state: Internal: ValueError: no use\n\nAt:\n"
    assert broken.startswith(FRAME.format("load model", start))
    assert config.startswith(FRAME.format("load model", "")) and "JSON" in config
    assert files.startswith(FRAME.format("load model", "")) and "without a 'config'" in files
    own = "TritonModelException: failed to load model 'b', "
    assert listed == own + "files should be a dictionary of file paths and file contents"
    assert path == own + "file paths should be of type str, found <class 'int'>"
    assert content == own + "the content of 'file:1/model.py' should be of type bytes, found <class 'int'>"
    assert outside.startswith(FRAME.format("load model", "")) and "must stay within model directory" in outside
    words = (
        "failed to get model version from specified version string 'abc' (details: stol), version should be an integral value > 0"
    )
    assert version == FRAME.format("check model readiness", words)


def test_only_where_models_are_loaded_by_hand(repo: Any, helpers: Any, placement: str) -> None:
    body = 'return tell(requests, [said(pb_utils.load_model, "a"), said(pb_utils.unload_model, "a")])'
    repo.add("a", model(body), io=TEXT, parameters={"placement": placement})
    words = "explicit model load / unload is not allowed if polling is enabled "
    words += "(the model control mode is 'none', wanted is 'explicit')"
    got = repo.run(lambda kernel: ask(kernel, helpers))
    assert got == [FRAME.format("load model", words), FRAME.format("unload model", words)]


def test_from_initialize(repo: Any, helpers: Any, placement: str) -> None:
    """A model brings up another while it is itself brought up; calls of it are for `execute`, as in the reference."""
    rest = """
    def initialize(self, args):
        pb_utils.load_model("b")
        self.ready = pb_utils.is_model_ready("b"), pb_utils.is_model_ready("a")
        self.request = pb_utils.InferenceRequest(
            model_name="b", requested_output_names=["Y"], inputs=[pb_utils.Tensor("X", np.array([3.0], np.float32))])
        self.said = said(self.request.exec)
"""
    body = "return tell(requests, [self.ready, self.said, self.request.exec().output_tensors()[0].as_numpy().tolist()])"
    repo.add("a", model(body, rest=rest), io=TEXT,
             parameters={"placement": placement})  # fmt: skip
    repo.add("b", helpers.ECHO)

    async def main(kernel: Kernel) -> Any:
        await kernel.load("a")
        return await ask(kernel, helpers)

    refused = "TritonModelException: BLS is only supported during the 'execute' function."
    assert repo.run(main, control_mode="explicit", load_threads=1) == [[True, False], refused, [3.0]]


def test_from_initialize_what_could_only_be_waited_for_in_vain(repo: Any, helpers: Any, placement: str) -> None:
    """Its own load, and at start-up that of models which are loaded in the same go: refused at once, not waited for."""
    rest = """
    def initialize(self, args):
        self.said = [said(pb_utils.load_model, "a"), said(pb_utils.load_model, "b"), said(pb_utils.unload_model, "c")]
"""
    repo.add("a", model("return tell(requests, self.said)", rest=rest), io=TEXT, parameters={"placement": placement})
    repo.add("b", helpers.ECHO)
    repo.add("c", helpers.ECHO)

    async def main(kernel: Kernel) -> Any:
        async with asyncio.timeout(60):
            while kernel.is_model_ready("c"):  # noqa: ASYNC110 - its unload waits for the start to end
                await asyncio.sleep(0.001)
        return await ask(kernel, helpers)

    own, other, unload = repo.run(main, control_mode="explicit", load_models=["*"])
    busy = "a related model '{}' to a load/unload request is currently loading or unloading"
    assert own == FRAME.format("load model", busy.format("a"))
    assert other == FRAME.format("load model", busy.format("b"))
    assert unload is None


def test_a_model_reloads_itself(repo: Any, helpers: Any, way: Any) -> None:
    """The version that asks goes on to its end while the new one takes its place."""
    define, placement = way
    body = """
with open(pb_utils.get_model_dir() + "/model.py", "a") as file:
    file.write("\\nNEW = 1\\n")
pb_utils.load_model("a")
return tell(requests, "NEW" in globals())
"""
    repo.add("a", model(body, define), io=TEXT, parameters={"placement": placement})

    async def main(kernel: Kernel) -> Any:
        return await ask(kernel, helpers), await ask(kernel, helpers)

    assert repo.run(main, control_mode="explicit", load_models=["a"]) == (False, True)


def test_not_in_auto_complete_or_finalize(repo: Any, helpers: Any, placement: str, tmp_path: Any) -> None:
    told = tmp_path / "told"
    rest = f"""
    @staticmethod
    def auto_complete_config(config):
        Said.write("auto_complete_config", said(pb_utils.load_model, "b"))
        return config
    def finalize(self):
        Said.write("finalize", said(pb_utils.unload_model, "b"))
class Said:
    @staticmethod
    def write(where, what):
        with open({str(told)!r}, "a") as file:
            file.write(where + "|" + str(what) + "\\n")
"""
    repo.add("a", model("return tell(requests, None)", rest=rest), io=TEXT, parameters={"placement": placement})
    repo.add("b", helpers.ECHO)
    run(repo, helpers)
    words = "'{}' can be used in 'initialize' and 'execute', not in '{}', as model 'a' does."
    assert told.read_text().splitlines() == [
        "auto_complete_config|TritonModelException: Failed to load model: " + words.format("load_model", "auto_complete_config"),
        "finalize|TritonModelException: Failed to unload model: " + words.format("unload_model", "finalize"),
    ]


def test_in_a_task_of_the_models_own(repo: Any, helpers: Any) -> None:
    """The loop goes on meanwhile, there as on a thread."""
    body = """
import asyncio
async def own():
    return said(pb_utils.load_model, "b")
return tell(requests, [await asyncio.create_task(own()), pb_utils.is_model_ready("b"),
                       await asyncio.to_thread(said, pb_utils.load_model, "b"), pb_utils.is_model_ready("b")])
"""
    repo.add("a", model(body, "async def"), io=TEXT)
    repo.add("b", helpers.ECHO)
    assert run(repo, helpers) == [None, True, None, True]


def test_many_models_load_one_at_a_time(repo: Any, helpers: Any, placement: str) -> None:
    """Eight executions ask for the same model at once, in threads and processes: all of them get it."""
    repo.add("a", model('pb_utils.load_model("b")\nreturn tell(requests, pb_utils.is_model_ready("b"))'), io=TEXT, count=2,
             parameters={"placement": placement})  # fmt: skip
    repo.add("b", helpers.ECHO)

    async def main(kernel: Kernel) -> Any:
        return await asyncio.gather(*(ask(kernel, helpers) for _ in range(8)))

    assert repo.run(main, control_mode="explicit", load_models=["a"]) == [True] * 8


def test_stop_while_a_model_waits_for_a_load(repo: Any, helpers: Any, placement: str) -> None:
    """The server goes although an initialize waits for a load that will not come to its end any more."""
    rest = '    def initialize(self, args):\n        pb_utils.load_model("b")\n'
    repo.add("a", model("return tell(requests, None)", rest=rest), io=TEXT, parameters={"placement": placement})
    slow = "import threading\nclass TritonPythonModel:\n    def initialize(self, args):\n        threading.Event().wait()\n"
    repo.add("b", slow + "    def execute(self, requests):\n        pass\n", parameters={"placement": "process"})

    async def main(kernel: Kernel) -> Any:
        loading = asyncio.ensure_future(kernel.load("a"))
        async with asyncio.timeout(60):
            while not any(one.name == "b" and one.state == "LOADING" for one in kernel.index()):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return loading

    with pytest.raises((ServingError, asyncio.CancelledError)):
        loading = repo.run(main, control_mode="explicit", drain_seconds=0.1)
        loading.result()
