"""Start-up: the table, the log, readiness, and every way in which a start can fail (lifecycle, sections 3 and 7)."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import urllib.request
from pathlib import Path

import pytest
import tritonclient.grpc as triton_grpc

from .serving import BROKEN, FREE_PORTS, SLOW_TO_LOAD, Server, run, serving, wait_until, write_model

#: An address at which no server can listen, so that a start ends where the ports would open.
NOWHERE = (*FREE_PORTS, "--http-address=256.0.0.1")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    repository = tmp_path / "models"
    write_model(repository, "echo", versions=(1, 2, 3), more="version_policy { specific { versions: [1, 3] } }")
    return repository


def test_table_and_log(models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, models) as server:
        pass
    text = server.text()
    table = (
        "+-------+---------+--------+\n"
        "| Model | Version | Status |\n"
        "+-------+---------+--------+\n"
        "| echo  | 1       | READY  |\n"
        "| echo  | 3       | READY  |\n"
        "+-------+---------+--------+\n"
    )
    assert table in text
    assert re.search(r'^I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \w+\.py:\d+\] "Started HTTPService at 127\.0\.0\.1:\d+"$', text, re.M)
    assert text.index(table) < text.index("Started HTTPService")


def test_log_format_and_file(models: Path, tmp_path: Path) -> None:
    log = tmp_path / "kernel.log"
    result = run("serve", models, "--log-format=ISO8601", "--log-file", log, *NOWHERE)
    assert result.returncode == 1
    assert re.search(r'^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ E \d+ \w+\.py:\d+\] "failed to start HTTP service', log.read_text(), re.M)
    assert result.stderr == ""


def test_the_log_file_is_opened_anew(models: Path, tmp_path: Path) -> None:
    """At SIGHUP, as who rotates logs wants it. Folders that are no models are told in one line."""
    (models / "lost+found").mkdir()
    (models / "__MACOSX").mkdir()
    log, old = tmp_path / "kernel.log", tmp_path / "kernel.log.1"
    arguments = [models, f"--log-file={log}"]
    server = Server(tmp_path / "console", arguments)
    try:
        wait_until(lambda: log.exists() and "Started Metrics Service" in log.read_text(), 30.0)
        log.rename(old)
        server.signal(signal.SIGHUP)
        wait_until(log.exists)
        server.signal()
        assert server.wait() == 0
    finally:
        server.process.kill()
        server.process.wait()
    assert "SIGTERM: stopping" in log.read_text() and "SIGTERM" not in old.read_text()
    assert f"ignored in '{models}', as it is no model: __MACOSX, lost+found" in old.read_text()
    assert server.text() == ""


@pytest.mark.parametrize("flag", ["--log-info=false", "--log-info=0", "--log-info=FALSE"])
def test_log_levels(models: Path, flag: str) -> None:
    result = run("serve", models, flag, *NOWHERE)
    assert "READY" not in result.stderr
    assert "failed to start HTTP service" in result.stderr


def test_a_failed_model_that_is_the_only_one(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "broken", BROKEN)
    result = run("serve", tmp_path / "models", *FREE_PORTS)
    assert result.returncode == 1
    assert "  'broken' did not load; the reasons are above" in result.stderr.splitlines()


def test_failed_model_ends_the_start(models: Path) -> None:
    write_model(models, "broken", BROKEN)
    result = run("serve", models, *FREE_PORTS)
    assert result.returncode == 1
    assert "error: creating server: Internal - failed to load all models" in result.stderr.splitlines()
    assert re.search(r"^\| broken \| 1 +\| UNAVAILABLE: Internal: .*no weights today", result.stderr, re.M)
    assert re.search(r"^\| echo   \| 1 +\| stopped: it had loaded, others have not +\|$", result.stderr, re.M)
    assert result.stderr.count("ValueError: no weights today") == 2, "once as such, and in the table"
    assert "  'broken' did not load, and the others were stopped; the reasons are above" in result.stderr.splitlines()
    place = rf'^    {models}/broken/1/model\.py:\d+:\d+\n +raise ValueError\("no weights today"\)\n +\^$'
    assert re.search(place, result.stderr, re.M)
    assert "Started HTTPService" not in result.stderr


def test_failed_model_with_exit_on_error_off(models: Path, tmp_path: Path) -> None:
    write_model(models, "broken", BROKEN)
    with serving(tmp_path, models, "--exit-on-error=false") as server:
        assert server.request("GET", "/v2/health/live") == (200, None)
        assert server.request("GET", "/v2/health/ready") == (400, None)
        assert server.request("GET", "/v2/models/echo/ready")[0] == 200
        assert server.request("GET", "/v2/models/broken/ready")[0] == 400
        assert server.infer("echo", 2.0)[1]["outputs"][0]["data"] == [2.0]
        _, index = server.request("POST", "/v2/repository/index", {})
        (line,) = [line for line in index if line["name"] == "broken"]
        assert line["state"] == "UNAVAILABLE"
        assert "no weights today" in line["reason"]


def test_absent_repository_with_exit_on_error_off(tmp_path: Path) -> None:
    """It runs and says that it is of no use, as the reference does."""
    with serving(tmp_path, tmp_path / "nowhere", "--exit-on-error=false", "--model-control-mode=explicit") as server:
        assert server.request("GET", "/v2/health/live") == (400, None)
        assert server.request("GET", "/v2/health/ready") == (400, None)
        assert server.request("GET", "/v2")[0] == 200
        not_ready = (503, {"error": "Server not ready"})
        assert server.infer("echo", 2.0) == not_ready
        assert server.request("POST", "/v2/repository/index", {}) == not_ready
        assert server.request("POST", "/v2/repository/models/echo/load", {}) == not_ready
        server.signal()
        assert server.wait() == 0
    assert "nothing is served, and the server is neither live nor ready: failed to stat file" in server.text()


def test_a_model_that_cannot_be_polled_leaves_the_server_ready(models: Path, tmp_path: Path) -> None:
    """As in the reference, which takes such a model for none at all."""
    write_model(models, "unreadable")
    (models / "unreadable/config.pbtxt").write_text("nonsense {")
    with serving(tmp_path, models, "--exit-on-error=false") as server:
        assert server.request("GET", "/v2/health/ready") == (200, None)
        assert server.infer("unreadable", 2.0) == (404, {"error": "Request for unknown model: 'unreadable' is not found"})
        assert server.infer("echo", 2.0)[0] == 200


def test_failed_model_without_strict_readiness(models: Path, tmp_path: Path) -> None:
    write_model(models, "broken", BROKEN)
    with serving(tmp_path, models, "--exit-on-error=0", "--strict-readiness=0") as server:
        assert server.request("GET", "/v2/health/ready") == (200, None)


def test_unreadable_config_ends_the_start(models: Path) -> None:
    (models / "echo/config.pbtxt").write_text('backend: "python"\nmax_batchsize: 3\n')
    result = run("serve", models, *FREE_PORTS)
    assert result.returncode == 1
    assert "error: creating server: Internal - failed to load all models" in result.stderr
    assert f"{models}/echo/config.pbtxt:2:1)" in result.stderr
    assert "did you mean 'max_batch_size'?" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--model-repository must be specified"),
        (["/nowhere/at/all"], "error: creating server: Internal - failed to stat file /nowhere/at/all"),
        (["--model-repository=/nowhere"], "error: creating server: Internal - failed to stat file /nowhere"),
        (["MODELS", "--load-model=echo"], "Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
        (
            ["MODELS", "--model-control-mode", "explicit", "--load-model=*", "--load-model=echo"],
            "error: creating server: Invalid argument - "
            "Wildcard model name '*' must be the ONLY startup model if specified at all.",
        ),
        (["MODELS", "--model-control-mode=explicit", "--load-model=ech"], "failed to load all models"),
        (["MODELS", "--http-prot=1"], "usage: kernel serve"),
        (
            ["MODELS", "--cache-config=local,size=100", "--cache-config=redis,host=h"],
            "error: creating server: Invalid argument - "
            "found multiple cache configurations, but only a single cache is currently supported",
        ),
        (
            ["MODELS", "--cache-config=local,bytes=100"],
            "error: creating server: Invalid argument - "
            "Failed to initialize LocalCache: config didn't contain a valid 'size' field",
        ),
        (["MODELS", "--strict-readiness=perhaps"], "'perhaps' is neither true, 1, false nor 0"),
    ],
)
def test_refused_starts(models: Path, arguments: list[str], words: str) -> None:
    result = run("serve", *(str(models) if argument == "MODELS" else argument for argument in arguments))
    assert result.returncode == 1
    assert words in result.stderr


def test_explicit_mode(models: Path, tmp_path: Path) -> None:
    write_model(models, "broken", BROKEN)
    with serving(tmp_path, models, "--model-control-mode=explicit", "--load-model=echo") as server:
        assert server.request("GET", "/v2/health/ready") == (200, None)
        _, index = server.request("POST", "/v2/repository/index")
        assert [line["name"] for line in index] == ["broken", "echo", "echo"]
        status, answer = server.request("POST", "/v2/repository/models/broken/load")
        assert status == 400
        assert answer["error"].startswith("load failed for model 'broken': version 1 is at UNAVAILABLE state: Internal: ")


def test_explicit_mode_without_models(models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, "--model-store", models, "--model-control-mode", "explicit") as server:
        assert server.request("GET", "/v2/health/ready") == (200, None)


def test_port_in_use(models: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("serve", models, *FREE_PORTS, "--http-port", port)
    assert result.returncode == 1
    assert f"failed to start HTTP service: Unavailable - Socket '127.0.0.1:{port}' already in use " in result.stderr


def test_a_port_in_use_is_noticed_before_models_load(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models", "slow", SLOW_TO_LOAD)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("serve", tmp_path / "models", *FREE_PORTS, f"--metrics-port={place.partition(':')[2]}")
    assert result.returncode == 1
    assert f"failed to start Metrics service: Unavailable - Socket '{place}' already in use " in result.stderr
    assert "loading: " not in result.stderr and not (folder / "1/loading").exists()


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def started(server: Server) -> dict[str, str]:
    """Return the ports that are open, by service."""
    return dict(re.findall(r'"Started ([\w ]+) at [^ ]+:(\d+)"', server.text()))


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_both_families_over_both_wires(models: Path, tmp_path: Path) -> None:
    anywhere = ("--http-address=[::]", "--grpc-address=0.0.0.0", "--metrics-address=0.0.0.0")
    with serving(tmp_path, models, *anywhere) as server:
        wait_until(lambda: len(started(server)) == 3)
        grpc_port, metrics_port = started(server)["GRPCInferenceService"], started(server)["Metrics Service"]
        for target in ("127.0.0.1:", "[::1]:", "ipv6:[::1]:", "ipv4:127.0.0.1:"):
            with triton_grpc.InferenceServerClient(target + grpc_port) as client:
                assert client.is_server_live(client_timeout=10)
        for host in ("127.0.0.1", "[::1]"):
            with urllib.request.urlopen(f"http://{host}:{server.port}/v2/health/live", timeout=10) as answer:
                assert answer.status == 200
            with urllib.request.urlopen(f"http://{host}:{metrics_port}/metrics", timeout=10) as answer:
                assert b"nv_inference_request_success" in answer.read()


def test_ports_open_only_after_loading(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models", "slow", SLOW_TO_LOAD)
    server = Server(tmp_path / "log", [tmp_path / "models"])
    try:
        wait_until((folder / "1/loading").exists)
        assert "Started HTTPService" not in server.text()
        (folder / "1/go").touch()
        server.wait_started()
    finally:
        server.process.kill()
        server.process.wait()


def test_two_repositories(models: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "more", "second")
    with serving(tmp_path, models, "--model-repository", tmp_path / "more", "--id=ours") as server:
        assert server.infer("second", 3.0)[0] == server.infer("echo", 3.0)[0] == 200
        assert server.request("GET", "/v2")[1]["name"] == "ours"


def test_model_config_name(models: Path, tmp_path: Path) -> None:
    folder = models / "echo"
    (folder / "configs").mkdir()
    text = (folder / "config.pbtxt").read_text().replace("1, 3", "2")
    (folder / "configs/other.pbtxt").write_text(text)
    with serving(tmp_path, models, "--model-config-name=other") as server:
        assert server.request("GET", "/v2/models/echo")[1]["versions"] == ["2"]


def test_flags_without_effect_are_named(models: Path) -> None:
    flags = ["--pinned-memory-pool-byte-size=0", "--backend-directory", "/opt", "--model-namespacing=false", "--allow-grpc=false"]
    result = run("serve", models, *flags, *NOWHERE)
    assert json.dumps("--backend-directory has no effect: there is nothing here that it could act on") in result.stderr
    assert "--model-namespacing" not in result.stderr and "--allow-grpc" not in result.stderr


@pytest.mark.parametrize("flags", [[], ["--safe"], ["--http-address=127.0.0.1"]], ids=str)
def test_a_start_that_nothing_restricts_says_so(tmp_path: Path, flags: list[str]) -> None:
    write_model(tmp_path / "models", "echo")
    with serving(tmp_path, tmp_path / "models", "--http-address=0.0.0.0", *flags) as server:
        wait_until(lambda: "Started Metrics Service" in server.text())
        assert server.request("GET", "/v2/health/live")[0] == 200
        told = [line for line in server.text().splitlines() if "whoever can reach" in line]
        assert len(told) == (not flags), told
        assert all(f"reach 0.0.0.0:{server.port} may change what is served: that is not restricted." in line for line in told)
