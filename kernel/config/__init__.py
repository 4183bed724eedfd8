"""A model's config: from its folder to a frozen record, every mistake with its file, line, column and field.

The modules `check_*` hold the rules that a config has to keep; complete.py says in which order all is done.
"""

from __future__ import annotations

from kernel.config.complete import read_config, require_complete, with_changes
from kernel.config.ensemble import CIRCULAR, check_ensembles, is_decoupled
from kernel.config.errors import ConfigError, ConfigErrors, words_first
from kernel.config.model_config_pb2 import ModelConfig as Message
from kernel.config.positions import Key
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
from kernel.config.source import ConfigSource, config_file
from kernel.config.stateful import SequenceBatching, SequenceControl, SequenceState

__all__ = [
    "CIRCULAR",
    "ConfigError",
    "ConfigErrors",
    "ConfigSource",
    "DynamicBatching",
    "EnsembleStep",
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
    "check_ensembles",
    "config_file",
    "is_decoupled",
    "read_config",
    "require_complete",
    "with_changes",
    "words_first",
]
