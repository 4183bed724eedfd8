"""Gets and runs the reference: the real Triton Inference Server, on the CPU, with its python backend and its ensembles.

    python tests/reference/triton.py REPOSITORY [any tritonserver flag]     runs it; end it with SIGTERM
    python tests/reference/triton.py --install                              only sees to it that it is there

The server comes from PyPI, where the package nvidia-pytriton carries it, and is installed once, into a virtual environment of
its own in the user's cache folder ($KERNEL_REFERENCE_CACHE, or kernel-serve/ in $XDG_CACHE_HOME or ~/.cache). Where that can't
be, one line says why. Needs the standard library only, and nothing of this project: the tests import it, the benchmarks run it
as a program. It lies with the tests, since comparing is what it is for.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["VERSION", "Installation", "Unavailable", "install", "why_not_here"]

PACKAGE = "nvidia-pytriton==0.7.0"
VERSION = "2.51.0"  # of the server in it
GLIBC = (2, 35)
#: The package carries a stub, the program that runs models, for each of these.
PYTHONS = ((3, 8), (3, 13))
#: Of what the package depends on, models need this only; the server itself needs nothing of Python.
NUMPY = "numpy<2" if sys.version_info < (3, 13) else "numpy"

#: Written into the environment last: without it the installation was cut off, and is made anew.
COMPLETE = "complete"


class Unavailable(Exception):
    """The reference can't be had here; the text is one line that says why."""


@dataclass(frozen=True)
class Installation:
    """Where the reference lies. `home`: the virtual environment, with what belongs to it."""

    home: Path

    @property
    def site(self) -> Path:
        return self.home / "lib" / f"python{_version()}" / "site-packages"

    @property
    def server(self) -> Path:
        return self.site / "pytriton" / "tritonserver"

    @property
    def backends(self) -> Path:
        return self.home / "backends"

    @property
    def stub(self) -> Path:
        return self.backends / "python" / "triton_python_backend_stub"

    def command(self, repository: str | Path, flags: Sequence[str] = ()) -> list[str]:
        """Return what starts the server on `repository`."""
        binary = self.server / "bin" / "tritonserver"
        folders = ["--backend-directory", str(self.backends), "--cache-directory", str(self.server / "caches")]
        return [str(binary), "--model-repository", str(repository), *folders, *flags]

    def environment(self) -> dict[str, str]:
        """Return the environment that it is to be started with."""
        libraries = [str(self.site / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR") or ""]
        # The stub takes the first `python3` of PATH for its own and needs numpy there.
        path = f"{self.home / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        more = {"LD_LIBRARY_PATH": os.pathsep.join(libraries), "PATH": path, "VIRTUAL_ENV": str(self.home)}
        return {**os.environ, **more}


def install() -> Installation:
    """Return the reference, installed if it was not yet. Raises Unavailable.

    Processes that want it at a time wait for the one that installs it.
    """
    reason = why_not_here(sys.platform, platform.machine(), sys.version_info[:2], _glibc())
    if reason:
        raise Unavailable(reason)
    try:
        cache = _cache()
    except RuntimeError as error:
        raise Unavailable(f"there is no folder for it: {error}") from error
    found = Installation(cache / f"triton-{VERSION}-python{_version()}")
    try:
        with _locked(cache / "triton.lock"):
            if not (found.home / COMPLETE).exists():
                _make(found)
    except OSError as error:
        raise Unavailable(f"it can't be written to {cache}: {error}") from error
    _see_that_models_run(found)
    return found


def why_not_here(system: str, machine: str, python: tuple[int, int], glibc: tuple[int, int] | None) -> str:
    """Return why the reference can't run on such a machine, whatever is installed; nothing when it can."""
    if system != "linux" or machine != "x86_64":
        return f"it runs on Linux x86-64 only, and this is {system} {machine}"
    if glibc is None or glibc < GLIBC:
        have = "another C library" if glibc is None else f"glibc {glibc[0]}.{glibc[1]}"
        return f"it needs glibc {GLIBC[0]}.{GLIBC[1]} or newer, and here is {have}"
    if not PYTHONS[0] <= python <= PYTHONS[1]:
        first, last = (".".join(map(str, each)) for each in PYTHONS)
        return f"it runs models with Python {first} to {last}, and this is {python[0]}.{python[1]}"
    return ""


def _glibc() -> tuple[int, int] | None:
    """Return the version of the C library if it is glibc."""
    try:
        version = ctypes.CDLL(None).gnu_get_libc_version
    except (OSError, AttributeError, TypeError):
        return None
    version.restype = ctypes.c_char_p
    major, minor = version().decode().split(".")[:2]
    return int(major), int(minor)


def _version() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _cache() -> Path:
    own = os.environ.get("KERNEL_REFERENCE_CACHE")
    if own:
        return Path(own).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "kernel-serve"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(target: Installation) -> None:
    print(f"installing the reference, {PACKAGE}, in {target.home}", file=sys.stderr, flush=True)
    shutil.rmtree(target.home, ignore_errors=True)
    # Debian's python3 comes without ensurepip; a pip from elsewhere can install into an environment without one.
    if _run(sys.executable, "-m", "venv", str(target.home)).returncode:
        shutil.rmtree(target.home, ignore_errors=True)
        made = _run(sys.executable, "-m", "venv", "--without-pip", str(target.home))
        if made.returncode:
            raise Unavailable(f"no environment can be made for it: {_last_line(made)}")
    pip = [*_pip(target), "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    for what in (["--no-deps", PACKAGE], [NUMPY]):
        done = _run(*pip, *what)
        if done.returncode:
            raise Unavailable(f"{what[-1]} can't be installed: {_last_line(done)}")
    _gather_backends(target)
    (target.home / COMPLETE).touch()


def _pip(target: Installation) -> list[str]:
    """Return the beginning of a command that installs into `target`."""
    python = str(target.home / "bin" / "python")
    for program in (python, sys.executable, getattr(sys, "_base_executable", sys.executable)):
        if _run(program, "-m", "pip", "--version").returncode == 0:
            return [program, "-m", "pip", *([] if program == python else ["--python", python])]
    raise Unavailable("there is no pip that could install it")


def _gather_backends(target: Installation) -> None:
    """Put the python backend and the stub for this interpreter into one folder, as the server wants them."""
    python = target.backends / "python"
    python.mkdir(parents=True)
    for file in (target.server / "backends" / "python").iterdir():
        if file.is_file():
            shutil.copy2(file, python / file.name)
    shutil.copy2(target.server / "python_backend_stubs" / _version() / target.stub.name, target.stub)


def _see_that_models_run(target: Installation) -> None:
    """The stub is linked to libpython, which not every Python brings as a library that can be shared."""
    tried = _run(str(target.stub), environment=target.environment())
    if tried.returncode == 127:  # it was not even started
        raise Unavailable(_last_line(tried).replace(f"{target.stub}: ", "") + " (it is the Python library that its models need)")


def _run(*command: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return next(iter(reversed((done.stderr or done.stdout).strip().splitlines())), f"exit status {done.returncode}")


def main(arguments: Sequence[str]) -> int:
    if not arguments or (arguments[0].startswith("-") and arguments[0] != "--install"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        found = install()
    except Unavailable as reason:
        print(f"no reference: {reason}", file=sys.stderr)
        return 1
    if arguments[0] == "--install":
        return 0
    command = found.command(arguments[0], arguments[1:])
    os.execve(command[0], command, found.environment())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
