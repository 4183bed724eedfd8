"""What is seen of a model's code without running it: all that can't load, and nothing that could."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_python.loading.source_check import completes_config, faults_of

CLASS = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m" / "1").mkdir(parents=True)
    return tmp_path / "m" / "1" / "model.py"


def seen(file: Path, code: str) -> list[str]:
    """Return what is told of the code, with `M` for the model's folder."""
    file.write_text(code)
    folder = file.parents[1]
    return [error.message.replace(str(folder), "M") for error in faults_of(file, (file.parent, folder))]


MISSING = "ModuleNotFoundError: No module named 'no_such_module' — it is neither installed nor in M/1 nor M"


@pytest.mark.parametrize(
    ("code", "place", "words"),
    [
        ("def f(:\n" + CLASS, "1/model.py:1:7", "SyntaxError: invalid syntax"),
        ("return 3\n" + CLASS, "1/model.py:1:1", "SyntaxError: 'return' outside function"),
        (CLASS + "  x = 1\n", "1/model.py:4:8", "IndentationError: unindent does not match any outer indentation level"),
        ("# coding: nonsense\n" + CLASS, "1/model.py", "SyntaxError: unknown encoding: nonsense"),
        (
            CLASS.replace("PythonModel", "PythonModle"),
            "1/model.py:1:1",
            "AttributeError: module '1.model' has no attribute 'TritonPythonModel' — there is a class 'TritonPythonModle'",
        ),
        (
            "class A:\n    pass\nclass B:\n    pass\n",
            "1/model.py",
            "AttributeError: module '1.model' has no attribute 'TritonPythonModel' — its classes are A, B",
        ),
        ("", "1/model.py", "AttributeError: module '1.model' has no attribute 'TritonPythonModel' — its classes are none"),
        (
            CLASS.replace("execute", "excute"),
            "1/model.py:1:1",
            "Python model M/1/model.py does not implement `execute` method. — did you mean 'excute'?",
        ),
        (
            CLASS.replace("execute", "run"),
            "1/model.py:1:1",
            "Python model M/1/model.py does not implement `execute` method. — it has run",
        ),
        (
            CLASS + "    async def initialize(self, args):\n        pass\n",
            "1/model.py:4:5",
            "initialize of M/1/model.py is `async def`, which nobody awaits; it has to be a plain `def`",
        ),
        (
            CLASS + "    def initialize(self):\n        pass\n",
            "1/model.py:4:5",
            "TypeError: TritonPythonModel.initialize() takes 1 positional argument but 2 were given",
        ),
        (
            CLASS + "    def initialize(self, args: dict, *, more: int, rest=len(x)):\n        pass\n",
            "1/model.py:4:5",
            "TypeError: TritonPythonModel.initialize() missing 1 required keyword-only argument: 'more'",
        ),
        (
            CLASS + "    def __init__(self, args):\n        pass\n",
            "1/model.py:4:5",
            "TypeError: TritonPythonModel.__init__() missing 1 required positional argument: 'args'",
        ),
        (
            CLASS.replace("(self, requests)", "(self)"),
            "1/model.py:2:5",
            "TypeError: TritonPythonModel.execute() takes 1 positional argument but 2 were given",
        ),
        ("import json, no_such_module.inner\n" + CLASS, "1/model.py:1:1", MISSING),
        ("from no_such_module.inner import x\n" + CLASS, "1/model.py:1:1", MISSING),
        ("try:\n    import no_such_module\nexcept KeyError:\n    pass\n" + CLASS, "1/model.py:2:5", MISSING),
        (
            "try:\n    import no_such_module\nexcept ImportError as e:\n    raise RuntimeError('get it') from e\n" + CLASS,
            "1/model.py:2:5",
            MISSING,
        ),
        (CLASS + "    def initialize(self, args):\n        import no_such_module\n", "1/model.py:5:9", MISSING),
    ],
)  # fmt: skip
def test_what_can_not_load(model: Path, code: str, place: str, words: str) -> None:
    assert seen(model, code) == [f"M/{place}: {words}"]


@pytest.mark.parametrize(
    "code",
    [
        "import numpy as np, json, triton_python_backend_utils as pb_utils, c_python_backend_utils\n" + CLASS,
        "try:\n    import no_such_module\nexcept ImportError:\n    no_such_module = None\n" + CLASS,
        "try:\n    import no_such_module\nexcept (KeyError, ModuleNotFoundError):\n    pass\n" + CLASS,
        "try:\n    import no_such_module\nexcept:\n    pass\n" + CLASS,
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import no_such_module\n" + CLASS,
        "import os\nwith os.optional():\n    import no_such_module\n" + CLASS,
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import no_such_module\n" + CLASS,
        "import os\nif os.environ.get('GPU'):\n    import no_such_module\n" + CLASS,
        "def later():\n    import no_such_module\n" + CLASS,
        "import sys\nsys.path.append('/models/lib')\nimport no_such_module\n" + CLASS,
        "import subprocess\nsubprocess.run(['pip', 'install', 'x'])\nimport no_such_module\n" + CLASS,
        CLASS + "    def initialize(self, args):\n        if not args:\n            return\n        import no_such_module\n",
        "from . import anything\nfrom .beside import something\n" + CLASS,
        "import json as helper\nclass Model:\n    def execute(self, requests):\n        return []\nTritonPythonModel = Model\n",
        "from json import *\n",
        "from json import JSONDecoder as TritonPythonModel\n",
        "def __getattr__(name):\n    return object\n",
        "globals()['TritonPythonModel'] = object\n",
        "class Base:\n    pass\nclass TritonPythonModel(Base):\n    pass\n",
        "class TritonPythonModel:\n    execute = len\n",
        "class TritonPythonModel:\n    pass\nTritonPythonModel.execute = len\n",
        "class TritonPythonModel:\n    pass\nsetattr(TritonPythonModel, 'execute', len)\n",
        CLASS + "    def initialize(self, args, more=len(x), *rest, name=x, **others):\n        pass\n",
        CLASS + "    def initialize(*args):\n        pass\n",
        CLASS + "    @staticmethod\n    def initialize(args):\n        pass\n",
        CLASS + "    def initialize(self):\n        pass\n    initialize = wrap(initialize)\n",
        CLASS + "    def initialize(self):\n        pass\n\n    def __init__(self):\n        self.initialize = print\n",
        "if True:\n" + "".join(f"    {line}\n" for line in CLASS.splitlines()),
        CLASS.replace("return []", "return '\\d'"),  # a compiler only wonders about that
    ],
)
def test_what_may_load(model: Path, code: str) -> None:
    assert seen(model, code) == []


def test_modules_of_its_own(model: Path) -> None:
    """Beside the model file or in the model's folder; they are read as well."""
    folder = model.parents[1]
    (folder / "1" / "beside.py").write_text("import above\n")
    (folder / "above.py").write_text("import package.inner\nimport beside\n")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("import no_such_module\n")
    (folder / "data").mkdir()
    code = "import beside, data\n" + CLASS
    assert seen(model, code) == [f"M/package/__init__.py:1:1: {MISSING}"]
    (folder / "package" / "__init__.py").write_text("x = (\n")
    assert seen(model, code) == ["M/package/__init__.py:1:5: SyntaxError: '(' was never closed"]


def test_whether_a_config_may_be_completed(model: Path) -> None:
    for code, may in {
        CLASS: False,
        CLASS + "    @staticmethod\n    def auto_complete_config(config):\n        return config\n": True,
        CLASS.replace("Model:", "Model(Base):"): True,
        "from here import TritonPythonModel\n": True,
        "class (:\n": True,
    }.items():
        model.write_text(code)
        assert completes_config(model) is may, code
