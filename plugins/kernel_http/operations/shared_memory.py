"""The shared memory operations: regions are registered, listed and forgotten (docs/contract/http_protocol.md, 8).

Reads and writes JSON; what a region is, and which can't be, is the kernel's business.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from kernel import Code, ServingError
from kernel_http.connection import replies
from kernel_http.connection.heads import Head
from kernel_http.json.errors import ABSENT, malformed
from kernel_http.json.members import text_of, unsigned_of
from kernel_http.operations.operation import at_once, read_document

if TYPE_CHECKING:
    from kernel import Kernel
    from kernel_http.connection.routes import Handler

__all__ = ["SharedMemoryRoutes"]

#: The bytes of a cudaIpcMemHandle_t.
CUDA_HANDLE_SIZE = 64


class SharedMemoryRoutes:
    """The handlers of both kinds, system and CUDA."""

    def __init__(self, kernel: Kernel) -> None:
        self._system = kernel.shared_memory
        self._cuda = kernel.cuda_shared_memory

    def handlers(self) -> dict[str, Handler]:
        """Return route name -> handler."""
        return {
            "system_status": at_once(self.system_status),
            "system_register": at_once(self.system_register),
            "system_unregister": at_once(self.system_unregister),
            "cuda_status": at_once(self.cuda_status),
            "cuda_register": at_once(self.cuda_register),
            "cuda_unregister": at_once(self.cuda_unregister),
        }

    def system_status(self, head: Head, body: bytes) -> bytes:
        return replies.json_reply(self._system.status(head.region))

    def system_register(self, head: Head, body: bytes) -> bytes:
        _check_named(head, "system")
        record = read_document(body)
        key = text_of(_with(record, "key"), "key")
        offset = unsigned_of(record.get("offset", 0), "offset")
        byte_size = unsigned_of(_with(record, "byte_size")["byte_size"], "byte_size")
        self._system.register(head.region, key, offset, byte_size)
        return replies.EMPTY_JSON

    def system_unregister(self, head: Head, body: bytes) -> bytes:
        self._system.unregister(head.region)
        return replies.EMPTY_JSON

    def cuda_status(self, head: Head, body: bytes) -> bytes:
        return replies.json_reply(self._cuda.status(head.region))

    def cuda_register(self, head: Head, body: bytes) -> bytes:
        _check_named(head, "cuda")
        record = read_document(body)
        handle = text_of(_with(record, "raw_handle")["raw_handle"], "b64")
        numbers = []
        for field in ("byte_size", "device_id"):
            if field not in record:
                raise malformed(field, ABSENT.format(field))
            numbers.append(unsigned_of(record[field], field))
        try:
            raw_handle = base64.b64decode(handle, validate=True)
        except ValueError:  # binascii.Error is one; what is no ASCII is another
            raw_handle = b""
        if len(raw_handle) != CUDA_HANDLE_SIZE and self._cuda.allowed:
            raise ServingError(Code.INVALID_ARG, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
        byte_size, device_id = numbers
        self._cuda.register(head.region, raw_handle, device_id, byte_size)
        return replies.EMPTY_JSON

    def cuda_unregister(self, head: Head, body: bytes) -> bytes:
        self._cuda.unregister(head.region)
        return replies.EMPTY_JSON


def _check_named(head: Head, kind: str) -> None:
    if not head.region:
        raise ServingError(Code.INVALID_ARG, f"'region name' is necessary to register {kind} shared memory region")


def _with(record: dict[str, Any], field: str) -> dict[str, Any]:
    """Return the record, which must have that member."""
    if field not in record:
        raise ServingError(Code.INVALID_ARG, f"Shared memory register request has no '{field}' field")
    return record
