"""The scanner of text-format files: right places, right ends, never an exception, never slow."""

from __future__ import annotations

import time

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.config.model_config_pb2 import ModelConfig
from kernel.config.positions import MAX_DEPTH, Key, path_text, scan

TEXT = """name: "x"  # a comment: { not: 1 }
input [ { name: "A"
  dims: [1, -1 ] }, < name: 'B' dims: 3 dims: 4 > ]
parameters { key: "a" value: { string_value: "b" "c" } }
parameters: { key: "z", value { string_value: "1" } };
max_batch_size:
   -8, output []
dynamic_batching < preferred_batch_size: [ 4,
8 ] >
"""


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("name",), (1, 7)),
        (("input", 0, "name"), (2, 17)),
        (("input", 0, "dims", 0), (3, 10)),
        (("input", 0, "dims", 1), (3, 13)),
        (("input", 1), (3, 21)),
        (("input", 1, "dims", 0), (3, 39)),
        (("input", 1, "dims", 1), (3, 47)),
        (("input", 1, "data_type"), (3, 21)),  # not there: the input it is missing from
        (("input", 2), None),
        (("parameters", Key("a"), "value", "string_value"), (4, 46)),
        (("parameters", Key("z")), (5, 1)),
        (("parameters", Key("q")), None),
        (("max_batch_size",), (7, 4)),
        (("output",), None),
        (("dynamic_batching",), (8, 1)),
        (("dynamic_batching", "preferred_batch_size", 1), (9, 1)),
        (("dynamic_batching", "priority_levels"), (8, 1)),
        (("nothing",), None),
        ((), None),
    ],
)
def test_places(path, place):
    scanned = scan(TEXT)
    assert scanned.error is None
    assert scanned.locate(path) == place


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        (
            "a: 1\nb: ${name}",
            2,
            4,
            "'${name}' is a placeholder of a template that nobody filled in, wanted a value for 'b'",
        ),
        ("b: $name", 1, 4, "'$name' is a placeholder"),
        ("b: {{ name }}", 1, 5, "is '{{ … }}' a template's placeholder"),
        ("a { b: 1", 1, 9, "the file ends here, wanted a field name or '}'"),
        ("a < b: 1 }", 1, 10, "got '}', wanted a field name or '>'"),
        ("a 3", 1, 3, "got '3', wanted ':' or '{' after 'a'"),
        ("a: [1 2]", 1, 7, "got '2', wanted ',' or ']'"),
        ("a: [", 1, 5, "the file ends here, wanted a value for 'a'"),
        ('a: "x\nb: 1', 1, 4, "a string that does not end on its line"),
        ("}", 1, 1, "got '}', wanted a field name"),
        ("é: 1", 1, 1, "got 'é', wanted a field name"),
        ("# ok\n\udce9: 1", 2, 1, "byte 0xe9 is not UTF-8, wanted a field name"),
        ('a: "\udce9"', 1, 4, "a string that is not UTF-8"),
        ("a {" * 1000, 1, 3 * MAX_DEPTH + 3, f"nested deeper than {MAX_DEPTH}"),
    ],
)
def test_where_it_stops(text, line, column, message):
    error = scan(text).error
    assert error is not None
    assert message in error.message
    assert (error.line, error.column) == (line, column)


def test_comments_may_hold_any_bytes():
    assert scan("# caf\udce9\na: 1").error is None


def test_path_text():
    assert path_text(("input", 0, "dims", 1)) == "input[0].dims[1]"
    assert path_text(("parameters", Key("p"), "value", "string_value")) == 'parameters["p"].string_value'


@pytest.mark.parametrize(
    "text",
    ["a{" * 10_000, "a:[" * 10_000, '"' * 300_000, '"\\' * 200_000, "a: 1 " * 100_000, "-" * 300_000, "#" * 300_000],
)
def test_hostile_text_is_quick(text):
    started = time.perf_counter()
    scan(text)
    assert time.perf_counter() - started < 10.0


PIECES = st.sampled_from(
    [
        "name",
        "input",
        "dims",
        ":",
        "{",
        "}",
        "[",
        "]",
        "<",
        ">",
        ",",
        ";",
        '"x"',
        "'y'",
        "1",
        "-1",
        "1e5",
        "-inf",
        "# c\n",
        "\n",
        " ",
        "true",
        "$",
        '"',
    ]
)


@given(st.lists(PIECES, max_size=60).map(" ".join))
@settings(max_examples=300, deadline=None)
def test_never_raises_and_points_into_the_text(text):
    scanned = scan(text)
    lines = text.split("\n")
    if scanned.error is not None:
        assert 1 <= scanned.error.line <= len(lines)
        assert 1 <= scanned.error.column <= len(lines[scanned.error.line - 1]) + 1


@given(st.text(max_size=200))
@settings(max_examples=300, deadline=None)
def test_never_raises_on_any_text(text):
    scan(text)


NAMES = st.text(st.characters(codec="utf-8"), max_size=8)


@st.composite
def messages(draw):
    message = ModelConfig(name=draw(NAMES), max_batch_size=draw(st.integers(-5, 5)))
    for _ in range(draw(st.integers(0, 3))):
        message.input.add(
            name=draw(NAMES), dims=draw(st.lists(st.integers(-1, 9), max_size=3)), data_type=draw(st.integers(0, 14))
        )
    for key in draw(st.lists(NAMES, max_size=2)):
        message.parameters[key].string_value = draw(NAMES)
    if draw(st.booleans()):
        message.sequence_batching.direct.minimum_slot_utilization = draw(st.floats(0, 1, width=32))
    return message


@given(messages(), st.booleans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_reads_whatever_protobuf_writes(message, one_line, pointy):
    text = text_format.MessageToString(message, as_one_line=one_line, pointy_brackets=pointy, as_utf8=True)
    scanned = scan(text)
    assert scanned.error is None, (text, scanned.error)
    assert len(scanned.root.fields.get("input", [])) == len(message.input)
    lines = text.split("\n")
    for index, io in enumerate(message.input):
        assert len(scanned.root.fields["input"][index].fields.get("dims", [])) == len(io.dims)
        for place, dim in enumerate(io.dims):
            line, column = scanned.locate(("input", index, "dims", place))
            assert lines[line - 1][column - 1 :].startswith(str(dim))
