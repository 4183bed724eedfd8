"""The command line, `kernel` and `python -m kernel`. Each command has a module of its name, imported when it is asked for.

Nothing of the kernel imports this room but `__main__`.
"""

from __future__ import annotations

from kernel.cli.commands import main

__all__ = ["main"]
