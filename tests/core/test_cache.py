"""The rules of the response cache: which requests are the same, what is given out, what goes when there is no room."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kernel import DATATYPES, Code, LocalCache, ServingError, StoredResponse, StoredTensor, Tensor
from kernel.rules.response_cache import ENTRY_BYTES, KEY_BYTES, OUTPUT_BYTES, RequestKeys, least_size, load_key

NUMBERS = [name for name in DATATYPES if name != "BYTES"]


def keys(name: str = "m", version: int = 1, load: int = 0, secret: bytes = b"s") -> RequestKeys:
    return RequestKeys(load_key(secret, name, version, load))


def key_of(*tensors: Tensor, of: RequestKeys | None = None) -> bytes:
    made = of or keys()
    return made.all(made.of({tensor.name: tensor for tensor in tensors}))


def fp32(name: str, *values: float, shape: tuple[int, ...] = (-1,)) -> Tensor:
    return Tensor(name, "FP32", np.array(values, np.float32).reshape(shape))


def text(name: str, *values: bytes) -> Tensor:
    return Tensor(name, "BYTES", np.array(values, np.object_))


@st.composite
def tensors(draw: st.DrawFn, name: str | None = None) -> Tensor:
    name = draw(st.sampled_from("ABC")) if name is None else name
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    datatype = draw(st.sampled_from(["FP32", "FP16", "INT64", "BOOL", "BF16", "BYTES"]))
    if datatype == "BYTES":
        array = np.empty(int(np.prod(shape)), np.object_)
        array[:] = draw(st.lists(st.binary(max_size=5), min_size=array.size, max_size=array.size))
        array = array.reshape(shape)
    else:
        array = draw(arrays.arrays(DATATYPES[datatype], shape))
        if draw(st.booleans()):
            array = np.asfortranarray(array)  # not row by row in memory
    return Tensor(name, datatype, array)


def said(tensor: Tensor) -> tuple[Any, ...]:
    """All that makes two tensors the same, bit by bit."""
    data = tuple(tensor.array.ravel().tolist()) if tensor.datatype == "BYTES" else tensor.array.tobytes()
    return tensor.name, tensor.datatype, tensor.shape, data


# -- keys ------------------------------------------------------------------------------------------------------------------


def test_the_order_of_inputs_does_not_count() -> None:
    one, two = fp32("A", 1), text("B", b"x")
    assert key_of(one, two) == key_of(two, one)
    assert len(key_of(one)) == KEY_BYTES


@pytest.mark.parametrize(
    "other",
    [
        (fp32("A", 1, 2, shape=(1, 2)),),  # the reference takes these for the same
        (fp32("A", 1, -2),),
        (fp32("B", 1, 2),),
        (Tensor("A", "INT32", np.array([1, 2], np.float32).view(np.int32)),),  # the same bytes
        (fp32("A", 1), fp32("B", 2)),
        (fp32("A", 1, 2), fp32("B")),
    ],
)
def test_whatever_an_input_is_counts(other: tuple[Tensor, ...]) -> None:
    assert key_of(fp32("A", 1, 2)) != key_of(*other)


def test_strings_do_not_run_together() -> None:
    assert key_of(text("A", b"ab", b"c")) != key_of(text("A", b"a", b"bc"))
    assert key_of(text("A", b"\0")) != key_of(text("A", b""))
    assert key_of(text("A", b"a"), text("B", b"b")) != key_of(text("A", b"a", b"b"), text("B"))


def test_minus_zero_is_another_input_and_nan_is_itself() -> None:
    assert key_of(fp32("A", 0.0)) != key_of(fp32("A", -0.0))
    assert key_of(fp32("A", np.nan)) == key_of(fp32("A", np.nan))


def test_model_version_load_and_kernel_count() -> None:
    made = [keys(), keys("n"), keys(version=2), keys(load=1), keys(secret=b"t"), keys("m1", 1), keys("m", 11)]
    assert len({key_of(fp32("A", 1), of=one) for one in made}) == len(made)


def test_a_narrower_request_has_a_key_of_its_own() -> None:
    made = keys()
    begun = made.of({"A": fp32("A", 1)})
    found = {made.all(begun), made.some(begun, {"X"}), made.some(begun, {"Y"}), made.some(begun, {"X", "Y"})}
    assert len(found) == 4
    assert made.some(begun, ["Y", "X"]) == made.some(begun, {"X", "Y"})
    assert made.all(begun) == key_of(fp32("A", 1))  # asking changes nothing


@given(st.dictionaries(st.sampled_from("AB"), st.none(), min_size=1).flatmap(
    lambda names: st.tuples(*(tensors(name) for name in names))), st.tuples(tensors("A")))
@settings(max_examples=60, deadline=None)
def test_keys_are_the_same_exactly_if_the_inputs_are(one: tuple[Tensor, ...], two: tuple[Tensor, ...]) -> None:
    same = sorted(map(said, one), key=repr) == sorted(map(said, two), key=repr)
    assert (key_of(*one) == key_of(*two)) == same
    again = [Tensor(tensor.name, tensor.datatype, tensor.array.copy(order="C")) for tensor in one]
    assert key_of(*one) == key_of(*again)


# -- what is kept ----------------------------------------------------------------------------------------------------------


@given(st.lists(tensors(), max_size=3))
@settings(max_examples=60, deadline=None)
def test_what_comes_out_is_what_went_in_and_nobody_can_alter_it(given: list[Tensor]) -> None:
    before = [said(tensor) for tensor in given]
    kept = StoredResponse.of(given)
    assert least_size(given) <= kept.size
    for tensor in given:
        spoil(tensor)  # a model that uses its output buffer again
    for _ in range(2):
        out = kept.tensors(set("ABC"), set("ABC"))
        assert [said(tensor) for tensor in out] == before
        for tensor in out:
            assert tensor.array.flags.writeable
            spoil(tensor)  # a caller that writes to what it has got


def spoil(tensor: Tensor) -> None:
    if tensor.datatype == "BYTES":
        tensor.array.fill(b"spoilt")
    else:
        tensor.array.fill(1)


@pytest.mark.parametrize("datatype", NUMBERS)
def test_every_datatype(datatype: str) -> None:
    array = np.arange(6).astype(DATATYPES[datatype]).reshape(2, 3)
    (kept,) = StoredResponse.of([Tensor("Y", datatype, array)]).outputs
    out = kept.tensor()
    assert (out.name, out.datatype, out.array.dtype, out.array.tolist()) == ("Y", datatype, array.dtype, array.tolist())
    assert kept == StoredTensor("Y", datatype, (2, 3), array.tobytes())


def test_only_what_is_wanted_in_the_order_of_the_answer() -> None:
    kept = StoredResponse.of([fp32("B", 1), fp32("A", 2), fp32("surplus", 3)])
    assert [tensor.name for tensor in kept.tensors({"A"}, {"A", "B"})] == ["A", "surplus"]
    assert [tensor.name for tensor in kept.tensors({"A", "B"}, {"A", "B"})] == ["B", "A", "surplus"]


# -- the local cache -------------------------------------------------------------------------------------------------------


def response(nbytes: int) -> StoredResponse:
    return StoredResponse((StoredTensor("Y", "UINT8", (nbytes,), bytes(nbytes)),))


OWN = ENTRY_BYTES + OUTPUT_BYTES + 1  # what an answer takes besides its data


def test_who_was_not_asked_for_longest_goes_first() -> None:
    cache = LocalCache(3 * (OWN + 10))
    for key in (b"a", b"b", b"c"):
        cache.insert(key, response(10))
    assert cache.lookup(b"a") is not None
    cache.insert(b"d", response(10))
    assert [key for key in (b"a", b"b", b"c", b"d") if cache.lookup(key)] == [b"a", b"c", b"d"]
    usage = cache.usage()
    assert (usage.size, usage.used, usage.entries, usage.evictions) == (3 * (OWN + 10), 3 * (OWN + 10), 3, 1)


def test_one_that_is_too_large_drives_nobody_out() -> None:
    cache = LocalCache(OWN + 10)
    assert cache.largest == OWN + 10
    cache.insert(b"a", response(10))
    cache.insert(b"b", response(11))
    assert cache.lookup(b"a") is not None and cache.lookup(b"b") is None
    cache.insert(b"a", response(11))  # nor what it would replace
    assert cache.lookup(b"a") is not None


def test_the_same_key_again_takes_no_more_room() -> None:
    cache = LocalCache(2 * (OWN + 10))
    for size in (10, 3, 10):
        cache.insert(b"a", response(size))
        usage = cache.usage()
        assert (usage.used, usage.entries, usage.evictions) == (OWN + size, 1, 0)


@given(
    st.integers(1, 5000),
    st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(0, 2000)), max_size=80),
)
@settings(max_examples=150, deadline=None)
def test_the_bound_holds_and_the_order_is_that_of_use(size: int, history: list[tuple[bool, int, int]]) -> None:
    cache = LocalCache(size)
    model: OrderedDict[bytes, StoredResponse] = OrderedDict()
    evictions = 0
    for inserts, number, nbytes in history:
        key = bytes([number])
        if inserts:
            given = response(nbytes)
            cache.insert(key, given)
            if given.size <= size:
                model.pop(key, None)
                while sum(one.size for one in model.values()) + given.size > size:
                    model.popitem(last=False)
                    evictions += 1
                model[key] = given
        else:
            found = cache.lookup(key)
            assert found is model.get(key)
            if found is not None:
                model.move_to_end(key)
        usage = cache.usage()
        assert usage.used == sum(one.size for one in model.values()) <= size
        assert (usage.entries, usage.evictions) == (len(model), evictions)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "config didn't contain a valid 'size' field; it has []"),
        ({"bytes": "1"}, "config didn't contain a valid 'size' field; it has ['bytes']"),
        ({"size": "abc"}, "'size' is 'abc', wanted a number of bytes greater than 0"),
        ({"size": "-5"}, "'size' is '-5', wanted a number of bytes greater than 0"),
        ({"size": "0"}, "'size' is 0, wanted a number of bytes greater than 0"),
        ({"size": "100", "ttl": "3"}, "there is no setting 'ttl', only 'size'"),
    ],
)
def test_settings_of_the_local_cache(given: dict[str, str], words: str) -> None:
    with pytest.raises(ServingError) as raised:
        LocalCache.of(given)
    assert raised.value.code is Code.INVALID_ARG
    assert raised.value.message == f"Failed to initialize LocalCache: {words}"
    assert LocalCache.of({"size": "100"}).size == 100
