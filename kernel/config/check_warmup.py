"""The rules about warmup samples. Those of batch size 0 are skipped, hence not looked at (contract: model_config, section 9)."""

from __future__ import annotations

import os

from kernel.config.paths import data_file
from kernel.config.positions import Key
from kernel.config.report import Report
from kernel.errors import Code

__all__ = ["check_warmup"]


def check_warmup(report: Report) -> None:
    """Check the samples of `model_warmup`."""
    for index, sample in enumerate(report.message.model_warmup):
        if sample.batch_size == 0:
            continue
        for name, data in sorted(sample.inputs.items()):
            at = ("model_warmup", index, "inputs", Key(name), "value")
            kind = data.WhichOneof("input_data_type")
            if kind is None:
                words = f"[request id: <id_unknown>] warmup setting expects input '{name}' to have input_data_type set"
                report.fail("B", at, words, "set one of 'zero_data', 'random_data', 'input_data_file'")
            elif kind == "input_data_file" and report.model_folder is not None:
                path = data_file(report, "warmup", data.input_data_file, (*at, "input_data_file"))
                if path is None:
                    continue
                try:
                    with path.open("rb"):
                        pass
                except (OSError, ValueError) as error:
                    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
                    words = f"failed to open text file for read {path}: {reason}"
                    report.fail("B", (*at, "input_data_file"), words, code=Code.INTERNAL)
