"""A model's config: from its folder to a frozen record, every mistake with its file, line, column and field.

The modules `check_*` hold the rules that a config has to keep; complete.py says in which order all is done.
"""

from __future__ import annotations

from kernel.config.autoscaling import AutoscaleLimits, autoscale_between, autoscale_of
from kernel.config.circuit_breaker import CIRCUIT_BREAKER, BreakerRule
from kernel.config.complete import left_here, read_config, require_complete, with_changes
from kernel.config.edit import FieldPath, edited
from kernel.config.ensemble import CIRCULAR, check_ensembles, is_decoupled
from kernel.config.errors import ConfigError, ConfigErrors, did_you_mean, listed, words_first
from kernel.config.execution_limit import execution_limit_of
from kernel.config.idle_limit import idle_limit_of
from kernel.config.model_config_pb2 import ModelConfig as Message
from kernel.config.origins import FieldOrigin
from kernel.config.paths import is_inside
from kernel.config.positions import Key
from kernel.config.read import read_message
from kernel.config.records import (
    DynamicBatching,
    EnsembleStep,
    InstanceGroup,
    ModelConfig,
    QueuePolicy,
    TensorSpec,
    VersionPolicy,
    WarmupInput,
    WarmupSample,
)
from kernel.config.refuse_late import headroom_of
from kernel.config.refuse_late import parse as parse_refuse_late
from kernel.config.sequence_wait import sequence_wait_of
from kernel.config.source import ConfigSource, config_file
from kernel.config.stateful import SequenceBatching, SequenceControl, SequenceState

__all__ = [
    "CIRCUIT_BREAKER",
    "CIRCULAR",
    "AutoscaleLimits",
    "BreakerRule",
    "ConfigError",
    "ConfigErrors",
    "ConfigSource",
    "DynamicBatching",
    "EnsembleStep",
    "FieldOrigin",
    "FieldPath",
    "InstanceGroup",
    "Key",
    "Message",
    "ModelConfig",
    "QueuePolicy",
    "SequenceBatching",
    "SequenceControl",
    "SequenceState",
    "TensorSpec",
    "VersionPolicy",
    "WarmupInput",
    "WarmupSample",
    "autoscale_between",
    "autoscale_of",
    "check_ensembles",
    "config_file",
    "did_you_mean",
    "edited",
    "execution_limit_of",
    "headroom_of",
    "idle_limit_of",
    "is_decoupled",
    "is_inside",
    "left_here",
    "listed",
    "parse_refuse_late",
    "read_config",
    "read_message",
    "require_complete",
    "sequence_wait_of",
    "with_changes",
    "words_first",
]
