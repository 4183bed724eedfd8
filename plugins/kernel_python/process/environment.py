"""EXECUTION_ENV_PATH: another Python for the children of a model (contract: python_backend, section 3).

A folder with a `bin/python` (a virtual environment, an unpacked conda-pack), or an archive of one (conda-pack's `.tar.gz`), which
is unpacked once into a folder of its own in the system's temporary folder. It is kept there for the next start, and removed once
the archive has changed and nobody uses it any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kernel import Code, Key, ModelConfig, ServingError
from kernel_python.process.spawn import Interpreter, Launcher

__all__ = ["check_environment", "launcher_of"]

KEY = "EXECUTION_ENV_PATH"
AT = ("parameters", Key(KEY))
WANTED = (
    "wanted is the folder of a virtual environment or of an unpacked conda-pack, with a bin/python, "
    "or an archive of one (.tar.gz)"
)
#: Variables of the server's own Python, which would send another one to the wrong modules.
OURS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "CONDA_PREFIX", "__PYVENV_LAUNCHER__")


def check_environment(config: ModelConfig, model_folder: Path) -> Path | None:
    """Return the path that the config names, None where it names none. Raises ServingError where it can't be one."""
    value = config.parameters.get(KEY)
    if value is None:
        return None
    path = Path(value.replace("$$TRITON_MODEL_DIRECTORY", str(model_folder.absolute())))
    if not path.exists():
        words = f"Failed to get the canonical path for {path}."
        raise config.error(words, f"{KEY} of model '{config.name}': there is nothing; {WANTED}", at=AT, code=Code.INTERNAL)
    path = path.resolve()
    if path.is_dir():
        _python(config, path)
    elif not tarfile.is_tarfile(path):
        raise _refusal(config, path, "is neither a folder nor a tar archive")
    return path


def launcher_of(config: ModelConfig, model_folder: Path, own: Launcher) -> Launcher:
    """Return what starts the model's children; unpacks an archive if need be. `own`: for the server's own Python.

    Raises ServingError.
    """
    path = check_environment(config, model_folder)
    if path is None:
        return own
    use = None
    if path.is_dir():
        folder = path
    else:
        folder, use = _unpacked(config, path)
    python = _python(config, folder)
    environment = {key: value for key, value in os.environ.items() if key not in OURS}
    environment["PATH"] = os.pathsep.join([str(folder / "bin"), environment.get("PATH", os.defpath)])
    conda = (folder / "conda-meta").is_dir()
    environment["CONDA_PREFIX" if conda else "VIRTUAL_ENV"] = str(folder)
    command: tuple[str, ...] = (str(python),)
    if conda and any(folder.glob("etc/conda/activate.d/*.sh")) and (folder / "bin" / "activate").exists():
        # Some of its packages have scripts that set variables (mostly where their data lies), for a shell to read first.
        bash = shutil.which("bash")
        if bash is not None:
            command = (bash, "-c", 'source "$0" && exec "$@"', str(folder / "bin" / "activate"), str(python))
    return Interpreter(command, environment, own=False, use=use)


def _python(config: ModelConfig, folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        broken = f"is a link to {os.readlink(python)}, which is not there" if python.is_symlink() else "is not there"
        raise _refusal(config, folder, f"can't be used: {python} {broken}")
    if not os.access(python, os.X_OK):
        raise _refusal(config, folder, f"can't be used: {python} can't be executed")
    return python


def _refusal(config: ModelConfig, path: Path, problem: str) -> ServingError:
    return config.error("", f"{KEY} of model '{config.name}': {path} {problem}; {WANTED}", at=AT, code=Code.INTERNAL)


# -- archives ----------------------------------------------------------------------------------------------------------


class _Use:
    """Says, as long as it lives, that somebody uses an unpacked environment; also to other processes."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(_used(folder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def __del__(self) -> None:
        os.close(self._descriptor)


def _used(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.used")


def _remove_unused(folder: Path) -> None:
    with _used(folder).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(folder, ignore_errors=True)
        _used(folder).unlink(missing_ok=True)


def _unpacked(config: ModelConfig, archive: Path) -> tuple[Path, _Use]:
    """Return the folder of the archive's content, the one that is there, or a new one; and what says that it is used."""
    status = archive.stat()
    digest = hashlib.sha256(str(archive).encode()).hexdigest()[:16]
    name = f"{digest}-{status.st_size}-{status.st_mtime_ns}"
    root = _root(config, archive)
    folder = root / name
    with _locked(root / f"{digest}.lock"):
        for other in root.glob(f"{digest}-*"):
            if other != folder and other.is_dir():
                _remove_unused(other)
        if not folder.exists():
            fresh = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=root))
            try:
                _extract(archive, fresh)
                python = _python(config, fresh)
                os.rename(fresh, folder)
                python, fix = folder / "bin" / python.name, folder / "bin" / "conda-unpack"
                if fix.exists():  # conda-pack's script: writes this folder's name where the files have that of another
                    subprocess.run([str(python), str(fix)], check=True, capture_output=True)
            except (OSError, tarfile.TarError, EOFError, subprocess.CalledProcessError) as error:
                shutil.rmtree(folder, ignore_errors=True)
                raise _refusal(config, archive, f"can't be unpacked: {error}") from error
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
        return folder, _Use(folder)


def _extract(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as content:
        if hasattr(tarfile, "tar_filter"):
            content.extractall(folder, filter="tar")
        else:
            content.extractall(folder)


def _root(config: ModelConfig, archive: Path) -> Path:
    """Return the folder of unpacked environments, which nobody else can write to."""
    root = Path(tempfile.gettempdir()) / f"kernel-environments-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or root.is_symlink():
        raise _refusal(config, archive, f"can't be unpacked: {root} is not a folder of this user alone")
    return root


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One at a time, also of other processes."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
