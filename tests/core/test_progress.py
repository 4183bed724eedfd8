"""Where a model's code is while it loads, as far as this process can see."""

from __future__ import annotations

import threading
from pathlib import Path

from kernel.registry.progress import _places


def test_a_thread_in_a_models_files(tmp_path: Path) -> None:
    began, go = threading.Event(), threading.Event()
    file = tmp_path / "m" / "1" / "model.py"
    code = compile("\n\ndef initialize():\n    began.set()\n    go.wait()\n\ninitialize()\n", str(file), "exec")
    thread = threading.Thread(target=exec, args=(code, {"began": began, "go": go}), daemon=True)
    thread.start()
    try:
        assert began.wait(10)
        places = _places([tmp_path / "other", tmp_path / "m"])
        assert places.keys() == {tmp_path / "m"}
        assert places[tmp_path / "m"] in {f", at {file}:{line} in initialize" for line in (4, 5)}
    finally:
        go.set()
        thread.join()
