"""Health, metadata, configuration, statistics, repository; what is not there; options; the port (http_protocol 2)."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from frontends.fakes import Client, FakeKernel, parse, request

from kernel import Code, Duration, ModelScale, ModelStatistics, ObservedCalls, ServerScale, ServingError
from kernel_http import add_options, register_frontends
from kernel_http.operations.admin import statistics_of


def test_scale(client: Client) -> None:
    line = ModelScale("m", 1, 1, 2, 1, 4, 0.25, 3.5, 0.9, "1 -> 2: 3.5 in flight, of 0.7 for each")
    client.kernel.scale = lambda: ServerScale(1, 1, 1, 1, 0.25, 3.5, 0.9, "why", [line])  # type: ignore[attr-defined]
    response = client.ask(request("GET", "/v2/kernel/scale"))
    assert (response.status, response.headers["Content-Type"]) == (200, "application/json")
    figures = {"queue_age": 0.25, "in_flight": 3.5, "utilization": 0.9}
    assert response.json == {
        "server": {"current": 1, "wanted": 1, "min": 1, "max": 1, **figures, "reason": "why"},
        "models": [
            {"name": "m", "version": 1, "current": 1, "wanted": 2, "min": 1, "max": 4, **figures,
             "reason": "1 -> 2: 3.5 in flight, of 0.7 for each"},
        ],
    }  # fmt: skip
    assert client.ask(request("POST", "/v2/kernel/scale")).status == 405


@pytest.fixture
def client() -> Client:
    return Client()


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser)
    return parser.parse_args(arguments)


def test_calls_that_were_seen(client: Client) -> None:
    client.kernel.observed_calls = lambda: [ObservedCalls("a", "b", 3)]  # type: ignore[attr-defined]
    assert client.ask(request("GET", "/v2/kernel/calls")).json == {"calls": [{"caller": "a", "model": "b", "count": 3}]}
    assert client.ask(request("POST", "/v2/kernel/calls")).status == 405


def test_health(client: Client) -> None:
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Type: text/plain\r\n\r\n"
    client.send(request("GET", "/v2/health/live") + request("GET", "/v2/health/ready"))
    assert client.take() == ok * 2
    client.kernel.live = client.kernel.is_healthy = False
    client.send(request("GET", "/v2/health/live") + request("GET", "/v2/health/ready"))
    assert client.take() == ok.replace(b"200 OK", b"400 Bad Request") * 2


def test_server_metadata(client: Client) -> None:
    response = client.ask(request("GET", "/v2"))
    assert list(response.json) == ["name", "version", "extensions"] and response.json["name"] == "triton"
    assert response.json["extensions"] == [
        "classification", "sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy",
        "model_configuration", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data", "parameters", "statistics",
        "trace", "logging",
    ]  # fmt: skip
    assert response.names == ["Content-Type", "Content-Length"]


def test_model_metadata(client: Client) -> None:
    assert client.ask(request("GET", "/v2/models/multi")).body == (
        b'{"name":"multi","versions":["1","3"],"platform":"python",'
        b'"inputs":[{"name":"X","datatype":"FP32","shape":[2]}],"outputs":[{"name":"Y","datatype":"FP32","shape":[2]}]}'
    )
    assert client.ask(request("GET", "/v2/models/multi/versions/1")).json["versions"] == ["1"]
    assert client.ask(request("GET", "/v2/models/batch8")).json["inputs"][0]["shape"] == [-1, 2]


def test_model_config(client: Client) -> None:
    assert client.ask(request("GET", "/v2/models/batch8/config")).body == b'{"name":"batch8","max_batch_size":8}'


def test_model_ready(client: Client) -> None:
    assert client.ask(request("GET", "/v2/models/multi/versions/3/ready")).status == 200
    for path in ("nope/ready", "multi/versions/2/ready", "mul%74i/ready"):
        response = client.ask(request("GET", f"/v2/models/{path}"))
        assert (response.status, response.error) == (400, "Model version not ready")
        assert response.headers["Content-Type"] == "text/plain"


def test_a_model_that_is_asked_whether_it_is_ready(client: Client) -> None:
    """The answer comes when the model has said it; later requests of the connection keep their place behind it."""
    asked: list[Any] = []
    client.kernel.ask_model_ready = lambda name, version, reply: asked.append((name, version, reply))  # type: ignore[method-assign]
    client.send(request("GET", "/v2/models/m/ready") + request("GET", "/v2/models/m/versions/3/ready"))
    client.send(request("GET", "/v2/health/live"))
    assert client.take() == b""
    assert [one[:2] for one in asked] == [("m", ""), ("m", "3")]
    asked[1][2](True)
    assert client.take() == b""
    asked[0][2](False)
    first, _, rest = client.take().partition(b"HTTP/1.1 200 OK")
    assert first.startswith(b"HTTP/1.1 400") and b"Model version not ready" in first
    assert rest.count(b"HTTP/1.1 200 OK") == 1


def test_statistics(client: Client) -> None:
    zero = '{"count":0,"ns":0}'
    some = '{"count":1,"ns":7}'
    names = ["fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"]
    inference = '{"success":{"count":2,"ns":9},' + ",".join(f'"{name}":{zero}' for name in names) + "}"
    batches = ",".join(
        f'{{"batch_size":{size},"compute_input":{some},"compute_infer":{some},"compute_output":{last}}}'
        for size, last in ((1, '{"count":3,"ns":8}'), (2, some))
    )
    for path in ("/v2/models/stats", "/v2/models/multi/stats"):
        assert client.ask(request("GET", path)).body.decode() == (
            '{"model_stats":[{"name":"multi","version":"3","last_inference":5,"inference_count":4,"execution_count":3,'
            f'"inference_stats":{inference},"response_stats":{{}},"batch_stats":[{batches}],"memory_usage":[]}}]}}'
        )
    response = client.ask(request("GET", "/v2/models/nope/stats"))
    assert (response.status, response.error) == (400, "requested model 'nope' is not available")


@pytest.mark.parametrize("path", ["nope", "nope/config"])
def test_unknown_models(client: Client, path: str) -> None:
    response = client.ask(request("GET", f"/v2/models/{path}"))
    assert (response.status, response.error) == (404, "Request for unknown model: 'nope' is not found")
    assert response.names == ["Content-Type", "Content-Length"]


@pytest.mark.parametrize(
    "path",
    ["/", "/v2/", "/v2/models", "/v2/health", "/v2/models/m/versions/abc", "/v2/models/a/b", "/v3", "/v2/logging/"],
)
def test_unknown_paths(client: Client, path: str) -> None:
    response = client.ask(request("GET", path))
    assert response.line == b"HTTP/1.1 404 Not Found"
    assert (response.error, response.names) == ("Not Found", ["Content-Length", "Content-Type"])


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", "/v2/health/live", "text/plain"),
        ("DELETE", "/v2/health/ready", "text/plain"),
        ("GET", "/v2/models/multi/infer", "text/plain"),
        ("POST", "/v2", "application/json"),
        ("PUT", "/v2/models/multi", "application/json"),
        ("POST", "/v2/models/multi/stats", "application/json"),
        ("GET", "/v2/repository/index", "application/json"),
        ("GET", "/v2/repository/models/m/load", "application/json"),
    ],
)
def test_wrong_methods(client: Client, method: str, path: str, kind: str) -> None:
    response = client.ask(request(method, path))
    assert response.line == b"HTTP/1.1 405 Not Allowed"
    assert (response.error, response.headers["Content-Type"]) == ("Method Not Allowed", kind)


def test_index(client: Client) -> None:
    everything = (
        b'[{"name":"a","version":"1","state":"READY"},{"name":"b"},'
        b'{"name":"c","version":"2","state":"UNAVAILABLE","reason":"why"}]'
    )
    for path, body in (
        ("index", b""),
        ("any/index", b""),
        ("index", b"{}"),
        ("index", b'{"ready":false}'),
        ("index", b"[]"),
    ):
        assert client.ask(request("POST", f"/v2/repository/{path}", body)).body == everything
    assert len(client.ask(request("POST", "/v2/repository/index", b'{"ready":true}')).json) == 1
    response = client.ask(request("POST", "/v2/repository/index", b'{"ready":1}'))
    assert response.status == 400
    assert response.error == "Unable to parse 'ready': attempt to access JSON non-boolean as boolean"


def test_unload(client: Client) -> None:
    response = client.ask(request("POST", "/v2/repository/models/m/unload"))
    assert (response.status, response.body, response.headers["Content-Type"]) == (200, b"", "application/json")
    client.ask(request("POST", "/v2/repository/models/m/unload", b'{"parameters":{"unload_dependents":true}}'))
    assert client.kernel.calls == [("unload", "m", False), ("unload", "m", True)]
    response = client.ask(request("POST", "/v2/repository/models/m/unload", b'{"parameters":{"unload_dependents":1}}'))
    assert (response.status, len(client.kernel.calls)) == (400, 2)


def test_load(client: Client) -> None:
    body = {"parameters": {"config": "{}", "file:1/model.py": base64.b64encode(b"pass").decode()}}
    client.send(
        request("POST", "/v2/repository/models/m/load", json.dumps(body).encode()) + request("GET", "/v2/health/live")
    )
    assert client.take() == b"" and client.transport.paused  # what follows waits for the load
    client.kernel.loop.run_tasks()
    first, second = parse(client.take())
    assert (first.status, first.body, second.headers["Content-Type"]) == (200, b"", "text/plain")
    assert client.kernel.calls == [("load", "m", "{}", {"1/model.py": b"pass"})] and not client.transport.paused


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        (b'{"parameters":5}', 400, "Unable to parse 'parameters': attempt to get members for non-object"),
        (b'{"parameters":{"x":"y"}}', 500, "unexpected error on creating Triton parameter"),
        (b'{"parameters":{"config":5}}', 400, "Unable to parse 'config': attempt to access JSON non-string as string"),
        (
            b'{"parameters":{"file:a":"!"}}',
            400,
            "Unable to parse 'file:a': it is not base64 (Only base64 data is allowed)",
        ),
    ],
)
def test_bad_load_requests(client: Client, body: bytes, status: int, message: str) -> None:
    client.send(request("POST", "/v2/repository/models/m/load", body))
    client.kernel.loop.run_tasks()
    (response,) = parse(client.take())
    assert (response.status, response.error, client.kernel.calls) == (status, message, [])


def test_load_that_fails(client: Client) -> None:
    client.kernel.load_error = ServingError(Code.INVALID_ARG, "load failed for model 'm': line 1;\n")
    client.send(request("POST", "/v2/repository/models/m/load"))
    client.kernel.loop.run_tasks()
    (response,) = parse(client.take())
    assert (response.status, response.error) == (400, "load failed for model 'm': line 1;\n")


def test_client_gone_during_a_load(client: Client) -> None:
    client.send(request("POST", "/v2/repository/models/m/load") * 2)
    client.lose()
    client.kernel.loop.run_tasks()
    assert client.take() == b"" and len(client.kernel.calls) == 1


def test_repository_names_are_refused(client: Client) -> None:
    for operation in ("load", "unload"):
        response = client.ask(request("POST", f"/v2/repository/r/models/m/{operation}"))
        assert (response.status, response.error) == (501, "'repository_name' specification is not supported")


def test_what_breaks_becomes_an_answer(client: Client) -> None:
    client.kernel.index = None  # type: ignore[assignment]
    response = client.ask(request("POST", "/v2/repository/index"))
    assert response.status == 500 and "TypeError" in response.error


# --- options and the port


def test_options() -> None:
    default = options()
    assert (default.allow_http, default.http_address, default.http_port, default.reuse_http_port) == (
        True, "0.0.0.0", 8000, False)  # fmt: skip
    assert (default.http_thread_count, default.http_header_forward_pattern) == (8, "")
    assert default.http_max_input_size == 64 * 1024 * 1024
    assert register_frontends(SimpleNamespace(), options("--allow-http=0")) == []
    assert options("--allow-http", "true", "--http-port=1").http_port == 1
    assert options("--allow-http", "--reuse-http-port").reuse_http_port is True


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--http-port=65536", "'65536' is not a port: 0 to 65535"),
        ("--http-port=-1", "'-1' is not a port: 0 to 65535"),
        ("--allow-http=maybe", "'maybe' is not a boolean: true, false, 1 or 0"),
        ("--http-header-forward-pattern=(", "'(' is not a regular expression"),
        ("--http-max-input-size=0", "'0' is not a positive number of bytes"),
    ],
)
def test_bad_options(argument: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentError) as caught:
        options(argument)
    assert message in str(caught.value)


def test_port_in_use_and_address() -> None:
    async def run() -> None:
        kernel = FakeKernel()
        kernel.loop = asyncio.get_running_loop()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            (frontend,) = register_frontends(kernel, options("--http-address=127.0.0.1", f"--http-port={port}"))
            with pytest.raises(OSError) as caught:
                await frontend.start()
        assert str(caught.value) == (
            f"failed to start HTTP service: Unavailable - Socket '127.0.0.1:{port}' already in use "
        )
        (frontend,) = register_frontends(kernel, options("--http-address=127.0.0.1", "--http-port=0"))
        await frontend.start()
        assert frontend.address.startswith("http://127.0.0.1:") and not frontend.address.endswith(":0")
        await frontend.drain()
        await frontend.stop()

    asyncio.run(run())


def test_statistics_of_responses() -> None:
    """Of backends that report them; `{}` for all others, the python backend among them."""
    times = {name: Duration(1, 2) for name in ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")}
    shown = statistics_of(ModelStatistics("m", 1, response_stats={"0": times, "1": {"cancel": Duration()}}))
    assert list(shown["response_stats"]) == ["0", "1"]
    assert shown["response_stats"]["0"] == {name: {"count": 1, "ns": 2} for name in times}
    assert shown["response_stats"]["1"] == {"cancel": {"count": 0, "ns": 0}}
