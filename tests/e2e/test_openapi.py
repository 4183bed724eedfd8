"""A server asked by what it says of itself: openapi.json is taken by a tool that knows nothing else of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .serving import serving, write_model

#: How long it asks, however fast the machine is; what it asks about first is what is asked most.
SECONDS = 8

MODELS = """\
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(one, "X").as_numpy())])
            for one in requests
        ]
"""


def test_what_is_asked_by_the_document_is_answered_as_it_says(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "plain", MODELS)
    write_model(models, "rows", MODELS, more="max_batch_size: 8")
    with serving(tmp_path, models, "--model-control-mode=explicit", "--load-model=*") as server:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(Path(__file__).parent / "schemathesis.toml")),
                *("run", f"http://{server.url}/openapi.json", "--phases", "coverage,fuzzing", "--max-time", str(SECONDS)),
                *("--max-examples", "3", "--generation-deterministic", "--no-color", "--no-shrink", "--continue-on-failure"),
                *("--warnings", "off", "--request-timeout", "60", "--wait-for-schema", "60"),
            ],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert " 0 generated" not in done.stdout and "Tested:" in done.stdout, done.stdout[-2000:]
        assert server.infer("plain", 1.0)[0] in (200, 400, 404)  # it lives; the tool may have unloaded the model
