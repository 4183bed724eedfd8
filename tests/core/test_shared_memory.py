"""POSIX shared memory that clients register: words, bounds, and clients that take it away again."""

from __future__ import annotations

import errno
import gc
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kernel import Code, CudaSharedMemory, Region, ServingError, SharedMemory

FOLDER = Path("/dev/shm")

MakeKey = Callable[..., str]


@pytest.fixture
def make_key() -> Iterator[MakeKey]:
    """Make objects of a size, each with a name of its own, and take them away at the end."""
    made: list[Path] = []

    def make(size: int = 64) -> str:
        path = FOLDER / f"kernel_test_{uuid.uuid4().hex}"
        path.write_bytes(bytes(range(256)) * (size // 256) + bytes(range(size % 256)))
        made.append(path)
        return f"/{path.name}"

    yield make
    for path in made:
        path.unlink(missing_ok=True)


def path_of(key: str) -> Path:
    return FOLDER / key.lstrip("/")


def refusal(action: Callable[..., object], *args: object) -> tuple[Code, str]:
    with pytest.raises(ServingError) as caught:
        action(*args)
    return caught.value.code, caught.value.message


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


# --- registering


def test_regions_are_listed_by_name(make_key: MakeKey) -> None:
    memory, key = SharedMemory(), make_key()
    memory.register("b", key, 0, 64)
    memory.register("a", key, 16, 8)
    assert memory.status() == [Region("a", key, 16, 8), Region("b", key, 0, 64)]
    assert memory.status("b") == [Region("b", key, 0, 64)]


def test_a_key_needs_no_slash(make_key: MakeKey) -> None:
    memory, key = SharedMemory(), make_key()
    memory.register("r", key[1:], 0, 64)
    assert memory.status("r")[0].key == key[1:]
    assert memory.span("r", 3, 2).read().tolist() == [3, 4]


def test_a_name_is_registered_once(make_key: MakeKey) -> None:
    memory, key = SharedMemory(), make_key()
    memory.register("r", key, 0, 64)
    assert refusal(memory.register, "r", key, 0, 8) == (
        Code.ALREADY_EXISTS,
        "shared memory region 'r' already in manager",
    )
    assert memory.status() == [Region("r", key, 0, 64)]


@pytest.mark.parametrize("key", ["", "/", "nothing_of_this_name", ".", "..", "../etc/passwd", "/a/b", "a\0b", "x" * 300])
def test_keys_that_name_no_object(key: str) -> None:
    memory = SharedMemory()
    assert refusal(memory.register, "r", key, 0, 8) == (Code.INTERNAL, f"Unable to open shared memory region: '{key}'")
    assert memory.status() == []


def test_what_is_no_object_is_not_opened(tmp_path: Path) -> None:
    memory, name = SharedMemory(), f"kernel_test_{uuid.uuid4().hex}"
    path = FOLDER / name
    (tmp_path / "elsewhere").write_bytes(b"secret..")
    for make in (path.mkdir, lambda: path.symlink_to(tmp_path / "elsewhere"), lambda: os.mkfifo(path)):
        make()
        try:
            code, text = refusal(memory.register, "r", name, 0, 8)
        finally:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        assert (code, text) == (Code.INTERNAL, f"Unable to open shared memory region: '{name}'")


@pytest.mark.parametrize(("offset", "size"), [(0, 65), (1, 64), (64, 1), (2**63, 8), (0, 2**64 - 1)])
def test_a_region_beyond_its_object(make_key: MakeKey, offset: int, size: int) -> None:
    memory, key = SharedMemory(), make_key()
    assert refusal(memory.register, "r", key, offset, size) == (
        Code.INVALID_ARG,
        "failed to register shared memory region 'r': invalid args",
    )
    memory.register("first", key, 0, 8)
    assert refusal(memory.register, "r", key, offset, size) == (Code.INTERNAL, f"Invalid shared memory region: '{key}'")
    assert [region.name for region in memory.status()] == ["first"]


def test_a_region_of_no_bytes(make_key: MakeKey) -> None:
    assert refusal(SharedMemory().register, "r", make_key(), 4, 0) == (
        Code.INVALID_ARG,
        "failed to register shared memory region 'r': 0 bytes from 4 on are no region",
    )


def test_unregistering(make_key: MakeKey) -> None:
    memory, key = SharedMemory(), make_key()
    for name in "abc":
        memory.register(name, key, 0, 8)
    memory.unregister("b")
    memory.unregister("nobody")
    assert [region.name for region in memory.status()] == ["a", "c"]
    assert refusal(memory.status, "b") == (Code.NOT_FOUND, "Unable to find system shared memory region: 'b'")
    memory.unregister()
    assert memory.status() == []


def test_nothing_stays_open(make_key: MakeKey) -> None:
    memory, key, before = SharedMemory(), make_key(), open_files()
    memory.register("r", key, 0, 64)
    for _ in range(5):
        refusal(memory.register, "s", key, 0, 65)
        refusal(memory.register, "s", "nothing_of_this_name", 0, 65)
    memory.span("r", 0, 8).read()
    memory.unregister("r")
    assert open_files() == before


def test_switched_off(make_key: MakeKey) -> None:
    for memory in (SharedMemory(allowed=False), CudaSharedMemory(allowed=False)):
        words = "clients may not register or unregister shared memory; start the server with --allow-client-shm=true to let them"
        args = ("r", make_key(), 0, 8) if isinstance(memory, SharedMemory) else ("r", b"", 0, 8)
        assert refusal(memory.register, *args) == (Code.UNSUPPORTED, words)
        assert refusal(memory.unregister, "r") == (Code.UNSUPPORTED, words)
        assert memory.status() == []


# --- reading and writing


def test_reads_are_copies_and_writes_are_seen(make_key: MakeKey) -> None:
    memory, key = SharedMemory(), make_key()
    memory.register("r", key, 16, 32)
    span = memory.span("r", 4, 4)
    array = span.read()
    assert array.tolist() == [20, 21, 22, 23]
    array[0] = 99
    assert path_of(key).read_bytes()[20] == 20
    span.write(b"ab")
    span.write(np.array([[1, 2]], np.uint8))
    assert path_of(key).read_bytes()[18:24] == bytes([18, 19, 1, 2, 22, 23])
    class Mine(np.ndarray):  # type: ignore[type-arg]
        pass

    mine = span.read(Mine)
    assert type(mine) is Mine
    assert bytes(mine) == bytes([1, 2, 22, 23])


def test_a_region_larger_than_all_memory_is_an_error(make_key: MakeKey) -> None:
    memory, key = SharedMemory(), make_key()
    os.truncate(path_of(key), 2**56)  # nothing of it is there
    memory.register("r", key, 0, 2**56)
    wanted = f"there is no memory for {2**56} bytes of the shared memory region 'r'"
    assert refusal(memory.span("r", 0, 2**56).read) == (Code.INTERNAL, wanted)


def test_bounds_of_a_region(make_key: MakeKey) -> None:
    memory, key = SharedMemory(), make_key(128)
    memory.register("r", key, 64, 32)
    assert memory.span("r", 31, 1).read().tolist() == [95]
    assert memory.span("r", 0, 32).byte_size == 32
    beyond = (Code.INVALID_ARG, "Invalid offset for shared memory region: 'r'")
    assert refusal(memory.span, "r", 32, 1) == refusal(memory.span, "r", 2**64 - 1, 8) == beyond
    too_much = (Code.INVALID_ARG, "Invalid offset + byte size for shared memory region: 'r'")
    assert refusal(memory.span, "r", 0, 33) == refusal(memory.span, "r", 31, 2) == refusal(memory.span, "r", 0, 0) == too_much
    assert refusal(memory.span, "r", 8, 2**64 - 4) == too_much
    assert refusal(memory.span, "s", 0, 1) == (Code.NOT_FOUND, "Unable to find shared memory region: 's'")


def test_a_span_outlives_its_region_and_the_object_s_name(make_key: MakeKey) -> None:
    memory, key = SharedMemory(), make_key()
    memory.register("r", key, 0, 64)
    span, other = memory.span("r", 8, 8), memory.span("r", 8, 8)
    memory.unregister("r")
    path_of(key).unlink()
    span.write(b"written!")
    assert bytes(other.read()) == b"written!"


def test_an_object_that_shrinks_is_an_error_and_not_the_end(make_key: MakeKey) -> None:
    memory, key = SharedMemory(), make_key(8192)
    memory.register("r", key, 4096, 4096)
    span = memory.span("r", 0, 4096)
    os.truncate(path_of(key), 4100)
    wanted = (
        Code.INVALID_ARG,
        f"Invalid offset + byte size for shared memory region: 'r' (the object '{key}' has only 4100 bytes now, "
        "4096 are wanted from 4096 on)",
    )
    assert refusal(span.read) == refusal(span.write, b"x" * 4096) == wanted
    assert refusal(memory.span("r", 0, 4096).read) == wanted
    assert path_of(key).stat().st_size == 4100
    assert memory.span("r", 0, 4).read().tolist() == [0, 1, 2, 3]


def test_memory_that_is_not_there_is_an_error(make_key: MakeKey, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SharedMemory()
    memory.register("r", make_key(), 0, 64)

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.pwrite", full)
    assert refusal(memory.span("r", 0, 8).write, b"x") == (
        Code.INTERNAL,
        "shared memory region 'r' can't be written: No space left on device",
    )


# --- CUDA


def test_cuda_regions_are_refused() -> None:
    memory = CudaSharedMemory()
    for handle in (bytes(64), bytes(3)):
        assert refusal(memory.register, "r", handle, 0, 4) == (
            Code.INVALID_ARG,
            "failed to register shared memory region: invalid args",
        )
    memory.unregister("r")
    memory.unregister()
    assert memory.status() == []
    assert refusal(memory.status, "r") == (Code.NOT_FOUND, "Unable to find cuda shared memory region: 'r'")


# --- limits


@pytest.mark.parametrize("key", ["/triton_python_backend_shm_region_1", "triton_x", "//sem.lock", "sem.x"])
def test_keys_that_are_not_for_clients(key: str) -> None:
    """In the reference's words; whether there is such an object is not told."""
    prefix = "triton_" if "triton" in key else "sem."
    words = f"cannot register shared memory region 'r' with key '{key}' as the key contains the reserved prefix '{prefix}'"
    assert refusal(SharedMemory().register, "r", key, 0, 8) == (Code.INVALID_ARG, words)


def test_regions_of_one_object_share_a_descriptor(make_key: MakeKey) -> None:
    memory, key, before = SharedMemory(), make_key(), open_files()
    for number in range(50):
        memory.register(str(number), key, number, 1)
    assert open_files() == before + 1
    memory.unregister("0")
    path_of(key).unlink()
    path_of(key).write_bytes(b"\1" * 64)  # another object of the same name
    memory.register("other", key, 0, 64)
    assert open_files() == before + 2
    assert bytes(memory.span("other", 0, 2).read()) == b"\1\1"
    assert bytes(memory.span("1", 0, 1).read()) == b"\1" and bytes(memory.span("7", 0, 1).read()) == b"\7"
    memory.unregister()
    assert open_files() == before


def test_there_is_an_end_to_regions_and_descriptors(make_key: MakeKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel.frontends.shared_memory.MOST_REGIONS", 3)
    monkeypatch.setattr("kernel.frontends.shared_memory.MOST_OBJECTS", 2)
    memory, keys = SharedMemory(), [make_key() for _ in range(3)]
    memory.register("a", keys[0], 0, 8)
    memory.register("b", keys[1], 0, 8)
    before = open_files()
    words = "regions of 2 shared memory objects are registered, which is the most; unregister some"
    assert refusal(memory.register, "c", keys[2], 0, 8) == (Code.UNAVAILABLE, words)
    assert open_files() == before
    memory.register("c", keys[0], 0, 8)
    words = "3 shared memory regions are registered, which is the most; unregister some"
    assert refusal(memory.register, "d", keys[0], 0, 8) == (Code.UNAVAILABLE, words)
    memory.unregister("a")
    memory.register("d", keys[0], 0, 8)
    words = "the name of a shared memory region has 1025 characters, where 1024 are the most"
    assert refusal(memory.register, "x" * 1025, keys[0], 0, 8) == (Code.INVALID_ARG, words)


def test_what_may_only_be_read_serves_for_inputs(make_key: MakeKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may be root's, who may write to everything: the system's refusal is played."""
    memory, key, opened = SharedMemory(), make_key(), os.open

    def open_as_another(path: str, flags: int) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags)

    monkeypatch.setattr("kernel.frontends.shared_memory.os.open", open_as_another)
    memory.register("r", key, 0, 64)
    span = memory.span("r", 8, 2)
    assert bytes(span.read()) == b"\x08\x09"
    words = f"shared memory region 'r' can't be written: the server may only read '{key}'"
    assert refusal(span.write, b"ab") == (Code.INTERNAL, words)


def test_a_sparse_object_does_not_take_the_machine_s_memory(make_key: MakeKey) -> None:
    """It costs its client nothing; copies count as long as somebody has them, or a part of them."""
    key, size = make_key(), 1 << 20
    os.truncate(path_of(key), 1 << 40)
    memory = SharedMemory(limit=3 * size)
    memory.register("r", key, 0, 1 << 40)
    whole = memory.span("r", 0, 1 << 40)
    said = "0 bytes of shared memory are copied for requests, and 1099511627776 more are above the 3145728 that"
    code, words = refusal(whole.read)
    assert (code, words.startswith(said)) == (Code.UNAVAILABLE, True)
    span = memory.span("r", 5, size)
    first, part = span.read(), span.read()[:10]
    third = span.read()
    assert refusal(span.read)[0] is Code.UNAVAILABLE
    assert memory.span("r", 0, 64).read().nbytes == 64  # what is small is not counted
    del first
    gc.collect()
    fourth = span.read()
    assert refusal(span.read)[0] is Code.UNAVAILABLE
    del part, third, fourth
    gc.collect()
    assert [span.read() for _ in range(3)]
