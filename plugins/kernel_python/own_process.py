"""What only a model with a process of its own may do: refused to the code of those that share the server's, with the way out.

Signals, the standard descriptors, the working directory, the set-up of logging, the end of the process and its command line are
there once. A model whose code shows that it needs one of them is given a process (evidence.py); here is what becomes of those
that their config has placed in the server, and of what no source shows. The functions themselves are wrapped, since libraries
call them as well; calls that do not come from a model's code pass.
"""

from __future__ import annotations

import argparse
import functools
import logging.config
import multiprocessing.process
import os
import signal
from collections.abc import Callable
from typing import Any

from kernel_python.calling import calling_site

__all__ = ["refuse"]

#: What the author of a model can do that needs a process of its own.
WAY_OUT = 'parameters { key: "placement" value { string_value: "process" } } in its config gives it one of its own'


class SharedProcessError(ValueError, RuntimeError):
    """As Python's own `signal.signal` raises on a thread, so that libraries which can do without go on."""


def _always(*args: Any, **named: Any) -> bool:
    return True


def _kills_us(number: Any = 0, *args: Any, **named: Any) -> bool:
    return number in (0, -1, os.getpid(), -os.getpgrp())


def _kills_our_group(number: Any = 0, *args: Any, **named: Any) -> bool:
    return number in (0, os.getpgrp())


def _is_standard(descriptor: Any = -1, *args: Any, **named: Any) -> bool:
    return descriptor in (0, 1, 2)


def _reads_command_line(parser: Any, args: Any = None, *more: Any, **named: Any) -> bool:
    return args is None


def _starts_afresh(process: Any, *args: Any, **named: Any) -> bool:
    """Whether the process imports its functions anew: it can't find a model's, and a pool would start it again and again."""
    method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
    return method in ("spawn", "forkserver")


#: The module of the function, its name, and what tells by the arguments whether a call is about this process.
_FUNCTIONS: tuple[tuple[Any, str, Callable[..., bool]], ...] = (
    (signal, "signal", _always),
    (signal, "alarm", _always),
    (signal, "setitimer", _always),
    (signal, "set_wakeup_fd", _always),
    (signal, "siginterrupt", _always),
    (signal, "raise_signal", _always),
    (os, "close", _is_standard),
    (os, "closerange", _always),
    (os, "chdir", _always),
    (os, "fchdir", _always),
    (os, "_exit", _always),
    (os, "abort", _always),
    (os, "kill", _kills_us),
    (os, "killpg", _kills_our_group),
    (logging.config, "dictConfig", _always),
    (logging.config, "fileConfig", _always),
    (argparse.ArgumentParser, "parse_known_args", _reads_command_line),
    (multiprocessing.process.BaseProcess, "start", _starts_afresh),
)

_wrapped: list[tuple[Any, str, Any]] = []  # module, name, the function as it was


def refuse() -> None:
    """Refuse these to models from now on. Any thread; the second time nothing happens."""
    if not _wrapped:
        for module, name, applies in _FUNCTIONS:
            function = getattr(module, name)
            _wrapped.append((module, name, function))
            setattr(module, name, _refusing(module.__name__, name, function, applies))
        os.register_at_fork(after_in_child=_allow)


def _allow() -> None:
    """A child that a model has forked is a process of its own, in which nothing is the server's."""
    for module, name, function in _wrapped:
        setattr(module, name, function)


def _refusing(module: str, name: str, function: Callable[..., Any], applies: Callable[..., bool]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        if applies(*args, **named) and (site := calling_site()) is not None:
            model = site[0].model_name
            problem = f"{module}.{name}() is about the whole process, which model '{model}' shares with the server"
            if applies is _starts_afresh:
                problem = f"processes started by 'spawn' or 'forkserver' do not find the code of model '{model}' in the server's"
            raise SharedProcessError(f"{problem}; {WAY_OUT}")
        return function(*args, **named)

    return checked
