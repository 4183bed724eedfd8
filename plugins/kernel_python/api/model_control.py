"""pb_utils.load_model, unload_model and is_model_ready: a model looks after others (contract: python_backend, 1.11).

Who may ask, and the words of refusals; the kernel answers (questions.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel import ServingError
from kernel_python import waiting
from kernel_python.calling import Instance, calling_instance
from kernel_python.faults import TritonModelException, as_text, asked_in_vain, incompatible

__all__ = ["is_model_ready", "load_model", "unload_model"]


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, bytes))


def _is_flag(value: Any) -> bool:
    return isinstance(value, int)


def _is_anything(value: Any) -> bool:
    return True


_MISSING: Any = object()

#: function -> its signature in the reference's words, and its parameters: what they may be, and are by default
_PARAMETERS: dict[str, tuple[str, dict[str, tuple[Callable[[Any], bool], Any]]]] = {
    "is_model_ready": (
        "(model_name: str, model_version: str = '') -> bool",
        {"model_name": (_is_text, _MISSING), "model_version": (_is_text, "")},
    ),
    "load_model": (
        "(model_name: str, config: str = '', files: object = None) -> None",
        {"model_name": (_is_text, _MISSING), "config": (_is_text, ""), "files": (_is_anything, None)},
    ),
    "unload_model": (
        "(model_name: str, unload_dependents: bool = False) -> None",
        {"model_name": (_is_text, _MISSING), "unload_dependents": (_is_flag, False)},
    ),
}


def is_model_ready(*args: Any, **named: Any) -> bool:
    """`is_model_ready(model_name, model_version="")`: return whether the model (that version, by default any) is ready."""
    name, version = _bound("is_model_ready", args, named)
    instance = calling_instance("is_model_ready", anybody=True)
    try:
        return bool(instance.kernel.is_model_ready(as_text(name), as_text(version)))
    except ServingError as error:
        raise asked_in_vain("Failed to check model readiness", instance.name, error) from None


def load_model(*args: Any, **named: Any) -> None:
    """`load_model(model_name, config="", files=None)`: load or reload a model, and return when it is ready.

    `config`: its configuration as JSON, instead of the file. `files`: `file:<path in the model's folder>` -> content, instead
    of the repository's; a `config` has to come with them. Raises TritonModelException with the reason.
    """
    name, config, files = _bound("load_model", args, named)
    name = as_text(name)
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{name}', files should be a dictionary of file paths and file contents"
        )
    contents = dict(_file(name, path, content) for path, content in (files or {}).items())
    instance = _loader("load_model", "Failed to load model")
    within = instance.model_name if instance.phase == "initialize" else ""
    try:
        waiting.ask(instance, "load_model", name, as_text(config) or None, contents or None, within)
    except ServingError as error:
        raise asked_in_vain("Failed to load model", instance.name, error) from None


def unload_model(*args: Any, **named: Any) -> None:
    """`unload_model(model_name, unload_dependents=False)`: have a model unloaded; returns at once.

    `unload_dependents`: also what was loaded only for it. Raises TritonModelException where the server does not allow it.
    """
    name, dependents = _bound("unload_model", args, named)
    instance = _loader("unload_model", "Failed to unload model")
    try:
        waiting.ask(instance, "unload_model", as_text(name), bool(dependents))
    except ServingError as error:
        raise asked_in_vain("Failed to unload model", instance.name, error) from None


def _bound(function: str, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """Return the function's arguments in order, or raise TypeError in the reference's words."""
    signature, parameters = _PARAMETERS[function]
    given = {**named, **dict(zip(parameters, args))}
    bound = [given.get(name, default) for name, (_, default) in parameters.items()]
    if (
        len(args) + len(named) != len(given)
        or not given.keys() <= parameters.keys()
        or not all(fits(value) and value is not _MISSING for value, (fits, _) in zip(bound, parameters.values()))
    ):
        raise incompatible(function, signature, args, named)
    return bound


def _loader(function: str, failed: str) -> Instance:
    """Return who calls, who has to be initializing or executing."""
    instance = calling_instance(function, anybody=True)
    if instance.phase in ("auto_complete", "finalize"):
        where = "auto_complete_config" if instance.phase == "auto_complete" else "finalize"
        raise TritonModelException(
            f"{failed}: '{function}' can be used in 'initialize' and 'execute', not in '{where}', as model "
            f"'{instance.model_name}' does."
        )
    return instance


def _file(model: str, path: Any, content: Any) -> tuple[str, bytes]:
    if not _is_text(path):
        raise TritonModelException(
            f"failed to load model '{model}', file paths should be of type str, found {type(path)}"
        )
    if isinstance(content, str):
        content = content.encode()
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise TritonModelException(
            f"failed to load model '{model}', the content of '{path}' should be of type bytes, found {type(content)}"
        )
    return as_text(path), bytes(content)

