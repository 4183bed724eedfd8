"""Large tensors that a model passes on are not copied on their way from the socket to the socket (design: memory is private)."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
from pathlib import Path

import numpy as np
import pytest

import kernel_http
from kernel import Kernel
from kernel_python.api.copies import COPIES

from .serving import write_model

KEEPS = """\
    kept = []

    def execute(self, requests):
        self.kept.append(requests[0].inputs()[0].as_numpy()[1:3])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""


def post(port: int, name: str, count: int) -> None:
    """Send the same request three times: read, by its template, by its bytes."""
    data = np.arange(count, dtype=np.float32).tobytes()
    head = json.dumps(
        {
            "inputs": [
                {"name": "X", "datatype": "FP32", "shape": [count], "parameters": {"binary_data_size": len(data)}}
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for _ in range(3):
        headers = {"Inference-Header-Content-Length": str(len(head))}
        connection.request("POST", f"/v2/models/{name}/infer", head + data, headers)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200 and body.endswith(data)
    connection.close()


@pytest.mark.parametrize("count", [4_000, 20_000, 262_144])
@pytest.mark.parametrize("placement", ["loop", "thread"])
def test_copies(tmp_path: Path, placement: str, count: int) -> None:
    more = f'parameters {{ key: "placement" value {{ string_value: "{placement}" }} }}'
    write_model(tmp_path, "echo", more=more)
    write_model(tmp_path, "keeps", KEEPS, more=more)

    async def main() -> None:
        async with Kernel(tmp_path) as kernel:
            parser = argparse.ArgumentParser()
            kernel_http.add_options(parser)
            options = parser.parse_args(["--http-port", "0", "--http-address", "127.0.0.1"])
            (frontend,) = kernel_http.register_frontends(kernel, options)
            await frontend.start()
            port = int(frontend.address.rpartition(":")[2])
            for name, copied in (("echo", 0), ("keeps", 3)):  # what the model still sees is copied
                COPIES.reset()
                await asyncio.to_thread(post, port, name, count)
                assert (COPIES.large, COPIES.passed) == (copied, 3 - copied), name
            await frontend.stop()

    asyncio.run(main())
