"""The records and the config JSON: defaults, order and form."""

# ruff: noqa: E501 (tables of sentences)
from __future__ import annotations

import dataclasses
import json

import pytest

from kernel.config import DynamicBatching, InstanceGroup, QueuePolicy, TensorSpec, VersionPolicy, read_config


def read(tmp_path, text, name="x", **options):
    folder = tmp_path / name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(text)
    return read_config(folder, **options)


SEQUENCE = """
backend: "python"
max_batch_size: 2
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
sequence_batching {
  oldest { max_candidate_sequences: 4 }
  control_input { name: "S" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 0.1 ] } }
}
instance_group { kind: KIND_CPU }
"""


def test_json_of_a_python_model_as_the_reference_prints_it(tmp_path):
    wanted = (
        '{"name":"x","platform":"","backend":"python","runtime":"","version_policy":{"latest":{"num_versions":1}},"max_batch_size":2,'
        '"input":[{"name":"X","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[1],"is_shape_tensor":false,'
        '"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],'
        '"output":[{"name":"Y","data_type":"TYPE_FP32","dims":[1],"label_filename":"","is_shape_tensor":false,'
        '"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],'
        '"optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},'
        '"gather_kernel_buffer_threshold":0,"eager_batching":false},'
        '"sequence_batching":{"oldest":{"max_candidate_sequences":4,"preferred_batch_size":[2],"max_queue_delay_microseconds":0,'
        '"preserve_ordering":false},"max_sequence_idle_microseconds":1000000,"control_input":[{"name":"S","control":['
        '{"kind":"CONTROL_SEQUENCE_START","int32_false_true":[],"fp32_false_true":[0,0.1],"bool_false_true":[],'
        '"data_type":"TYPE_INVALID"}]}],"state":[],"iterative_sequence":false},'
        '"instance_group":[{"name":"x_0","kind":"KIND_CPU","count":1,"gpus":[],"secondary_devices":[],"profile":[],"passive":false,'
        '"host_policy":""}],"default_model_filename":"model.py","cc_model_filenames":{},"metric_tags":{},"parameters":{},'
        '"model_warmup":[]}'
    )
    assert json.dumps(read(tmp_path, SEQUENCE).as_dict(), separators=(",", ":")) == wanted


def test_json_of_an_ensemble(tmp_path):
    config = read(
        tmp_path,
        """platform: "ensemble" input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }
        ensemble_scheduling { step { model_name: "a" model_version: -1 input_map { key: "A" value: "X" } output_map { key: "B" value: "Y" } } }""",
    )
    shown = config.as_dict()
    assert list(shown)[-1] == "model_transaction_policy"
    assert shown["model_transaction_policy"] == {"decoupled": False}
    assert "optimization" not in shown
    assert (shown["instance_group"], shown["default_model_filename"]) == ([], "")
    assert shown["ensemble_scheduling"]["step"] == [
        {
            "model_name": "a",
            "model_version": -1,
            "input_map": {"A": "X"},
            "output_map": {"B": "Y"},
            "model_namespace": "",
        }
    ]
    assert config.is_ensemble
    assert (config.ensemble[0].model_name, config.ensemble[0].model_version) == ("a", -1)
    assert config.metadata_platform == "ensemble"


def test_json_of_dynamic_batching_and_what_is_shown_only_when_set(tmp_path):
    config = read(
        tmp_path,
        """backend: "python" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 50000 }
        input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } }""",
    )
    shown = config.as_dict()
    assert shown["dynamic_batching"] == {
        "preferred_batch_size": [8], "max_queue_delay_microseconds": 50000, "preserve_ordering": False, "priority_levels": 0,
        "default_priority_level": 0, "priority_queue_policy": {},
    }  # fmt: skip
    assert list(shown["input"][0])[:5] == ["name", "data_type", "format", "dims", "reshape"]
    assert "response_cache" not in shown
    assert "model_transaction_policy" not in shown


def test_large_integers_are_numbers(tmp_path):
    text = 'backend: "p" max_batch_size: 1 dynamic_batching { max_queue_delay_microseconds: 18446744073709551615 }'
    assert read(tmp_path, text).as_dict()["dynamic_batching"]["max_queue_delay_microseconds"] == 2**64 - 1


def test_json_can_be_read_back(tmp_path):
    config = read(tmp_path, SEQUENCE)
    again = read_config(tmp_path / "x", override=json.dumps(config.as_dict()))
    assert again == config
    assert again.as_dict() == config.as_dict()


def test_records(tmp_path):
    config = read(
        tmp_path,
        """backend: "python" max_batch_size: 4
        input [ { name: "A" data_type: TYPE_STRING dims: [ -1, 2 ] optional: true allow_ragged_batch: true },
                { name: "B" data_type: TYPE_BF16 dims: 6 reshape { shape: [ 2, 3 ] } } ]
        output { name: "C" data_type: TYPE_BOOL dims: 1 label_filename: "l.txt" }
        version_policy { specific { versions: [ 3, 1 ] } }
        instance_group [ { count: 2 kind: KIND_CPU }, { name: "g" kind: KIND_MODEL passive: true } ]
        dynamic_batching { preferred_batch_size: [ 4, 2 ] max_queue_delay_microseconds: 7 priority_levels: 2 default_priority_level: 2
          default_queue_policy { max_queue_size: 9 }
          priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 5 allow_timeout_override: true } } }
        model_transaction_policy { decoupled: true }
        parameters { key: "k" value { string_value: "v" } }""",
    )
    assert config.inputs == (
        TensorSpec("A", "BYTES", (-1, 2), None, optional=True, allow_ragged_batch=True),
        TensorSpec("B", "BF16", (6,), (2, 3)),
    )
    assert config.outputs == (TensorSpec("C", "BOOL", (1,), label_filename="l.txt"),)
    assert config.version_policy == VersionPolicy("specific", 0, (3, 1))
    assert config.instance_groups == (InstanceGroup("x_0", "CPU", 2), InstanceGroup("g", "MODEL", 1, (), True))
    assert config.dynamic_batching == DynamicBatching(
        (2, 4), 7, False, 2, 2, QueuePolicy(max_queue_size=9), {1: QueuePolicy("DELAY", 5, True, 0)}
    )
    assert config.decoupled
    assert config.parameters == {"k": "v"}
    assert config.metadata_platform == "python"
    assert config.source.kind == "file"
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.name = "y"


def test_defaults(tmp_path):
    config = read(tmp_path, 'backend: "python"')
    assert config.name == "x"
    assert config.version_policy == VersionPolicy("latest", 1)
    assert config.instance_groups == (InstanceGroup("x", "CPU", 1),)
    assert (config.dynamic_batching, config.sequence_batching, config.ensemble) == (None, None, None)
    assert config.default_model_filename == "model.py"


@pytest.mark.parametrize(
    ("backend", "gpus", "group", "wanted"),
    [
        ("python", (), "", InstanceGroup("x_0", "CPU", 1)),
        ("python", (), "count: 0", InstanceGroup("x_0", "CPU", 1)),
        ("onnxruntime", (), "", InstanceGroup("x_0", "CPU", 2)),
        ("onnxruntime", (), "count: 3", InstanceGroup("x_0", "CPU", 3)),
        ("onnxruntime", (0,), "", InstanceGroup("x_0", "GPU", 1, (0,))),
        ("python", (0, 1), "", InstanceGroup("x_0", "GPU", 1, (0, 1))),
        ("python", (0, 1), "gpus: 1", InstanceGroup("x_0", "GPU", 1, (1,))),
        ("python", (0, 1), "kind: KIND_CPU", InstanceGroup("x_0", "CPU", 1)),
    ],
)
def test_instance_group_defaults(tmp_path, backend, gpus, group, wanted):
    assert read(tmp_path, f'backend: "{backend}" instance_group {{ {group} }}', gpus=gpus).instance_groups == (wanted,)
