"""The first steps with a model's class: found in its module, made and initialized, or its config completed.

The same in every placement, and in the reference's words (contract: python_backend, 2.2, 2.3). Whatever model code raises passes;
who calls turns it into the load's failure. Knows nothing of where instances run, and runs in children, too.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernel import Code, ServingError
from kernel_python.api.model_config import PbModelConfig

if TYPE_CHECKING:
    from kernel import InstanceContext, ModelConfig

__all__ = ["arguments_of", "async_capacity", "complete", "initialized", "model_class"]

ASYNC_CAPACITY = 64
CLASS = "TritonPythonModel"


def model_class(module: Any, shown: str) -> Any:
    """Return the TritonPythonModel of a module, which the reference calls `shown`."""
    found = getattr(module, CLASS, None)
    if callable(found):
        return found
    file = getattr(module, "__file__", shown)
    if found is not None:
        words = f"TypeError: '{type(found).__name__}' object is not callable"
        raise _unfit(words, f"{CLASS} in {file} is no class, as is wanted, but {_brief(found)}")
    words = f"AttributeError: module '{shown}' has no attribute '{CLASS}'"
    classes = {
        name: value for name, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__
    }
    near = difflib.get_close_matches(CLASS, classes, n=1, cutoff=0.4) or (list(classes) if len(classes) == 1 else [])
    if near:
        raise _unfit(words, f"wanted is a class of that name, there is '{near[0]}'", _place_of_class(classes[near[0]]))
    raise _unfit(words, f"wanted is a class of that name in {file}; its classes are {', '.join(classes) or 'none'}")


def initialized(found: Any, file: str | os.PathLike[str], arguments: Mapping[str, str]) -> Any:
    """Return an initialized object of the class, which can execute; it may have been given that by `initialize`.

    `found` may as well be a function that makes a model, as in the reference.
    """
    model = _called(found, "no arguments")
    if hasattr(model, "initialize"):
        if inspect.iscoroutinefunction(model.initialize):
            words = f"initialize of {file} is `async def`, which nobody awaits; it has to be a plain `def`"
            raise _unfit(words, "", _place_of_function(model.initialize))
        _called(model.initialize, "one argument, a dictionary", arguments)
    execute = getattr(model, "execute", None)
    if not callable(execute):
        raise _unfit(
            f"Python model {file} does not implement `execute` method.",
            "wanted is `def execute(self, requests)`" if execute is None else f"it is {_brief(execute)}, no method",
            _place_of_class(type(model)),
        )
    misfit = _misfit(execute)
    if misfit:
        words = f"TypeError: {CLASS}.execute() can't be called with the list of requests: {misfit}"
        raise _unfit(words, "wanted is `def execute(self, requests)`", _place_of_function(execute))
    return model


# -- what doesn't fit, and where it stands -------------------------------------------------------------------------------


def _called(function: Any, wanted: str, *arguments: object) -> Any:
    """Call what a model has to be called with by us; where that can't be, which no line of the model's raises, tell the place."""
    try:
        return function(*arguments)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # of code in there
        place = _place_of_function(getattr(function, "__init__", function) if isinstance(function, type) else function)
        raise _unfit(f"TypeError: {error}", f"it is called with {wanted}", place) from None


def _misfit(function: Any) -> str:
    """Return why a plain function can't be called with one argument; "" where it can, or where nobody can tell."""
    inner = getattr(function, "__func__", function)
    if not isinstance(inner, types.FunctionType) or hasattr(inner, "__signature__"):
        return ""
    try:
        inspect.signature(function, follow_wrapped=False).bind(None)
    except TypeError as error:
        return str(error)
    return ""


def _unfit(words: str, wanted: str, place: tuple[str, int, str] | None = None) -> ServingError:
    """Return the failure of a load: the reference's words, what was wanted, and the place in the form of a traceback's."""
    where = "" if place is None else "\n\nAt:\n  {}({}): {}\n".format(*place)
    return ServingError(Code.INTERNAL, f"{words} — {wanted}{where}" if wanted else words + where)


def _place_of_class(found: type) -> tuple[str, int, str] | None:
    try:
        return inspect.getfile(found), inspect.findsource(found)[1] + 1, found.__name__
    except (OSError, TypeError, IndexError):  # made without a line of its own
        return None


def _place_of_function(function: Any) -> tuple[str, int, str] | None:
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno, code.co_name)


def _brief(value: object) -> str:
    text = repr(value)
    return f"{text[:57]}..." if len(text) > 60 else text


def complete(found: Any, model_name: str, config: str) -> dict[str, Any] | None:
    """Return what `auto_complete_config` of the class makes of a config in JSON; None where it has none."""
    fill_in = getattr(found, "auto_complete_config", None)
    if fill_in is None:
        return None
    filled = fill_in(PbModelConfig(config))
    if not isinstance(filled, PbModelConfig):
        raise ServingError(
            Code.INTERNAL,
            f"auto_complete_config function in model '{model_name}' must return a valid pb.ModelConfig object.",
        )
    return filled.as_dict()


def arguments_of(context: InstanceContext) -> dict[str, str]:
    """Return what `initialize` is given (contract: python_backend, 2.1): all of it text."""
    return {
        "model_config": json.dumps(context.config.as_dict(), separators=(",", ":")),
        "model_instance_kind": context.kind,
        "model_instance_name": context.instance_name,
        "model_instance_device_id": str(context.device_id),
        "model_repository": str(context.model_folder.absolute()),
        "model_version": str(context.version),
        "model_name": context.config.name,
    }


def async_capacity(config: ModelConfig) -> int:
    """Return how often an `async def execute` may run at a time."""
    # With a batcher one execution at a time: with more, each request would be started alone, and no batch would form.
    batches = config.dynamic_batching is not None or config.sequence_batching is not None
    default = 1 if batches and not config.decoupled else ASYNC_CAPACITY
    return int(config.parameters.get("max_concurrency", default))
