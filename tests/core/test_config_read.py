"""Reading configs: every mistake of spelling and kind is told with its place, all at once, and nothing can hurt the
reader.
"""

# ruff: noqa: E501 (tables of sentences)
from __future__ import annotations

import contextlib
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.config import ConfigError, ConfigErrors, read_config
from kernel.config.read import MAX_BYTES, read_message
from kernel.errors import Code


def write(tmp_path, text, name="m"):
    folder = tmp_path / name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def errors_of(function, *args, **options):
    with pytest.raises(ConfigErrors) as caught:
        function(*args, **options)
    assert caught.value.stage in "AB"
    return caught.value


SPELLING = [
    # text, line, column, what it says behind the reference's words
    ("input {\n  dim: 1 }", 2, 3, "no field 'dim' in ModelInput; did you mean 'dims'?"),
    ("inputs { }", 1, 1, "no field 'inputs' in ModelConfig; did you mean 'input'?"),
    ("max_batchsize: 4", 1, 1, "no field 'max_batchsize' in ModelConfig; did you mean 'max_batch_size'?"),
    (
        "max_queue_delay_microseconds: 4",
        1,
        1,
        "it is a field of ModelDynamicBatching and StrategyDirect and StrategyOldest",
    ),
    ("zzzz: 4", 1, 1, "no field 'zzzz' in ModelConfig; it has 'name', 'platform',"),
    (
        "input { data_type: TYPE_FLOAT32 }",
        1,
        20,
        "no value 'TYPE_FLOAT32' in DataType for 'data_type'; did you mean TYPE_FP32?",
    ),
    ("input { data_type: FP32 }", 1, 20, "did you mean TYPE_FP32?"),
    ("input { data_type: float }", 1, 20, "did you mean TYPE_FP32?"),
    ("input { data_type: TYPE_DOUBLE }", 1, 20, "did you mean TYPE_FP64?"),
    ("input { data_type: TYPE_BYTES }", 1, 20, "did you mean TYPE_STRING?"),
    ("input { data_type: TYPE_INT }", 1, 20, "did you mean TYPE_INT32?"),
    ('input { data_type: "TYPE_FP32" }', 1, 20, "got \"TYPE_FP32\" for 'data_type', wanted TYPE_FP32 without quotes"),
    ("input { data_type: 99 }", 1, 20, "no value '99' in DataType"),
    ("instance_group { kind: CPU }", 1, 24, "did you mean KIND_CPU?"),
    ("instance_group { kind: GPUS }", 1, 24, "did you mean KIND_GPU"),
    ('max_batch_size: "8"', 1, 17, "got \"8\" for 'max_batch_size', wanted an integer"),
    ("max_batch_size: 3000000000", 1, 17, "wanted an integer from -2147483648 to 2147483647"),
    ("model_warmup { count: -1 }", 1, 23, "wanted an integer from 0 to 4294967295"),
    ("max_batch_size: 1.5", 1, 17, "got 1.5 for 'max_batch_size', wanted an integer"),
    ("backend: python", 1, 10, "got python for 'backend', wanted a string in quotes"),
    ("response_cache { enable: yes }", 1, 26, "got yes for 'enable', wanted true or false"),
    ("sequence_batching { direct { minimum_slot_utilization: x } }", 1, 56, "wanted a number"),
    ("input: 3", 1, 8, "got 3 for 'input', wanted { … } with fields of ModelInput"),
    ("name { }", 1, 1, "got { … } for 'name', wanted one value"),
    ('name: "a"\nname: "b"', 2, 7, "'name' is given a second time, wanted once; the first is at line 1"),
    (
        "dynamic_batching {}\nsequence_batching {}",
        2,
        1,
        "'dynamic_batching' and 'sequence_batching' are given together",
    ),
    ("name: ${model_name}", 1, 7, "'${model_name}' is a placeholder of a template that nobody filled in"),
    ('name: "\\377"', None, None, "utf-8"),
]


@pytest.mark.parametrize(("text", "line", "column", "says"), SPELLING, ids=[case[0] for case in SPELLING])
def test_spelling(tmp_path, text, line, column, says):
    folder = write(tmp_path, text)
    error = errors_of(read_config, folder)
    path = folder / "config.pbtxt"
    (one,) = error.errors
    assert one.words == f"failed to read text proto from {path}"
    assert says in one.detail
    assert one.stage == "A"
    if line:
        assert (one.line, one.column) == (line, column)
        assert str(one).startswith(f"{path}:{line}:{column}: failed to read text proto from {path} — ")


def test_all_mistakes_at_once_in_the_order_of_the_file(tmp_path):
    error = errors_of(read_config, write(tmp_path, "dim: 1\ninput { data_type: FP32 }\nname: 3\noutput {"))
    assert [(one.line, one.column) for one in error.errors] == [(1, 1), (2, 20), (3, 7), (4, 9)]
    assert str(error).count("\n") == 3


def test_very_many_mistakes_are_counted(tmp_path):
    error = errors_of(read_config, write(tmp_path, "input { dim: 1 }\n" * 500))
    assert len(error.errors) == 500
    assert str(error).endswith("… and 470 more mistakes")


@pytest.mark.parametrize(
    "text",
    [
        'name: "m" backend: "x" # caf\xe9'.encode("latin-1"),
        b'\xef\xbb\xbfname: "m" backend: "x"',
        'name: "m"; backend: "x", input [ { name: "é" data_type: 11 dims: [ 0x10 , 010 ] } ]',
        "name: 'm' backend: \"\" 'x' version_policy: { all {} } optimization < graph { level: -1 } >\r\n",
        'backend: "x" optimization { cuda { graph_spec { input { key: "a" value { dim: 1 } } } } } model_operations {}',
    ],
)
def test_what_the_format_allows(tmp_path, text):
    assert read_config(write(tmp_path, text)).backend == "x"


def test_bytes_that_are_no_utf8_outside_of_comments(tmp_path):
    error = errors_of(read_config, write(tmp_path, b'name: "caf\xe9"'))
    assert "a string that is not UTF-8" in str(error)


def test_without_a_file(tmp_path):
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").touch()
    assert read_config(folder).backend == "python"
    error = errors_of(read_config, folder, auto_complete=False)
    assert f"failed to open text file for read {folder / 'config.pbtxt'}: No such file or directory" in str(error)
    assert error.code is Code.INTERNAL


def test_config_name(tmp_path):
    folder = write(tmp_path, 'backend: "x"')
    (folder / "configs").mkdir()
    (folder / "configs" / "other.pbtxt").write_text('backend: "y"')
    assert read_config(folder, config_name="other").backend == "y"
    assert read_config(folder, config_name="none").backend == "x"
    assert read_config(folder, config_name="../m/configs/other").backend == "x"


OVERRIDES = [
    (
        '{"input":[{"name":"x","dim":[1]}]}',
        "config override $.input[0].dim: ",
        "no field 'dim' in ModelInput; did you mean 'dims'?",
    ),
    ('{"input":[{"data_type":"TYPE_FLOAT32"}]}', "config override $.input[0].data_type: ", "did you mean TYPE_FP32?"),
    ('{"input":[{"data_type":77}]}', "config override $.input[0].data_type: ", "no value '77' in DataType"),
    ('{"input":[{"dims":[1,"a"]}]}', "config override $.input[0].dims[1]: ", "got a for 'dims', wanted an integer"),
    ('{"input":[{"dims":[2.5]}]}', "config override $.input[0].dims[0]: ", "wanted an integer"),
    ('{"input":3}', "config override $.input[0]: ", "wanted an object with fields of ModelInput"),
    ('{"max_batch_size":[3]}', "config override $.max_batch_size: ", "wanted one value"),
    ('{"dynamic_batching":[{}]}', "config override $.dynamic_batching: ", "wanted an object"),
    ('{"input":[{"data_type":FP32}]}', "config override:1:24: ", "not JSON: wanted a value"),
    ('{"name":3}', "config override $.name: ", "got 3 for 'name', wanted a string"),
    (
        '{"max_batch_size":true}',
        "config override $.max_batch_size: ",
        "got True for 'max_batch_size', wanted one value",
    ),
    (
        '{"max_batch_size":99999999999}',
        "config override $.max_batch_size: ",
        "wanted an integer from -2147483648 to 2147483647",
    ),
    ('{"response_cache":{"enable":1}}', "config override $.response_cache.enable: ", "wanted true or false"),
    (
        '{"response_cache":1}',
        "config override $.response_cache: ",
        "wanted an object with fields of ModelResponseCache",
    ),
    (
        '{"parameters":{"a":{"string":"x"}}}',
        'config override $.parameters["a"].string: ',
        "did you mean 'string_value'?",
    ),
    ('{"versionPolicy":{"all":{},"latest":{}}}', "config override $.versionPolicy.all: ", "are given together"),
    (
        '{"parameters":{"a":{},"a":{}}}',
        "config override $.parameters: ",
        "'a' is given twice in one object",
    ),
    (
        '{"dynamic_batching":{},"dynamic_batching":{}}',
        "config override $.dynamic_batching: ",
        "'dynamic_batching' is given twice in one object",
    ),
    ('{"name":\n  "a",,}', "config override:2:7: ", "not JSON: wanted a name or '}'"),
    ('{"name":"a"} x', "config override:1:14: ", "not JSON: there is more behind the end"),
    ('{"max_batch_size":03}', "config override:1:19: ", "not JSON: '03' begins with a zero"),
    ('{"max_batch_size":"3.0"}', "config override $.max_batch_size: ", "wanted an integer"),
    ('{"max_batch_size":NaN}', "config override:1:19: ", "not JSON: wanted a value"),
    ('/* c */{"name":"a"}', "config override:1:1: ", "not JSON: wanted a value"),
    ("[]", "config override: ", "got [], wanted an object with fields of ModelConfig"),
    ("", "config override:1:1: ", "not JSON: "),
    ("[" * 10_000, "config override:1:65: ", "nested deeper than"),
    ('{"name":"\\ud800"}', "config override:1:16: ", "not JSON: a high surrogate without its low one"),
    ("9" * 10_000, "config override:1:1: ", "not JSON: a number beyond all bounds"),
]


@pytest.mark.parametrize(("text", "start", "says"), OVERRIDES, ids=[case[0][:40] for case in OVERRIDES])
def test_override_mistakes(tmp_path, text, start, says):
    error = errors_of(read_message, tmp_path, override=text)
    assert str(error.errors[0]).startswith(f"{start}failed to read the config given with the load request — ")
    assert says in str(error)
    assert error.stage == "A"


#: As the reference's parser takes them (observed): what people write by hand.
LENIENT = [
    ("{'backend':'x',}", {"backend": "x"}),
    ('{backend:"x",input:[{name:"X",dims:[1,2,],},],}', {"backend": "x", "input": [("X", [1, 2])]}),
    ('{"input":{"name":"X","dims":3}}', {"input": [("X", [3])]}),
    ('{"input":[[{"name":"X","dims":[[1],2,null]}],null]}', {"input": [("X", [1, 2])]}),
    ('{"max_batch_size":3,"maxBatchSize":4}', {"max_batch_size": 4}),
    ('{"max_batch_size":3,"max_batch_size":null}', {"max_batch_size": 3}),
    ('{"max_batch_size":"3"}', {"max_batch_size": 3}),
    ('{"max_batch_size":3.}', {"max_batch_size": 3}),
    ('{"input":[{"name":"X"}],"input":[{"name":"Y"}]}', {"input": [("X", []), ("Y", [])]}),
    ('{"metric_tags":{"a":"1","b":null},"metric_tags":{"a":"2"}}', {"metric_tags": {"a": "2", "b": ""}}),
    ('{"optimization":{"priority":1},"optimization":{"graph":{"level":1}}}', {"optimization": (1, 1)}),
    ('{"response_cache":{"enable":"True"}}', {"response_cache": True}),
    ("{'backend':'pyth\\qon\n\\'\\x\"'}", {"backend": "pythqon\n'x\""}),
    ('{"backend":"\\ud83d\\ude00\t"}', {"backend": "\U0001f600\t"}),
    *(
        (f'{{"input":[{{"data_type":{value}}}]}}', {"data_type": 11})
        for value in ("11", "11.0", '"11"', '"type_fp32"', '"Type-Fp32"')
    ),
]


@pytest.mark.parametrize(("text", "wanted"), LENIENT, ids=[case[0][:40] for case in LENIENT])
def test_override_as_people_write_it(tmp_path, text, wanted):
    message, _ = read_message(tmp_path, override=text)
    said = {
        "backend": message.backend,
        "input": [(one.name, list(one.dims)) for one in message.input],
        "max_batch_size": message.max_batch_size,
        "metric_tags": dict(message.metric_tags),
        "optimization": (message.optimization.priority, message.optimization.graph.level),
        "response_cache": message.response_cache.enable,
        "data_type": message.input[0].data_type if message.input else None,
    }
    assert {name: said[name] for name in wanted} == wanted


def test_override_replaces_the_file(tmp_path):
    folder = write(tmp_path, 'backend: "x" max_batch_size: 3')
    text = '{"backend":"y","input":[{"name":"X","dataType":"TYPE_FP32","dims":["-1", 2.0, 3]}],"parameters":{"k":{"string_value":"v"}}}'
    config = read_config(folder, override=text)
    assert (config.backend, config.max_batch_size) == ("y", 0)
    assert config.inputs[0].dims == (-1, 2, 3)
    assert config.parameters == {"k": "v"}
    assert config.source.kind == "override"


def test_override_rules_tell_the_json_path(tmp_path):
    error = errors_of(
        read_config,
        tmp_path,
        model_name="m",
        override='{"backend":"x","input":[{"name":"X","data_type":"TYPE_FP32","dims":[0]}]}',
    )
    assert str(error).startswith("config override $.input[0].dims[0]: model input 'X' dimension must be integer >= 1")


@pytest.mark.parametrize(
    "data",
    [b"a{" * 10_000, b"input { dims: 1 " * 10_000, b"\x00" * 100_000, b"name: [" * 50_000, b"{" * (MAX_BYTES + 1)],
)
def test_hostile_files_fail_quickly(tmp_path, data):
    folder = write(tmp_path, data)
    started = time.perf_counter()
    error = errors_of(read_config, folder)
    assert time.perf_counter() - started < 10.0
    assert len(str(error)) < 20_000


def test_ten_megabytes_are_not_even_read(tmp_path):
    error = errors_of(read_config, write(tmp_path, b"\xff\x00" * 5_000_000))
    assert f"the file is larger than {MAX_BYTES} bytes" in str(error)


FRAGMENTS = st.sampled_from(
    ["name: 'm' ", "backend: 'python' ", "input { ", "} ", "dims: [ 1, -1 ] ", "dims: 1 ", "data_type: TYPE_FP32 ", "max_batch_size: ", "-1 ", "4 ",
     "instance_group [ { ", "} ] ", "kind: KIND_CPU ", "dynamic_batching { ", "preferred_batch_size: 4 ", "parameters { key: 'placement' value { ",
     "string_value: 'x' ", "sequence_batching { ", "state { ", "initial_state { ", "control_input { ", "control { ", "platform: 'ensemble' ",
     "ensemble_scheduling { ", "step { ", "model_name: 'a' ", "input_map { key: 'a' value: 'b' } ", "output { ", "reshape { shape: [] } ", "model_warmup { ",
     "version_policy { specific { versions: 1 } } ", "[", "]", "<", ">", "'", "#", "\n"]
)  # fmt: skip


@given(
    data=st.one_of(st.binary(max_size=300), st.lists(FRAGMENTS, max_size=40).map(lambda parts: "".join(parts).encode()))
)
@settings(max_examples=500, deadline=None)
def test_any_file_gives_a_config_or_config_errors(tmp_path_factory, data):
    folder = write(tmp_path_factory.getbasetemp(), data, "fuzz")
    errors = ()
    try:
        read_config(folder, backends=["python"]).as_dict()
    except ConfigErrors as error:
        errors = error.errors
    assert all(isinstance(one, ConfigError) and str(one) for one in errors)


@given(
    text=st.one_of(
        st.text(max_size=100),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["name", "input", "dims", "max_batch_size", "parameters", "version_policy", "latest"]
                    ),
                    inner,
                    max_size=4,
                )
            ),
        ).map(lambda tree: json.dumps(tree)),
    )
)
@settings(max_examples=300, deadline=None)
def test_any_override_gives_a_config_or_config_errors(tmp_path_factory, text):
    with contextlib.suppress(ConfigErrors):
        read_config(tmp_path_factory.getbasetemp(), override=text, model_name="m").as_dict()
