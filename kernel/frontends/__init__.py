"""What every wire needs: listening, connections, TLS, restrictions, the forms of tensors and metadata. Speaks no protocol."""

from __future__ import annotations

from kernel.frontends.answer_sizes import ANSWER_BYTES_AHEAD, ANSWERS_AT_ONCE, answers_little, made_at_once
from kernel.frontends.budget import Account, MemoryBudget, machine_share
from kernel.frontends.classification import classify
from kernel.frontends.connections import Connections, ListeningFrontend, peer_name
from kernel.frontends.contents import (
    check_rank,
    check_strings,
    cut_off,
    is_much_text,
    size_mismatch,
    stand_in,
    strings_of,
    unpacked,
)
from kernel.frontends.crowds import Access, Crowd, idle_seconds
from kernel.frontends.listening import Endpoint, Listener
from kernel.frontends.memory import MappedMemory, empty_array
from kernel.frontends.metadata import EXTENSIONS, ModelMetadata, TensorMetadata, model_metadata
from kernel.frontends.restriction import (
    CATEGORIES,
    is_local,
    is_restricted,
    local_categories,
    only_local,
    parse_restrictions,
)
from kernel.frontends.shared_memory import CudaSharedMemory, Region, SharedMemory, Span
from kernel.frontends.timing import server_timing
from kernel.frontends.trail import TRAIL_HEADER, follow_trail, trail_of
from kernel.frontends.values import as_tensor, declared_tensor

__all__ = [
    "ANSWERS_AT_ONCE",
    "ANSWER_BYTES_AHEAD",
    "CATEGORIES",
    "EXTENSIONS",
    "TRAIL_HEADER",
    "Access",
    "Account",
    "Connections",
    "Crowd",
    "CudaSharedMemory",
    "Endpoint",
    "Listener",
    "ListeningFrontend",
    "MappedMemory",
    "MemoryBudget",
    "ModelMetadata",
    "Region",
    "SharedMemory",
    "Span",
    "TensorMetadata",
    "answers_little",
    "as_tensor",
    "check_rank",
    "check_strings",
    "classify",
    "cut_off",
    "declared_tensor",
    "empty_array",
    "follow_trail",
    "idle_seconds",
    "is_local",
    "is_much_text",
    "is_restricted",
    "local_categories",
    "machine_share",
    "made_at_once",
    "model_metadata",
    "only_local",
    "parse_restrictions",
    "peer_name",
    "server_timing",
    "size_mismatch",
    "stand_in",
    "strings_of",
    "trail_of",
    "unpacked",
]
