"""Every rule of contract: model_config about one model: the reference's words, the place, what came and what was wanted."""

# ruff: noqa: E501 (tables of sentences)
from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernel.config import ConfigErrors, Key, read_config, require_complete, with_changes
from kernel.config.check_instances import MAX_INSTANCES
from kernel.config.parameters import CHOICES, FREE, PYTHON, SERVER
from kernel.errors import Code

ROOT = Path(__file__).parents[2]

X = 'name: "X" data_type: TYPE_FP32 dims: [ 1 ]'
IO = "backend: 'python' input { " + X + " } "
SEQUENCE = "backend: 'python' sequence_batching { % }"
CONTROL = SEQUENCE.replace("%", "control_input { name: 'C' control { % } }")
STATE = SEQUENCE.replace("%", "state { input_name: 'S' output_name: 'T' data_type: TYPE_FP32 dims: [ 2, -1 ] % }")
INITIAL = STATE.replace("%", "initial_state { name: 'i' data_type: TYPE_FP32 dims: [ 2, 4 ] % }")


def read(tmp_path, text, name="m", files=("1/model.py",), **options):
    folder = tmp_path / name
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    folder.mkdir(exist_ok=True)
    (folder / "config.pbtxt").write_text(text)
    return read_config(folder, **options)


def mistakes(tmp_path, text, **options):
    with pytest.raises(ConfigErrors) as caught:
        read(tmp_path, text, **options)
    return caught.value.errors


RULES = [
    # -- top level
    ("A", "name: 'other'", "unexpected directory name 'm' for model 'other', directory name must equal model name"),
    ("A", "platform: 'caffe'", "unexpected platform type 'caffe' for m"),
    ("A", "platform: 'python'", "write backend: \"python\" and no platform"),
    ("A", "default_model_filename: 'a.py'", "unexpected platform type '' for m — with 'default_model_filename' set, 'backend' must be set too"),
    ("A", "platform: 'ensemble' backend: 'python' ensemble_scheduling { step { model_name: 'a' input_map { key: 'a' value: 'X' } output_map { key: 'b' value: 'Y' } } } input { name: 'X' data_type: TYPE_FP32 dims: 1 } output { name: 'Y' data_type: TYPE_FP32 dims: 1 }",
     "Ensemble model 'm' must have platform type 'ensemble' and empty backend type"),
    ("A", "platform: 'pytorch_libtorch' backend: 'onnxruntime'", "unexpected 'platform' and 'backend' pair, got:pytorch_libtorch, onnxruntime"),
    ("B", IO + "runtime: 'foo'", "unable to find backend library 'foo' for model 'm', searched: '"),
    ("B", IO + "runtime: 'model.py'", "unable to find Python backend based backend library 'model.py' for model 'm', searched: '"),
    ("A", "platform: 'foo' backend: 'onnxruntime'", "unexpected 'platform' and 'backend' pair, got:foo, onnxruntime — wanted 'onnxruntime_onnx' or none"),
    ("B", "backend: 'pyton'", "unable to find backend library for backend 'pyton', try specifying runtime on the model configuration. — installed are 'onnxruntime', 'python'; did you mean 'python'?"),
    ("A", "backend: 'python' max_batch_size: -1", "'max_batch_size' must be non-negative value for m — got -1"),
    ("A", "backend: 'python' response_cache { enable: true } sequence_batching {}",
     "Response Cache does not currently support model m with sequence batching scheduler. Please disable the response cache."),
    ("A", "backend: 'python' response_cache { enable: true } model_transaction_policy { decoupled: true }",
     "Response Cache does not currently support model m with 'decoupled' transaction policy. Please disable the response cache."),
    ("A", "backend: 'python' metric_tags { key: 'a-b' value: 'x' } metric_tags { key: 'c' value: 'x' } metric_tags { key: 'a_b' value: 'y' }",
     "metric tags 'a-b' and 'a_b' would be one label of the metrics, '_a_b'"),
    ("A", "backend: 'python' metric_tags { key: '' value: 'x' }", "metric tag must have a non-empty 'key' — it is a label of the metrics"),
    ("A", "backend: 'python' model_metrics { metric_control { histogram_options { buckets: 1 } } }", "metric control must specify 'metric_identifier'"),
    ("A", "backend: 'python' model_metrics { metric_control { metric_identifier {} histogram_options { buckets: 1 } } }", "metric identifier must specify non-empty 'family'"),
    ("A", "backend: 'python' model_metrics { metric_control { metric_identifier { family: 'f' } } }", "metric control must specify 'histogram_options'"),
    ("A", "backend: 'python' model_metrics { metric_control { metric_identifier { family: 'f' } histogram_options {} } }", "histogram options must specify non-empty 'buckets'"),
    # -- inputs and outputs
    ("B", "backend: 'python' input { data_type: TYPE_FP32 dims: 1 }", "model input must specify 'name' for m"),
    ("B", "backend: 'python' output { data_type: TYPE_FP32 dims: 1 }", "model output must specify 'name' for m"),
    ("B", "backend: 'python' input { name: 'X' dims: 1 }", "model input 'X' must specify 'data_type' for m — one of TYPE_BOOL,"),
    ("B", "backend: 'python' output { name: 'X' data_type: TYPE_FP32 }", "model output 'X' must specify 'dims' for m"),
    ("B", "backend: 'python' input { name: 'X' data_type: TYPE_FP32 dims: [ 1, 0 ] }",
     "model input 'X' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m — got 0 in [1, 0]"),
    ("B", "backend: 'python' input { name: 'X' data_type: TYPE_FP32 dims: 1 reshape { shape: [] } }",
     "model input 'X' cannot have empty reshape for non-batching model as scalar tensors are not supported for m"),
    ("B", "backend: 'python' input { name: 'X' data_type: TYPE_FP32 dims: 1 reshape { shape: [ -2 ] } }",
     "model input 'X' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension for m"),
    ("B", "backend: 'python' input { name: 'X' data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 3 ] } }",
     "model input 'X' has different size for dims and reshape for m — got dims [4] and reshape [2, 3]: 4 and 6 elements"),
    ("B", "backend: 'python' input { name: 'X' data_type: TYPE_FP32 dims: [ 2, -1, 3 ] reshape { shape: [ 3, -1, 2 ] } }", "model input 'X' has different size for dims and reshape for m"),
    ("B", "backend: 'python' input { name: 'X' data_type: TYPE_FP32 dims: [ -1, 2 ] reshape { shape: [ 2 ] } }",
     "model input 'X' has different size for dims and reshape for m — got dims [-1, 2] and reshape [2]"),
    ("B", "backend: 'python' output { name: 'X' data_type: TYPE_FP32 dims: [ -1 ] reshape { shape: [ -1, -1 ] } }",
     "model output 'X' has different number of variable-size dimensions for dims and reshape for m"),
    ("B", "backend: 'python' input { name: 'X' data_type: TYPE_FP32 dims: [ 1 ] format: FORMAT_NHWC }", "model input NHWC/NCHW require 3 dims for m"),
    ("B", IO.replace("]", "] is_shape_tensor: true"), "shape tensors are only supported for TensorRT platform for m"),
    ("B", IO.replace("]", "] is_non_linear_format_io: true"), "Non-linear IO format is only supported for the TensorRT platform for m"),
    ("B", IO + "input { " + X + " }", "model input 'X' is specified more than once for m — input[0] has the same name"),
    # -- batch inputs and outputs
    ("B", IO + "batch_input { target_name: 'N' data_type: TYPE_FP32 source_input: 'Z' }", "unknown source input name 'Z' — inputs are 'X'"),
    ("B", IO + "batch_input { target_name: 'N' data_type: TYPE_FP32 source_input: ['X', 'X'] }", "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 2"),
    ("B", IO + "batch_input { target_name: 'N' data_type: TYPE_INT64 source_input: 'X' }", "batch input data type must be TYPE_INT32 or TYPE_FP32 — got TYPE_INT64"),
    ("B", IO + "output { name: 'X' data_type: TYPE_FP32 dims: 1 } batch_output { target_name: 'X' }",
     "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0"),
    ("B", IO + "output { name: 'X' data_type: TYPE_FP32 dims: 1 } batch_output { target_name: 'X' source_input: ['X', 'X'] }",
     "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 2"),
    ("B", IO + "instance_group { kind: KIND_GPU gpus: 3 }",
     "specifies invalid or unsupported gpu id 3. GPUs with at least the minimum required CUDA compute compatibility of 6.000000 are: "
     " — there are none; use KIND_CPU or KIND_AUTO"),
    ("B", IO + "batch_output { target_name: 'N' source_input: 'X' }", "unknown target output name 'N'"),
    ("B", IO + "output { name: 'X' data_type: TYPE_FP32 dims: 1 } batch_output { target_name: ['X', 'X'] source_input: 'X' }", "target output name 'X' can only be specified once"),
    # -- instance groups
    ("B", "backend: 'python' instance_group { kind: KIND_CPU gpus: 0 }", "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"),
    ("B", "backend: 'python' instance_group { name: 'g' kind: KIND_MODEL gpus: 0 }", "instance group g of model m has kind KIND_MODEL but specifies one or more GPUs"),
    ("B", "backend: 'python' instance_group { kind: KIND_GPU }", "instance group m_0 of model m has kind KIND_GPU but no GPUs are available"),
    ("B", "backend: 'python' instance_group { profile: 'a' }", "instance group m_0 of model m and platform specifies profile field which is only supported for TensorRT models"),
    # -- dynamic batching
    ("A", "backend: 'python' max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }", "dynamic batching preferred size must be positive for m — got 0"),
    ("A", "backend: 'python' max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }", "dynamic batching preferred size must be <= max batch size for m — got 8, max_batch_size is 4"),
    ("A", "backend: 'python' max_batch_size: 4 dynamic_batching { priority_levels: 2 preserve_ordering: true default_priority_level: 1 }",
     "Only one priority level is allowed when 'preserve_ordering' is true for m"),
    ("A", "backend: 'python' max_batch_size: 4 dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 } }",
     "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m"),
    ("A", "backend: 'python' max_batch_size: 4 dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1 } } }",
     "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m"),
    ("A", "backend: 'python' max_batch_size: 4 dynamic_batching { priority_levels: 2 }", "default priority level must be in range [1, 2] for m — got 0"),
    ("A", "backend: 'python' max_batch_size: 4 dynamic_batching { priority_levels: 2 default_priority_level: 3 }", "default priority level must be in range [1, 2] for m — got 3"),
    ("A", "backend: 'python' max_batch_size: 4 dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value {} } }",
     "priority queue policy must have priority level in range [1, 2] for m — got 3"),
    # -- sequence batching
    ("A", SEQUENCE.replace("%", "direct { minimum_slot_utilization: 1.5 }"), "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m — got 1.5"),
    ("A", "max_batch_size: 2 " + SEQUENCE.replace("%", "oldest { preferred_batch_size: 0 }"), "sequence batching preferred batch size must be positive for m"),
    ("A", "max_batch_size: 2 " + SEQUENCE.replace("%", "oldest { preferred_batch_size: 3 }"), "sequence batching preferred batch size must be <= max batch size for m"),
    ("A", SEQUENCE.replace("%", "control_input { control { int32_false_true: [0, 1] } }"), "sequence batching control tensor must have a name for m"),
    ("A", CONTROL.replace("%", "int32_false_true: [0, 1] } control { kind: CONTROL_SEQUENCE_END int32_false_true: [0, 1]"), "sequence batching control tensor 'C' is specified for multiple control kinds for m"),
    ("A", SEQUENCE.replace("%", "control_input { name: 'C' control { int32_false_true: [0, 1] } } control_input { name: 'D' control { int32_false_true: [0, 1] } }"),
     "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m — got 'C', 'D'"),
    ("A", CONTROL.replace("%", ""), "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for CONTROL_SEQUENCE_START for m"),
    ("A", CONTROL.replace("%", "int32_false_true: [0, 1] fp32_false_true: [0, 1]"), "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' for CONTROL_SEQUENCE_START for m"),
    ("A", CONTROL.replace("%", "kind: CONTROL_SEQUENCE_READY bool_false_true: true"), "sequence batching control 'bool_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_READY for m — got [True]"),
    ("A", CONTROL.replace("%", "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32"),
     "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING — got TYPE_FP32"),
    ("A", CONTROL.replace("%", "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 int32_false_true: [0, 1]"), "sequence batching must not specify either 'int32_false_true' nor 'fp32_false_true' for CONTROL_SEQUENCE_CORRID for m"),
    ("B", STATE.replace("%", "initial_state { name: 'i' zero_data: true data_type: TYPE_FP32 dims: [2, 1] } initial_state {}"), "initial_state field for state input 'S' must contain exactly one or zero element. Found '2' elements."),
    ("B", STATE.replace("%", "initial_state { name: 'i' zero_data: true dims: [2, 1] }"), "The data type used for 'initial_state' field of state 'S' does not match the state data type."),
    ("B", STATE.replace("%", "initial_state { zero_data: true data_type: TYPE_FP32 dims: [2, 1] }"), "Field 'name' must be set when using initial_state for state input 'S'."),
    ("B", STATE.replace("%", "initial_state { name: 'i' zero_data: true data_type: TYPE_FP32 dims: [2] }"), "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'S'. 1 != 2"),
    ("B", STATE.replace("%", "initial_state { name: 'i' zero_data: true data_type: TYPE_FP32 dims: [2, -1] }"), "'initial_state' field for state input name 'S' contains variable dimensions."),
    ("B", STATE.replace("%", "initial_state { name: 'i' zero_data: true data_type: TYPE_FP32 dims: [3, 1] }"), "'initial_state' dim for input name 'S' doesn't match 'state' dim description. 3 != 2"),
    ("B", INITIAL.replace("%", ""), "initial_state setting expects state'S' to have state_data set"),
    ("B", INITIAL.replace("%", "data_file: 'none'"), "initial_state/none: No such file or directory"),
    ("B", INITIAL.replace("%", "data_file: 'short'"), "initial_state setting expects 32 bytes, but the data provided from {folder}/initial_state/shortonly has 0 bytes."),
    # -- warmup
    ("B", "backend: 'python' model_warmup { batch_size: 1 inputs { key: 'X' value { dims: 1 } } }", "[request id: <id_unknown>] warmup setting expects input 'X' to have input_data_type set"),
    ("B", "backend: 'python' model_warmup { batch_size: 1 inputs { key: 'X' value { dims: 1 input_data_file: 'f' } } }", "failed to open text file for read {folder}/warmup/f: No such file or directory"),
    # -- parameters of this server
    ("B", "backend: 'python' parameters { key: 'placement' value { string_value: 'threads' } }", "parameter 'placement' of model 'm' is 'threads' — wanted one of 'auto', 'loop', 'thread', 'process', 'ray'; did you mean 'thread'?"),
    ("B", "backend: 'python' parameters { key: 'zero_copy' value { string_value: '1' } }", "parameter 'zero_copy' of model 'm' is '1' — wanted one of 'true', 'false'"),
    ("B", "backend: 'python' parameters { key: 'max_concurrency' value { string_value: '0' } }", "parameter 'max_concurrency' of model 'm' is '0' — wanted an integer of at least 1"),
    ("B", "backend: 'python' parameters { key: 'max_concurrency' value { string_value: 'x' } }", "parameter 'max_concurrency' of model 'm' is 'x' — wanted an integer of at least 1"),
]  # fmt: skip


def test_a_parameter_that_nobody_reads_and_that_is_nearly_one(tmp_path):
    text = "backend: 'python' parameters { key: 'placment' value { string_value: 'loop' } }"
    (warning,) = read(tmp_path, text + " parameters { key: 'place' value { string_value: 'x' } }").warnings
    assert warning.endswith(": the server does not read the parameter 'placment'; did you mean 'placement'?")
    assert "config.pbtxt:1:" in warning
    both = text + " parameters { key: 'placement' value { string_value: 'loop' } }"
    assert read(tmp_path, both).warnings == (), "who says both means both"


@pytest.mark.parametrize("name", [*SERVER, *PYTHON, *CHOICES, *FREE])
def test_a_name_that_is_nearly_that_of_a_parameter_is_told(tmp_path, name):
    text = f"backend: 'python' parameters {{ key: '{name}s' value {{ string_value: 'loop' }} }}"
    (warning,) = read(tmp_path, text).warnings
    assert warning.endswith(f": the server does not read the parameter '{name}s'; did you mean '{name}'?")


@pytest.mark.parametrize("backend", ["python", "onnxruntime"])
@pytest.mark.parametrize("name", [*SERVER])
def test_a_parameter_that_can_not_be_read_is_told_with_its_place(tmp_path, name, backend):
    """Of every backend, and without loading the model."""
    text = f"backend: '{backend}'\nparameters {{ key: '{name}' value {{ string_value: 'x' }} }}"
    (one,) = mistakes(tmp_path, text, backends=["python", "onnxruntime"])
    assert (one.line, one.column) == (2, text.splitlines()[1].index("'x'") + 1)
    assert f"parameter '{name}' of model 'm' is 'x' — wanted {SERVER[name][1]}" in str(one)


def test_what_the_server_reads_of_parameters_has_a_rule():
    """Whoever asks a config for a parameter by name: else a misspelt one, or a wrong value, is found by nobody."""
    known = {*SERVER, *PYTHON, *CHOICES, *FREE}
    asked = set()
    for folder in ("kernel", "plugins/kernel_python"):
        for path in (ROOT / folder).rglob("*.py"):
            if "template" not in path.as_posix():
                asked.update(re.findall(r"config\.parameters(?:\.get\(|\[)\"(\w+)\"", path.read_text()))
    assert {"max_inflight", "placement", "zero_copy", "max_concurrency"} <= asked <= known


@pytest.mark.parametrize(("stage", "text", "says"), RULES, ids=[case[2][:60] for case in RULES])
def test_rules(tmp_path, stage, text, says):
    (one,) = mistakes(
        tmp_path, text, backends=["python", "onnxruntime", "ensemble"], files=("1/model.py", "initial_state/short")
    )
    folder = tmp_path / "m"
    assert says.format(folder=folder) in str(one)
    assert one.stage == stage
    assert str(one).startswith(f"{folder / 'config.pbtxt'}:1:")
    assert one.field


PLACES = [
    (
        "max_batch_size: 4\ndynamic_batching {\n  preferred_batch_size: [ 4,\n   16 ] }",
        (4, 4),
        "dynamic_batching.preferred_batch_size[1]",
    ),
    (
        "max_batch_size: 4\ndynamic_batching {\n  preferred_batch_size: 4\n  preferred_batch_size: 16 }",
        (4, 25),
        "dynamic_batching.preferred_batch_size[1]",
    ),
    ("input [\n  { name: 'A' data_type: TYPE_FP32 dims: 1 },\n  { name: 'B' dims: 1 } ]", (3, 3), "input[1]"),
    (
        "parameters { key: 'a' value {} }\nparameters {\n  key: 'placement'\n  value { string_value: 'x' } }",
        (4, 25),
        'parameters["placement"].string_value',
    ),
    ("instance_group [ {\n kind: KIND_GPU } ]", (2, 8), "instance_group[0].kind"),
    ("instance_group [ { },\n {\n count: 100000 } ]", (3, 9), "instance_group[1].count"),
]


@pytest.mark.parametrize(("text", "place", "field"), PLACES)
def test_places(tmp_path, text, place, field):
    (one,) = mistakes(tmp_path, text)
    assert (one.line, one.column) == place
    assert one.field == field


def test_all_stages_at_once(tmp_path):
    errors = mistakes(tmp_path, "max_batch_size: -1\ninput { name: 'X' }\nbackend: 'nope'", backends=["python"])
    assert [(one.line, one.stage) for one in errors] == [(1, "A"), (2, "B"), (2, "B"), (3, "B")]


def test_the_text_of_a_file_that_cannot_be_opened_has_the_code_of_the_reference(tmp_path):
    (one,) = mistakes(
        tmp_path, "model_warmup { batch_size: 1 inputs { key: 'X' value { dims: 1 input_data_file: 'f' } } }"
    )
    assert one.code is Code.INTERNAL


GOOD = [
    "",
    "input { name: 'X' data_type: TYPE_FP32 dims: [ 2, -1, 3 ] reshape { shape: [ 2, -1, 3, 1 ] } }",
    "max_batch_size: 1 input { name: 'X' data_type: TYPE_FP32 dims: 1 reshape { shape: [] } }",
    "max_batch_size: 4 dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }",
    "model_warmup { name: 'skipped' batch_size: 0 inputs { key: 'X' value {} } }",
    "instance_group [ { kind: KIND_MODEL }, { count: 0 } ] input { name: 'X' data_type: TYPE_FP32 dims: [ 1, 2, 3 ] format: FORMAT_NCHW }",
    "sequence_batching { direct { minimum_slot_utilization: 1 } control_input { name: 'C' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } }",
    "parameters { key: 'placement' value { string_value: 'loop' } } parameters { key: 'max_concurrency' value { string_value: '8' } }",
    "response_cache { enable: true } dynamic_batching {}",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_loads(tmp_path, text):
    assert read(tmp_path, text, backends=["python"]).backend == "python"


def test_two_inputs_of_one_name_are_refused_though_the_reference_takes_them(tmp_path):
    (one,) = mistakes(tmp_path, f"input [ {{ {X} }},\n {{ {X} }} ]")
    assert (one.line, one.field) == (2, "input[1].name")


def test_dynamic_batching_without_batches_is_a_warning(tmp_path):
    config = read(tmp_path, "\n  dynamic_batching { }")
    (warning,) = config.warnings
    assert warning == (
        f"{tmp_path / 'm' / 'config.pbtxt'}:2:3: dynamic_batching of model 'm' has no effect: max_batch_size is 0, requests run one at a time"
    )
    assert read(tmp_path, "max_batch_size: 1 dynamic_batching { }").warnings == ()


@pytest.mark.parametrize(
    ("gpus", "text", "says"),
    [
        (
            (0, 1),
            "kind: KIND_GPU gpus: [ 0, 7 ]",
            "specifies invalid or unsupported gpu id 7. GPUs with at least the minimum required CUDA compute compatibility of 6.000000 are: 0, 1",
        ),
        ((0, 1), "kind: KIND_CPU gpus: 0", "usable GPUs are 0, 1"),
        ((), "gpus: 0", "has kind KIND_CPU but specifies one or more GPUs — got gpus [0]; no GPUs are available"),
    ],
)
def test_gpus(tmp_path, gpus, text, says):
    (one,) = mistakes(tmp_path, f"instance_group {{ {text} }}", gpus=gpus)
    assert says in str(one)


def test_more_instances_than_can_be_had(tmp_path):
    most = MAX_INSTANCES
    (one,) = mistakes(tmp_path, "instance_group { name: 'g' count: 100000 }")
    assert f"instance group g of model m asks for 100000 instances — a model may have {most} at most" in str(one)
    (two,) = mistakes(tmp_path, "instance_group [ { count: 4 }, { name: 'h' count: 511 gpus: [ 0, 1 ] } ]", gpus=(0, 1))
    assert f"instance group h of model m asks for 1022 instances, which makes 1030 — a model may have {most}" in str(two)
    (three,) = mistakes(tmp_path, f"nope: 1 instance_group {{ count: {most} }}")
    assert "nope" in str(three)


# -- backend by files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "backend", "platform"),
    [
        ("model.py", "python", ""),
        ("model.onnx", "onnxruntime", "onnxruntime_onnx"),
        ("model.onnx/model.onnx", "onnxruntime", "onnxruntime_onnx"),
        ("model.plan", "tensorrt", "tensorrt_plan"),
        ("model.xml", "openvino", ""),
        ("model.pt", "pytorch", "pytorch_libtorch"),
    ],
)
def test_backend_by_file(tmp_path, file, backend, platform):
    config = read(tmp_path, "", files=(f"1/{file}",))
    assert (config.backend, config.platform, config.default_model_filename) == (
        backend,
        platform,
        file.partition("/")[0],
    )


def test_backend_by_name(tmp_path):
    assert read(tmp_path, "", name="x.mine", files=()).backend == "mine"


def test_no_backend_at_all(tmp_path):
    (one,) = mistakes(tmp_path, "", files=("1/model.pyy",))
    assert one.stage == "A"
    assert (
        "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration."
        " Expected model name of the form 'model.<backend_name>'. — set 'backend', or put one of" in str(one)
    )


def test_backend_is_not_guessed_without_auto_complete(tmp_path):
    with pytest.raises(ConfigErrors, match="Could not determine backend"):
        read(tmp_path, "max_batch_size: 1", auto_complete=False)
    assert read(tmp_path, "platform: 'onnxruntime_onnx'", auto_complete=False).backend == "onnxruntime"


# -- changes by the model ----------------------------------------------------------------------------------------------


def test_with_changes_leaves_the_first_alone_and_takes_defaults_anew(tmp_path):
    config = read(tmp_path, "max_batch_size: 2 dynamic_batching {}")

    def mutate(message):
        message.max_batch_size = 8
        message.input.add(name="X", data_type=11, dims=[3])

    changed = with_changes(config, mutate)
    assert (config.max_batch_size, config.inputs) == (2, ())
    assert (changed.max_batch_size, changed.inputs[0].name) == (8, "X")
    assert changed.dynamic_batching.preferred_batch_size == (8,)


def test_with_changes_tells_that_the_model_did_it(tmp_path):
    config = read(tmp_path, "max_batch_size: 2", backends=["python"])
    with pytest.raises(ConfigErrors) as caught:
        with_changes(config, lambda message: message.input.add(name="X", data_type=11))
    (one,) = caught.value.errors
    assert str(one).startswith(f"{tmp_path / 'm' / 'config.pbtxt'}: model input 'X' must specify 'dims' for m")
    assert str(one).endswith("'input[0]' was set by the model's own auto-complete")


def test_a_partial_config_waits_for_the_model(tmp_path):
    config = read(tmp_path, "input { name: 'X' }\noutput { name: 'Y' dims: 1 }", partial=True)
    with pytest.raises(ConfigErrors) as caught:
        require_complete(config)
    assert [(one.line, one.words) for one in caught.value.errors] == [
        (1, "model input 'X' must specify 'data_type' for m"),
        (1, "model input 'X' must specify 'dims' for m"),
        (2, "model output 'Y' must specify 'data_type' for m"),
    ]

    def mutate(message):
        message.input[0].data_type, message.output[0].data_type = 11, 11
        message.input[0].dims.append(3)

    assert require_complete(with_changes(config, mutate)).inputs[0].dims == (3,)
    with pytest.raises(ConfigErrors, match="dimension must be integer >= 1"):  # what is there is checked at once
        read(tmp_path, "input { name: 'X' dims: 0 }", partial=True)


def test_errors_of_backends_have_a_place(tmp_path):
    config = read(tmp_path, "\nparameters { key: 'device' value { string_value: 'x' } }")
    error = config.error("no such device", "got x", at=("parameters", Key("device"), "value", "string_value"))
    assert str(error) == f"{tmp_path / 'm' / 'config.pbtxt'}:2:50: no such device — got x"
    assert error.stage == "B"
