"""The wheel and the sdist: what is in them, and that an app with modules of its own called `plugins` and `repository` is safe."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from .serving import REPOSITORY

pytestmark = pytest.mark.install

ROOT = Path(__file__).parents[2]
MODULES = {"kernel_pytest.py", "triton_python_backend_utils.py"}
PACKAGES = {
    "kernel",
    "kernel_auth",
    "kernel_dashboard",
    "kernel_ensemble",
    "kernel_grpc",
    "kernel_http",
    "kernel_metrics",
    "kernel_onnx",
    "kernel_opentelemetry",
    "kernel_python",
    "kernel_remote",
    "kernel_ray",
    "kernel_storage",
}
NAMES = MODULES | PACKAGES | {"triton_python_backend_utils-stubs"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project's files, so that a build leaves nothing in the tree."""
    import shutil

    target = tmp_path_factory.mktemp("source") / "project"
    target.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in"):
        shutil.copy(ROOT / name, target)
    for name in ("kernel", "ops", "plugins", "repository", "tests"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return target


def build(source: Path, hook: str, target: Path) -> Path:
    """Build a distribution with the setuptools that is installed: no network."""
    code = f"import sys, setuptools.build_meta as b; print(b.{hook}(sys.argv[1]))"
    result = subprocess.run([sys.executable, "-c", code, target], cwd=source, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return target / result.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(source, "build_wheel", tmp_path_factory.mktemp("wheel"))


def test_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
    info = {name for name in files if ".dist-info/" in name}
    assert {name.split("/")[0] for name in files - info} == NAMES
    assert {"kernel/py.typed", "kernel/config/model_config.proto", "kernel/config/model_config_pb2.pyi"} <= files
    expected = {
        path.relative_to(folder).as_posix()
        for folder in (ROOT, ROOT / "plugins")
        for name in NAMES
        for path in (folder / name).rglob("*.py")
        if folder != ROOT or name == "kernel"
    }
    assert expected | MODULES == {name for name in files - info if name.endswith(".py")}


def test_sdist(source: Path, tmp_path: Path) -> None:
    with tarfile.open(build(source, "build_sdist", tmp_path)) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "kernel/server/kernel.py", "plugins/kernel_http/__init__.py"} <= files
    assert "ops/Containerfile" in files
    assert not any(name.endswith((".pyc", ".venv")) for name in files)


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the wheel in it; what the wheel depends on is borrowed from this one."""
    folder = tmp_path_factory.mktemp("fresh") / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    paths = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(paths)
    # A path in a .pth file is searched, but the .pth files in it are not read: an editable install there stays out of sight.
    (Path(paths) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_works_from_anywhere_beside_modules_of_the_same_names(fresh: Path, tmp_path: Path) -> None:
    for name in ("plugins", "repository", "tests", "bench"):
        (tmp_path / f"{name}.py").write_text("WHOSE = 'the app'\n")
    (tmp_path / "app.py").write_text(
        "import asyncio, importlib.util, sys\n"
        "import numpy as np\n"
        "import plugins, repository, tests, bench\n"
        "from kernel import Kernel\n"
        "import kernel, triton_python_backend_utils\n"
        "assert {module.WHOSE for module in (plugins, repository, tests, bench)} == {'the app'}\n"
        "assert kernel.__file__.startswith(sys.prefix), kernel.__file__\n"
        "async def main():\n"
        "    async with Kernel(sys.argv[1]) as served:\n"
        "        one = np.ones(2, np.float32)\n"
        "        print((await served.infer('add_sub', {'A': one, 'B': one}))['SUM'].tolist())\n"
        "asyncio.run(main())\n"
    )
    result = subprocess.run([fresh, "app.py", REPOSITORY], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr, result.returncode) == ("[2.0, 2.0]\n", "", 0)


def test_command_from_anywhere(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "plugins.py").write_text("raise ImportError('not yours')\n")
    arguments = ["-m", "kernel", "infer", REPOSITORY, "add_sub", "--input=A=[1]", "--input=B=[2]", "--output=SUM"]
    result = subprocess.run([fresh, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["outputs"][0]["data"] == [3.0]


def test_a_new_model_is_tested_and_typed(fresh: Path, tmp_path: Path) -> None:
    """pytest finds the fixtures by itself; mypy finds the types of what models import."""
    for template in ("python", "bls", "decoupled", "ensemble"):
        command = [fresh, "-m", "kernel", "new", "model", f"my_{template}", "--template", template]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert (tmp_path / "repository/my_ensemble/1").is_dir()
    result = subprocess.run(
        [fresh, "-m", "pytest", "-q", "repository"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stdout
    wrong = (
        "import triton_python_backend_utils as pb_utils\n"
        "def call(request: pb_utils.InferenceRequest) -> None:\n"
        "    pb_utils.Tensor('X', [1, 2])\n"
        "    request.exec(decoupled=True).output_tensors()\n"
    )
    for path, words in (
        ("repository/my_bls/1/model.py", "Success"),
        ("repository/my_decoupled/1/model.py", "Success"),
        ("repository/my_python/test_my_python.py", "Success"),
        ("wrong.py", 'incompatible type "list[int]"'),
        ("wrong.py", 'has no attribute "output_tensors"'),
    ):
        (tmp_path / "wrong.py").write_text(wrong)
        result = subprocess.run(
            [fresh, "-m", "mypy", "--strict", path], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert words in result.stdout, result.stdout + result.stderr


def test_types_name_what_is_there(fresh: Path, tmp_path: Path) -> None:
    """The stub and the module have the same names, and the stub's classes no methods that are missing."""
    code = (
        "import ast, pathlib, sys, sysconfig\n"
        "import triton_python_backend_utils as real\n"
        "stub = pathlib.Path(sysconfig.get_path('purelib'), 'triton_python_backend_utils-stubs', '__init__.pyi')\n"
        "tree = ast.parse(stub.read_text())\n"
        "(names,) = [ast.literal_eval(node.value) for node in tree.body\n"
        "            if isinstance(node, ast.Assign) and node.targets[0].id == '__all__']\n"
        "assert names == real.__all__\n"
        "for node in tree.body:\n"
        "    if isinstance(node, ast.ClassDef) and node.name in names:\n"
        "        methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}\n"
        "        missing = methods - set(dir(getattr(real, node.name)))\n"
        "        assert not missing, (node.name, missing)\n"
    )
    result = subprocess.run([fresh, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_editable_install_makes_nothing_else_importable(tmp_path: Path) -> None:
    """Holds for the environment that the tests run in, whether it is an editable install or a wheel."""
    code = (
        "import importlib.util as u\n"
        "found = [name for name in ('plugins', 'repository', 'bench', 'dev', 'virtual') if u.find_spec(name)]\n"
        "assert not found, found\n"
        "missing = [name for name in ('kernel', 'kernel_http', 'triton_python_backend_utils') if not u.find_spec(name)]\n"
        "assert not missing, missing\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
