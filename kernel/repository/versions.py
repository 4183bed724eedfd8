"""Version numbers as clients write them: text to number, or the reference's words for what is none."""

from __future__ import annotations

import re

from kernel.errors import Code, ServingError

__all__ = ["version_number"]


def version_number(version: str) -> int | None:
    """Return the number a version string stands for, None for the newest. Raises ServingError for what is no version."""
    if version in ("", "-1"):
        return None
    if re.fullmatch(r"[0-9]{1,19}", version) and int(version) < 2**63:
        return int(version)
    if re.fullmatch(r"-[0-9]{1,19}", version):
        raise ServingError(
            Code.INVALID_ARG,
            f"invalid model version specified '{version}' , version should be an integral value > 0",
        )
    raise ServingError(
        Code.INVALID_ARG,
        f"failed to get model version from specified version string '{version}' (details: stol), "
        "version should be an integral value > 0",
    )
