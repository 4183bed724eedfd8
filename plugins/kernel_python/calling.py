"""Which model is calling? The record of one instance, and how pb_utils functions find the one whose code they are called from.

An execution says so in a context variable; code outside of one (a thread that `initialize` started) is known by the global
`__kernel_instance__` that every module of a model has; a request that a thread was handed, by where it was made. Calls of
library code on threads of its own belong to nobody: they are made for no execution.
"""

from __future__ import annotations

import sys
import types
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

from kernel import Batch, RequestState
from kernel_python.faults import TritonModelException

__all__ = [
    "EXECUTION",
    "Instance",
    "Modules",
    "Site",
    "bls_site",
    "calling_instance",
    "calling_site",
    "closed",
    "only",
    "retired",
    "serving",
]

RELEASED = RequestState.RELEASED
BLS_MISPLACED = "BLS is only supported during the 'execute' function."


class Modules(Protocol):
    """The private modules of a model in the server; loading/modules.py has them.

    `names`: what their code mentions. `main`: the private name of the model's file, `shown`: the reference's.
    """

    names: set[str]
    main: str
    shown: str

    def load_main(self, file: Path) -> types.ModuleType:
        """Import the model's own file. Raises what it raises."""

    def describe(self, error: BaseException) -> str:
        """Return what is told of an exception of the model's."""

    def remove(self) -> None:
        """Take everything of the model out of sys.modules. May be called twice."""


class Instance:
    """One instance of a python model, as the pb_utils functions need to know it.

    `phase`: "auto_complete", "initialize", "execute" or "finalize"; BLS is for the third alone. `idle`: what EXECUTION says
    while nothing executes. `on_loop`: its `execute` runs on the kernel's loop. `drivers`: greenlets for its coroutines, where
    these may wait in synchronous calls on that loop. `lends`: its arrays are handed over as they are, since whoever gets them
    only reads (zero_copy) or takes a copy at once (in a process of its own).
    """

    __slots__ = (
        "decoupled",
        "drivers",
        "executor",
        "has_waited",
        "idle",
        "iterative",
        "kept",
        "kernel",
        "lends",
        "model_name",
        "modules",
        "name",
        "on_loop",
        "outputs",
        "phase",
        "strict",
        "thread",
        "undeclared",
        "version_folder",
        "zero_copy",
    )

    def __init__(self, kernel: Any, name: str, model_name: str, version_folder: str, phase: str) -> None:
        self.kernel = kernel  # kernel.Host; in a child what stands for it there; None where nothing is served
        self.name = name
        self.model_name = model_name
        self.version_folder = version_folder
        self.phase = phase
        self.modules: Modules | None = None
        self.executor: Any = None  # the instance's ModelExecutor, once it is made
        self.decoupled = False
        self.iterative = False  # its requests may be executed more than once
        self.kept: frozenset[str] = frozenset()  # outputs that the server keeps, in a process of its own
        self.zero_copy = False
        self.lends = False
        self.on_loop = False
        self.has_waited = False  # on the loop, for a thread that needed it
        self.drivers: list[Any] | None = None
        self.outputs: frozenset[str] = frozenset()
        self.strict = bool(getattr(kernel, "strict_outputs", False))  # what the config lacks is the core's to refuse
        self.undeclared: set[str] = set()  # output names that the log has warned about
        self.thread = 0  # the one that executes, where that is a thread of its own
        self.idle: Site = (self, None)

    def waits(self) -> None:
        """Note that the model does wait in the middle of `execute`, though its code did not look like it."""
        if self.modules is not None:
            self.modules.names.add("exec")
        if self.executor is not None:
            self.executor.may_wait = True


#: An instance, and the batch that it executes (None outside of `execute`).
Site = tuple[Instance, "Batch | None"]

#: The instance whose code runs in this context.
EXECUTION: ContextVar[Site] = ContextVar("kernel_python_execution")

#: Instances whose `execute` may be called.
_serving: dict[Instance, None] = {}


def serving(instance: Instance) -> None:
    """Note that the instance is initialized."""
    _serving[instance] = None


def retired(instance: Instance) -> None:
    """Note that the instance is about to be finalized."""
    _serving.pop(instance, None)


def closed(kernel: Any) -> None:
    """Note that a kernel is closed: an instance of its that hangs, and so is never finalized, serves no more."""
    for instance in [one for one in list(_serving) if one.kernel is kernel]:
        retired(instance)


#: The one instance whose code can call, in a process of its own.
_only: Instance | None = None


def only(instance: Instance) -> None:
    """Take every call that no execution makes for one of this instance's."""
    global _only
    _only = instance


def calling_site() -> Site | None:
    """Return the calling model's instance and the batch it executes (None outside of `execute`); None if no model calls."""
    site = EXECUTION.get(None)
    if site is not None:
        return site
    if _only is not None:
        return _only.idle
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        instance: Instance | None = frame.f_globals.get("__kernel_instance__")
        if instance is not None:
            return instance.idle
        frame = frame.f_back
    return None


def calling_instance(what: str, anybody: bool = False) -> Instance:
    """Return the calling model's instance, or raise TritonModelException that says `what` is for models only.

    `anybody`: it does not matter whose code calls, as long as the kernel is known.
    """
    site = calling_site() or (_nobodys() if anybody else None)
    if site is None:
        raise TritonModelException(f"{what} can only be used by the code of a model that is being served.")
    return site[0]


def bls_site(made: Site | None) -> Site:
    """Return who makes a BLS call and the execution that it belongs to, None when that execution has its answers already.

    `made`: where the request was made. Raises TritonModelException where BLS is not allowed.
    """
    site = EXECUTION.get(None) or made or calling_site() or _nobodys()
    if site is None or site[0].phase != "execute":
        raise TritonModelException(BLS_MISPLACED)
    batch = site[1]
    if batch is not None:
        for request in batch.requests:
            if request.state is not RELEASED or request.error is not None:
                return site
        # All answered: what still runs (a task, a thread with a copied context) calls on its own account.
        return site[0].idle
    return site


def _nobodys() -> Site | None:
    """Return who calls where nothing tells whose code it is: some library's, on a thread of its own.

    That is no instance, but of one kernel; None where models of several kernels, or none, are served by this process.
    """
    instances = list(_serving)
    if not instances or any(one.kernel is not instances[0].kernel for one in instances):
        return None
    if len(instances) == 1:
        return instances[0].idle
    nobody = Instance(instances[0].kernel, "", "", "", "execute")
    nobody.on_loop = any(one.on_loop for one in instances)
    return nobody.idle
