"""Where a config was read from, so that a mistake in any of its fields can be told with its place.

A file has lines and columns; an override of the load API is JSON, whose places are paths; a model without a config file
has neither. Values that the model itself supplied (auto-complete) stand nowhere, and say so.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath

from kernel.config.errors import ConfigError
from kernel.config.positions import Path, Scanned, path_text
from kernel.errors import Code

__all__ = ["OVERRIDE", "ConfigSource", "config_file"]

#: What stands for the path of a config that came with a load request.
OVERRIDE = "config override"


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """`kind`: "file", "override" or "none". `path`: of the file that was read, or of the folder that has
    none. `scanned`: the places of its fields.

    `completed`: names of the top-level fields that the model has changed since. `given`: names of those that an override has.
    """

    kind: str
    path: str
    scanned: Scanned | None = field(default=None, repr=False, compare=False)
    completed: Collection[str] = frozenset()
    given: Collection[str] = frozenset()

    def error(
        self, words: str, detail: str, path: Path, *, stage: str = "B", code: Code = Code.INVALID_ARG
    ) -> ConfigError:
        """Return the mistake of the field at `path`, placed where it stands or as near to it as there is anything."""
        line = column = None
        where = self.path
        if path and path[0] in self.completed:
            note = f"'{path_text(path)}' was set by the model's own auto-complete"
            detail = f"{detail}; {note}" if detail else note
        elif self.kind == "override":
            where = f"{OVERRIDE} $.{path_text(path)}" if path else OVERRIDE
        elif self.scanned is not None:
            line, column = self.scanned.locate(path) or (None, None)
        return ConfigError(
            words, detail, stage=stage, path=where, line=line, column=column, field=path_text(path), code=code
        )

    def after(self, changed: Collection[str]) -> ConfigSource:
        """Return the source of the same config after the model changed some top-level fields."""
        return replace(self, completed=frozenset(self.completed) | frozenset(changed))


def config_file(model_folder: FilePath, config_name: str = "") -> FilePath:
    """Return the file that holds the config of the model in `model_folder`; it need not exist."""
    if config_name and re.fullmatch(r"[^/\\\0]+", config_name):
        named = model_folder / "configs" / f"{config_name}.pbtxt"
        if named.is_file():
            return named
    return model_folder / "config.pbtxt"
