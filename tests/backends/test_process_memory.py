"""The shared memory of placement `process`, and the messages: both sides in one process, without any child."""

from __future__ import annotations

import gc
import mmap
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kernel import DATATYPES, Code, InferenceResponse, ServingError, Tensor
from kernel_python.process import pool as pools
from kernel_python.process import wire
from kernel_python.process.notes import Notes
from kernel_python.process.pool import FIRST, INLINE, Loans, Pool, create, mapped

KB = 1024
FLOATS = np.dtype(np.float32)


@pytest.fixture
def file() -> Iterator[int]:
    """The descriptor of the memory, which the server and the child close."""
    descriptor = create()
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def memory(file: int) -> mmap.mmap:
    return mapped(os.dup(file))


@pytest.fixture
def pool(memory: mmap.mmap) -> Pool:
    return Pool(memory)


@pytest.fixture
def loans(memory: mmap.mmap) -> Loans:
    return Loans(memory)


def floats(count: int, value: float = 1.0) -> np.ndarray[Any, Any]:
    return np.full(count, value, np.float32)


# -- the pool ------------------------------------------------------------------------------------------------------------


def test_an_array_comes_out_as_it_went_in(pool: Pool, loans: Loans) -> None:
    for datatype, dtype in DATATYPES.items():
        if datatype != "BYTES":
            array = (np.arange(24 * KB) % 2).astype(dtype).reshape(2, 3, -1)
            place = pool.put(array)
            assert place is not None
            copy = loans.array(place, array.dtype, array.shape)
            assert (copy == array).all()
            assert copy.flags.writeable
    place = pool.put(b"some bytes")
    assert place is not None
    assert loans.data(place) == b"some bytes"


def test_arrays_that_are_not_contiguous(pool: Pool, loans: Loans) -> None:
    array = np.arange(10_000, dtype=np.float32).reshape(100, 100).T[::2]
    place = pool.put(array)
    assert place is not None
    assert (loans.array(place, FLOATS, array.shape) == array).all()


def test_a_block_is_lent_until_the_last_view_goes(pool: Pool, loans: Loans) -> None:
    place = pool.put(floats(10_000))
    assert place is not None
    array = loans.array(place, FLOATS, (10_000,))
    view = array.reshape(100, 100)[1:, 3]
    del array
    other = pool.put(floats(10_000, 2.0))
    assert other is not None
    assert other[1] != place[1]
    assert (view == 1).all()
    del view
    again = pool.put(floats(10_000))
    assert again is not None
    assert again[1] == place[1]


def test_what_is_returned_serves_again(pool: Pool, loans: Loans) -> None:
    """A thousand tensors one after the other take the place of one."""
    places = set()
    for number in range(1000):
        place = pool.put(floats(10_000 + number % 100))
        assert place is not None
        places.add(place[1])
        loans.drop(place)
    assert len(places) == 1


def test_withdrawn_blocks_serve_again(pool: Pool) -> None:
    places = [pool.put(floats(10_000)) for _ in range(10)]
    for place in places:
        assert place is not None
        pool.withdraw(place[0])
    assert {pool.put(floats(10_000)) for _ in range(10)} == set(places)


def test_no_block_overlaps_another(pool: Pool, loans: Loans) -> None:
    """Random sizes, returned in random order: every array keeps its value to its end."""
    chance = random.Random(1)
    lent: list[tuple[np.ndarray[Any, Any], float]] = []
    for number in range(3000):
        count = chance.choice([5_000, 6_000, 30_000, chance.randrange(4_096, 100_000)])
        place = pool.put(floats(count, number))
        assert place is not None
        lent.append((loans.array(place, FLOATS, (count,)), number))
        while len(lent) > chance.randrange(1, 60):
            array, value = lent.pop(chance.randrange(len(lent)))
            assert (array == value).all()
            del array
    for array, value in lent:
        assert (array == value).all()


def test_where_there_is_no_room_it_says_so() -> None:
    memory = mmap.mmap(-1, FIRST + 100 * KB)
    pool, loans = Pool(memory), Loans(memory)
    first, second = pool.put(floats(12_000)), pool.put(floats(12_000))
    assert first is not None
    assert second is not None
    assert pool.put(floats(12_000)) is None
    loans.drop(first)
    assert pool.put(floats(12_000)) is not None


def test_where_the_other_side_has_mapped_less(pool: Pool) -> None:
    """As where the address space of processes is limited."""
    pool.limit(FIRST + 100 * KB)
    assert [pool.put(floats(12_000)) is not None for _ in range(3)] == [True, True, False]


def test_more_blocks_than_there_are_flags(monkeypatch: pytest.MonkeyPatch, memory: mmap.mmap) -> None:
    monkeypatch.setattr(pools, "BLOCKS", 100)
    pool, loans = Pool(memory), Loans(memory)
    places = [pool.put(floats(5_000)) for _ in range(101)]
    assert places[100] is None
    assert places[0] is not None
    loans.drop(places[0])
    assert pool.put(floats(5_000)) == places[0]


def test_memory_that_is_not_needed_any_more_goes_back(
    file: int, pool: Pool, loans: Loans, monkeypatch: pytest.MonkeyPatch
) -> None:
    def used() -> int:
        return os.fstat(file).st_blocks * 512

    monkeypatch.setattr(pools, "KEEP", 1 << 20)
    before = used()
    places = [pool.put(floats(256 * KB)) for _ in range(16)]  # a megabyte each
    assert used() - before >= 16 << 20
    assert pool.swollen
    for place in places[1:]:
        assert place is not None
        loans.drop(place)
    pool.rest()
    assert used() - before <= 3 << 20
    assert places[0] is not None
    loans.drop(places[0])
    pool.rest()
    assert used() - before <= 1 << 20
    assert not pool.swollen
    array = loans.array(pool.put(floats(256 * KB, 3.0)), FLOATS, (256 * KB,))  # type: ignore[arg-type]
    assert (array == 3).all()


def test_cold_blocks_serve_again(pool: Pool, loans: Loans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "KEEP", 1 << 20)
    for turn in range(3):
        arrays = []
        for number in range(8):
            place = pool.put(floats(256 * KB, 10 * turn + number))
            assert place is not None
            arrays.append(loans.array(place, FLOATS, (256 * KB,)))
        for number, array in enumerate(arrays):
            assert (array == 10 * turn + number).all()
        del arrays, array
    assert pool._end == FIRST + (8 << 20)


def test_the_memory_outlives_the_pool(memory: mmap.mmap) -> None:
    place = Pool(memory).put(floats(10_000))
    assert place is not None
    array = Loans(memory).array(place, FLOATS, (10_000,))
    del memory
    gc.collect()
    assert (array == 1).all()


# -- notes -----------------------------------------------------------------------------------------------------------------


def test_notes(memory: mmap.mmap) -> None:
    ours, theirs = Notes(memory), Notes(memory)
    assert theirs.read() == b""
    assert ours.add(b"one")
    assert ours.add(b"two")
    assert theirs.read() == b"onetwo"
    assert not ours.add(bytes(1 << 18))
    assert theirs.read() == b"onetwo"
    ours.clear()
    assert theirs.read() == b""
    assert ours.add(b"three")
    assert theirs.read() == b"three"
    assert theirs.begun == 0
    ours.begin(1 << 40)
    assert theirs.begun == 1 << 40
    assert theirs.read() == b"three"


# -- messages --------------------------------------------------------------------------------------------------------------


def feed(frames: wire.Frames, data: bytes, step: int) -> list[tuple[Any, ...]]:
    messages = []
    while data:
        space = frames.space()
        count = min(step, len(space), len(data))
        assert count
        space[:count] = data[:count]
        data = data[count:]
        messages += frames.came(count)
    return messages


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000, 1 << 18, 1 << 30])
def test_messages_however_they_are_cut(step: int) -> None:
    chance = random.Random(step)
    most = 400 if step < 10 else 600_000
    messages = [(number, bytes(chance.randrange(most)), wire.GREETING) for number in range(20)]
    messages += [(20,), (21, bytes(most * 3)), (22,)]
    frames = wire.Frames()
    assert feed(frames, b"".join(map(wire.frame, messages)), step) == messages
    assert feed(frames, wire.frame((1, "again")), step) == [(1, "again")]
    assert len(frames.space()) == 1 << 18  # what one large message took was given back
    assert wire.messages_in(b"".join(map(wire.frame, messages))) == messages


@pytest.mark.parametrize("length", [1 << 20, 1 << 30, wire.MOST])
def test_a_length_is_believed_as_far_as_bytes_come(length: int) -> None:
    frames = wire.Frames()
    begins = wire.frame((b"x",))[4:5]
    assert feed(frames, length.to_bytes(4, "little") + begins + bytes(300_000), 1 << 16) == []
    assert len(frames.space()) <= 2 * wire.STEP


def test_a_message_that_is_larger_than_the_server_takes_is_refused() -> None:
    frames = wire.Frames(1 << 20)
    fits = wire.frame((1, bytes((1 << 20) - 100)))
    assert len(feed(frames, fits, 1 << 16)) == 1
    with pytest.raises(ValueError, match=r"a message of 2097\d+ bytes, where 1048576 are the most \(--memory-limit-receive\)"):
        feed(frames, wire.frame((1, bytes(1 << 21)))[:100], 1 << 16)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\x00\x00\x00\x7fx", b"\x05\x00\x00\x00{"])
def test_what_no_message_begins_with_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no message begins with " + data.hex(" ")):
        feed(wire.Frames(), data, 1 << 16)


@pytest.mark.parametrize("count", [0, 1, 3, INLINE // 4, INLINE // 4 + 1, 100_000])
def test_tensors_in_messages(pool: Pool, loans: Loans, count: int) -> None:
    tensors = [
        Tensor("x", "FP32", floats(count)),
        Tensor("s", "BYTES", np.array([b"\0a", b""] * count, object).reshape(2, -1)),
        Tensor("b", "BF16", np.arange(count, dtype=np.uint16)),
    ]
    blocks: list[int] = []
    (message,) = wire.messages_in(wire.frame((0, wire.write_tensors(tensors, pool, blocks))))
    assert bool(blocks) == (count > INLINE // 4 or count * 10 > INLINE)
    for before, after in zip(tensors, wire.read_tensors(message[1], loans), strict=True):
        assert (before.name, before.datatype, before.shape) == (after.name, after.datatype, after.shape)
        assert before.array.dtype == after.array.dtype
        assert before.array.tolist() == after.array.tolist()
        assert after.array.flags.writeable


def test_tensors_travel_in_the_message_where_there_is_no_room() -> None:
    memory = mmap.mmap(-1, FIRST + 4 * KB)
    pool, loans = Pool(memory), Loans(memory)
    written = wire.write_tensors([Tensor("x", "FP32", floats(50_000))], pool)
    (tensor,) = wire.read_tensors(written, loans)
    assert (tensor.array == 1).all()


def test_a_tensor_that_fits_nowhere_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST", 100_000)
    pool = Pool(mmap.mmap(-1, FIRST + 4 * KB))
    with pytest.raises(ValueError, match=r"tensor 'x' of 200000 bytes finds no room .* too large for a message \(100000 bytes\)"):
        wire.write_tensors([Tensor("x", "FP32", floats(50_000))], pool)


def test_responses_in_messages(pool: Pool, loans: Loans) -> None:
    def error_of(code: str, text: str) -> ServingError:
        return ServingError(Code[code], text)

    assert wire.read_response(wire.write_response(None, pool), loans, error_of) is None
    response = InferenceResponse([Tensor("x", "FP32", floats(3))], parameters={"a": 1})
    read = wire.read_response(wire.write_response(response, pool), loans, error_of)
    assert read is not None
    assert read["x"].tolist() == [1, 1, 1]
    assert read.parameters == {"a": 1}
    failure = InferenceResponse.failure(Code.NOT_FOUND, "nö")
    read = wire.read_response(wire.write_response(failure, pool), loans, error_of)
    assert read is not None
    assert read.error is not None
    assert (read.error.code, read.error.message) == (Code.NOT_FOUND, "nö")


def test_parameters_become_plain() -> None:
    class Name(str):
        """Not exactly a str."""

    class Number(int):
        """Not exactly an int."""

    values = wire.builtin_values({Name("a"): Name("b"), "n": Number(5), "f": np.float64(1.5), "t": True, "none": None})
    assert values == {"a": "b", "n": 5, "f": 1.5, "t": True, "none": None}
    assert {type(value) for value in values.values()} == {str, int, float, bool, type(None)}
    assert wire.builtin_values({}) is wire.builtin_values(None) is None
