"""EXECUTION_ENV_PATH: children of another Python. Environments are made here, without the network."""

from __future__ import annotations

import ast
import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from telling import TEXT

import kernel
import kernel_python
from kernel import Kernel

#: Tells of its Python, and of how it is to be a model in it.
TELLING = """
import asyncio, os, sys
class TritonPythonModel:
    {define} execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "X")
        call = pb_utils.InferenceRequest(model_name="inner", inputs=[x], requested_output_names=["Y"])
        response = {call}
        pb_utils.Logger.log_info("in the environment")
        value = [sys.prefix, list(sys.version_info[:2]), [p for p in sys.path if "kernel" in os.path.basename(p)],
                 response.output_tensors()[0].as_numpy().tolist(), os.environ["PATH"].split(":")[0],
                 os.environ.get("PYTHONPATH"), x.as_numpy().nbytes]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("S", np.array([json.dumps(value)], dtype=object))])]
"""


def make(folder: Path, python: str = sys.executable) -> Path:
    """Make a virtual environment that has this one's numpy, where it fits, and nothing else of it."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    if python == sys.executable:
        numpy = Path(np.__file__).parent
        (site / "numpy").symlink_to(numpy)
        if (numpy.parent / "numpy.libs").exists():
            (site / "numpy.libs").symlink_to(numpy.parent / "numpy.libs")
    return folder


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("environment") / "venv").resolve()


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where archives are unpacked."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"kernel-environments-{os.getuid()}"


def pack(folder: Path, archive: Path) -> Path:
    """Pack an environment as conda-pack does: what it contains at the top, links as links."""
    with tarfile.open(archive, "w:gz") as content:
        for path in sorted(folder.iterdir()):
            content.add(path, path.name)
    return archive


async def ask(kernel: Kernel, helpers: Any, model: str = "a", count: int = 1) -> Any:
    answer = await helpers.ask(kernel, model, np.ones(count))
    return json.loads(answer[0]) if isinstance(answer, list) else answer


def telling(define: str = "def") -> str:
    return TELLING.format(define=define, call="call.exec()" if define == "def" else "await call.async_exec()")


def test_a_virtual_environment(repo: Any, helpers: Any, venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Placement `process` is implied; the server's packages are not there, its contract is."""
    monkeypatch.setenv("PYTHONPATH", "/of/the/server")
    repo.add("inner", helpers.ECHO)
    for name, define in (("a", "def"), ("b", "async def")):
        repo.add(name, telling(define), io=TEXT, parameters={"EXECUTION_ENV_PATH": str(venv)})

    async def main(kernel: Kernel) -> Any:
        return [await ask(kernel, helpers, name, count) for name in "ab" for count in (1, 10_000)]

    for number, told in enumerate(repo.run(main)):
        prefix, version, path, inner, first, python_path, size = told
        assert Path(prefix).resolve() == venv
        assert version == list(sys.version_info[:2])
        assert path == []
        assert inner == [1.0] * (10_000 if number % 2 else 1)
        assert first == str(venv / "bin")
        assert python_path is None
        assert size == 4 * len(inner)


def test_beside_the_model(repo: Any, helpers: Any, venv: Path) -> None:
    repo.add("inner", helpers.ECHO)
    file = repo.add("a", telling(), io=TEXT, parameters={"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/env"})
    (file.parents[1] / "env").symlink_to(venv)
    assert Path(repo.run(lambda kernel: ask(kernel, helpers))[0]).resolve() == venv


def test_auto_complete_happens_there(repo: Any, helpers: Any, venv: Path) -> None:
    code = helpers.ECHO + f"""
    @staticmethod
    def auto_complete_config(config):
        import sys
        assert sys.prefix == {str(venv)!r}, sys.prefix
        config.add_input({{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}})
        config.add_output({{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}})
        return config
    """
    repo.add("a", code, io="", parameters={"EXECUTION_ENV_PATH": str(venv)})
    assert repo.run(lambda kernel: helpers.ask(kernel, "a", [3])) == [3.0]


def test_an_archive_is_unpacked_once(repo: Any, helpers: Any, venv: Path, tmp_path: Path, unpacked: Path) -> None:
    """As conda-pack makes them; with what has to be done when one was unpacked, and what its packages want the shell to say."""
    packed = tmp_path / "packed"
    shutil.copytree(venv, packed, symlinks=True)
    (packed / "conda-meta").mkdir()
    (packed / "bin" / "conda-unpack").write_text("import pathlib, sys\n(pathlib.Path(sys.prefix) / 'fixed').touch()\n")
    (packed / "bin" / "activate").write_text("FROM_THE_SHELL=yes; export FROM_THE_SHELL\n")
    (packed / "etc" / "conda" / "activate.d").mkdir(parents=True)
    (packed / "etc" / "conda" / "activate.d" / "a.sh").touch()
    archive = pack(packed, tmp_path / "env.tar.gz")
    repo.add("inner", helpers.ECHO)
    code = telling().replace('os.environ.get("PYTHONPATH")', 'os.environ["FROM_THE_SHELL"]')
    repo.add("a", code, io=TEXT, count=2, parameters={"EXECUTION_ENV_PATH": str(archive)})
    first = repo.run(lambda kernel: ask(kernel, helpers))
    (folder,) = (path for path in unpacked.iterdir() if path.is_dir())
    assert first[0] == str(folder)
    assert first[5] == "yes"
    assert (folder / "fixed").exists()
    (folder / "kept").touch()
    assert repo.run(lambda kernel: ask(kernel, helpers))[0] == str(folder)
    assert (folder / "kept").exists()
    assert folder.parent.stat().st_mode & 0o077 == 0


def test_a_changed_archive_is_unpacked_again(
    repo: Any, helpers: Any, venv: Path, tmp_path: Path, unpacked: Path
) -> None:
    archive = pack(venv, tmp_path / "env.tar.gz")
    repo.add("a", helpers.ECHO, parameters={"EXECUTION_ENV_PATH": str(archive)})
    assert repo.run(lambda kernel: helpers.ask(kernel, "a")) == [1.0]
    (before,) = (path for path in unpacked.iterdir() if path.is_dir())
    os.utime(archive, ns=(1, 1))
    gc.collect()  # the models of the first run
    assert repo.run(lambda kernel: helpers.ask(kernel, "a")) == [1.0]
    (after,) = (path for path in unpacked.iterdir() if path.is_dir())
    assert before != after  # and the old one, which nobody uses, is gone


def interpreters() -> list[str]:
    """Return other Pythons of this machine that have numpy; KERNEL_TEST_PYTHONS may name more."""
    named = os.environ.get("KERNEL_TEST_PYTHONS", "").split(os.pathsep)
    found = [path for minor in range(9, 20) if (path := shutil.which(f"python3.{minor}"))]
    return [path for path in (*named, *found) if path and _is_another(path)]


def _is_another(path: str) -> bool:
    code = "import sys, numpy; print(sys.version_info[:2], sys.version_info >= (3, 9))"
    told = subprocess.run([path, "-c", code], capture_output=True, text=True, env={"PATH": os.defpath})
    return told.returncode == 0 and told.stdout.split()[-1] == "True" and f"{sys.version_info[:2]}" not in told.stdout


@pytest.mark.parametrize("python", interpreters() or [""])
def test_another_version_of_python(repo: Any, helpers: Any, python: str, tmp_path: Path) -> None:
    if not python:
        pytest.skip("no other Python with numpy is installed")
    prefix = subprocess.run(
        [python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True, env={"PATH": os.defpath}
    ).stdout.strip()
    repo.add("inner", helpers.ECHO)
    repo.add("strings", helpers.ECHO, io=helpers.IO.replace("FP32", "STRING"), parameters={"EXECUTION_ENV_PATH": prefix})
    for name, define in (("a", "def"), ("b", "async def")):
        repo.add(name, telling(define), io=TEXT, parameters={"EXECUTION_ENV_PATH": prefix})

    async def main(kernel: Kernel) -> None:
        for name in "ab":
            told = await asyncio.gather(*(ask(kernel, helpers, name, count) for count in (1, 2, 10_000)))
            assert [one[3] for one in told] == [[1.0], [1.0] * 2, [1.0] * 10_000]
            assert told[0][1] != list(sys.version_info[:2])
        texts = np.array(["ü", b"\xff"] * 10_000, object)
        response = await kernel.infer("strings", {"X": texts})
        assert response["Y"].tolist() == ["ü".encode(), b"\xff"] * 10_000

    repo.run(main)


# -- environments that are none --------------------------------------------------------------------------------------------


def test_what_is_no_environment(repo: Any, helpers: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling" / "bin").mkdir(parents=True)
    (tmp_path / "dangling" / "bin" / "python").symlink_to("/no/such/python")
    (tmp_path / "text" / "bin").mkdir(parents=True)
    (tmp_path / "text" / "bin" / "python").write_text("not to be executed")
    (tmp_path / "file").write_text("no archive")
    wanted = "; wanted is the folder of a virtual environment"
    cases = {
        "empty": f"can't be used: {tmp_path}/empty/bin/python is not there{wanted}",
        "dangling": f"can't be used: {tmp_path}/dangling/bin/python is a link to /no/such/python, which is not there{wanted}",
        "text": f"can't be used: {tmp_path}/text/bin/python can't be executed{wanted}",
        "file": f"is neither a folder nor a tar archive{wanted}",
    }
    for name in cases:
        repo.add(name, helpers.ECHO, parameters={"EXECUTION_ENV_PATH": str(tmp_path / name)})
    repo.add("none", helpers.ECHO, parameters={"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/none"})

    async def main(kernel: Kernel) -> dict[str, str]:
        return {line.name: line.reason for line in kernel.index()}

    reasons = repo.run(main, exit_on_error=False)
    for name, text in cases.items():
        assert f"EXECUTION_ENV_PATH of model '{name}': {tmp_path / name} {text}" in reasons[name]
        assert reasons[name].endswith(f" ({repo.folder / name / 'config.pbtxt'}:6:1)")
    assert reasons["none"] == (
        f"Internal: Failed to get the canonical path for {repo.folder}/none/none. — "
        "EXECUTION_ENV_PATH of model 'none': there is nothing; wanted is the folder of a virtual environment or of an unpacked "
        "conda-pack, with a bin/python, or an archive of one (.tar.gz) "
        f"({repo.folder}/none/config.pbtxt:6:1)"
    )


def test_an_archive_that_holds_no_environment(repo: Any, helpers: Any, tmp_path: Path, unpacked: Path) -> None:
    (tmp_path / "content").mkdir()
    (tmp_path / "content" / "readme").touch()
    archive = pack(tmp_path / "content", tmp_path / "a.tar.gz")
    repo.add("a", helpers.ECHO, parameters={"EXECUTION_ENV_PATH": str(archive)})
    assert "bin/python is not there" in repo.load_error("a")
    assert not [path for path in unpacked.iterdir() if path.is_dir()]


def test_an_environment_without_numpy(repo: Any, helpers: Any, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    repo.add("a", helpers.ECHO, parameters={"EXECUTION_ENV_PATH": str(tmp_path / "bare")})
    reason = repo.load_error("a")
    assert f"ImportError: numpy 1.22 or newer is wanted in {tmp_path / 'bare'}, and can't be imported" in reason


def test_an_environment_with_a_numpy_that_is_too_old(repo: Any, helpers: Any, tmp_path: Path) -> None:
    bare = tmp_path / "old"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(bare), "platbase": str(bare)}))
    (site / "numpy.py").write_text("__version__ = '1.19.5'\n")
    repo.add("a", helpers.ECHO, parameters={"EXECUTION_ENV_PATH": str(bare)})
    assert f"numpy 1.22 or newer is wanted in {bare}; there is 1.19.5" in repo.load_error("a")


def test_a_python_that_cannot_run(repo: Any, helpers: Any, tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 12\n")
    python.chmod(0o755)
    repo.add("a", helpers.ECHO, parameters={"EXECUTION_ENV_PATH": str(tmp_path / "env")})
    reason = repo.load_error("a")
    assert "Stub process 'a_0_0' is not healthy." in reason
    assert "exited with code 12; the last it wrote to stderr:\nno such luck" in reason
    python.write_text("no program at all")
    assert "the process of instance 'a_0_0' can't be started: [Errno 8] Exec format error" in repo.load_error("a")


def test_another_placement_contradicts(repo: Any, helpers: Any, venv: Path) -> None:
    repo.add("a", helpers.ECHO, parameters={"EXECUTION_ENV_PATH": str(venv), "placement": "loop"})
    reason = repo.load_error("a")
    assert "parameter 'placement' of model 'a' is 'loop', with EXECUTION_ENV_PATH" in reason
    assert "config.pbtxt:" in reason


def test_the_folder_of_unpacked_archives_is_ours(
    repo: Any, helpers: Any, venv: Path, tmp_path: Path, unpacked: Path
) -> None:
    archive = pack(venv, tmp_path / "env.tar.gz")
    unpacked.mkdir(mode=0o777)
    unpacked.chmod(0o777)
    repo.add("a", helpers.ECHO, parameters={"EXECUTION_ENV_PATH": str(archive)})
    assert f"{unpacked} is not a folder of this user alone" in repo.load_error("a")




# -- older Pythons ---------------------------------------------------------------------------------------------------------

PLUGINS = Path(kernel_python.__file__).parents[1]
#: What a child begins with; the rest is imported from there.
FIRST = ["kernel_python/process/child/start.py", "kernel_python/process/child/serve.py", "triton_python_backend_utils.py",
         "kernel_python/process/child/bls.py", "kernel_python/process/child/waiting.py"]  # fmt: skip
#: What stands in the place of these there.
REPLACED = {"kernel_python.api.bls", "kernel_python.waiting", "kernel_python"}


def in_children() -> list[Path]:
    """Return the files that run in children."""
    core = ast.parse((PLUGINS / "kernel_python/process/child/core.py").read_text())
    (names,) = [node.value for node in core.body if isinstance(node, ast.Assign) and node.targets[0].id == "_NAMES"]  # type: ignore[attr-defined]
    found = [Path(kernel.__file__).parent / f"{name.replace('.', '/')}.py" for name in ast.literal_eval(names)]
    pending = [PLUGINS / name for name in FIRST]
    while pending:
        path = pending.pop()
        if path in found or not path.is_file():
            continue
        found.append(path)
        for node in ast.parse(path.read_text()).body:
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            modules += [f"{modules[0]}.{name.name}" for name in node.names] if isinstance(node, ast.ImportFrom) else []
            pending += [PLUGINS / f"{name.replace('.', '/')}.py" for name in modules if name not in REPLACED]
    return found


class _Newer(ast.NodeVisitor):
    """Finds what Python 3.9 can't do when it runs a module: types joined by `|` outside of annotations."""

    def __init__(self) -> None:
        self.lines: list[int] = []

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        pass

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for one in [*node.decorator_list, *node.args.defaults, *node.body]:
            self.visit(one)

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_BinOp(self, node: ast.BinOp) -> None:
        sides = [one for one in (node.left, node.right) if isinstance(one, ast.Constant) and one.value is None]
        if isinstance(node.op, ast.BitOr) and sides:
            self.lines.append(node.lineno)
        self.generic_visit(node)


def test_what_runs_in_children_is_for_python_3_9() -> None:
    """Their Python may be older than the server's; where none is installed to try it, this sees the usual mistakes."""
    files = in_children()
    assert {"errors.py", "executor.py", "background.py", "pool.py", "channel.py"} <= {path.name for path in files}
    wrong = []
    for path in files:
        tree = ast.parse(path.read_text(), feature_version=(3, 9))  # `match`, `except*` and the like
        newer = _Newer()
        newer.visit(tree)
        wrong += [f"{path}:{line}" for line in newer.lines]
    assert not wrong, "`X | None` is evaluated: put it in quotes"
