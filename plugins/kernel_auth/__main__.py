"""`python -m kernel_auth NAME`: makes a key, shows it once, and what to put into the file."""

from __future__ import annotations

import hashlib
import json
import secrets
import sys

__all__ = ["main"]

#: Random bytes of a key. Nobody guesses so many, so one round of sha256 is all that a hash of them needs.
KEY_BYTES = 32


def main(arguments: list[str]) -> int:
    """Print a new key for the client that `arguments` name; return the exit status."""
    if len(arguments) != 1 or arguments[0].startswith("-") or not arguments[0].isprintable():
        print("usage: python -m kernel_auth NAME   (the client's; prints a new key and its part of the file)", file=sys.stderr)
        return 2
    key = secrets.token_urlsafe(KEY_BYTES)
    digest = hashlib.sha256(key.encode()).hexdigest()
    print(f"# the key, for the client alone; it is not shown again:\n#   {key}\n")
    print(f'[[client]]\nname = {json.dumps(arguments[0])}\nkeys = ["sha256:{digest}"]')
    print('may = [{ models = ["*"], categories = ["inference", "metadata"] }]')
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
