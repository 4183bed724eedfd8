"""docs/caching.md is true: its plugin works as it stands there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import ModuleType

from virtual import BASE, Client, TestBackend, run, write_repository

from kernel import Kernel

DOCS = (Path(__file__).parents[2] / "docs" / "caching.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)


def test_the_example(tmp_path: Path) -> None:
    (source,) = SNIPPETS
    plugin = ModuleType("fresh")
    exec(compile(source, "docs/caching.md", "exec"), plugin.__dict__)

    async def main() -> None:
        backend = TestBackend({})
        write_repository(tmp_path, {"m": BASE + "response_cache { enable: true }\n"})
        settings = {"size": "1000000", "seconds": "60"}
        async with Kernel(tmp_path, plugins=[backend, plugin], cache=("fresh", settings)) as kernel:
            assert kernel.cache is not None
            cache = kernel.cache._cache
            cache.clock = kernel.clock  # type: ignore[attr-defined]
            client = Client(kernel)
            client.send("m", "a", [1])
            await asyncio.sleep(59)
            client.send("m", "b", [1])
            await asyncio.sleep(2)
            client.send("m", "c", [1])
            client.send("m", "d", [1])
            assert backend.executions("m") == [["a"], ["c"]]
            assert set(client.outcomes().values()) == {(0, "ok"), (59, "ok"), (61, "ok")}

    run(main())
