"""What the server and its models say of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual import BASE, TestBackend, run, write_repository

from kernel import EXTENSIONS, Kernel, ServingError, TensorMetadata, model_metadata

BATCHING = """
backend: "test"
max_batch_size: 4
input { name: "A" data_type: TYPE_STRING dims: [ 2 ] }
output { name: "B" data_type: TYPE_BF16 dims: [ -1, 3 ] }
output { name: "C" data_type: TYPE_BOOL dims: [ 1 ] }
"""


def test_models(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": BATCHING, "plain": BASE})
        (tmp_path / "plain" / "3").mkdir()
        (tmp_path / "plain" / "config.pbtxt").write_text(BASE + "\nversion_policy { all { } }")
        async with Kernel(tmp_path, plugins=[TestBackend({})]) as kernel:
            record = model_metadata(kernel, "m")
            assert (record.name, record.versions) == ("m", ("1",))
            assert record.inputs == (TensorMetadata("A", "BYTES", (-1, 2)),)
            assert record.outputs == (TensorMetadata("B", "BF16", (-1, -1, 3)), TensorMetadata("C", "BOOL", (-1, 1)))
            assert model_metadata(kernel, "plain").versions == ("1", "3")
            assert model_metadata(kernel, "plain", "3").versions == ("3",)
            assert model_metadata(kernel, "plain").inputs[0].shape == (-1,)
            assert model_metadata(kernel, "plain").platform == kernel.model("plain").config.metadata_platform
            with pytest.raises(ServingError, match=r"^Request for unknown model: 'nobody' is not found$"):
                model_metadata(kernel, "nobody")

    run(main())


def test_extensions() -> None:
    assert ",".join(EXTENSIONS) == (
        "classification,sequence,model_repository,model_repository(unload_dependents),schedule_policy,model_configuration,"
        "system_shared_memory,cuda_shared_memory,binary_tensor_data,parameters,statistics,trace,logging"
    )
