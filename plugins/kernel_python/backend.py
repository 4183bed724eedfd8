"""The `python` backend: serves models whose version folder holds a `model.py` with a class TritonPythonModel.

Loads: imports the model's file into private modules, calls `auto_complete_config`, makes and initialises instances, and
decides where their `execute` runs. Failures are told in the reference's words (contract: python_backend, 2.3).
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernel import (
    Code,
    ConfigError,
    Finding,
    Host,
    InstanceContext,
    Kernel,
    Key,
    ModelConfig,
    Placement,
    PlacementChoice,
    ServingError,
)
from kernel_python.calling import EXECUTION, Instance, Modules, closed
from kernel_python.executor import AsyncExecutor, ModelExecutor, SyncExecutor
from kernel_python.loading.advice import advice
from kernel_python.loading.completion import completed
from kernel_python.loading.foresight import may_wait
from kernel_python.loading.kept import Kept
from kernel_python.loading.lifecycle import (
    arguments_of,
    async_capacity,
    complete,
    initialized,
    model_class,
)
from kernel_python.loading.modules import PrivateModules
from kernel_python.loading.placement import asked_placement, choose_placement
from kernel_python.loading.source_check import completes_config, faults_of
from kernel_python.own_process import refuse
from kernel_python.process.completing import complete_in_process
from kernel_python.process.environment import check_environment, launcher_of
from kernel_python.process.executor import ProcessExecutor
from kernel_python.process.fork_server import AHEAD, ForkServer, can_fork
from kernel_python.process.spawn import Interpreter, Launcher
from kernel_python.settings import read_settings

__all__ = ["PythonBackend"]

log = logging.getLogger("kernel_python")


class PythonBackend:
    """The Backend of one kernel."""

    name = "python"
    creates_on_loop = False

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._settings = read_settings(kernel.backend_settings(self.name))
        self._kept = Kept()
        self._fork_server = ForkServer(lambda: kernel.supervision.ahead.add(AHEAD)) if can_fork() else None
        self._launcher: Launcher = self._fork_server or Interpreter()

    def close(self) -> None:
        """The kernel has stopped: end what starts processes."""
        closed(self._kernel)
        self._kept.close()
        if self._fork_server is not None:
            self._fork_server.close()

    # -- config --------------------------------------------------------------------------------------------------------

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        """Refuse parameters that this backend reads and can't serve, and versions without a model file."""
        for version in versions:
            _model_file(config, model_folder / str(version))
        parameters = config.parameters
        # The config has checked already that placement, max_concurrency and zero_copy are of the right form.
        cpu_only = parameters.get("FORCE_CPU_ONLY_INPUT_TENSORS")
        if cpu_only is not None and cpu_only.lower() not in ("yes", "no"):
            raise ServingError(Code.UNSUPPORTED, f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {cpu_only}'")
        if check_environment(config, model_folder) is not None and asked_placement(config) in ("loop", "thread"):
            raise config.error(
                "",
                f"parameter 'placement' of model '{config.name}' is '{parameters['placement']}', with EXECUTION_ENV_PATH; "
                "another environment needs 'process', which is also the default with it",
                at=("parameters", Key("placement")),
            )

    def choose_placement(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> PlacementChoice:
        """Return where the model's instances run: as its config says, else by what its code is known to do."""
        file = _model_file(config, version_folder)
        seen = self._kernel.supervision.conduct.must_isolate(config.name)
        choice = choose_placement(config, file, version_folder, model_folder, self._settings, seen)
        self._kept.keep_choice(version_folder, choice)  # for complete_config, with which the load goes on
        return choice

    def look(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> list[ConfigError] | None:
        """Return what in the model's code can't be loaded, as far as that is seen without running it."""
        if "EXECUTION_ENV_PATH" in config.parameters:
            return None  # it runs in another Python, whose modules can't be looked for from here
        folders = [model_folder / str(version) for version in versions]
        found = [faults_of(_model_file(config, folder), (folder.absolute(), model_folder.absolute())) for folder in folders]
        # A mistake in a module that versions share is told once.
        unique = {error.message: error for errors in found for error in errors}
        return list(unique.values())

    def advise(
        self, config: ModelConfig, model_folder: Path, versions: Sequence[int], choice: PlacementChoice | None
    ) -> list[Finding]:
        """Return what in the code of the latest version costs time or is not as at Triton, without running it."""
        if choice is None or not versions:
            return []
        folder = model_folder / str(max(versions))
        return list(advice(config, _model_file(config, folder), folder, model_folder, choice))

    def may_complete(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> bool:
        """Return whether the model has an `auto_complete_config`, which may change a config that is complete, too."""
        return any(completes_config(_model_file(config, model_folder / str(version))) for version in versions)

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        """Let the model's `auto_complete_config`, where it has one, fill in the config."""
        choice = self._kept.take_choice(version_folder)
        self._kept.drop(version_folder)  # what a load that has failed has left
        file = _model_file(config, version_folder)
        if not completes_config(file):
            return config  # nothing is imported, or started, just to find that out
        choice = choice or self.choose_placement(config, model_folder, version_folder)
        if choice.where == "process":
            launcher = launcher_of(config, model_folder, self._launcher)
            patience, hang = self._settings.stub_timeout, self._settings.stub_hang
            made = complete_in_process(self._kernel, config, version_folder, model_folder, file, launcher, patience, hang)
            return config if made is None else completed(config, made)
        refuse()
        context = contextvars.Context()
        return context.run(self._completed, config, model_folder, version_folder, file, context)

    def _completed(
        self, config: ModelConfig, model_folder: Path, version_folder: Path, file: Path, context: contextvars.Context
    ) -> ModelConfig:
        """Import the model and have it fill in the config; both are kept for its first instance, `context` with them."""
        instance = _instance(self._kernel, config, model_folder, version_folder)
        instance.phase = "auto_complete"
        with _loading(instance) as modules:
            module = modules.load_main(file)
            filled = complete(model_class(module, modules.shown), config.name, json.dumps(config.as_dict()))
            config = config if filled is None else completed(config, filled)
        self._kept.keep_modules(version_folder, config, instance, module, context)
        return config

    # -- instances -----------------------------------------------------------------------------------------------------

    def create(self, context: InstanceContext) -> ModelExecutor | ProcessExecutor:
        """Make one instance: import its modules, `__init__`, `initialize`."""
        config = context.config
        file = _model_file(config, context.version_folder)
        choice = context.placement_choice or self.choose_placement(config, context.model_folder, context.version_folder)
        if choice.where == "process":
            launcher = launcher_of(config, context.model_folder, self._launcher)
            return ProcessExecutor.start(context, file, launcher, self._settings.stub_timeout, self._settings.stub_hang)
        refuse()
        instance, module = self._kept.take_modules(context.version_folder, config) or (
            _instance(context.kernel, config, context.model_folder, context.version_folder), None,
        )  # fmt: skip
        instance.name, instance.phase = context.instance_name, "initialize"
        instance.decoupled = config.decoupled
        instance.iterative = config.sequence_batching is not None and config.sequence_batching.iterative
        instance.zero_copy = instance.lends = config.parameters.get("zero_copy", "").lower() == "true"
        instance.outputs = frozenset(spec.name for spec in config.outputs)
        with _loading(instance) as modules:
            found = model_class(module or modules.load_main(file), modules.shown)
            model = initialized(found, file, arguments_of(context))
            instance.phase = "execute"
            executor = _executor(instance, model, config)
            executor.may_wait = executor.placement is Placement.LOOP and may_wait(context.model_folder)
            instance.executor = executor
        return executor


def _instance(kernel: Host, config: ModelConfig, model_folder: Path, version_folder: Path) -> Instance:
    """Return an instance whose modules are to be imported."""
    instance = Instance(kernel, config.name, config.name, str(version_folder.absolute()), "initialize")
    instance.modules = PrivateModules(version_folder, model_folder, instance)
    return instance


@contextlib.contextmanager
def _loading(instance: Instance) -> Iterator[Modules]:
    """Run a model's code as the instance's. What it raises fails the load, in the reference's words; its modules go then."""
    modules = instance.modules
    assert modules is not None
    token = EXECUTION.set(instance.idle)
    try:
        yield modules
    except ServingError:
        modules.remove()
        raise
    except BaseException as error:  # a model's SystemExit is not our end
        problem = ServingError(Code.INTERNAL, modules.describe(error))
        modules.remove()
        raise problem from error
    finally:
        EXECUTION.reset(token)


def _executor(instance: Instance, model: Any, config: ModelConfig) -> ModelExecutor:
    """Decide where `execute` runs and how often at a time (design, section 4)."""
    asked = asked_placement(config)
    if asked is None and instance.kernel.supervision.conduct.must_leave_loop(config.name) is not None:
        asked = "thread"
    if not inspect.iscoroutinefunction(model.execute):
        return SyncExecutor(instance, model, Placement.LOOP if asked == "loop" else Placement.THREAD, 1)
    placement = Placement.THREAD_TASK if asked == "thread" else Placement.TASK
    return AsyncExecutor(instance, model, placement, async_capacity(config))


def _model_file(config: ModelConfig, version_folder: Path) -> Path:
    file = version_folder.absolute() / (config.default_model_filename or "model.py")
    if not file.is_file():
        raise ServingError(Code.INTERNAL, f"Python model file not found in '{file}'")
    return file

