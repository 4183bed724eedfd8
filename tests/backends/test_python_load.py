"""Loading: initialize's arguments, placements, auto-complete, and why a load fails (contract: python_backend, 2.1 to 2.3)."""

from __future__ import annotations

import asyncio
import builtins
import json
import logging
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import triton_python_backend_utils as pb_utils
from kernel import Kernel, ServingError
from kernel_python.loading.evidence import Evidence, examine
from kernel_python.loading.parsing import tree_of

STRING_OUT = (
    'input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ] '
    'output [ { name: "Y" data_type: TYPE_STRING dims: [ -1 ] } ]'
)
TELL = "return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.array([{}], dtype=object))]) for r in requests]"


def test_initialize_is_told_everything_as_text(repo: Any, helpers: Any) -> None:
    code = f"""
    class TritonPythonModel:
        def initialize(self, args):
            self.args = args
            assert all(type(k) is str and type(v) is str for k, v in args.items())
        def execute(self, requests):
            {TELL.format("json.dumps(self.args)")}
    """
    repo.add("a", code, io=STRING_OUT)
    (text,) = repo.run(lambda kernel: helpers.ask(kernel, "a"))
    args = json.loads(text)
    config = json.loads(args.pop("model_config"))
    assert (config["name"], config["backend"], config["input"][0]["name"]) == ("a", "python", "X")
    assert args == {
        "model_instance_kind": "CPU",
        "model_instance_name": "a_0_0",
        "model_instance_device_id": "0",
        "model_repository": str(repo.folder / "a"),
        "model_version": "1",
        "model_name": "a",
    }


@pytest.mark.parametrize(
    ("define", "placement", "where"),
    [
        ("def", None, "a_0_0"),
        ("def", "thread", "a_0_0"),
        ("def", "loop", "MainThread"),
        ("async def", None, "MainThread"),
        ("async def", "loop", "MainThread"),
        ("async def", "thread", "a_0_0"),
    ],
)
def test_where_execute_runs(repo: Any, helpers: Any, define: str, placement: str | None, where: str) -> None:
    code = f"""
    import threading
    class TritonPythonModel:
        def initialize(self, args):
            self.thread = threading.current_thread().name
        {define} execute(self, requests):
            text = f"{{self.thread}} {{threading.current_thread().name}}"
            {TELL.format("text")}
    """
    repo.add("a", code, io=STRING_OUT, parameters={"placement": placement} if placement else None)
    (text,) = repo.run(lambda kernel: helpers.ask(kernel, "a"))
    initialized, executed = text.split()
    assert executed == where
    assert initialized != "MainThread"  # a slow initialize holds up nobody


@pytest.mark.parametrize(
    ("define", "extra", "decoupled", "parameters", "capacity"),
    [
        ("def", "", False, {}, 1),
        ("def", "", False, {"placement": "loop", "max_concurrency": "8"}, 1),
        ("async def", "", False, {}, 64),
        ("async def", "dynamic_batching { }", False, {}, 1),
        ("async def", "dynamic_batching { }", True, {}, 64),
        ("async def", "dynamic_batching { }", False, {"max_concurrency": "3"}, 3),
    ],
)
def test_how_often_execute_runs_at_a_time(
    repo: Any, define: str, extra: str, decoupled: bool, parameters: dict[str, str], capacity: int
) -> None:
    code = f"class TritonPythonModel:\n        {define} execute(self, requests): return None"
    repo.add("a", code, max_batch_size=4, extra=extra, decoupled=decoupled, parameters=parameters)

    async def main(kernel: Kernel) -> int:
        (instance,) = kernel.model("a").scheduler.instances
        return int(instance.capacity)

    assert repo.run(main) == capacity


def test_finalize_is_called_once_and_its_errors_are_logged(repo: Any, caplog: pytest.LogCaptureFixture) -> None:
    code = """
    class TritonPythonModel:
        def execute(self, requests): return None
        def finalize(self):
            pb_utils.Logger.log_warn("finalized")
            try:
                pb_utils.InferenceRequest(model_name="a", inputs=[], requested_output_names=[]).exec()
            except pb_utils.TritonModelException as e:
                pb_utils.Logger.log_warn(str(e))
            raise ValueError("too late")
    """
    path = repo.add("a", code, count=2)

    async def main(kernel: Kernel) -> None:
        return None

    with caplog.at_level(logging.INFO):
        repo.run(main)
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("finalized") == 2
    assert messages.count("BLS is only supported during the 'execute' function.") == 2
    assert caplog.text.count("ValueError: too late") == 2
    assert {r.pathname for r in caplog.records if r.getMessage() == "finalized"} == {str(path)}


# -- why a load fails --------------------------------------------------------------------------------------------------


def test_load_failures(repo: Any) -> None:
    path = repo.add(
        "a",
        "class TritonPythonModel:\n        def initialize(self, args):\n            raise ValueError('initfail')\n"
        "        def execute(self, requests): pass\n",
    )
    assert repo.load_error("a") == f"Internal: ValueError: initfail\n\nAt:\n  {path}(6): initialize\n"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def f(:", "Internal: SyntaxError: invalid syntax (model.py, line 1)"),
        (
            "x = 1",
            "Internal: AttributeError: module '1.model' has no attribute 'TritonPythonModel' — wanted is a class of that name in "
            "{path}; its classes are none",
        ),
        (
            "\nclass TritonPythonMdl: pass",
            "Internal: AttributeError: module '1.model' has no attribute 'TritonPythonModel' — wanted is a class of that name, "
            "there is 'TritonPythonMdl'\n\nAt:\n  {path}(2): TritonPythonMdl\n",
        ),
        (
            "TritonPythonModel = 3",
            "Internal: TypeError: 'int' object is not callable — TritonPythonModel in {path} is no class, as is wanted, but 3",
        ),
        ("raise SystemExit(3)", "Internal: SystemExit: 3\n\nAt:\n  {path}(1): <module>\n"),
        (
            "class TritonPythonModel: pass",
            "Internal: Python model {path} does not implement `execute` method. — wanted is `def execute(self, requests)`"
            "\n\nAt:\n  {path}(1): TritonPythonModel\n",
        ),
        (
            "class TritonPythonModel:\n    execute = 5",
            "Internal: Python model {path} does not implement `execute` method. — it is 5, no method"
            "\n\nAt:\n  {path}(1): TritonPythonModel\n",
        ),
        (
            "class TritonPythonModel:\n    def execute(self): pass",
            "Internal: TypeError: TritonPythonModel.execute() can't be called with the list of requests: too many positional "
            "arguments — wanted is `def execute(self, requests)`\n\nAt:\n  {path}(2): execute\n",
        ),
        (
            "class TritonPythonModel:\n    async def execute(self, requests, more): pass",
            "Internal: TypeError: TritonPythonModel.execute() can't be called with the list of requests: missing a required "
            "argument: 'more' — wanted is `def execute(self, requests)`\n\nAt:\n  {path}(2): execute\n",
        ),
        (
            "class TritonPythonModel:\n    def initialize(self): pass\n    def execute(self, requests): pass",
            "Internal: TypeError: TritonPythonModel.initialize() takes 1 positional argument but 2 were given — it is called "
            "with one argument, a dictionary\n\nAt:\n  {path}(2): initialize\n",
        ),
        (
            "class TritonPythonModel:\n    def __init__(self, x): pass\n    def execute(self, requests): pass",
            "Internal: TypeError: TritonPythonModel.__init__() missing 1 required positional argument: 'x' — it is called "
            "with no arguments\n\nAt:\n  {path}(2): __init__\n",
        ),
    ],
)
@pytest.mark.parametrize("placement", ["thread", "process"])
def test_load_failures_of_the_file(repo: Any, code: str, reason: str, placement: str) -> None:
    """The reference's words, what was wanted, and where, wherever the model was to run."""
    path = repo.add("a", code, head="", parameters={"placement": placement})
    assert repo.load_error("a") == reason.format(path=path)


@pytest.mark.parametrize(
    "code",
    [
        "class TritonPythonModel:\n    execute = print",
        "import functools\nclass TritonPythonModel:\n    execute = functools.partialmethod(lambda *a: None)",
        "import functools\nclass TritonPythonModel:\n    @functools.wraps(lambda: 0)\n    def execute(self, *a): pass",
        "class TritonPythonModel:\n    def execute(self, requests, more=1): pass",
        "class TritonPythonModel:\n    @staticmethod\n    def execute(requests): pass",
        "class Any:\n    def __call__(self, *a): pass\nclass TritonPythonModel:\n    execute = Any()",
    ],
)
def test_an_execute_that_can_be_called_is_not_refused(repo: Any, code: str) -> None:
    repo.add("a", code, head="")

    async def main(kernel: Any) -> None:
        assert [one.state for one in kernel.index()] == ["READY"]

    repo.run(main)


@pytest.mark.parametrize("placement", ["loop", "thread", "process"])
@pytest.mark.parametrize(
    "code",
    [
        "class TritonPythonModel:\n    def initialize(self, args):\n        self.execute = self.f\n    def f(self, requests):",
        "def TritonPythonModel():\n    return Model()\n\n\nclass Model:\n    def execute(self, requests):",
    ],
    ids=["execute is set by initialize", "a function makes the model"],
)
def test_who_executes_is_known_once_it_is_initialized(repo: Any, helpers: Any, placement: str, code: str) -> None:
    """As in the reference, which asks the object, and when there are requests."""
    _, body = helpers.ECHO.split("def execute(self, requests):", 1)
    repo.add("a", code + body, parameters={"placement": placement})
    assert repo.run(lambda kernel: helpers.ask(kernel, "a", [3])) == [3]


def test_a_missing_file_is_told_at_once(repo: Any) -> None:
    repo.add("a", "", extra='default_model_filename: "other.py"')
    path = repo.folder / "a" / "1" / "other.py"
    assert repo.load_error("a") == f"Internal: Python model file not found in '{path}'"


def test_another_file_name(repo: Any, helpers: Any) -> None:
    repo.add("a", helpers.ECHO, file="my-model.v2.py", extra='default_model_filename: "my-model.v2.py"')
    assert repo.run(lambda kernel: helpers.ask(kernel, "a", [3])) == [3]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("placement", "moon", "'moon' — wanted one of 'auto', 'loop', 'thread', 'process'"),
        ("max_concurrency", "0", "'0' — wanted an integer of at least 1"),
        ("max_concurrency", "many", "'many' — wanted an integer of at least 1"),
        ("zero_copy", "maybe", "'maybe' — wanted one of 'true', 'false'"),
        ("FORCE_CPU_ONLY_INPUT_TENSORS", "maybe", "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'"),
        ("EXECUTION_ENV_PATH", "/no/such/env", "Failed to get the canonical path for /no/such/env."),
        ("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/1", "/a/1 can't be used: "),
    ],
)
def test_parameters_that_cannot_be_served(repo: Any, helpers: Any, key: str, value: str, text: str) -> None:
    repo.add("a", helpers.ECHO, parameters={key: value})
    assert text in repo.load_error("a")


def test_trees_are_made_by_many_threads_at_a_time() -> None:
    """CPython 3.11 gets confused where two threads do so at once: SystemError."""
    source = "x = " + "+".join(f"f({k}, [a, b, (c, d)])" for k in range(100))
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(lambda _: tree_of(source).body, range(40)))) == 40


# -- auto_complete_config ----------------------------------------------------------------------------------------------


def test_a_model_without_a_config_is_told_of(repo: Any, caplog: pytest.LogCaptureFixture) -> None:
    file = repo.add(
        "m",
        """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
                config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]})
                return config

            def execute(self, requests):
                return [None for request in requests]
        """,
    )
    (file.parents[1] / "config.pbtxt").unlink()

    async def main(kernel: Kernel) -> None:
        assert kernel.versions("m") == [1]

    repo.run(main)
    words = "inputs and outputs are what its auto_complete_config says, the rest is by default"
    assert f"model 'm': there is no config.pbtxt: {words}" in caplog.messages


def test_a_model_completes_its_config(repo: Any, helpers: Any) -> None:
    code = (
        helpers.ECHO
        + """
    @staticmethod
    def auto_complete_config(config):
        assert config.as_dict()["name"] == "a"
        assert pb_utils.get_model_dir().endswith("/a/1")
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1], "optional": True})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        config.set_model_transaction_policy({"decoupled": False})
        return config
    """
    )
    repo.add("a", code, io="")

    async def main(kernel: Kernel) -> Any:
        return kernel.model("a").config, await helpers.ask(kernel, "a", [[1, 2]])

    config, result = repo.run(main)
    assert result == [[1, 2]]
    assert (config.max_batch_size, config.dynamic_batching is not None, config.inputs[0].optional) == (4, True, True)
    assert config.outputs[0].dims == (-1,)


COMPLETES = """
    @staticmethod
    def auto_complete_config(config):
        global completed
        completed = True
        return config
"""
IMPORTED = """
import builtins
builtins.imported_for_test.append(__name__)
completed = False
class TritonPythonModel:
    def initialize(self, args):
        global alone
        builtins.imported_for_test.append(args["model_instance_name"] + str(completed))
        assert "alone" not in globals(), "module globals are an instance's own"
        alone = True
    def execute(self, requests): return []
"""


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("completes", [True, False])
def test_a_file_is_imported_once_in_the_life_of_an_instance(
    repo: Any, monkeypatch: Any, completes: bool, count: int
) -> None:
    """What registers itself at import (metrics, flags) would do so twice: for auto-complete, and for the instance."""
    seen: list[str] = []
    monkeypatch.setattr(builtins, "imported_for_test", seen, raising=False)
    path = repo.add("a", IMPORTED + (COMPLETES if completes else ""), count=count, parameters={"placement": "thread"})

    async def main(kernel: Kernel) -> None:
        assert len([name for name in seen if name.startswith("kernel_model_")]) == count
        told = sorted(name for name in seen if name.startswith("a_0_"))
        assert [name[:5] for name in told] == [f"a_0_{k}" for k in range(count)]
        assert sum(name.endswith("True") for name in told) == completes, "one instance has what was completed"
        path.write_text(path.read_text() + "# changed\n")
        await kernel.load("a")  # a new life
        assert len([name for name in seen if name.startswith("kernel_model_")]) == 2 * count

    repo.run(main, control_mode="explicit", load_models=["a"])


@pytest.mark.parametrize("completes", [True, False])
def test_a_model_is_examined_once_a_load(repo: Any, monkeypatch: Any, completes: bool) -> None:
    """Also where its config is completed, for which it has to be known whether its code may run in the server."""
    examined: list[str] = []

    def spy(file: Path, *more: Any) -> Evidence:
        examined.append(file.parent.parent.name)
        return examine(file, *more)

    monkeypatch.setattr("kernel_python.loading.placement.examine", spy)
    code = "class TritonPythonModel:\n    def execute(self, requests): return []\n" + (COMPLETES if completes else "")
    path = repo.add("a", code, count=2)
    broken = repo.add("broken", "class TritonPythonModel:\n    def initialize(self, args): 1 / 0\n" + COMPLETES)

    async def main(kernel: Kernel) -> None:
        assert examined == ["a"]
        path.write_text(path.read_text() + "import socket\nsocket.setdefaulttimeout(1)\n")
        await kernel.load("a")
        assert examined == ["a", "a"]
        assert kernel.model("a").placement_choice.where == "process", "a load goes by the source that it has met"
        for number in (1, 2):
            with pytest.raises(ServingError):
                await kernel.load("broken")
            assert examined[2:] == ["broken"] * number
        repaired = broken.read_text().replace("def initialize(self, args): 1 / 0", "def execute(self, requests): return []")
        broken.write_text(repaired)
        await kernel.load("broken")
        assert examined[2:] == ["broken"] * 3

    repo.run(main, control_mode="explicit", load_models=["a"])


@pytest.mark.parametrize("completes", [True, False])
def test_what_an_import_sets_for_its_thread_holds_for_the_instance(repo: Any, helpers: Any, completes: bool) -> None:
    """And for no other model, though both were imported on one thread to complete their configs."""
    code = """
import decimal
decimal.getcontext().prec = {}
class TritonPythonModel:
    def execute(self, requests):
        y = np.array([decimal.getcontext().prec], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]) for _ in requests]
"""
    for prec in (40, 50):
        extra = COMPLETES if completes else ""
        repo.add(f"m{prec}", code.format(prec) + extra, parameters={"placement": "thread"})
    repo.add("other", code.replace("decimal.getcontext().prec = {}", "") + (COMPLETES if completes else ""),
             parameters={"placement": "thread"})  # fmt: skip

    async def main(kernel: Kernel) -> list[Any]:
        return [await helpers.ask(kernel, name) for name in ("m40", "m50", "other")]

    assert repo.run(main, load_threads=1) == [[40.0], [50.0], [28.0]]


def test_what_was_imported_for_a_load_that_failed_is_forgotten(repo: Any) -> None:
    """The file completes the config, which has a mistake that is found later."""
    code = """
    import sys
    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            return config
        def execute(self, requests): return []
    """
    missing = 'inputs { key: "Z" value { data_type: TYPE_FP32 dims: [ 1 ] input_data_file: "nothing" } }'
    warmup = f'model_warmup [ {{ name: "w" batch_size: 1 {missing} }} ]'
    repo.add("a", code, extra=warmup, parameters={"placement": "thread"})

    async def main(kernel: Kernel) -> None:
        for _ in range(3):
            with pytest.raises(ServingError):
                await kernel.load("a")
            assert len({name for name in sys.modules if re.fullmatch(r"kernel_model_\d+", name)} - before) <= 1

    before = {name for name in sys.modules if name.startswith("kernel_model_")}
    repo.run(main, control_mode="explicit")
    assert {name for name in sys.modules if name.startswith("kernel_model_")} <= before


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 5", "Internal: auto_complete_config function in model 'a' must return a valid pb.ModelConfig object."),
        ("raise OSError('x')", "Internal: OSError: x\n\nAt:\n  {path}(7): auto_complete_config\n"),
        (
            "pb_utils.InferenceRequest(model_name='a', inputs=[], requested_output_names=[]).exec()",
            "Internal: TritonModelException: BLS is only supported during the 'execute' function.\n\nAt:\n"
            "  {path}(7): auto_complete_config\n",
        ),
    ],
)
def test_auto_complete_that_fails(repo: Any, body: str, reason: str) -> None:
    code = f"class TritonPythonModel:\n        @staticmethod\n        def auto_complete_config(config):\n            {body}\n"
    path = repo.add(
        "a",
        code + "        def execute(self, requests): pass\n",
        head="import json\nimport numpy\nimport triton_python_backend_utils as pb_utils\n",
    )
    assert repo.load_error("a") == reason.format(path=path)


def test_auto_complete_values_that_no_config_may_hold(repo: Any, helpers: Any) -> None:
    code = (
        helpers.ECHO
        + """
    @staticmethod
    def auto_complete_config(config):
        config.add_output({"name": "Z", "data_type": "TYPE_FLOAT", "dims": [1]})
        return config
    """
    )
    repo.add("a", code)
    assert "auto_complete_config function in model 'a' has set what no config may hold" in repo.load_error("a")


def pb_config(**fields: Any) -> Any:
    return pb_utils.ModelConfig(json.dumps({"name": "m", "max_batch_size": 4, "input": [], "output": [], **fields}))


A = {"name": "A", "data_type": "TYPE_FP32", "dims": [1]}
IN = "in auto-complete-config function for model 'm'"


@pytest.mark.parametrize(
    ("fields", "method", "argument", "text"),
    [
        (
            {},
            "set_max_batch_size",
            2,
            "configuration specified max_batch_size 4, but in auto-complete-config function for model 'm' "
            "specified max_batch_size 2",
        ),
        (
            {"sequence_batching": {}},
            "set_dynamic_batching",
            None,
            "Configuration specified scheduling_choice as 'sequence_batching', but auto-complete-config function for model 'm' "
            "tries to set scheduling_choice as 'dynamic_batching'",
        ),
        (
            {},
            "add_input",
            {**A, "format": 1},
            f"input 'A' {IN} contains property other than 'name', 'data_type', 'dims' and 'optional'.",
        ),
        ({}, "add_input", {"dims": [1]}, f"input {IN} is missing 'name' property."),
        ({}, "add_input", {"name": "A", "dims": [1]}, f"input 'A' {IN} is missing 'data_type' property."),
        ({}, "add_input", {"name": "A", "data_type": "TYPE_FP32"}, f"input 'A' {IN} is missing 'dims' property."),
        (
            {"input": [A]},
            "add_input",
            {**A, "data_type": "TYPE_INT8"},
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'A', model provides TYPE_INT8",
        ),
        (
            {"input": [A]},
            "add_input",
            {**A, "dims": [2]},
            "model 'm', tensor 'A': the model expects dims [2] but the model configuration specifies dims [1]",
        ),
        (
            {"input": [{**A, "optional": False}]},
            "add_input",
            {**A, "optional": True},
            "model 'm', tensor 'A': the model expects optional True but the model configuration specifies optional False",
        ),
        (
            {},
            "add_output",
            {**A, "optional": True},
            f"output 'A' {IN} contains property other than 'name', 'data_type' and 'dims'.",
        ),
        ({}, "add_output", {}, f"output {IN} is missing 'name' property."),
        (
            {"output": [A]},
            "add_output",
            {**A, "dims": [2]},
            "model 'm', tensor 'A': the model expects dims [2] but the model configuration specifies dims [1]",
        ),
        (
            {},
            "set_model_transaction_policy",
            {"x": 1},
            f"model transaction property {IN} contains property other than 'decoupled'.",
        ),
        (
            {"model_transaction_policy": {"decoupled": False}},
            "set_model_transaction_policy",
            {"decoupled": True},
            "trying to change decoupled property in auto-complete-config for model 'm', which is already set to 'False'.",
        ),
    ],
)
def test_what_auto_complete_refuses(fields: Any, method: str, argument: Any, text: str) -> None:
    config = pb_config(**fields)
    with pytest.raises(ValueError) as caught:
        getattr(config, method)(*(() if argument is None else (argument,)))
    assert str(caught.value) == text


def test_auto_complete_fills_what_the_config_left_open() -> None:
    config = pb_config(input=[{"name": "A", "data_type": "TYPE_INVALID", "dims": []}])
    config.add_input(A)
    config.add_output(A)
    config.set_max_batch_size(8)
    config.set_dynamic_batching()
    config.set_model_transaction_policy({"decoupled": True})
    assert config.as_dict() == {
        "name": "m",
        "max_batch_size": 8,
        "input": [A],
        "output": [A],
        "dynamic_batching": {},
        "model_transaction_policy": {"decoupled": True},
    }


def test_many_models_load_at_once(repo: Any, helpers: Any) -> None:
    for number in range(12):
        repo.add(f"m{number}", "import helper\n" + helpers.ECHO, files={"1/helper.py": ""})

    async def main(kernel: Kernel) -> Any:
        return await asyncio.gather(*(helpers.ask(kernel, f"m{number}", [number]) for number in range(12)))

    assert repo.run(main) == [[number] for number in range(12)]


def test_a_config_that_is_not_there_is_not_named(repo: Any) -> None:
    """Where a model has none, what is wrong with what it completes is told of its folder."""
    code = "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c):\n        c.set_max_batch_size(-3)\n"
    file = repo.add("a", code + "        return c\n    def execute(self, requests): pass\n")
    folder = file.parents[1]
    (folder / "config.pbtxt").unlink()
    reason = repo.load_error("a")
    assert "max_batch_size" in reason and str(folder) in reason, reason
    assert "config.pbtxt" not in reason
