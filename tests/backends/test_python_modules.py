"""Private modules: two models with helpers of the same name, instances, reloads, threads, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel import Kernel
from kernel_python.loading.modules import _Finder, _packages

STRINGS = 'output [ { name: "S" data_type: TYPE_STRING dims: [ -1 ] } ]'
IN = 'input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]'

SAY = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("S", np.array([say()], dtype=object))]) for r in requests]
"""


def ours() -> list[str]:
    return [name for name in sys.modules if name.startswith("kernel_model_")]


def others() -> list[Any]:
    """Return how modules are found, but for those of models."""
    return [one for one in sys.meta_path if one is not _Finder]


@pytest.fixture(autouse=True)
def clean() -> Any:
    path = list(sys.path)
    # Other tests have models that hang, whose modules nobody can take away.
    modules, finders = ours(), others()
    yield
    assert ours() == modules
    assert others() == finders
    assert _Finder not in sys.meta_path or _packages
    assert sys.path == path


@pytest.mark.parametrize(
    "statement",
    [
        "from helper import say",
        "import helper\nsay = lambda: helper.say()",
        "import helper as h\nsay = h.say",
        "from .helper import say",
        "import importlib\nsay = importlib.import_module('helper').say",
        "from importlib import import_module\nsay = import_module('helper').say",
        "say = __import__('helper').say",
        "from pkg.deep import say",
        "import pkg.deep\nsay = pkg.deep.say",
        "from pkg import deep\nsay = deep.say",
        "import pkg.deep as d\nsay = d.say",
        "from inner.deep import say",
        "def say():\n    import helper\n    return helper.say()",
        "def say():\n    from pkg import deep\n    return deep.say()",
        "def say():\n    import importlib\n    return importlib.import_module('pkg.deep').say()",
    ],
)
def test_each_model_finds_its_own_helpers(repo: Any, helpers: Any, statement: str) -> None:
    for name in ("a", "b"):
        repo.add(
            name,
            f"{statement}\n{SAY}",
            io=f"{IN} {STRINGS}",
            files={
                "1/helper.py": f"def say(): return 'helper of {name}'",
                "1/pkg/__init__.py": "",
                "1/pkg/deep.py": "from helper import say",
                "inner/deep.py": "from helper import say",
            },
        )

    async def main(kernel: Kernel) -> list[Any]:
        return [await helpers.ask(kernel, name) for name in ("a", "b")]

    assert repo.run(main) == [["helper of a"], ["helper of b"]]
    assert "helper" not in sys.modules


def test_the_version_folder_comes_before_the_model_folder(repo: Any, helpers: Any) -> None:
    files = {
        "1/both.py": "name = 'version'",
        "both.py": "name = 'model'",
        "only.py": "name = 'model'",
        # A folder of data is no module: the real json is found.
        "json/data.txt": "",
    }
    code = "import both, only, json\ndef say(): return json.dumps([both.name, only.name])\n" + SAY
    repo.add("a", code, io=f"{IN} {STRINGS}", files=files)
    assert repo.run(lambda kernel: helpers.ask(kernel, "a")) == ['["version", "model"]']


def test_a_stand_in_for_pb_utils_beside_the_model_is_not_taken(repo: Any, helpers: Any) -> None:
    repo.add("a", helpers.ECHO, files={"1/triton_python_backend_utils.py": "raise RuntimeError('the stand-in')"})
    assert repo.run(lambda kernel: helpers.ask(kernel, "a", [1, 2])) == [1, 2]


def test_globals_are_per_instance(repo: Any, helpers: Any) -> None:
    code = """
    import threading, helper
    seen = []
    class TritonPythonModel:
        def initialize(self, args):
            helper.names.append(args["model_instance_name"])
        def execute(self, requests):
            seen.append(1)
            text = f"{helper.names} {threading.current_thread().name}"
            return [pb_utils.InferenceResponse([pb_utils.Tensor("S", np.array([text], dtype=object))]) for r in requests]
    """
    repo.add("a", code, count=2, io=f"{IN} {STRINGS}", files={"1/helper.py": "names = []"})

    async def main(kernel: Kernel) -> set[str]:
        answers = await asyncio.gather(*(helpers.ask(kernel, "a") for _ in range(20)))
        return {answer[0].partition("]")[0] for answer in answers}

    assert repo.run(main) <= {"['a_0_0'", "['a_0_1'"}


def test_imports_in_threads_of_the_model(repo: Any, helpers: Any) -> None:
    code = """
    import threading
    class TritonPythonModel:
        def initialize(self, args):
            self.found = []
            thread = threading.Thread(target=self.look)
            thread.start()
            thread.join()
        def look(self):
            import helper
            self.found.append(helper.name + pb_utils.get_model_dir()[-4:])
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("S", np.array(self.found, dtype=object))]) for r in requests]
    """
    repo.add("a", code, io=f"{IN} {STRINGS}", files={"1/helper.py": "name = 'here'"})
    assert repo.run(lambda kernel: helpers.ask(kernel, "a")) == ["here/a/1"]


def test_dataclasses_pickles_and_files(repo: Any, helpers: Any) -> None:
    code = """
    from __future__ import annotations
    import dataclasses, os, pickle, typing
    import helper

    @dataclasses.dataclass
    class Point:
        x: int
        kind: typing.ClassVar[str] = "p"

    def say():
        point = pickle.loads(pickle.dumps(Point(3)))
        other = pickle.loads(pickle.dumps(helper.Thing()))
        return f"{[f.name for f in dataclasses.fields(point)]} {type(other).__name__} {os.path.basename(__file__)}"
    """
    files = {"1/helper.py": "class Thing: pass"}
    repo.add("a", code + SAY.replace("\n", "\n    "), io=f"{IN} {STRINGS}", files=files, head="")
    path = repo.folder / "a" / "1" / "model.py"
    text = path.read_text()
    future = "from __future__ import annotations\n"
    path.write_text(
        future + "import numpy as np\nimport triton_python_backend_utils as pb_utils\n" + text.replace(future, "")
    )
    assert repo.run(lambda kernel: helpers.ask(kernel, "a")) == ["['x'] Thing model.py"]


def test_a_reload_sees_changed_helpers_and_leaves_no_cache(repo: Any, helpers: Any) -> None:
    repo.add(
        "a",
        "from helper import say\n" + SAY,
        io=f"{IN} {STRINGS}",
        files={"1/helper.py": "def say(): return 'one'"},
    )
    helper = repo.folder / "a" / "1" / "helper.py"

    async def main(kernel: Kernel) -> list[Any]:
        await kernel.load("a")
        first = await helpers.ask(kernel, "a")
        before = helper.stat()
        helper.write_text("def say(): return 'two'")  # same size, and the same time stamp:
        import os

        os.utime(helper, ns=(before.st_atime_ns, before.st_mtime_ns))
        model = repo.folder / "a" / "1" / "model.py"
        model.write_text(model.read_text() + "\n# changed\n")
        await kernel.load("a")
        return [first, await helpers.ask(kernel, "a")]

    assert repo.run(main, control_mode="explicit") == [["one"], ["two"]]
    assert not list(repo.folder.rglob("__pycache__"))


def test_extension_modules_load(tmp_path: Path) -> None:
    """A compiled module in the model's folder is found; any that the interpreter has on disk will do."""
    import importlib.util
    import shutil

    from kernel_python.loading.modules import PrivateModules

    spec = next(
        spec
        for name in ("_heapq", "_bisect", "_json", "_csv", "_lsprof", "_queue")
        if (spec := importlib.util.find_spec(name)) and spec.origin and spec.origin.endswith(".so")
    )
    version = tmp_path / "1"
    version.mkdir()
    shutil.copy(spec.origin, version)
    (version / "model.py").write_text(f"import {spec.name} as compiled\n")
    modules = PrivateModules(version, tmp_path, None)
    try:
        module = modules.load_main(version / "model.py")
        assert module.compiled.__name__ == f"{modules.package}.{spec.name}"
        assert module.compiled.__file__.startswith(str(version))
    finally:
        modules.remove()


def test_many_threads_load_at_once(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from kernel_python.loading.modules import PrivateModules

    def load(number: int) -> str:
        version = tmp_path / str(number) / "1"
        version.mkdir(parents=True)
        (version / "helper.py").write_text(f"name = {number}")
        (version / "model.py").write_text("import helper, json\nname = helper.name")
        modules = PrivateModules(version, version.parent, SimpleNamespace())
        try:
            return str(modules.load_main(version / "model.py").name)
        finally:
            modules.remove()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(load, range(40))) == [str(number) for number in range(40)]


def test_a_failed_load_leaves_nothing(repo: Any) -> None:
    repo.add("a", "import helper\n", files={"1/helper.py": "def f():\n    import no_such_thing\nf()\n"})
    folder = repo.folder / "a" / "1"
    assert repo.load_error("a") == (
        "Internal: ModuleNotFoundError: No module named 'no_such_thing'\n\nAt:\n"
        f"  {folder}/helper.py(2): f\n  {folder}/helper.py(3): <module>\n  {folder}/model.py(4): <module>\n"
    )


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("import pkg.nothing", "ModuleNotFoundError: No module named 'pkg.nothing'"),
        (
            "import importlib\nimportlib.import_module('pkg.nothing')",
            "ModuleNotFoundError: No module named 'pkg.nothing'",
        ),
        ("from pkg import nothing", "ImportError: cannot import name 'nothing' from 'pkg'"),
        ("from . import nothing", "ImportError: cannot import name 'nothing' from '1'"),
        ("import model\nmodel.nothing", "AttributeError: module '1.model' has no attribute 'nothing'"),
    ],
)
def test_errors_use_the_authors_names(repo: Any, statement: str, text: str) -> None:
    repo.add("a", statement, files={"1/pkg/__init__.py": ""})
    reason = repo.load_error("a")
    assert text in reason
    assert "kernel_model_" not in reason


def test_somebody_who_puts_the_ways_to_find_modules_back(repo: Any, helpers: Any) -> None:
    """As pytest's `pytester` does after each of its tests, here in the middle of one model's life."""

    async def main(kernel: Kernel) -> list[Any]:
        before = [one for one in sys.meta_path if one is not _Finder]
        sys.meta_path[:] = before
        await kernel.load("b")
        return await helpers.ask(kernel, "b")

    for name in ("a", "b"):
        files = {
            "1/helper.py": f"def say(): return 'helper of {name}'",
            "1/pkg/__init__.py": "",
            "1/pkg/deep.py": "from helper import say",
        }
        repo.add(name, f"from pkg.deep import say\n{SAY}", io=f"{IN} {STRINGS}", files=files)
    assert repo.run(main, control_mode="explicit", load_models=["a"]) == ["helper of b"]


# -- by name -------------------------------------------------------------------------------------------------------------

NET = """
import dataclasses, typing
@dataclasses.dataclass
class Net:
    weights: "list[int]"
    size: typing.ClassVar["int"] = 3
    class Inner:
        pass
def double(x): return 2 * x
"""
BY_NAME = """
import copy, os, pickle, pydoc, typing
from net import Net, double
class Own:
    def __init__(self, x): self.x = x
def tell():
    folder = pb_utils.get_model_dir()
    told = {}
    for protocol in (2, 4, 5):
        data = pickle.dumps([Net([1]), Own(2), double, Net.Inner, np.arange(2)], protocol)
        net, own, function, inner, array = pickle.loads(data)
        told[protocol] = [net == Net([1]), type(own) is Own and own.x, function is double, inner is Net.Inner, array.tolist()]
        assert b"kernel_model" not in data, data
    own_file = os.path.join(folder, f"own{id(Net)}.pkl")  # of this instance
    with open(own_file, "wb") as file:
        pickle.dump(Net([5]), file)
    with open(own_file, "rb") as file:
        told["file"] = pickle.load(file).weights
    with open(os.path.join(folder, "trained.pkl"), "rb") as file:
        told["trained"] = pickle.Unpickler(file).load().weights
    told["copies"] = [copy.deepcopy(Net([1])) == Net([1]), copy.copy(Own(4)).x]
    told["hints"] = [str(hint) for hint in typing.get_type_hints(Net).values()]
    find = pydoc.locate
    told["located"] = [find("net.Net") is Net, find("net.Net.Inner") is Net.Inner, find("1.model.Own") is Own,
                       find("json.dumps") is json.dumps, find("net.Nothing"), find("no.such")]
    return json.dumps(told)
def say(): return tell()
"""


@pytest.mark.parametrize("count", [1, 2])
def test_own_classes_are_found_by_their_names(repo: Any, helpers: Any, tmp_path: Path, count: int) -> None:
    """As in the reference, where a helper is called `net` and the model's file `1.model`; pickles of a training script, too."""
    for name in ("a", "b"):
        path = repo.add(name, BY_NAME + SAY, io=f"{IN} {STRINGS}", count=count, files={"1/net.py": NET},
                        parameters={"placement": "thread"})  # fmt: skip
        trained = "import pickle, net; pickle.dump(net.Net([7]), open('trained.pkl', 'wb'))"
        subprocess.run([sys.executable, "-c", trained], cwd=path.parent, check=True)

    async def main(kernel: Kernel) -> list[Any]:
        return await asyncio.gather(*(helpers.ask(kernel, name) for name in ("a", "b") for _ in range(count)))

    every = [True, 2, True, True, [0, 1]]
    for (told,) in repo.run(main):
        assert json.loads(told) == {
            "2": every, "4": every, "5": every, "file": [5], "trained": [7], "copies": [True, 4],
            "hints": ["list[int]", "typing.ClassVar[int]"], "located": [True, True, True, True, None, None],
        }  # fmt: skip
    # What a model has written, others can read.
    read = "import glob, pickle; print(pickle.load(open(glob.glob('own*.pkl')[0], 'rb')).weights)"
    done = subprocess.run(
        [sys.executable, "-c", read], cwd=repo.folder / "a" / "1", check=True, capture_output=True, text=True
    )
    assert done.stdout == "[5]\n"


def test_a_library_that_looks_for_a_models_own_module_is_explained(repo: Any, helpers: Any) -> None:
    """It can't know for whom it looks; in a process of its own it finds it."""
    code = """
import os
def say():
    path = os.path.join(pb_utils.get_model_dir(), "trained.npy")
    return str(np.load(path, allow_pickle=True)[0].weights)
"""
    for name, placement in (("a", "thread"), ("b", "process")):
        path = repo.add(name, code + SAY, io=f"{IN} {STRINGS}", files={"1/net.py": NET}, parameters={"placement": placement})
        train = "import numpy, net; numpy.save('trained.npy', numpy.array([net.Net([7])], object))"
        subprocess.run([sys.executable, "-c", train], cwd=path.parent, check=True)

    async def main(kernel: Kernel) -> list[Any]:
        return [await helpers.ask(kernel, name) for name in ("a", "b")]

    refused, found = repo.run(main)
    assert "message: ModuleNotFoundError: No module named 'net'\n\nAt:\n" in refused
    assert refused.endswith(
        "\n'net' is a module of the model's own, which libraries don't find by its name in the server; in a process of its own "
        'they do: parameters { key: "placement" value { string_value: "process" } }\n'
    )
    assert found == ["[7]"]


@pytest.mark.parametrize("lacks", [False, True])
@pytest.mark.parametrize(
    "how", ["import animal.sounds as sounds", "import importlib\nsounds = importlib.import_module('animal.sounds')"]
)
def test_packages_of_one_name_whose_models_load_at_the_same_time(tmp_path: Path, how: str, lacks: bool) -> None:
    """Between the look at what an import would find and the import, another model puts its folder in front."""
    from kernel_python.loading.modules import PrivateModules

    models = {}
    for name in ("cat", "dog"):
        source = tmp_path / name / "1" / "src" / "animal"
        source.mkdir(parents=True)
        (source / "__init__.py").write_text("")
        (source / "sounds.py").write_text(f"voice = '{name}'")
        head = "import sys, os\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'src'))\n"
        (source.parents[1] / "model.py").write_text(head + how)
        models[name] = PrivateModules(source.parents[1], source.parents[2], SimpleNamespace())
    dogs = tmp_path / "dog" / "1"
    if lacks:
        (dogs / "src/animal/sounds.py").rename(dogs / "src/animal/barks.py")
        (dogs / "model.py").write_text((dogs / "model.py").read_text().replace("animal.sounds", "animal.barks"))
    cat, found = models["cat"], []

    def look(top: str) -> bool:
        owns = PrivateModules._owns(cat, top)
        if top == "animal" and not found:
            found.append(models["dog"].load_main(dogs / "model.py"))
        return owns

    cat._owns = look  # type: ignore[method-assign]
    try:
        assert cat.load_main(tmp_path / "cat/1/model.py").sounds.voice == "cat"
        assert found[0].sounds.voice == "dog"
    finally:
        for modules in models.values():
            modules.remove()
        for name in [name for name in sys.modules if name.partition(".")[0] == "animal"]:
            del sys.modules[name]


PATHS = {
    "append": "import os, sys\nsys.path.append(os.path.join(os.path.dirname(__file__), 'src'))\n",
    "insert": "import sys, os.path as p\nsys.path.insert(0, p.join(p.dirname(__file__), 'src'))\n",
    "from sys": "from sys import path\nimport os\npath.append(os.path.join(os.path.dirname(__file__), 'src'))\n",
    "assigned": "import sys, os\nsys.path = [os.path.join(os.path.dirname(__file__), 'src')] + sys.path\n",
}


@pytest.mark.parametrize("way", PATHS)
@pytest.mark.parametrize("late", [False, True])
def test_packages_of_one_name_on_the_path(
    repo: Any, helpers: Any, way: str, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Each model gets its own, in whichever order they load and import: `dog` answered what `cat` would, without a word."""
    use = "def say():\n    from animal.sounds import voice\n    return voice()\n"
    code = use if late else "import animal.sounds\ndef say(): return animal.sounds.voice()\n"
    for name in ("cat", "dog"):
        files = {
            "1/src/animal/__init__.py": "",
            "1/src/animal/sounds.py": f"from animal.words import word\ndef voice(): return word + ' of {name}'",
            "1/src/animal/words.py": f"word = 'voice'\nimport alone_{name}",
            f"1/src/alone_{name}.py": "",
        }
        repo.add(name, PATHS[way] + code + SAY, io=f"{IN} {STRINGS}", files=files, parameters={"placement": "thread"})

    async def main(kernel: Kernel) -> list[Any]:
        return [await helpers.ask(kernel, name) for name in ("cat", "dog", "cat")]

    try:
        assert repo.run(main) == [["voice of cat"], ["voice of dog"], ["voice of cat"]]
        assert "alone_cat" in sys.modules or "alone_dog" in sys.modules, "found as ever where nothing is in the way"
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("animal", "alone_cat", "alone_dog")]:
            del sys.modules[name]
    (told,) = [record.getMessage() for record in caplog.records if "has the name of another" in record.getMessage()]
    assert "its module 'animal' (" in told
    assert told.endswith(
        "libraries that find modules by name, as pickle does, get the other: placement 'process' keeps them apart"
    )


def test_what_is_set_in_sys_is_set(repo: Any, helpers: Any) -> None:
    code = """
    import sys
    from sys import *
    sys.set_for_test = 5
    front = "/nowhere/in/front"
    sys.path.insert(0, front)
    there = front in sys.path
    sys.path.remove(front)
    def say():
        import importlib
        return json.dumps([sys.set_for_test, there, front in sys.path, maxsize == sys.maxsize, "path" in dir(sys),
                           importlib.import_module("sys") is sys, sys.modules[__name__] is not None])
    """
    repo.add("a", textwrap.dedent(code) + SAY, io=f"{IN} {STRINGS}", parameters={"placement": "thread"})

    async def main(kernel: Kernel) -> Any:
        assert sys.set_for_test == 5  # type: ignore[attr-defined]
        return await helpers.ask(kernel, "a")

    try:
        assert repo.run(main) == ["[5, true, false, true, true, true, true]"]
    finally:
        del sys.set_for_test  # type: ignore[attr-defined]
