"""Where the rules put what they find: all mistakes and warnings of one config, each with its place."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path as FilePath

from kernel.config.errors import ConfigError
from kernel.config.model_config_pb2 import ModelConfig as Message
from kernel.config.positions import Path
from kernel.config.source import ConfigSource
from kernel.errors import Code

__all__ = ["Report"]


class Report:
    """One config under examination: what the rules may look at, and what they have found so far.

    `model_folder` is None where the files of the model are out of reach; the rules about files are then skipped.
    `backends`: names of those installed, or None when that is not to be checked. `directory`: the name that the model
    has to have.
    """

    def __init__(
        self,
        message: Message,
        source: ConfigSource,
        *,
        directory: str,
        model_folder: FilePath | None,
        backends: Collection[str] | None,
        gpus: tuple[int, ...],
        partial: bool = False,
    ) -> None:
        self.message = message
        self.source = source
        self.directory = directory
        self.model_folder = model_folder
        self.backends = backends
        self.gpus = gpus
        self.partial = partial and message.platform != "ensemble"
        self.name = message.name
        self.errors: list[ConfigError] = []
        self.warnings: list[str] = []

    def fail(self, stage: str, at: Path, words: str, detail: str = "", *, code: Code = Code.INVALID_ARG) -> None:
        """Note a mistake of the field at `at`: the reference's words, then what came and what was wanted."""
        self.errors.append(self.source.error(words, detail, at, stage=stage, code=code))

    def warn(self, at: Path, sentence: str) -> None:
        self.warnings.append(self.source.error(sentence, "", at).message)
