"""From a model's folder to its complete config, the frozen record that the kernel runs on: read, fill in, check, record.

The one way to a ModelConfig. Each of these has a file of its own; this one only says in which order they come.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from kernel.config.check_model import check_all
from kernel.config.defaults import complete_backend, fill_defaults
from kernel.config.errors import ConfigErrors
from kernel.config.model_config_pb2 import ModelConfig as Message
from kernel.config.read import read_message
from kernel.config.records import ModelConfig, record
from kernel.config.report import Report
from kernel.config.source import ConfigSource

__all__ = ["left_here", "read_config", "require_complete", "with_changes"]


def read_config(
    model_folder: Path,
    *,
    override: str | None = None,
    auto_complete: bool = True,
    config_name: str = "",
    backends: Collection[str] | None = None,
    gpus: tuple[int, ...] = (),
    cpu_backends: Collection[str] = (),
    model_name: str = "",
    partial: bool = False,
    rename: Callable[[Message], None] | None = None,
) -> ModelConfig:
    """Read, complete and check the config of the model in `model_folder`.

    `override`: JSON instead of the file. `auto_complete`: a file may be missing, the backend may be told by the model's
    files. `config_name`: prefer `configs/<config_name>.pbtxt`. `backends`: names of those that can serve, None for any.
    `gpus`: ids of the GPUs that instances may use; KIND_AUTO means them, but not for `cpu_backends`. `model_name`: where
    it isn't the folder's name. `partial`: types and dims may be missing, since the model will fill them in;
    `require_complete` comes later. `rename`: has the last word on the names in it, once all is checked. Raises ConfigErrors
    with all mistakes of stages A and B.
    """
    name = model_name or model_folder.name
    message, source = read_message(
        model_folder, override=override, auto_complete=auto_complete, config_name=config_name
    )
    if auto_complete:
        complete_backend(message, name, model_folder)
    known = None if backends is None else tuple(sorted(backends))
    return _finish(
        message, source, name, model_folder, known, gpus, partial=partial, cpu_backends=cpu_backends, rename=rename
    )


def with_changes(config: ModelConfig, mutate: Callable[[Message], None]) -> ModelConfig:
    """Return the config that `mutate` makes of a copy of `config.message`, completed and checked again. Raises ConfigErrors.

    For `Backend.complete_config`: what `mutate` changed is told in errors as coming from the model's auto-complete and not from
    the file.
    """
    message = Message()
    message.CopyFrom(config.message)
    mutate(message)
    changed = {
        field.name
        for field in Message.DESCRIPTOR.fields
        if getattr(message, field.name) != getattr(config.message, field.name)
    }
    # Defaults that were taken from what has changed are taken anew.
    if "max_batch_size" in changed and config.max_batch_size > 0:
        size = [config.max_batch_size]
        for sizes in (
            message.dynamic_batching.preferred_batch_size,
            message.sequence_batching.oldest.preferred_batch_size,
        ):
            if list(sizes) == size:
                del sizes[:]
    backends = config.backends or None
    return _finish(message, config.source.after(changed), config.name, None, backends, config.gpus, config.warnings)


def require_complete(config: ModelConfig) -> ModelConfig:
    """Check a config that was read as partial, once the model has had its say. Raises ConfigErrors."""
    return with_changes(config, lambda message: None)


def left_here(config: ModelConfig) -> ModelConfig:
    """Return what is left of a config for the server that passes its model's requests on: all, unless it is elsewhere.

    Batches, sequences, warmup and reshaping are the business of who executes them; done here as well, they were done twice.
    """
    return with_changes(config, _pass_on) if config.is_elsewhere else config


def _pass_on(message: Message) -> None:
    message.ClearField("dynamic_batching")
    message.ClearField("sequence_batching")
    message.ClearField("model_warmup")
    for spec in (*message.input, *message.output):
        spec.ClearField("reshape")


def _finish(
    message: Message,
    source: ConfigSource,
    name: str,
    model_folder: Path | None,
    backends: tuple[str, ...] | None,
    gpus: tuple[int, ...],
    warnings: tuple[str, ...] = (),
    partial: bool = False,
    cpu_backends: Collection[str] = (),
    rename: Callable[[Message], None] | None = None,
) -> ModelConfig:
    fill_defaults(message, name, gpus, cpu_backends)
    report = Report(
        message, source, directory=name, model_folder=model_folder, backends=backends, gpus=gpus, partial=partial
    )
    check_all(report)
    if report.errors:
        raise ConfigErrors(report.errors)
    if rename is not None:
        rename(message)
    told = tuple(dict.fromkeys((*warnings, *report.warnings)))
    return record(message, source, told, backends or (), gpus)
