"""`python -m kernel` is the command `kernel`."""

from __future__ import annotations

import sys

from kernel.cli import main

if __name__ == "__main__":
    sys.exit(main())
