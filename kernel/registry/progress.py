"""What is being loaded, told while it lasts: one line when a version begins, one when it is there, and one now and then between.

Knows no more of a version than what its loader tells, and for threads of this process where in the model's files they are. On the
loop; does nothing while nothing is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, ClassVar

from kernel.circles.wait_view import WaitView

if TYPE_CHECKING:
    import asyncio

__all__ = ["LoadStep", "Progress"]

log = logging.getLogger("kernel")

#: How often it is told what is still being loaded.
TELL_SECONDS = 10.0


@dataclass(eq=False, slots=True)
class LoadStep:
    """One version on its way. `phase`: what is done with it now."""

    name: str
    version: int
    folder: Path
    began: float
    phase: str = "waits for its turn"


class Progress:
    """The versions of one kernel that are being loaded. `loop` and `now` are asked for when something is.

    `shown`: of all kernels of the process, called with what is being loaded whenever that has changed; None: nobody shows it.
    """

    shown: ClassVar[Callable[[Sequence[LoadStep]], None] | None] = None

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop], now: Callable[[], float]) -> None:
        self._loop = loop
        self._now = now
        self._steps: list[LoadStep] = []
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def loading(self, name: str, version: int, folder: Path) -> Iterator[LoadStep]:
        """Tell of one version from here to the end of the block; what has failed is told by others."""
        step = LoadStep(name, version, folder, self._now())
        self._steps.append(step)
        self._show()
        if self._timer is None:
            self._timer = self._loop().call_later(TELL_SECONDS, self._tell)
        log.info("loading: %s:%d", name, version)
        try:
            yield step
        finally:
            self._steps.remove(step)
            self._show()
            if not self._steps and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _show(self) -> None:
        if Progress.shown is not None:
            Progress.shown(tuple(self._steps))

    def loaded(self, step: LoadStep) -> None:
        log.info("loaded %s:%d in %.1f s", step.name, step.version, self._now() - step.began)

    def _tell(self) -> None:
        now = self._now()
        self._timer = self._loop().call_later(TELL_SECONDS, self._tell)
        places = _places([step.folder for step in self._steps])
        told = [
            f"{step.name}:{step.version} for {now - step.began:.0f} s ({step.phase}{places.get(step.folder, '')})"
            for step in self._steps
        ]
        log.info("still loading: %s", "; ".join(told))


def _places(folders: list[Path]) -> dict[Path, str]:
    """Return where in a model's own files a thread of this process is, innermost, for those folders in which one is."""
    found: dict[Path, str] = {}
    for top in WaitView.innermost().values():
        frame: FrameType | None = top
        while frame is not None:
            file = frame.f_code.co_filename
            folder = next((one for one in folders if file.startswith(f"{one}/")), None)
            if folder is not None:
                found.setdefault(folder, f", at {file}:{frame.f_lineno} in {frame.f_code.co_name}")
                break
            frame = frame.f_back
    return found
