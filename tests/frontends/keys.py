"""Keys of clients for tests, and the file that has them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

__all__ = ["digest", "write_keys"]

#: `all` may everything, `some` only inferences of `multi` and `any`, `slow` twice at once and once a second, `one` one at a time.
CLIENTS = {
    "all": 'may = [{ models = ["*"], categories = ["*"] }]',
    "some": 'may = [{ models = ["mult?", "any", "many"], categories = ["inference"] }]',
    "slow": 'rate = 1\nburst = 2\nmay = [{ models = ["*"], categories = ["*"] }]',
    "one": 'concurrency = 1\nmay = [{ models = ["*"], categories = ["*"] }]',
}


def digest(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def write_keys(path: Path, text: str = "", clients: dict[str, str] = CLIENTS) -> Path:
    """Write the file. The key of each client is `key-` and its name. `text`: goes in front."""
    parts = [f'[[client]]\nname = "{name}"\nkeys = ["{digest(f"key-{name}")}"]\n{more}\n' for name, more in clients.items()]
    beside = path.with_suffix(".new")
    beside.write_text("\n".join([text, *parts]))
    os.replace(beside, path)  # as one should: nobody sees half a file, and it is another file each time
    return path
