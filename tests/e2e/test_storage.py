"""A repository in an S3 server, as commands and replicas see it: real processes, real ports."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from buckets import Bucket, s3_server

from .serving import CONFIG, MODEL, run, serving, wait_until

ADDS = """\
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy() + np.float32({0}))]) for r in requests]
"""


def put(bucket: Bucket, number: int) -> None:
    bucket.put("m/1/model.py", MODEL.format(body=ADDS.format(number)))


class Fetches(logging.Handler):
    """Counts how often the server gave out the content of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        words = record.getMessage()
        self.count += "GET" in words and "m/1/model.py" in words


def test_commands_and_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands fetch what they look at; two replicas fetch once, what is new too, and a change comes by itself."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with s3_server() as address:
        bucket = Bucket(*address)
        bucket.put("m/config.pbtxt", CONFIG.format(more=""))
        put(bucket, 1)
        bucket.put("wrong/config.pbtxt", 'backend: "python"\nmax_batch_size: "x"\n')
        fetches = Fetches()
        requests = logging.getLogger("werkzeug")
        requests.addHandler(fetches)
        requests.setLevel(logging.INFO)
        try:
            flags = ("--repository-poll-secs=1", "--model-control-mode=poll", "--exit-on-error=false", "--strict-readiness=false")
            with serving(tmp_path, bucket.location, *flags, "--replicas=2") as server:

                def answers() -> set[float]:
                    found = [server.infer("m", 1.0) for _ in range(8)]
                    return {body["outputs"][0]["data"][0] if status == 200 else 0.0 for status, body in found}

                wait_until(lambda: server.text().count(" serves, ") == 2, 30.0)
                assert answers() == {2.0}
                assert fetches.count == 1
                _, index = server.request("POST", "/v2/repository/index")
                (reason,) = [row["reason"] for row in index if row["name"] == "wrong"]
                assert f"({bucket.location}/wrong/config.pbtxt:2:17)" in reason
                put(bucket, 5)
                wait_until(lambda: answers() == {6.0}, 30.0)
                assert fetches.count == 2
            assert not list((tmp_path / "cache").glob("kernel-serve/storage/v1/servers/*"))
            checked = run("check", bucket.location)
            assert checked.returncode == 1
            assert f"{bucket.location}/wrong/config.pbtxt:2:17: failed to read" in checked.stdout, checked.stdout
            assert "1 of 2 models can't be served" in checked.stdout
            listed = run("models", bucket.location)
            assert "backend    python" in listed.stdout, listed.stdout
            inferred = run("infer", bucket.location, "m", "--input", "X=[1]", "--load-model", "m")
            assert '"data":[6.0]' in inferred.stdout.replace(" ", ""), inferred.stderr
            assert fetches.count == 2
        finally:
            requests.removeHandler(fetches)
    watched = run("serve", "--watch", "s3://bucket/models")
    assert watched.returncode == 1
    assert "s3://bucket/models can't be watched; --model-control-mode=poll follows it" in watched.stderr
