"""How flags are written, and which of tritonserver's are there, without effect, or missing."""

from __future__ import annotations

import argparse

import pytest

from kernel.cli.flags import (
    MISSING,
    WITHOUT_EFFECT,
    add_other_flags,
    add_serve_flags,
    auto_complete,
    log_options,
    repositories,
)
from kernel.cli.parser import Parser

#: tritonserver's flags, release 2.51 and later ones; see its `--help`.
TRITON = """
    id exit-timeout-secs log-verbose log-info log-warning log-error log-format log-file model-repository model-store exit-on-error
    disable-auto-complete-config strict-model-config strict-readiness model-control-mode repository-poll-secs load-model
    model-config-name model-load-thread-count model-load-retry-count model-namespacing allow-http http-address http-port
    reuse-http-port http-thread-count http-header-forward-pattern http-max-input-size http-restricted-api allow-grpc grpc-address
    grpc-port reuse-grpc-port grpc-header-forward-pattern grpc-restricted-protocol grpc-infer-thread-count
    grpc-infer-allocation-pool-size grpc-max-response-pool-size grpc-use-ssl grpc-use-ssl-mutual grpc-server-cert grpc-server-key
    grpc-root-cert grpc-infer-response-compression-level grpc-keepalive-time grpc-keepalive-timeout
    grpc-keepalive-permit-without-calls grpc-http2-max-pings-without-data grpc-http2-min-recv-ping-interval-without-data
    grpc-http2-max-ping-strikes grpc-max-connection-age grpc-max-connection-age-grace allow-metrics allow-gpu-metrics
    allow-cpu-metrics metrics-address metrics-port metrics-interval-ms metrics-config trace-config cache-config rate-limit
    rate-limit-resource pinned-memory-pool-byte-size cuda-memory-pool-byte-size buffer-manager-thread-count host-policy
    min-supported-compute-capability model-load-gpu-limit backend-directory backend-config repoagent-directory cache-directory
    allow-client-shm response-cache-byte-size trace-file trace-level trace-rate trace-count trace-log-frequency
""".split()


def parser() -> Parser:
    made = Parser("kernel serve", "[FLAG ...] REPO", "about", mistake_status=1)
    add_serve_flags(made)
    add_other_flags(made)
    return made


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        parser().read(arguments)
    assert ended.value.code == 1
    usage, *words = capsys.readouterr().err.splitlines()
    assert usage == "usage: kernel serve [FLAG ...] REPO"
    return "\n".join(words)


def test_every_flag_of_tritonserver_is_known() -> None:
    made = parser()
    assert [flag for flag in TRITON if not made.knows(f"--{flag}")] == []
    assert not set(MISSING) & set(WITHOUT_EFFECT)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], True),
        (["--strict-readiness"], True),
        (["--strict-readiness", "false"], False),
        (["--strict-readiness=false"], False),
        (["--strict-readiness", "0"], False),
        (["--strict-readiness=0"], False),
        (["--strict-readiness=False"], False),
        (["--strict-readiness", "1"], True),
        (["--strict-readiness=TRUE"], True),
        (["--strict-readiness=false", "--strict-readiness=true"], True),
    ],
)
@pytest.mark.parametrize("place", [0, 9])
def test_booleans(arguments: list[str], wanted: bool, place: int) -> None:
    """Wherever the repository stands, a boolean doesn't take it for its value."""
    line = arguments.copy()
    line.insert(place, "repository")
    options = parser().read(line)
    assert options.strict_readiness is wanted
    assert options.repositories == ["repository"]


def test_values_in_both_forms() -> None:
    options = parser().read(["a", "--exit-timeout-secs", "5", "b", "--model-control-mode=explicit", "--load-model", "*", "c"])
    assert (options.exit_timeout_secs, options.model_control_mode, options.load_model) == (5, "explicit", ["*"])
    assert options.repositories == ["a", "b", "c"]


def test_repositories_in_all_forms() -> None:
    made = parser()
    options = made.read(["a", "--model-repository=b", "--model-store", "c", "d"])
    assert repositories(made, options) == ["a", "d", "b", "c"]


def test_no_repository(capsys: pytest.CaptureFixture[str]) -> None:
    made = parser()
    with pytest.raises(SystemExit):
        repositories(made, made.read([]))
    assert "Error: --model-repository must be specified" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--http-prot=1"], "Error: unexpected argument '--http-prot=1'"),
        (["--strict-readines"], "Error: unexpected argument '--strict-readines'; did you mean --strict-readiness"),
        (["--exit-timeout-secs=-1"], "--exit-timeout-secs: Invalid option value. Got -1 — '-1' is no integer of at least 0"),
        (["--exit-timeout-secs=soon"], "--exit-timeout-secs: Invalid option value. Got soon — 'soon' is no integer"),
        (["--model-load-thread-count=0"], "Invalid option value. Got 0 — '0' is no integer greater than 0"),
        (["--exit-on-error=maybe"], "invalid value for bool option: maybe — 'maybe' is neither true, 1, false nor 0"),
        (["--model-control-mode=all"], "Error: invalid argument for --model-control-mode — argument --model"),
        (["--load-model"], "Error: argument --load-model: expected one argument"),
        (["--cache-config=local"], "Error: No cache specified. --cache-config option format is <cache name>,<setting>=<value>."),
        (["--cache-config=local"], "Got local — --cache-config 'local' is not of the form <cache name>,<setting>=<value>"),
        (["--allow-grpc"], "tritonserver's --allow-grpc is not implemented in this version; --allow-grpc=false is accepted"),
        (["--allow-grpc", "true"], "tritonserver's --allow-grpc is not implemented in this version"),
        (["--model-load-retry-count=-1"], "'-1' is no integer of at least 0"),
        (["--rate-limit=sometimes"], "argument --rate-limit: invalid choice: 'sometimes'"),
        (["--rate-limit-resource=R"], "or '<resource_name>:<count>'. Got R — 'R' is not of the form"),
        (["--rate-limit-resource=R:-1"], "'R:-1' is not of the form"),
        (["--rate-limit-resource=R:1:x"], "'R:1:x' is not of the form"),
        (["--backend-config=python"], "--backend-config option format is '<backend name>,<setting>=<value>'. Got python"),
        (["--backend-config=python,a"], "'<backend name>,<setting>=<value>'. Got python,a"),
        (["--backend-config=python,=1"], "'<backend name>,<setting>=<value>'. Got python,=1"),
        (["--backend-config=,nokey=1"], "',nokey=1' names no backend, and 'nokey' is no setting for all"),
        (["--backend-config=,default-max-batch-size=x"], "a whole number, 0 or more, is wanted for default-max-batch-size"),
        (["--backend-config=onnxruntime,default-max-batch-size=-1"], "a whole number, 0 or more, is wanted"),
    ],
)
def test_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(["repository", *arguments], capsys)


def test_settings_of_backends() -> None:
    flags = ["--backend-config=python,stub-timeout-seconds=60", "--backend-config", ",default-max-batch-size=8"]
    flags += ["--backend-config=python, thread-pool-size = 4", "--backend-config=mine,path=a=b,c"]
    assert parser().read(flags).backend_config == {
        "python": {"stub-timeout-seconds": "60", "thread-pool-size": "4"},
        "": {"default-max-batch-size": "8"},
        "mine": {"path": "a=b,c"},
    }
    assert parser().read([]).backend_config == {}


def test_what_is_missing_may_be_switched_off() -> None:
    flags = ["--allow-grpc=false", "--allow-metrics", "0", "--rate-limit=OFF", "--trace-level=OFF"]
    assert parser().read(flags).without_effect == []


@pytest.mark.parametrize("flag", WITHOUT_EFFECT)
def test_without_effect(flag: str) -> None:
    assert parser().read(["repository", f"--{flag}", "1"]).without_effect == [f"--{flag}"]


def test_flags_of_a_plugin_win() -> None:
    made = Parser("kernel serve", "", "")
    add_serve_flags(made)
    made.add_argument_group("gRPC").add_argument("--allow-grpc", nargs="?", const=True, type=lambda text: text == "yes")
    add_other_flags(made)
    assert made.read(["--allow-grpc=yes"]).allow_grpc is True


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ([], True),
        (["--disable-auto-complete-config"], False),
        (["--disable-auto-complete-config=false"], True),
        (["--strict-model-config"], False),
        (["--strict-model-config=false"], True),
    ],
)
def test_auto_complete(flags: list[str], wanted: bool) -> None:
    assert auto_complete(parser().read(flags)) is wanted


def test_log_options() -> None:
    options = log_options(parser().read(["--log-verbose=2", "--log-info=0", "--log-format=ISO8601", "--log-file=x"]))
    assert (options.verbose, options.info, options.warning, options.error) == (2, False, True, True)
    assert (options.format, options.file) == ("ISO8601", "x")


def test_help_shows_no_flag_that_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().read(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "--exit-timeout-secs" in text
    assert not any(f"--{flag}" in text for flag in (*MISSING, *WITHOUT_EFFECT))


def test_plain_argparse_is_what_plugins_see() -> None:
    assert isinstance(parser(), argparse.ArgumentParser)
