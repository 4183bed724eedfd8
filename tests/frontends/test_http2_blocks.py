"""Header blocks: what is read means what the `hpack` package says, however a client writes it; in bounded time and memory."""

from __future__ import annotations

import time

import hpack
import pytest
from frontends.wires import CALM, COMPRESSION, END_HEADERS, END_STREAM, HEADERS, PROTOCOL, REQUEST, Wire, block, frame
from hpack.table import HeaderTable
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_grpc.http2 import huffman
from kernel_grpc.http2.blocks import HARD_LIMIT, MAX_BLOCK, Blocks
from kernel_grpc.http2.errors import ConnectionFailure

NAMES = st.sampled_from([b"x-a", b"x-b", b":path", b"te", b"user-agent", b"grpc-timeout", b"x-" + b"n" * 200])
VALUES = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"", b"1", b"trailers", b"v" * 126, b"v" * 127, b"v" * 3000, b"v" * 5000])
)
KINDS = st.sampled_from([(0x00, 4), (0x10, 4), (0x40, 6)])  # how a literal field begins, and in how many bits its index is
HUFFMAN = hpack.huffman.HuffmanEncoder(hpack.hpack.REQUEST_CODES, hpack.hpack.REQUEST_CODES_LENGTH)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=12)


def entries(blocks: Blocks) -> list[tuple[bytes, bytes]]:
    return list(blocks._table.dynamic_entries)


@settings(max_examples=200)
@given(st.lists(st.tuples(FIELDS, st.booleans(), st.sampled_from([None, 0, 31, 100, 4096])), max_size=6))
def test_lists_of_fields_come_through(lists: list[tuple[list[tuple[bytes, bytes]], bool, int | None]]) -> None:
    """As grpc-go, grpc-java and grpc-js write them: new fields enter the table, strings are Huffman-coded or not."""
    encoder, blocks = hpack.Encoder(), Blocks()
    for fields, packed, size in lists:
        if size is not None:
            encoder.header_table_size = size
        payload = encoder.encode(fields, huffman=packed)
        head = blocks.known.get(payload) or blocks.decode(payload)
        assert head.fields == tuple(fields) and all(type(text) is bytes for field in head.fields for text in field)
        assert head.size == sum(len(name) + len(value) + 32 for name, value in fields)
        assert entries(blocks) == list(encoder.header_table.dynamic_entries)


PIECES = st.lists(
    st.one_of(
        st.integers(1, 70).map(lambda index: bytes((0x80 | index,))),
        st.tuples(KINDS, st.integers(0, 70), st.binary(max_size=9), VALUES, st.booleans()).map(lambda parts: field(*parts)),
        st.sampled_from([0, 30, 31, 32, 4096, 4097]).map(lambda size: integer(size, 5, 0x20)),
        st.binary(min_size=1, max_size=3),
    ),
    max_size=6,
)  # fmt: skip


def integer(number: int, bits: int, begin: int) -> bytes:
    encoded = hpack.hpack.encode_integer(number, bits)
    encoded[0] |= begin
    return bytes(encoded)


def field(kind: tuple[int, int], index: int, name: bytes, value: bytes, packed: bool) -> bytes:
    """Encode a literal field; of small indices some mean nothing."""

    def string(text: bytes) -> bytes:
        coded = HUFFMAN.encode(text) if packed else text
        return integer(len(coded), 7, 0x80 * packed) + coded

    return integer(index, kind[1], kind[0]) + (b"" if index else string(name)) + string(value)


@settings(max_examples=400)
@given(st.lists(st.tuples(PIECES, st.integers(0, 3)), max_size=3))
def test_any_bytes_mean_what_hpack_says(payloads: list[tuple[list[bytes], int]]) -> None:
    blocks, decoder = Blocks(), hpack.Decoder(HARD_LIMIT)
    first = hpack.Encoder().encode([*REQUEST, ("x-a", "1")])
    blocks.decode(first)
    decoder.decode(first)
    for parts, cut in payloads:
        payload = b"".join(parts)[: len(b"".join(parts)) - cut]
        expected: list[tuple[bytes, bytes]] | None = None
        try:
            expected = [tuple(got) for got in decoder.decode(payload, raw=True)]  # type: ignore[misc]
        except Exception:
            pass
        try:
            head = blocks.decode(payload)
        except ConnectionFailure as failure:
            assert expected is None or "size is changed" in failure.text or "more than four bytes" in failure.text
            return
        assert expected == list(head.fields)
        assert entries(blocks) == list(decoder.header_table.dynamic_entries)


@given(st.binary(max_size=60))
def test_huffman_codes(text: bytes) -> None:
    assert huffman.unpacked(HUFFMAN.encode(text)) == text
    try:
        expected = hpack.huffman_table.decode_huffman(text)
    except hpack.HPACKDecodingError:
        with pytest.raises(ValueError, match="Huffman"):
            huffman.unpacked(text)
    else:
        assert huffman.unpacked(text) == expected


def test_what_is_known_of_the_huffman_code_is_bounded() -> None:
    for first in range(256):
        for second in range(0, 256, 5):
            try:
                huffman.unpacked(bytes((first, second, 255, first)))
            except ValueError:
                pass
    assert len(huffman._STEPS) <= 256 * 256 and all(len(piece) <= 2 for _, piece in huffman._STEPS.values())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (b"\x80", "invalid table index 0"),
        (b"\xbe", "invalid table index 62"),
        (b"\x7e\x00", "invalid table index 62"),
        (b"\xff\x80\x80\x80\x80\x00", "a number of more than four bytes"),
        (b"\x00\x7f" + b"\xff" * 60_000, "a number of more than four bytes"),
        (b"\x00\x05ab", "it is cut off"),
        (b"\x00\x01a\x05ab", "it is cut off"),
        (b"\x40", "it is cut off"),
        (b"\x3f", "it is cut off"),
        (b"\x3f\xe2\x1f", "the table's size is 4097; the largest is 4096"),
        (b"\x20\x20\x20", "the table's size is changed behind a field, or too often"),
        (b"\x82\x20", "the table's size is changed behind a field, or too often"),
        (b"\x00\x81\xff\x00", "a Huffman-coded string does not end with its last character"),
        (b"\x00\x84\xff\xff\xff\xff\x00", "a Huffman-coded string holds what is no character"),
    ],
)
def test_blocks_that_are_wrong(wrong: bytes, words: str) -> None:
    code, text = Wire().fails(frame(HEADERS, END_HEADERS | END_STREAM, 1, wrong))
    assert (code, text) == (COMPRESSION, f"a header block can't be decoded: {words}")


def test_entry_that_is_larger_than_the_table_empties_it() -> None:
    blocks = Blocks()
    blocks.decode(b"\x40\x01a\x01b")
    assert entries(blocks) == [(b"a", b"b")]
    blocks.decode(b"\x40\x01a\x7f\x81\x1f" + b"c" * 4096)
    assert entries(blocks) == []


@pytest.mark.parametrize(
    "payload",
    [
        b"\x20\x3f\xe1\x1f" + b"\x40\x01a\x00" * 1980,  # enter and evict as often as the list may be long
        b"\x40\x01a\x7f\x81\x1e" + b"b" * 3968 + b"\xbe" * 15,  # one large entry, again and again
        b"\x00\x01a\xff\xf9\x7d" + bytes((0x1C, 0x71, 0xC7)) * 5400,  # a long string of the code's longer characters
        b"\x20" * MAX_BLOCK,
        b"\x82" * MAX_BLOCK,
    ],
)
def test_the_dearest_blocks_cost_little(payload: bytes) -> None:
    began = time.process_time()
    for _ in range(10):
        wire = Wire()
        wire.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, payload))
        assert len(entries(wire.connection.heads._blocks)) <= 4096 // 32
    assert (time.process_time() - began) / 10 < 0.05


def test_large_entries_that_are_referred_to_often() -> None:
    wire = Wire()
    wire.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(REQUEST) + b"\x40\x03x-a\x7f\x81\x1e" + b"b" * 3968))
    bomb = block(REQUEST) + b"\xbe" * 20
    code, text = wire.fails(*[frame(HEADERS, END_HEADERS | END_STREAM, 3 + 2 * k, bomb) for k in range(5)])
    assert code == CALM and "header list of more than" in text


def test_malformed_requests_change_the_table_all_the_same() -> None:
    wire, encoder = Wire(), hpack.Encoder()
    assert wire.resets(frame(HEADERS, END_HEADERS | END_STREAM, 1, encoder.encode([("x-a", "1")]))) == [(1, PROTOCOL)]
    wire.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, encoder.encode([*REQUEST, ("x-a", "1")])))
    assert (b"x-a", b"1") in wire.opened[3].head.fields


def test_static_table_is_the_standards() -> None:
    assert len(HeaderTable.STATIC_TABLE) == 61 and HeaderTable.STATIC_TABLE[7] == (b":status", b"200")


def test_clients_whose_blocks_are_all_different_stay_cheap() -> None:
    """A trace and a deadline that are new for each call, Huffman-coded and entered into the table: 11 us; with hpack 40."""
    blocks, encoder = Blocks(), hpack.Encoder()
    fields = [*REQUEST, ("user-agent", "grpc-go/1.60.1")]
    payloads = [
        encoder.encode([*fields, ("grpc-timeout", f"{4_999_000 + k}u"), ("traceparent", f"00-{k * 7**40 % 2**128:032x}")])
        for k in range(2000)
    ]
    began = time.process_time()
    for payload in payloads:
        assert not blocks.decode(payload).fault
    assert (time.process_time() - began) / 2000 < 60e-6
