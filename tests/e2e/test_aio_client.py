"""`tritonclient.http.aio`, the client for asyncio apps, on the sample repository."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

pytest.importorskip("aiohttp")

import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException

from .test_client import tensor


def test_calls(url: str) -> None:
    async def talk() -> None:
        async with triton.InferenceServerClient(url) as client:
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready("add_sub", "1")
            assert (await client.get_server_metadata())["name"] == "triton"
            assert (await client.get_model_metadata("add_sub"))["versions"] == ["1"]
            assert (await client.get_model_config("add_sub"))["backend"] == "python"
            assert {"name": "dense", "version": "1", "state": "READY"} in await client.get_model_repository_index()
            assert (await client.get_inference_statistics("add_sub"))["model_stats"][0]["name"] == "add_sub"
            with pytest.raises(InferenceServerException, match="'nobody' is not found"):
                await client.get_model_metadata("nobody")

    asyncio.run(talk())


def test_infer_concurrently(url: str) -> None:
    async def add(client: triton.InferenceServerClient, k: int) -> list[float]:
        a = tensor("A", np.full(4, k, np.float32))
        b = tensor("B", np.full(4, 1, np.float32), binary=False)
        result = await client.infer("add_sub", [a, b], request_id=str(k))
        assert result.get_response()["id"] == str(k)
        return result.as_numpy("SUM").tolist()

    async def talk() -> list[list[float]]:
        async with triton.InferenceServerClient(url, conn_limit=32) as client:
            return await asyncio.gather(*(add(client, k) for k in range(64)))

    assert asyncio.run(talk()) == [[k + 1.0] * 4 for k in range(64)]
