"""The first file of ours that runs in a child: installs the modules that model code and we import, then serves.

A child has the model's files and those of kernel_python that models can see, unchanged. What these take from the core comes
from here (core.py stands in for `kernel`), and three modules that are about the server's loop are replaced by others.
Executed by path, either for one child, with the descriptors of its socket, its shared memory and its tickets as arguments; or as
a fork server for many (forking.py), with the socket that asks for them.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import os
import socket
import sys
import types

OLDEST_NUMPY = (1, 22)

#: Modules that are replaced by another.
INSTEAD = {
    "kernel_python.waiting": "kernel_python.process.child.waiting",
    "kernel_python.api.bls": "kernel_python.process.child.bls",
}


def main(arguments: list[str]) -> None:
    own_path, kernel_folder, mode, server, *descriptors = arguments
    faulthandler.enable()
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)
    sys.argv = [""]
    given = tuple(map(int, descriptors))
    end = socket.socket(fileno=given[0])
    try:
        install(os.path.dirname(os.path.dirname(os.path.dirname(own_path))), kernel_folder)
        serve = importlib.import_module("kernel_python.process.child.serve")
        parent = importlib.import_module("kernel_python.process.child.parent")
    except ImportError as error:
        if mode == "many":
            raise
        complain(end, f"{type(error).__name__}: {error}")
    parent.die_with(int(server))
    if mode == "many":
        forking = importlib.import_module("kernel_python.process.child.forking")
        fork_server = os.getpid()
        given = forking.next_child(end)
        parent.die_with(fork_server)
        end = socket.socket(fileno=given[0])
    parent.leave_signals_to_the_server()
    serve.run(end, *given[1:])


def install(kernel_python: str, kernel: str) -> None:
    """Have `kernel`, `kernel_python` and `triton_python_backend_utils` imported from where the server has them."""
    check_numpy()
    packages = types.ModuleType("kernel_python")
    packages.__path__ = [kernel_python]
    sys.modules["kernel_python"] = packages
    core = os.path.join(kernel_python, "process", "child", "core.py")
    load("kernel", core, [kernel])
    for name, other in INSTEAD.items():
        module = sys.modules[name] = importlib.import_module(other)
        room, _, last = name.rpartition(".")
        setattr(importlib.import_module(room), last, module)
    load("triton_python_backend_utils", os.path.join(os.path.dirname(kernel_python), "triton_python_backend_utils.py"))


def load(name: str, path: str, folders: list[str] | None = None) -> None:
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def check_numpy() -> None:
    wanted = ".".join(map(str, OLDEST_NUMPY))
    try:
        import numpy
    except ImportError as error:
        raise ImportError(f"numpy {wanted} or newer is wanted in {sys.prefix}, and can't be imported: {error}") from None
    if tuple(int(part) for part in numpy.__version__.split(".")[:2]) < OLDEST_NUMPY:
        raise ImportError(f"numpy {wanted} or newer is wanted in {sys.prefix}; there is {numpy.__version__}")


def complain(server: socket.socket, text: str) -> None:
    """Say why we can't serve, as wire.py would, were it there."""
    import marshal
    import struct

    data = marshal.dumps((12, "INTERNAL", text), 4)  # FAILED
    server.sendall(struct.pack("<I", len(data)) + data)
    sys.exit(1)


main(sys.argv[1:])
