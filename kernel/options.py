"""What a kernel is told when it is made: one frozen record, checked once, which nobody changes afterwards.

Values alone. What a kernel is made of besides (plugins, a cache, a log) are arguments of class Kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernel.errors import Code, ServingError
from kernel.rules import ResourceLimit

__all__ = ["Options", "StorageOptions"]

_MODES = ("none", "poll", "explicit", "on-demand")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """How repositories in object stores are read (`s3://`, `gs://`, `az://`). Raises ServingError for what makes no sense.

    `cache`: the folder that keeps what was fetched, "" for `kernel-serve/storage` in `$XDG_CACHE_HOME` or `~/.cache`.
    `cache_size`: how many bytes may stay in it (0: half of what its file system has). `max_objects`: how many objects one
    repository may have.
    """

    cache: str = ""
    cache_size: int = 0
    max_objects: int = 100_000

    def __post_init__(self) -> None:
        for name, least in (("cache_size", 0), ("max_objects", 1)):
            if getattr(self, name) < least:
                raise _wrong(f"{name} is {getattr(self, name)}, wanted at least {least}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """As class Kernel says of its arguments of the same names. Raises ServingError for what makes no sense."""

    control_mode: str = "none"
    load_models: Sequence[str] = ()
    poll_seconds: float = 15.0
    exit_on_error: bool = True
    strict_readiness: bool = True
    auto_complete: bool = True
    strict_outputs: bool = False
    config_name: str = ""
    load_threads: int = 4  # models, and instances of each, that are made at a time
    load_retries: int = 0
    namespacing: bool = False
    drain_seconds: float = 30.0
    allow_client_shm: bool = True
    gpus: Sequence[int] | None = None
    memory_limit_receive: int = 0  # bytes; 0: by the machine
    memory_limit_send: int = 0
    max_request_values: int = 0
    max_connections: int = 0
    max_connections_per_address: int = 0
    max_inflight: int = 0  # requests; 0: no limit
    execution_timeout: float = 0.0  # seconds; 0.0: no limit
    refuse_late: float | None = None  # a share of a request's time; None: off
    rate_limit: str = "off"
    rate_limit_resources: Sequence[str] = ()
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.control_mode not in _MODES:
            there = "there are 'none', 'poll', 'explicit' and 'on-demand'"
            raise _wrong(f"unknown model control mode '{self.control_mode}'; {there}")
        if self.poll_seconds < 0:
            raise _wrong(f"poll_seconds is {self.poll_seconds}, wanted at least 0")
        for name in (
            "memory_limit_receive",
            "memory_limit_send",
            "max_request_values",
            "max_connections",
            "max_connections_per_address",
            "max_inflight",
            "execution_timeout",
        ):
            if not getattr(self, name) >= 0:
                raise _wrong(f"{name} is {getattr(self, name)}, wanted at least 0")
        if self.refuse_late is not None and not 0 <= self.refuse_late < 1:
            raise _wrong(f"refuse_late is {self.refuse_late}, wanted a headroom from 0 to below 1, or None")
        if self.namespacing and self.on_demand:
            raise _wrong("the model control mode 'on-demand' can't be combined with model namespacing")
        if self.load_models and not self.explicit:
            raise _wrong("Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
        if self.rate_limit not in ("off", "execution_count"):
            raise _wrong(f"unknown rate_limit '{self.rate_limit}'; there are 'off' and 'execution_count'")

    @property
    def explicit(self) -> bool:
        """Whether models are loaded and unloaded by whoever asks, and none by itself."""
        return self.control_mode == "explicit" or self.on_demand

    @property
    def on_demand(self) -> bool:
        """Whether a request for a model has it loaded."""
        return self.control_mode == "on-demand"

    @property
    def polls(self) -> bool:
        """Whether the repositories are followed."""
        return self.control_mode == "poll" and self.poll_seconds > 0

    def resource_limits(self) -> list[ResourceLimit] | None:
        """Return how much there is of what instances need, None where that limits nobody. Raises ServingError."""
        if self.rate_limit == "off":
            return None
        try:
            return [ResourceLimit.parse(text) for text in self.rate_limit_resources]
        except ValueError as error:
            raise _wrong(f"rate_limit_resources: {error}") from None

    def backend_settings(self, name: str) -> dict[str, str]:
        """Return what a backend is told: what all of them are, and what it is itself."""
        return {**self.backend_config.get("", {}), **self.backend_config.get(name, {})}


def _wrong(message: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, message)
