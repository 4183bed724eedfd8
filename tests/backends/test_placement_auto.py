"""Unmodified models under the default placement: what others have reported of models that share a process is right here.

Each model says nothing of placement. What its code does decides that it gets a process of its own, where it meets what it would
meet in the reference; and it stays in the server where nothing speaks against that. Real children.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from kernel import Kernel, ServingError
from kernel_python.loading import placement as choosing

IO = 'input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ { name: "S" data_type: TYPE_STRING dims: [ -1 ] } ]'
HEAD = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

def tell(requests, value):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("S", np.array([json.dumps(value)], dtype=object))]) for _ in requests]
"""


def model(body: str, *, initialize: str = "pass", define: str = "def", top: str = "", rest: str = "") -> str:
    return (
        f"{top}\n{HEAD}\nclass TritonPythonModel:\n    def initialize(self, args):\n        {initialize}\n"
        f"    {define} execute(self, requests):\n        " + "\n        ".join(body.strip().splitlines()) + f"\n{rest}"
    )


async def ask(kernel: Kernel, helpers: Any, name: str = "a", value: Any = (1.0,)) -> Any:
    answer = await helpers.ask(kernel, name, value)
    return json.loads(answer[0]) if isinstance(answer, list) else answer


def placement(kernel: Kernel, name: str = "a") -> str:
    return str(kernel.statistics(name)[0].placement_choice)


def serve(repo: Any, helpers: Any, code: str, *, times: int = 1, **options: Any) -> tuple[str, list[Any]]:
    """Return where the model runs, and what it answers."""
    repo.add("a", code, io=IO, head="", **options)

    async def main(kernel: Kernel) -> tuple[str, list[Any]]:
        return placement(kernel), [await ask(kernel, helpers) for _ in range(times)]

    result: tuple[str, list[Any]] = repo.run(main)
    return result


# -- where it runs, and how that is told -----------------------------------------------------------------------------------


def test_glue_stays_in_the_server(repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture) -> None:
    pid = "return tell(requests, 1)"
    repo.add("a", model(pid), io=IO, head="")
    repo.add("b", model(pid, define="async def"), io=IO, head="")

    async def main(kernel: Kernel) -> list[str]:
        return [placement(kernel, name) for name in ("a", "b")]

    with caplog.at_level(logging.INFO):
        places = repo.run(main)
    reason = "its code and what it imports are known to be safe to share"
    assert places == [f"thread: {reason}", f"loop: {reason}"]
    assert f"model 'a' version 1 runs in placement thread: {reason}" in caplog.messages
    assert f"model 'b' version 1 runs in placement loop: {reason}" in caplog.messages


def test_in_doubt_a_process_per_instance(repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture) -> None:
    code = model("global calls\ncalls += 1\nreturn tell(requests, [os.getpid(), calls])", top="import ctypes, os\ncalls = 0")
    with caplog.at_level(logging.INFO):
        place, ((pid, first), (_, second)) = serve(repo, helpers, code, times=2)
    reason = "imports ctypes (model.py:1), which belongs to the process"
    assert place == f"process: {reason}"
    assert pid != os.getpid()
    assert (first, second) == (1, 2)
    assert f"model 'a' version 1 runs in placement process: {reason}" in caplog.messages


def test_a_load_reads_the_source_once(repo: Any, helpers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `auto_complete_config` runs has been decided when the model's instances are made."""
    read = []

    def examine(file: Path, *others: Any) -> Any:
        read.append(file.name)
        return looked(file, *others)

    looked = choosing.examine
    monkeypatch.setattr(choosing, "examine", examine)
    complete = "    @staticmethod\n    def auto_complete_config(config):\n        return config\n"
    where, (answer,) = serve(repo, helpers, model("return tell(requests, 1)", rest=complete))
    assert where.startswith("thread: ") and answer == 1
    assert read == ["model.py"]


def test_what_the_config_says_is_obeyed(repo: Any, helpers: Any) -> None:
    code = model("import ctypes, os\nreturn tell(requests, os.getpid())")
    place, (pid,) = serve(repo, helpers, code, parameters={"placement": "thread"})
    assert (place, pid) == ("thread: its config says so", os.getpid())


def test_auto_can_be_said_in_words(repo: Any, helpers: Any) -> None:
    place, _ = serve(repo, helpers, model("import ctypes\nreturn tell(requests, 1)"), parameters={"placement": "AUTO"})
    assert place.startswith("process: imports ctypes (model.py:")


@pytest.mark.parametrize(
    ("setting", "where"),
    [
        ({"default-placement": "server"}, "thread: backend-config python,default-placement=server"),
        ({"default-placement": "process"}, "process: backend-config python,default-placement=process"),
        ({"shared-modules": "ctypes, json"}, "thread: its code and what it imports are known to be safe to share"),
    ],
)
def test_settings_say_what_is_safe(repo: Any, helpers: Any, setting: dict[str, str], where: str) -> None:
    repo.add("a", model("return tell(requests, 1)", top="import ctypes"), io=IO, head="")

    async def main(kernel: Kernel) -> str:
        assert await ask(kernel, helpers) == 1
        return placement(kernel)

    assert repo.run(main, backend_config={"python": setting}) == where


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            {"default-placement": "sever"},
            "backend-config python,default-placement is 'sever', where one of auto, server, process is wanted",
        ),
        (
            {"shared-modules": "a b"},
            "backend-config python,shared-modules names 'a b', where names of modules, separated by commas, are wanted",
        ),
    ],
)
def test_wrong_settings_are_refused(setting: dict[str, str], words: str) -> None:
    with pytest.raises(ServingError) as caught:
        Kernel(backend_config={"python": setting})
    assert caught.value.message == words


def test_the_way_to_a_process_is_counted(repo: Any, helpers: Any) -> None:
    repo.add("a", model("return tell(requests, 1)", top="import ctypes"), io=IO, head="")

    async def main(kernel: Kernel) -> Any:
        for _ in range(5):
            await ask(kernel, helpers)
        return kernel.statistics("a")[0].hop

    hop = repo.run(main)
    assert hop.count == 5
    assert hop.ns > 0


# -- what others have reported ---------------------------------------------------------------------------------------------


def test_argv_is_the_models_own(repo: Any, helpers: Any) -> None:
    code = model(
        "return tell(requests, self.size)",
        top="import argparse",
        initialize="p = argparse.ArgumentParser(); p.add_argument('--size', default=3); self.size = p.parse_args().size",
    )
    assert serve(repo, helpers, code)[1] == [3]


def test_signals_and_alarms_work(repo: Any, helpers: Any) -> None:
    code = model(
        "signal.setitimer(signal.ITIMER_REAL, 0.01)\nreturn tell(requests, self.wait())",
        top="import signal, time",
        initialize="self.rung = []; signal.signal(signal.SIGALRM, lambda *_: self.rung.append(1))",
        rest="    def wait(self):\n        while not self.rung:\n            time.sleep(0.001)\n        return 'rung'\n",
    )
    assert serve(repo, helpers, code)[1] == ["rung"]


def test_a_module_that_registers_itself_at_import_loads_with_auto_complete_and_two_instances(repo: Any, helpers: Any) -> None:
    code = model(
        "requests_seen.inc()\nreturn tell(requests, requests_seen._value.get())",
        top="from prometheus_client import Counter\nrequests_seen = Counter('requests_seen', 'how many')",
        rest="    @staticmethod\n    def auto_complete_config(config):\n        return config\n",
    )
    place, answers = serve(repo, helpers, code, count=2)
    assert place == "process: imports prometheus_client (model.py:1)"
    assert answers == [1.0]


def test_a_seed_is_a_models_own(repo: Any, helpers: Any) -> None:
    code = model("return tell(requests, np.random.rand(2).tolist())", initialize="np.random.seed(7)")
    for name in ("a", "b"):
        repo.add(name, code, io=IO, head="")

    async def main(kernel: Kernel) -> Any:
        return [await ask(kernel, helpers, name) for name in ("a", "b", "a", "b")]

    first, other, second, last = repo.run(main)
    assert first == other
    assert second == last
    assert first != second


def test_own_classes_are_pickled_by_their_own_names(repo: Any, helpers: Any) -> None:
    code = model(
        "data = pickle.dumps(Net(3))\nreturn tell(requests, [pickle.loads(data).size, b'kernel' in data, Net.__module__])",
        top="import pickle\nfrom net import Net",
    )
    net = "class Net:\n    def __init__(self, size):\n        self.size = size\n"
    assert serve(repo, helpers, code, files={"1/net.py": net})[1] == [[3, False, "net"]]


def test_workers_of_a_pool_find_the_models_functions(repo: Any, helpers: Any) -> None:
    code = model(
        "with multiprocessing.get_context('spawn').Pool(1) as pool:\n    return tell(requests, pool.map(work.double, [1, 2]))",
        top="import multiprocessing, work",
    )
    work = "def double(x):\n    return 2 * x\n"
    assert serve(repo, helpers, code, files={"1/work.py": work})[1] == [[2, 4]]


def test_packages_of_one_name_are_not_mixed_up(repo: Any, helpers: Any) -> None:
    for name in ("cat", "dog"):
        top = "import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'code'))\nfrom models import what"
        files = {"1/code/models/__init__.py": f"what = '{name}'\n"}
        code = model("from models import what as late\nreturn tell(requests, [what, late])", top=top)
        repo.add(name, code, io=IO, head="", files=files)

    async def main(kernel: Kernel) -> Any:
        return await asyncio.gather(*(ask(kernel, helpers, name) for name in ("cat", "dog")))

    assert repo.run(main) == [["cat", "cat"], ["dog", "dog"]]


def test_folder_logging_and_environment_are_the_models_own(
    repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    code = model(
        "return tell(requests, [os.getcwd(), os.environ['OF_THE_MODEL']])",
        top="import logging.config, os",
        initialize="os.chdir('/'); os.environ['OF_THE_MODEL'] = 'yes'; "
        "logging.config.dictConfig({'version': 1, 'disable_existing_loggers': True}); logging.disable()",
    )
    before = os.getcwd()
    with caplog.at_level(logging.INFO):
        assert serve(repo, helpers, code)[1] == [["/", "yes"]]
        logging.getLogger("kernel").info("still heard")
    assert os.getcwd() == before
    assert "OF_THE_MODEL" not in os.environ
    assert "still heard" in caplog.messages


def test_a_model_that_ends_its_process_ends_no_other(repo: Any, helpers: Any) -> None:
    repo.add("a", model("os._exit(3)", top="import os"), io=IO, head="")
    repo.add("b", model("return tell(requests, 1)"), io=IO, head="")

    async def main(kernel: Kernel) -> Any:
        return await helpers.ask(kernel, "a"), await ask(kernel, helpers, "b")

    death, other = repo.run(main)
    assert death.startswith("INTERNAL: Stub process 'a_0_0' is not healthy. Process ")
    assert death.endswith(" exited with code 3")
    assert other == 1


def test_two_instances_have_globals_of_their_own(repo: Any, helpers: Any) -> None:
    body = """
global seen
seen.add(id(self))
return tell(requests, len(seen))
"""
    repo.add("a", model(body, top="seen = set()"), io=IO, head="", count=2)

    async def main(kernel: Kernel) -> Any:
        return placement(kernel), await asyncio.gather(*(ask(kernel, helpers) for _ in range(20)))

    place, answers = repo.run(main)
    assert place.startswith("thread: ")
    assert set(answers) == {1}
