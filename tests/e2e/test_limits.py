"""Rate limits and warmup from the command line on: real ports, a real process, models on threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .serving import ECHO, FREE_PORTS, run, serving, write_model

LIMITED = "--rate-limit=execution_count"

#: Fails where two executions of any model with this body overlap: each holds the folder while it executes.
ALONE = """\
    def execute(self, requests):
        held = Path(__file__).parents[2] / "held"
        held.mkdir()
        time.sleep(0.005)
        held.rmdir()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""


def needs(count: int, instances: int = 1) -> str:
    return (
        f"instance_group [ {{ kind: KIND_CPU count: {instances} "
        f'rate_limiter {{ resources [ {{ name: "R" count: {count} }} ] }} }} ]'
    )


def test_what_needs_the_same_is_not_executed_at_a_time(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "a", ALONE, more=needs(1, instances=2))
    write_model(models, "b", ALONE, more=needs(1))
    with serving(tmp_path, models, LIMITED, "--rate-limit-resource", "r:1") as server:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda k: server.infer("ab"[k % 2], float(k)), range(40)))
    assert [status for status, _ in answers] == [200] * 40, answers
    assert [answer["outputs"][0]["data"] for _, answer in answers] == [[float(k)] for k in range(40)]


def test_a_model_that_needs_more_than_there_is(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "a", more=needs(2))
    result = run("serve", models, LIMITED, "--rate-limit-resource=R:1", *FREE_PORTS)
    assert result.returncode == 1
    assert 'Resource count for \\"R\\" is limited to 1 which will prevent scheduling' in result.stderr.replace('"R"', '\\"R\\"')


@pytest.mark.parametrize("flag", ["--rate-limit=always", "--rate-limit-resource=R", "--rate-limit-resource=R:x"])
def test_flags_that_make_no_sense(tmp_path: Path, flag: str) -> None:
    result = run("serve", tmp_path, flag)
    assert result.returncode == 1 and flag.partition("=")[0] in result.stderr


def test_a_model_that_is_warmed_up(tmp_path: Path) -> None:
    models = tmp_path / "models"
    sample = (
        'model_warmup [ { name: "s" batch_size: 1 count: 3 '
        'inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 4 ] random_data: true } } } ]'
    )
    write_model(models, "a", ECHO, more=sample)
    with serving(tmp_path, models) as server:
        _, counted = server.request("GET", "/v2/models/a/stats")
        assert counted["model_stats"][0]["execution_count"] == 3
        assert counted["model_stats"][0]["inference_stats"]["success"]["count"] == 3


def test_check_looks_at_the_samples(tmp_path: Path) -> None:
    sample = (
        'model_warmup [ { name: "s" batch_size: 1 '
        'inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 4 ] input_data_file: "f" } } } ]'
    )
    folder = write_model(tmp_path / "models", "a", ECHO, more=sample)
    (folder / "warmup").mkdir()
    (folder / "warmup" / "f").write_bytes(b"\0" * 15)
    result = run("check", tmp_path / "models")
    assert result.returncode == 1
    assert "warmup setting expects 16 bytes, but the data provided from fonly has 15 bytes" in result.stdout
    assert f"{folder}/config.pbtxt:" in result.stdout


def test_check_refuses_samples_that_are_no_requests_to_the_model(tmp_path: Path) -> None:
    """What a load says of them, with the place of the sample."""
    one = '{ name: "%s" batch_size: %d inputs { key: "X" value { data_type: TYPE_%s dims: [ 4 ] zero_data: true } } }'
    samples = ", ".join(one % each for each in (("skipped", 0, "INT32"), ("right", 1, "FP32"), ("wrong", 1, "INT32")))
    folder = write_model(tmp_path / "models", "a", ECHO, more=f"model_warmup [ {samples} ]")
    result = run("check", tmp_path / "models")
    assert result.returncode == 1
    column = len(f"model_warmup [ {samples}") - len(one % ("wrong", 1, "INT32")) + 1
    words = "[request id: <id_unknown>] inference input 'X' data-type is 'INT32', but model 'a' expects 'FP32'"
    assert result.stdout.startswith(f"{folder}/config.pbtxt:4:{column}: {words}\n")
