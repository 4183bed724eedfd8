"""Does the project's chores, with all the set-up they need: `python3 dev.py serve`, `python3 dev.py test`, …

Needs nothing but a Python with pip. Makes a virtual environment in .venv and installs the project there in editable form,
again only when pyproject.toml has changed. Older Pythons can read this file; it finds a new enough one itself.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 11)
ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"

#: That run tests at a time: one more than there are cores, since many tests wait, for the real Triton above all; eight at most.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
PROCESSES = str(min(CORES + 1, 8))

#: What `check` tests: tests by Hypothesis, which marks them itself, take three quarters of the time.
CORE = ("tests/core", "-m", "not hypothesis")

USAGE = """\
usage: python3 dev.py COMMAND [ARGUMENT ...]

  serve      serve the models of repository/; arguments are those of `kernel serve`, e.g. --http-port 9000
  check      ruff, mypy and the tests of the core but for those of many random inputs: within a minute, for while you write
  test       ruff, mypy and all tests; with arguments only the tests, arguments are those of pytest, e.g. -k batching
  bench      measure, side by side with the real Triton where it can be installed
  fuzz       feed the parsers with what a seed makes of good inputs, for a minute; --seconds, --only; see tests/fuzz
  proto      write each schema's *_pb2.py and *_pb2.pyi anew from its .proto; --check only compares
  reference  write the pages of docs/ anew that are made from the code: names, commands, fields, metrics; --check only compares
  site       build the documentation into site/, as a web site
  setup      only make the environment, .venv
  clean      remove it, and what tools have left behind
"""


def main(arguments: list[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command not in COMMANDS:
        print(USAGE, end="", file=sys.stdout if command in ("-h", "--help", "help") else sys.stderr)
        return 0 if command in ("-h", "--help", "help") else 2
    if sys.version_info < OLDEST:
        newer = newer_python()
        os.execv(newer, [newer, str(Path(__file__).resolve()), *arguments])
    return COMMANDS[command](rest)


def serve(arguments: list[str]) -> int:
    install("")
    os.chdir(str(ROOT))
    os.execv(str(PYTHON), [str(PYTHON), "-m", "kernel", "serve", "repository/", *arguments])


def check(arguments: list[str]) -> int:
    install("dev")
    return all_of(("ruff", "check", "."), ("mypy",), ("pytest", "-q", "-n", PROCESSES, *CORE, *arguments))


def test(arguments: list[str]) -> int:
    install("dev")
    if arguments:
        return run("pytest", *arguments)
    return all_of(("ruff", "check", "."), ("mypy",), ("pytest", "-q", "-n", PROCESSES))


def all_of(*steps: tuple[str, ...]) -> int:
    """Run each, whatever becomes of those before; say which have failed. The tests come last, so their summary does."""
    failed = [step[0] for step in steps if run(*step)]
    if failed:
        print("failed: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


def bench(arguments: list[str]) -> int:
    install("dev")
    return run("python", "bench/run.py", *arguments)


def fuzz(arguments: list[str]) -> int:
    install("dev")
    return run("python", "tests/fuzz/run.py", *arguments)


def proto(arguments: list[str]) -> int:
    install("dev")
    return run("python", "scripts/proto.py", *arguments)


def reference(arguments: list[str]) -> int:
    install("dev")
    return run("python", "scripts/reference.py", *arguments) or run("python", "scripts/pages.py", *arguments)


def site(arguments: list[str]) -> int:
    install("dev")
    return run("mkdocs", "build", "--strict", *arguments)


def setup(arguments: list[str]) -> int:
    install("dev")
    return 0


def clean(arguments: list[str]) -> int:
    names = (".venv", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "build", "dist", "site")
    for path in [*(ROOT / name for name in names), *ROOT.glob("**/__pycache__"), *ROOT.glob("**/*.egg-info")]:
        shutil.rmtree(str(path), ignore_errors=True)
    return 0


COMMANDS = {
    "serve": serve,
    "check": check,
    "test": test,
    "bench": bench,
    "fuzz": fuzz,
    "proto": proto,
    "reference": reference,
    "site": site,
    "setup": setup,
    "clean": clean,
}


def run(program: str, *arguments: str) -> int:
    """Run a program of the environment in the project's folder; return its exit status."""
    print("+ " + " ".join((program, *arguments)), file=sys.stderr, flush=True)
    return subprocess.call([str(VENV / "bin" / program), *arguments], cwd=str(ROOT))


def install(extra: str) -> None:
    """Have an environment with the project in it, and with what its `extra` names."""
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + sys.version.encode()).hexdigest()
    stamps = [VENV / f"installed-{name}" for name in {extra or "run", "dev"}]  # with `dev` there is all the rest too
    if any(stamp.exists() and stamp.read_text() == wanted for stamp in stamps):
        return
    if not PYTHON.exists() or subprocess.call([str(PYTHON), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]):
        shutil.rmtree(str(VENV), ignore_errors=True)
        make_environment()
    target = f".[{extra}]" if extra else "."
    command = [*pip(), "install", "--quiet", "--disable-pip-version-check", "--editable", target]
    subprocess.check_call(command, cwd=str(ROOT))
    (VENV / f"installed-{extra or 'run'}").write_text(wanted)


def make_environment() -> None:
    print("making the environment in .venv", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "venv"]
    # Debian's python3 comes without ensurepip; the pip that is there can install into an environment without one.
    if subprocess.call([*command, str(VENV)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        shutil.rmtree(str(VENV), ignore_errors=True)
        subprocess.check_call([*command, "--without-pip", str(VENV)])


def pip() -> list[str]:
    if (VENV / "bin" / "pip").exists():
        return [str(PYTHON), "-m", "pip"]
    return [sys.executable, "-m", "pip", "--python", str(PYTHON)]


def newer_python() -> str:
    """Return the path of the newest Python on this machine that will do."""
    for minor in range(20, OLDEST[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found and subprocess.call([found, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            return found
    sys.exit(f"Python 3.{OLDEST[1]} or newer is wanted; this is {sys.version.split()[0]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
