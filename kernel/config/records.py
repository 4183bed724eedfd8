"""A model's config as the kernel reads it: frozen records, made once from the message, with the config JSON that
clients are shown.

The message stays the whole truth (`ModelConfig.message`); the records hold what the kernel and its plugins look at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernel.config.datatypes import datatype
from kernel.config.elsewhere import elsewhere
from kernel.config.errors import ConfigError
from kernel.config.json import as_json
from kernel.config.model_config_pb2 import ModelConfig as Message
from kernel.config.model_config_pb2 import ModelInput, ModelInstanceGroup, ModelOutput, ModelQueuePolicy
from kernel.config.origins import FieldOrigin, origins
from kernel.config.positions import Path
from kernel.config.source import ConfigSource
from kernel.config.stateful import SequenceBatching, sequence_batching
from kernel.errors import Code

__all__ = [
    "DynamicBatching",
    "EnsembleStep",
    "InstanceGroup",
    "ModelConfig",
    "QueuePolicy",
    "TensorSpec",
    "VersionPolicy",
    "WarmupInput",
    "WarmupSample",
    "record",
]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output. `name`, and `datatype` as in DATATYPES. `dims` leave out the batch dimension, -1 is of any size;
    `reshape` is the shape the model sees, None where it is `dims`. `optional`: requests may lack the input.
    `allow_ragged_batch`: inputs of one batch may differ in shape. `label_filename`: in the model's folder, "" for none.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    allow_ragged_batch: bool = False
    label_filename: str = ""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How requests wait in one level of a queue. Times are in microseconds."""

    timeout_action: str = "REJECT"  # or "DELAY"
    default_timeout_us: int = 0  # 0: none
    allow_timeout_override: bool = False  # a request may ask for a shorter one
    max_queue_size: int = 0  # requests; 0: unlimited


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """What a config's `dynamic_batching` says."""

    preferred_batch_size: tuple[int, ...] = ()  # in rows, ascending
    max_queue_delay_us: int = 0  # how long the oldest request may wait for others, in microseconds
    preserve_ordering: bool = False  # answers leave in the order in which requests came
    priority_levels: int = 0  # 1 is the most urgent; 0: there are none
    default_priority_level: int = 0  # of a request that names none
    default_queue_policy: QueuePolicy = QueuePolicy()  # of all levels but those that follow
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)  # by level, where it differs


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One model of an ensemble. `input_map`, `output_map`: name at the model -> name of a tensor of the ensemble."""

    model_name: str  # as the config says it
    model_version: int  # -1: the latest
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """Instances that are alike: `count` of them, on each of `gpus` where the kind is "GPU"."""

    name: str
    kind: str  # "CPU", "GPU" or "MODEL"
    count: int
    gpus: tuple[int, ...] = ()
    passive: bool = False  # they are there and take no requests
    resources: tuple[tuple[str, bool, int], ...] = ()  # of the rate limiter: name, whether all devices share it, how much
    priority: int = 0  # of the rate limiter: 2 executes half as often as 1; 0 is 1


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """A batch that each instance executes `count` times before it takes requests: `batch_size` requests of one row."""

    name: str
    batch_size: int
    count: int
    inputs: tuple[WarmupInput, ...]


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """One input of a sample. `dims` leave out the batch dimension; `file` lies in the model's folder `warmup`."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    random: bool = False
    file: str = ""


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which versions are served: the `num_versions` latest, all, or those of `versions`."""

    kind: str = "latest"  # or "all" or "specific"
    num_versions: int = 1
    versions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The config of one model with all defaults filled in. Equal when the messages are.

    `message` is the protobuf message of `kernel/config/model_config.proto`; it belongs to the config, change it through
    `with_changes` only. `warnings`: what can be served but hardly was meant. `backends` and `gpus`: what the config was
    checked against.
    """

    name: str  # of the model
    platform: str  # the older way to name a backend, and "ensemble"; "" for none
    backend: str  # "" of an ensemble
    max_batch_size: int  # rows; 0: tensors have no batch dimension
    inputs: tuple[TensorSpec, ...]  # as clients see them
    outputs: tuple[TensorSpec, ...]  # the same
    version_policy: VersionPolicy  # which versions are served
    instance_groups: tuple[InstanceGroup, ...]  # how many instances, and where
    dynamic_batching: DynamicBatching | None  # None: requests are executed one by one
    sequence_batching: SequenceBatching | None  # None: its requests are no sequences
    ensemble: tuple[EnsembleStep, ...] | None  # the steps; None where it is no ensemble
    decoupled: bool  # a request may have any number of responses
    parameters: Mapping[str, str]  # the config's own, for the backend and the model
    default_model_filename: str  # in the version's folder
    warmup: tuple[WarmupSample, ...]  # without those of batch size 0, which are skipped
    message: Message = field(repr=False)
    source: ConfigSource = field(repr=False, compare=False)  # the file, for the places of mistakes
    warnings: tuple[str, ...] = field(default=(), compare=False)
    backends: tuple[str, ...] = field(default=(), repr=False, compare=False)
    gpus: tuple[int, ...] = field(default=(), repr=False, compare=False)

    @property
    def is_ensemble(self) -> bool:
        """Whether its steps are other models."""
        return self.ensemble is not None

    @property
    def served_by(self) -> str:
        """The backend that serves it: `ensemble`, or the one of its placement where that is elsewhere, else its own."""
        return "ensemble" if self.is_ensemble else elsewhere(self.message) or self.backend

    @property
    def is_elsewhere(self) -> bool:
        """Whether another server executes it, which forms its batches and has its instances."""
        return bool(elsewhere(self.message))

    @property
    def added_inputs(self) -> tuple[TensorSpec, ...]:
        """What the core adds to a sequence's requests: control tensors, and state that it has kept."""
        batching = self.sequence_batching
        if batching is None:
            return ()
        controls = [TensorSpec(control.name, control.datatype, (1,)) for control in batching.controls]
        return (*controls, *(TensorSpec(state.input_name, state.datatype, state.dims) for state in batching.states))

    @property
    def kept_outputs(self) -> tuple[TensorSpec, ...]:
        """The state that the core takes from a sequence's answers; some of it may also be an output for clients."""
        states = self.sequence_batching.states if self.sequence_batching is not None else ()
        return tuple(TensorSpec(state.output_name, state.datatype, state.dims) for state in states)

    @property
    def metadata_platform(self) -> str:
        """What the model's metadata call its platform."""
        return self.platform or self.backend

    def as_dict(self) -> dict[str, Any]:
        """Return the config JSON: fields in the schema's order, integers as numbers, defaults included.

        (Contract: model_config, section 13.)
        """
        return as_json(self.message)

    def origins(self) -> list[FieldOrigin]:
        """Return all values of the config JSON, each with where it comes from: which line, the model, a default."""
        return origins(self.message, self.source)

    def error(
        self, words: str, detail: str = "", *, at: Path = (), stage: str = "B", code: Code = Code.INVALID_ARG
    ) -> ConfigError:
        """Return (not raise) a ConfigError placed at a field, for backends that check what they know:
        `at=("parameters", Key("x"))`.
        """
        return self.source.error(words, detail, at, stage=stage, code=code)


def _spec(io: ModelInput | ModelOutput) -> TensorSpec:
    is_input = isinstance(io, ModelInput)
    return TensorSpec(
        name=io.name,
        datatype=datatype(io.data_type),
        dims=tuple(io.dims),
        reshape=tuple(io.reshape.shape) if io.HasField("reshape") else None,
        optional=is_input and io.optional,  # type: ignore[union-attr]
        allow_ragged_batch=is_input and io.allow_ragged_batch,  # type: ignore[union-attr]
        label_filename="" if is_input else io.label_filename,  # type: ignore[union-attr]
    )


def _queue_policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        timeout_action="DELAY" if policy.timeout_action == ModelQueuePolicy.DELAY else "REJECT",
        default_timeout_us=policy.default_timeout_microseconds,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def _dynamic_batching(message: Message) -> DynamicBatching | None:
    if not message.HasField("dynamic_batching"):
        return None
    batching = message.dynamic_batching
    return DynamicBatching(
        preferred_batch_size=tuple(sorted(batching.preferred_batch_size)),
        max_queue_delay_us=batching.max_queue_delay_microseconds,
        preserve_ordering=batching.preserve_ordering,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_queue_policy=_queue_policy(batching.default_queue_policy),
        priority_queue_policy={
            level: _queue_policy(policy) for level, policy in sorted(batching.priority_queue_policy.items())
        },
    )


def _warmup(message: Message) -> tuple[WarmupSample, ...]:
    return tuple(
        WarmupSample(
            sample.name,
            sample.batch_size,
            max(1, sample.count),
            tuple(
                WarmupInput(
                    name,
                    datatype(one.data_type),
                    tuple(one.dims),
                    one.WhichOneof("input_data_type") == "random_data",
                    one.input_data_file,
                )
                for name, one in sorted(sample.inputs.items())
            ),
        )
        for sample in message.model_warmup
        if sample.batch_size
    )


def _version_policy(message: Message) -> VersionPolicy:
    policy = message.version_policy
    kind = policy.WhichOneof("policy_choice") or "latest"
    if kind == "latest":
        return VersionPolicy("latest", policy.latest.num_versions)
    return VersionPolicy(kind, 0, tuple(policy.specific.versions) if kind == "specific" else ())


def record(
    message: Message, source: ConfigSource, warnings: tuple[str, ...], backends: tuple[str, ...], gpus: tuple[int, ...]
) -> ModelConfig:
    """Return the records of a message that has been normalised and checked. The message belongs to them from now on."""
    steps = None
    if message.HasField("ensemble_scheduling"):
        steps = tuple(
            EnsembleStep(step.model_name, step.model_version, dict(step.input_map), dict(step.output_map))
            for step in message.ensemble_scheduling.step
        )
    return ModelConfig(
        name=message.name,
        platform=message.platform,
        backend=message.backend,
        max_batch_size=message.max_batch_size,
        inputs=tuple(_spec(io) for io in message.input),
        outputs=tuple(_spec(io) for io in message.output),
        version_policy=_version_policy(message),
        instance_groups=tuple(
            InstanceGroup(
                group.name,
                ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_"),
                group.count,
                tuple(group.gpus),
                group.passive,
                tuple((one.name, getattr(one, "global"), one.count) for one in group.rate_limiter.resources),
                group.rate_limiter.priority,
            )
            for group in message.instance_group
        ),
        dynamic_batching=_dynamic_batching(message),
        sequence_batching=sequence_batching(message),
        ensemble=steps,
        decoupled=message.model_transaction_policy.decoupled,
        parameters={key: value.string_value for key, value in sorted(message.parameters.items())},
        default_model_filename=message.default_model_filename,
        warmup=_warmup(message),
        message=message,
        source=source,
        warnings=warnings,
        backends=backends,
        gpus=gpus,
    )
