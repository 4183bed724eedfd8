"""Ensembles: the graph in itself (stage A) and against its models (stage C)."""

# ruff: noqa: E501 (tables of sentences)
from __future__ import annotations

import pytest
from work import is_linear

from kernel.config import ConfigErrors, check_ensembles, is_decoupled, read_config

IO = """platform: "ensemble"
max_batch_size: {size}
input {{ name: "X" data_type: {xtype} dims: {xdims} }}
output {{ name: "Y" data_type: TYPE_FP32 dims: {ydims} }}
ensemble_scheduling {{ step [ {steps} ] }}
"""


def step(model, inputs, outputs, version=-1):
    maps = "".join(f'input_map {{ key: "{key}" value: "{value}" }} ' for key, value in inputs.items())
    maps += "".join(f'output_map {{ key: "{key}" value: "{value}" }} ' for key, value in outputs.items())
    return f'{{ model_name: "{model}" model_version: {version} {maps}}}'


def text(*steps, size=0, xtype="TYPE_FP32", xdims="[ 1 ]", ydims="[ 1 ]"):
    return IO.format(size=size, xtype=xtype, xdims=xdims, ydims=ydims, steps=",\n".join(steps))


def read(tmp_path, content, name="e"):
    folder = tmp_path / name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(content)
    return read_config(folder)


def model(tmp_path, name, *, a="TYPE_FP32", adims="[ 1 ]", b="TYPE_FP32", bdims="[ 1 ]", size=0, more=""):
    return read(
        tmp_path,
        f'backend: "python" max_batch_size: {size} input {{ name: "A" data_type: {a} dims: {adims} }}'
        f' output {{ name: "B" data_type: {b} dims: {bdims} }} {more}',
        name,
    )


STEP = step("s", {"A": "X"}, {"B": "Y"})
GRAPHS = [
    ('backend: "python" ensemble_scheduling { step { model_name: "s" } }', "ensemble scheduling cannot be set for model 'e' whose platform is not ensemble", 1),
    ('platform: "ensemble"', "ensemble scheduling must be set for ensemble e whose platform is ensemble", 1),
    (text(STEP) + "instance_group {}", "instance group should not be specified for ensemble 'e'", 6),
    (text(STEP) + "optimization {}", "optimization should not be specified for ensemble 'e'", 6),
    (text(STEP) + "model_warmup {}", "model_warmup can not be specified for ensemble 'e'", 6),
    ('platform: "ensemble" ensemble_scheduling {}', "must specify 'step' for ensemble 'e'", 1),
    (text(step("", {"A": "X"}, {"B": "Y"})), "must specify 'model_name' in step 0 of ensemble 'e'", 5),
    (text(STEP, step("t", {}, {"B": "Z"})), "must specify 'input_map' in step 1 of ensemble 'e'", 6),
    (text(STEP, step("t", {"A": "X"}, {})), "must specify 'output_map' in step 1 of ensemble 'e'", 6),
    (text(STEP, step("t", {"A": "X"}, {"B": "Y"})),
     "ensemble tensor 'Y' can appear in an output map only once for ensemble 'e' step 1 — step 0 ('s') writes it too", 6),
    (text(step("s", {"A": "X"}, {"B": "Y", "C": "X"})), "ensemble tensor 'X' can appear in an output map only once for ensemble 'e' step 0 — it is an input", 5),
    (text(step("s", {"A": "Y"}, {"B": "Y"})), "ensemble input 'X' for ensemble e' is not used", 3),
    (text(step("s", {"A": "X"}, {"B": "elsewhere"})), "ensemble output 'Y' for ensemble e' is not used — no step writes 'Y'; the steps write 'elsewhere' (step 0 ('s'))", 5),
    (text(step("s", {"A": "X"}, {"B": "Y", "C": "spare"})), "ensemble tensor 'spare' is unused in ensemble 'e' — step 0 ('s') writes it, but no step reads it and it is no output", 5),
    (text(step("s", {"A": "X", "C": "nowhere"}, {"B": "Y"})), "output 'Y' for ensemble 'e' is not written: at least one of its depending tensors, 'nowhere', is not connected — "
     "step 0 ('s') reads it, but no step writes it and it is no input", 5),
    (text(STEP, step("t", {"A": "nowhere"}, {"B": "two"}), step("t", {"A": "two"}, {"B": "nowhat"})),
     "ensemble tensor 'nowhere' is unused in ensemble 'e' — step 1 ('t') reads it, but no step writes it and it is no input", 6),
    (text(step("s", {"A": "X"}, {"B": "one"}), step("t", {"A": "one", "C": "two"}, {"B": "Y"}), step("t", {"A": "three"}, {"B": "two"})),
     "output 'Y' for ensemble 'e' is not written: at least one of its depending tensors, 'three', is not connected — step 2 ('t')", 7),
    (text(step("s", {"A": "X", "C": "Y"}, {"B": "one"})),
     "output 'Y' for ensemble 'e' is not written — no step writes 'Y'; the steps write 'one' (step 0 ('s'))", 5),
    (text(step("s", {"A": "X", "C": "Y"}, {"B": "Y"})),
     "output 'Y' for ensemble 'e' is not written — steps wait for each other: step 0 ('s') -> step 0 ('s')", 5),
    (text(step("s", {"A": "X", "C": "Y"}, {"B": "one"}), step("t", {"A": "one"}, {"B": "Y"})),
     "output 'Y' for ensemble 'e' is not written — steps wait for each other: step 0 ('s') -> step 1 ('t') -> step 0 ('s')", 6),
    (text(step("s", {"A": "X", "C": "two"}, {"B": "one"}),
          step("t", {"A": "one"}, {"B": "two", "C": "Y"})),
     "output 'Y' for ensemble 'e' is not written: at least one of its depending tensors, 'two', is not connected — "
     "steps wait for each other: step 0 ('s') -> step 1 ('t') -> step 0 ('s')", 6),
]  # fmt: skip


@pytest.mark.parametrize(("content", "says", "line"), GRAPHS, ids=[case[1][:50] for case in GRAPHS])
def test_graph(tmp_path, content, says, line):
    with pytest.raises(ConfigErrors) as caught:
        read(tmp_path, content)
    found = [error for error in caught.value.errors if says in str(error)]
    assert found, str(caught.value)
    assert found[0].line == line
    assert found[0].stage == "A"


def test_twice_the_steps_are_twice_the_work(tmp_path):
    def chain(count):
        steps = [step("m", {"A": f"t{k}" if k else "X"}, {"B": f"t{k + 1}" if k < count - 1 else "Y"}) for k in range(count)]
        folder = tmp_path / str(count) / "e"
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(text(*steps))
        return folder

    assert is_linear(read_config, chain(400), chain(800))


def test_a_cycle_is_spelt_out(tmp_path):
    with pytest.raises(
        ConfigErrors, match=r"steps wait for each other: step 0 \('s'\) -> step 1 \('t'\) -> step 0 \('s'\)"
    ):
        read(
            tmp_path,
            text(step("s", {"A": "X", "C": "two"}, {"B": "one"}), step("t", {"A": "one"}, {"B": "two", "C": "Y"})),
        )


def test_a_cycle_beside_the_way_to_the_output(tmp_path):
    with pytest.raises(ConfigErrors, match="steps of ensemble 'e' wait for each other"):
        read(tmp_path, text(STEP, step("s", {"A": "two"}, {"B": "one"}), step("t", {"A": "one"}, {"B": "two"})))


def test_a_misspelt_tensor_is_told_with_what_it_should_be(tmp_path):
    with pytest.raises(ConfigErrors) as caught:
        read(tmp_path, text(step("s", {"A": "X"}, {"B": "middle"}), step("t", {"A": "midle"}, {"B": "Y"})))
    assert "; did you mean 'middle'?" in str(caught.value)


def check(tmp_path, content, *models, loaded=True):
    configs = {config.name: config for config in (read(tmp_path, content), *models)}
    versions = {name: {1} for name in configs} if loaded is True else loaded
    return [str(error) for error in check_ensembles(configs, versions).get("e", [])]


def test_a_good_one(tmp_path):
    assert check(tmp_path, text(STEP), model(tmp_path, "s")) == []
    assert check(tmp_path, text(STEP, xdims="[ 1 ]"), model(tmp_path, "s", adims="[ -1 ]")) == []

    # As in the reference: what is the same with or without the batch dimension goes together.
    assert check(tmp_path, text(STEP, xdims="[ 3 ]"), model(tmp_path, "s", adims="[ 3 ]", size=2)) == []


COMPARISONS = [
    (text(STEP, xtype="TYPE_INT32"), {}, "in ensemble e, ensemble tensor X: inconsistent data type: TYPE_INT32 is inferred from model e while TYPE_FP32 is inferred from model s"),
    (text(STEP, xdims="[ 3 ]"), {"adims": "[ 2 ]"}, "in ensemble e, ensemble tensor X: inconsistent shape: [3] is inferred from model e while [2] is inferred from model s"),
    (text(STEP, xdims="[ 3, 4 ]"), {"adims": "[ 3 ]"}, "inconsistent shape: [3,4] is inferred from model e while [3] is inferred from model s"),
    (text(STEP, xdims="[ 3, 4 ]"), {"adims": "[ 3 ]", "size": 2}, "inconsistent shape: [3,4] is inferred from model e while [-1,3] is inferred from model s"),
    (text(STEP, size=16), {"size": 8}, "ensemble e allows maximum batch size 16, but it contains model s which only allows maximum batch size to be 8"),
    (text(step("s", {"AA": "X"}, {"B": "Y"})), {}, "in ensemble e, ensemble tensor X is mapping to non-existing input AA in model s — its inputs are 'A'; did you mean 'A'?"),
    (text(step("s", {"A": "X"}, {"BB": "Y"})), {}, "in ensemble e, ensemble tensor Y is mapped from non-existing output BB in model s"),
    (text(STEP), {"more": 'input { name: "Z" data_type: TYPE_FP32 dims: 1 }'}, "in ensemble e, input Z in model s is not mapped to any ensemble tensors"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "options", "says"), COMPARISONS, ids=[case[2][:60] for case in COMPARISONS])
def test_against_the_models(tmp_path, content, options, says):
    errors = check(tmp_path, content, model(tmp_path, "s", **options))
    assert any(says in error for error in errors), errors
    assert errors[0].startswith(f"{tmp_path / 'e' / 'config.pbtxt'}:5:")


def test_a_tensor_between_two_steps(tmp_path):
    content = text(step("s", {"A": "X"}, {"B": "mid"}), step("t", {"A": "mid"}, {"B": "Y"}))
    (error,) = check(tmp_path, content, model(tmp_path, "s", b="TYPE_STRING"), model(tmp_path, "t"))
    assert (
        "ensemble tensor mid: inconsistent data type: TYPE_STRING is inferred from model s while TYPE_FP32 is inferred from model t"
        in error
    )
    assert error.startswith(f"{tmp_path / 'e' / 'config.pbtxt'}:6:")


def test_optional_inputs_need_no_map(tmp_path):
    assert (
        check(
            tmp_path,
            text(STEP),
            model(tmp_path, "s", more='input { name: "Z" data_type: TYPE_FP32 dims: 1 optional: true }'),
        )
        == []
    )


def test_batching_ensemble_with_a_step_that_batches_not(tmp_path):
    content = text(STEP, size=4, xdims="[ 3 ]", ydims="[ 3 ]")
    assert check(tmp_path, content, model(tmp_path, "s", adims="[ -1, 3 ]", bdims="[ -1, 3 ]")) == []


def test_missing_models_are_listed_with_near_names(tmp_path):
    (error,) = check(tmp_path, text(step("clasifier", {"A": "X"}, {"B": "Y"})), model(tmp_path, "classifier"))
    assert (
        "ensemble e contains models that are not available or ambiguous: clasifier — known are 'classifier'; did you mean 'classifier'?"
        in error
    )


@pytest.mark.parametrize(
    ("version", "loaded", "says"),
    [
        (
            0,
            {"s": {1}},
            "ensemble 'e' depends on 's' whose required version 0 is not loaded. — loaded are 1; without 'model_version'",
        ),
        (7, {"s": {1, 3}}, "ensemble 'e' depends on 's' whose required version 7 is not loaded. — loaded are 1, 3"),
        (-1, {}, "ensemble 'e' depends on 's' which has no loaded version."),
    ],
)
def test_versions(tmp_path, version, loaded, says):
    content = text(step("s", {"A": "X"}, {"B": "Y"}, version=version))
    (error,) = check(tmp_path, content, model(tmp_path, "s"), loaded=loaded)
    assert says in error
    assert check(tmp_path, content, model(tmp_path, "s"), loaded=None) == []


def test_ensembles_in_a_circle(tmp_path):
    b = read(tmp_path, text(step("e", {"X": "X"}, {"Y": "Y"})), "b")
    errors = check(tmp_path, text(step("b", {"X": "X"}, {"Y": "Y"})), b)
    words = "circular dependency between ensembles: e -> ... -> b -> e — the whole circle is e -> b -> e"
    assert [error for error in errors if words in error]


DECOUPLED = "model_transaction_policy { decoupled: true }"


def test_decoupled_is_inherited(tmp_path):
    inner = read(tmp_path, text(STEP), "inner")
    outer = read(tmp_path, text(step("inner", {"X": "X"}, {"Y": "Y"})), "outer")
    for more, wanted in (("", False), (DECOUPLED, True)):
        configs = {config.name: config for config in (inner, outer, model(tmp_path, "s", more=more))}
        assert is_decoupled(outer, configs) is wanted
    assert is_decoupled(outer, {"outer": outer, "inner": outer}) is False  # a circle ends


def test_two_decoupled_models_cannot_be_merged(tmp_path):
    join = read(
        tmp_path,
        'backend: "python" input [ { name: "A" data_type: TYPE_FP32 dims: 1 }, { name: "C" data_type: TYPE_FP32 dims: 1 } ] output { name: "B" data_type: TYPE_FP32 dims: 1 }',
        "join",
    )
    content = text(
        step("s", {"A": "X"}, {"B": "one"}),
        step("t", {"A": "X"}, {"B": "two"}),
        step("join", {"A": "one", "C": "two"}, {"B": "Y"}),
    )
    plain = [model(tmp_path, name) for name in "st"]
    assert check(tmp_path, content, *plain, join) == []
    (error,) = check(
        tmp_path, content, model(tmp_path, "s", more=DECOUPLED), model(tmp_path, "t", more=DECOUPLED), join
    )
    assert "in ensemble e, step of model 'e' receives inputs originated from different decoupled models" in error
    assert "step 2 ('join') got 'one' from step 0 ('s'), 'two' from step 1 ('t')" in error
    (error,) = check(tmp_path, content, model(tmp_path, "s", more=DECOUPLED), model(tmp_path, "t"), join)
    assert "'two' from the request" in error
    longer = text(
        step("s", {"A": "X"}, {"B": "one"}),
        step("t", {"A": "X"}, {"B": "two"}),
        step("join", {"A": "one", "C": "two"}, {"B": "three"}),
        step("t", {"A": "three"}, {"B": "Y"}),
    )
    (error,) = check(tmp_path, longer, model(tmp_path, "s", more=DECOUPLED), model(tmp_path, "t"), join)
    assert "in ensemble e, step of model 'join' receives inputs originated from different decoupled models" in error
    chain = text(step("s", {"A": "X"}, {"B": "one"}), step("t", {"A": "one"}, {"B": "Y"}))
    assert check(tmp_path, chain, *[model(tmp_path, name, more=DECOUPLED) for name in "st"]) == []
