"""The `python` backend: serves models whose version folder holds a `model.py` with a class TritonPythonModel.

Loads: imports the model's file into private modules, calls `auto_complete_config`, makes and initialises instances, and
decides where their `execute` runs. Failures are told in the reference's words (spec python_backend, 2.3).
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel import Code, InstanceContext, Kernel, ModelConfig, Placement, ServingError
from kernel_python.autocomplete import PbModelConfig, completed
from kernel_python.calling import EXECUTION, Instance
from kernel_python.executor import AsyncExecutor, ModelExecutor, SyncExecutor
from kernel_python.faults import describe
from kernel_python.foresight import may_wait
from kernel_python.modules import PrivateModules

__all__ = ["PythonBackend"]

log = logging.getLogger("kernel_python")

ASYNC_CAPACITY = 64


class PythonBackend:
    """The Backend of one kernel."""

    name = "python"
    creates_on_loop = False

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    # -- config --------------------------------------------------------------------------------------------------------

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        """Refuse parameters that this backend reads and can't serve, and versions without a model file."""
        for version in versions:
            _model_file(config, model_folder / str(version))
        parameters = config.parameters
        # That placement, max_concurrency and zero_copy are of the right form the config has checked already.
        if parameters.get("placement") == "process":
            self._refuse(config, "placement", "placement 'process' is not supported yet; use 'loop' or 'thread'")
        cpu_only = parameters.get("FORCE_CPU_ONLY_INPUT_TENSORS")
        if cpu_only is not None and cpu_only.lower() not in ("yes", "no"):
            raise ServingError(Code.UNSUPPORTED, f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {cpu_only}'")
        environment = parameters.get("EXECUTION_ENV_PATH")
        if environment is not None:
            path = environment.replace("$$TRITON_MODEL_DIRECTORY", str(model_folder))
            if not Path(path).exists():
                raise ServingError(Code.INTERNAL, f"Failed to get the canonical path for {path}.")
            self._refuse(
                config, "EXECUTION_ENV_PATH", "execution environments (EXECUTION_ENV_PATH) are not supported yet"
            )

    def _refuse(self, config: ModelConfig, parameter: str, detail: str) -> None:
        raise config.error("", f"{detail} (parameter '{parameter}' of model '{config.name}')", at=("parameters",))

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        """Let the model's `auto_complete_config`, where it has one, fill in the config."""
        file = _model_file(config, version_folder)
        owner = Instance(self._kernel, config.name, config.name, str(version_folder.absolute()), "auto_complete")
        modules = owner.modules = PrivateModules(version_folder, model_folder, owner)
        token = EXECUTION.set(owner.idle)
        try:
            model_class = _model_class(modules, file)
            complete = getattr(model_class, "auto_complete_config", None)
            if complete is None:
                return config
            filled = complete(PbModelConfig(json.dumps(config.as_dict())))
            if not isinstance(filled, PbModelConfig):
                raise ServingError(
                    Code.INTERNAL,
                    f"auto_complete_config function in model '{config.name}' must return a valid pb.ModelConfig object.",
                )
            return completed(config, filled.as_dict())
        except ServingError:
            raise
        except BaseException as error:
            raise _load_error(modules, error) from error
        finally:
            EXECUTION.reset(token)
            modules.remove()

    # -- instances -----------------------------------------------------------------------------------------------------

    def create(self, context: InstanceContext) -> ModelExecutor:
        """Make one instance: import its modules, `__init__`, `initialize`."""
        config = context.config
        file = _model_file(config, context.version_folder)
        instance = Instance(
            context.kernel, context.instance_name, config.name, str(context.version_folder.absolute()), "initialize"
        )
        instance.decoupled = config.decoupled
        instance.zero_copy = config.parameters.get("zero_copy", "").lower() == "true"
        instance.outputs = frozenset(spec.name for spec in config.outputs)
        modules = instance.modules = PrivateModules(context.version_folder, context.model_folder, instance)
        token = EXECUTION.set(instance.idle)
        try:
            model_class = _model_class(modules, file)
            if not callable(getattr(model_class, "execute", None)):
                raise ServingError(Code.INTERNAL, f"Python model {file} does not implement `execute` method.")
            model = model_class()
            if hasattr(model, "initialize"):
                if inspect.iscoroutinefunction(model.initialize):
                    raise ServingError(
                        Code.INTERNAL, f"initialize of {file} is `async def`, which nobody awaits; it has to be a plain `def`"
                    )
                model.initialize(_arguments(context))
            instance.phase = "execute"
            executor = _executor(instance, model, config)
            executor.may_wait = executor.placement is Placement.LOOP and may_wait(
                (context.model_folder, context.version_folder)
            )
            instance.executor = executor
            return executor
        except ServingError:
            modules.remove()
            raise
        except BaseException as error:
            problem = _load_error(modules, error)
            modules.remove()
            raise problem from error
        finally:
            EXECUTION.reset(token)


def _executor(instance: Instance, model: Any, config: ModelConfig) -> ModelExecutor:
    """Decide where `execute` runs and how often at a time (design, section 4)."""
    asked = config.parameters.get("placement")
    if asked == "process":
        raise ServingError(
            Code.UNSUPPORTED,
            f"placement 'process' of model '{config.name}' is not supported yet; use 'loop' or 'thread'",
        )
    if not inspect.iscoroutinefunction(model.execute):
        return SyncExecutor(instance, model, Placement.LOOP if asked == "loop" else Placement.THREAD, 1)
    # With a dynamic batcher, an execution at a time: or requests would never wait long enough to form a batch.
    default = 1 if config.dynamic_batching is not None and not config.decoupled else ASYNC_CAPACITY
    capacity = int(config.parameters.get("max_concurrency", default))
    return AsyncExecutor(instance, model, Placement.THREAD_TASK if asked == "thread" else Placement.TASK, capacity)


def _model_file(config: ModelConfig, version_folder: Path) -> Path:
    file = version_folder.absolute() / (config.default_model_filename or "model.py")
    if not file.is_file():
        raise ServingError(Code.INTERNAL, f"Python model file not found in '{file}'")
    return file


def _model_class(modules: PrivateModules, file: Path) -> Any:
    module = modules.load_main(file)
    try:
        return module.TritonPythonModel
    except AttributeError:
        raise ServingError(
            Code.INTERNAL, f"AttributeError: module '{modules.shown}' has no attribute 'TritonPythonModel'"
        ) from None


def _load_error(modules: PrivateModules, error: BaseException) -> ServingError:
    return ServingError(Code.INTERNAL, describe(error, modules.main, modules.shown))


def _arguments(context: InstanceContext) -> dict[str, str]:
    """Return what `initialize` is given (spec python_backend, 2.1): all of it text."""
    return {
        "model_config": json.dumps(context.config.as_dict(), separators=(",", ":")),
        "model_instance_kind": context.kind,
        "model_instance_name": context.instance_name,
        "model_instance_device_id": str(context.device_id),
        "model_repository": str(context.model_folder.absolute()),
        "model_version": str(context.version),
        "model_name": context.config.name,
    }
