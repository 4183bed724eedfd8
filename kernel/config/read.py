"""Reads the config of a model into a message: the file in text format, or the JSON that came with a load request.

Decides only whether it can be read (stage A), not whether it makes sense. Bounded in size and depth, so that no file
can hurt.
"""

from __future__ import annotations

import re
from pathlib import Path as FilePath

from google.protobuf import json_format, text_format

from kernel.config.errors import ConfigError, ConfigErrors
from kernel.config.lenient import JsonError, parse_json
from kernel.config.model_config_pb2 import ModelConfig as Message
from kernel.config.positions import MAX_DEPTH, scan
from kernel.config.schema import json_tree, text_mistakes
from kernel.config.source import OVERRIDE, ConfigSource, config_file
from kernel.errors import Code

__all__ = ["MAX_BYTES", "read_message"]

#: The largest config that is read. Real ones are a few kB.
MAX_BYTES = 1 << 20


def read_message(
    model_folder: FilePath, *, override: str | None = None, auto_complete: bool = True, config_name: str = ""
) -> tuple[Message, ConfigSource]:
    """Return the config as it was written, and where it stands. Raises ConfigErrors of stage A, all mistakes of the
    schema at once.

    `override` replaces the file. Without a file the config is empty, and with `auto_complete` off that is an error.
    """
    if override is not None:
        return _read_json(override)
    path = config_file(model_folder, config_name)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and auto_complete:
            return Message(), ConfigSource("none", str(model_folder))
        words = f"failed to open text file for read {path}: {error.strerror}"
        detail = "auto-complete is switched off" if isinstance(error, FileNotFoundError) else ""
        raise ConfigErrors([ConfigError(words, detail, stage="A", path=str(path), code=Code.INTERNAL)]) from None
    return _read_text(data, str(path))


def _read_text(data: bytes, path: str) -> tuple[Message, ConfigSource]:
    words = f"failed to read text proto from {path}"

    def mistake(line: int | None, column: int | None, detail: str, field: str = "") -> ConfigError:
        return ConfigError(words, detail, stage="A", path=path, line=line, column=column, field=field)

    if len(data) > MAX_BYTES:
        raise ConfigErrors([mistake(None, None, f"the file is larger than {MAX_BYTES} bytes")])
    # Bytes that aren't UTF-8 are tolerated in comments, as the reference does; the scanner refuses them elsewhere.
    text = data.decode("utf-8-sig", "surrogateescape")
    scanned = scan(text)
    errors = []
    for where, node, sentence in text_mistakes(scanned.root, Message.DESCRIPTOR):
        assert node is not None
        at_value = not sentence.startswith("no field") and (node.listed or node.text is not None)
        line, column = (node.value_line, node.value_column) if at_value else (node.line, node.column)
        errors.append(mistake(line, column, sentence, ConfigSource("file", path).error("", "", where).field))
    if scanned.error is not None:
        errors.append(mistake(scanned.error.line, scanned.error.column, scanned.error.message))
    if errors:
        raise ConfigErrors(errors)
    message = Message()
    try:
        text_format.Parse(text, message, max_recursion_depth=MAX_DEPTH + 1) if _HAS_DEPTH else text_format.Parse(
            text, message
        )
    except text_format.ParseError as error:
        detail = re.sub(r"^\d+:\d+ : ", "", str(error))
        raise ConfigErrors([mistake(error.GetLine(), error.GetColumn(), detail)]) from None
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigErrors([mistake(None, None, str(error))]) from None
    return message, ConfigSource("file", path, scanned)


_HAS_DEPTH = "max_recursion_depth" in text_format.Parse.__code__.co_varnames  # protobuf 6 and later


def _read_json(text: str) -> tuple[Message, ConfigSource]:
    words = "failed to read the config given with the load request"

    def mistake(detail: str, place: str = "", line: int | None = None, column: int | None = None) -> ConfigError:
        path = f"{OVERRIDE} $.{place}" if place else OVERRIDE
        return ConfigError(words, detail, stage="A", path=path, line=line, column=column, field=place)

    if len(text) > MAX_BYTES:
        raise ConfigErrors([mistake(f"it is larger than {MAX_BYTES} bytes")])
    try:
        document = parse_json(text, MAX_DEPTH)
    except JsonError as error:
        raise ConfigErrors([mistake(f"not JSON: {error.message}", "", error.line, error.column)]) from None
    tree, mistakes = json_tree(document, Message.DESCRIPTOR)
    errors = []
    for where, _, sentence in mistakes:
        errors.append(mistake(sentence, ConfigSource("override", OVERRIDE).error("", "", where).field))
    if errors:
        raise ConfigErrors(errors)
    message = Message()
    try:
        json_format.ParseDict(tree, message)
    except (json_format.ParseError, ValueError, TypeError, OverflowError) as error:
        raise ConfigErrors([mistake(" ".join(str(error).split()))]) from None
    return message, ConfigSource("override", OVERRIDE, given=frozenset(field.name for field, _ in message.ListFields()))
