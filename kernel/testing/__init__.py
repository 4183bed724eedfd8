"""Tests of models: load unmodified model folders in process, ask them, and be told what is wrong with them.

With pytest nothing has to be imported, the fixtures `load_model`, `load_repository`, `fake_model` and `virtual_time` are there
(plugin kernel_pytest). `Kit` is the same without pytest. Nothing of the kernel imports this package.
"""

from __future__ import annotations

from kernel.testing.clock import VirtualTime
from kernel.testing.errors import Deadlock, Leak, Unanswered
from kernel.testing.fakes import Fake, FakeCall
from kernel.testing.kit import Kit
from kernel.testing.models import AsyncCall, AsyncModel, AsyncRepository, Call, LoadedModel, LoadedRepository
from kernel.testing.protocols import FakeModel, LoadModel, LoadModelAsync, LoadRepository, LoadRepositoryAsync
from kernel.testing.values import assert_close
from kernel.testing.virtual import VirtualLoop, run

__all__ = [
    "AsyncCall",
    "AsyncModel",
    "AsyncRepository",
    "Call",
    "Deadlock",
    "Fake",
    "FakeCall",
    "FakeModel",
    "Kit",
    "Leak",
    "LoadModel",
    "LoadModelAsync",
    "LoadRepository",
    "LoadRepositoryAsync",
    "LoadedModel",
    "LoadedRepository",
    "Unanswered",
    "VirtualLoop",
    "VirtualTime",
    "assert_close",
    "run",
]
