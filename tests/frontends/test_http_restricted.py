"""Restricted APIs over HTTP: a header that a category of requests must have (http_protocol 2)."""

from __future__ import annotations

import argparse

import pytest
from frontends.fakes import Client, infer, parse, request, tensor

from kernel.frontends.restriction import CATEGORIES
from kernel_http import add_options
from kernel_http.connection.routes import ROUTES
from kernel_http.frontend import HttpFrontend

#: One path of each category.
PATHS = {
    "health": ("GET", "/v2/health/live"),
    "metadata": ("GET", "/v2"),
    "inference": ("POST", "/v2/models/multi/infer"),
    "shared-memory": ("GET", "/v2/systemsharedmemory/status"),
    "model-config": ("GET", "/v2/models/multi/config"),
    "model-repository": ("POST", "/v2/repository/index"),
    "statistics": ("GET", "/v2/models/stats"),
    "trace": ("GET", "/v2/trace/setting"),
    "logging": ("GET", "/v2/logging"),
}

EVERY_PATH = """
    live health /v2/health/live
    ready health /v2/health/ready
    model_ready health /v2/models/m/versions/1/ready
    server_metadata metadata /v2
    model_metadata metadata /v2/models/m
    model_config model-config /v2/models/m/config
    statistics statistics /v2/models/m/stats
    openapi metadata /openapi.json
    docs metadata /docs
    inflight statistics /v2/inflight
    scale statistics /v2/kernel/scale
    calls statistics /v2/kernel/calls
    explain statistics /v2/kernel/explain/id/a
    infer inference /v2/models/m/infer
    generate inference /v2/models/m/generate
    generate_stream inference /v2/models/m/generate_stream
    index model-repository /v2/repository/r/index
    load model-repository /v2/repository/models/m/load
    unload model-repository /v2/repository/r/models/m/unload
    replace_replicas model-repository /v2/kernel/replicas/reload
    system_status shared-memory /v2/systemsharedmemory/region/r/status
    system_register shared-memory /v2/systemsharedmemory/region/r/register
    system_unregister shared-memory /v2/systemsharedmemory/unregister
    cuda_status shared-memory /v2/cudasharedmemory/status
    cuda_register shared-memory /v2/cudasharedmemory/region/r/register
    cuda_unregister shared-memory /v2/cudasharedmemory/unregister
    trace trace /v2/models/m/trace/setting
    logging logging /v2/logging
"""


def test_every_route_has_a_category() -> None:
    rows = [line.split() for line in EVERY_PATH.strip().splitlines()]
    assert {route.name for route in ROUTES} == {name for name, _, _ in rows}
    assert {route.category for route in ROUTES} == set(CATEGORIES) == set(PATHS)
    for name, category, path in rows:
        client = Client(restrictions={category: ("the-key", "secret")})
        for method in ("GET", "POST", "PUT"):  # it comes before the method is looked at
            response = client.ask(request(method, path))
            assert (response.line, name) == (b"HTTP/1.1 403 Forbidden", name)
            assert response.error == "This API is restricted, expecting header 'the-key'"
            assert response.names == ["Content-Length", "Content-Type"]
            assert response.headers["Content-Type"] == "text/plain"


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_others_are_open(category: str) -> None:
    client = Client(restrictions={category: ("k", "v")})
    for other, (method, path) in PATHS.items():
        assert (client.ask(request(method, path)).status == 403) == (other == category)
    assert client.ask(request("GET", "/nothing")).status == 404


def test_the_header() -> None:
    client = Client(restrictions={"health": ("Admin-Key", "s3cret=é")})

    def status(*headers: str) -> int:
        return client.ask(request("GET", "/v2/health/live", b"", *headers)).status

    assert status("Admin-Key: s3cret=é") == status("admin-KEY:   s3cret=é  ") == 200
    for header in ("Admin-Key: S3cret=é", "Admin-Key: s3cret", "Admin-Key:", "Other: s3cret=é"):
        assert status(header) == 403
    assert status("Admin-Key: no", "Admin-Key: s3cret=é") == 403
    assert status("Admin-Key: s3cret=é", "Admin-Key: no") == 200


def test_a_refused_body_is_not_kept_and_the_connection_lives_on() -> None:
    client = Client(restrictions={"inference": ("k", "v")})
    body = {"inputs": [tensor("X", "FP32", [2], [1, 2])]}
    client.send(infer("multi", body) + infer("multi", body, "k: v") + infer("multi", body))
    assert [response.status for response in parse(client.take())] == [403, 200, 403]
    assert len(client.kernel.requests) == 1


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser)
    return parser.parse_args(arguments)


def test_the_flag() -> None:
    assert options().http_restricted_api == {}
    given = options("--http-restricted-api=health,trace:a=b", "--http-restricted-api", "logging:c=d")
    assert given.http_restricted_api == {"health": ("a", "b"), "trace": ("a", "b"), "logging": ("c", "d")}
    assert options().http_restricted_api == {}
    client = Client(server=HttpFrontend(Client().kernel, given).server)
    assert client.ask(request("GET", "/v2/logging")).error == "This API is restricted, expecting header 'c'"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["health"], "Got health — --http-restricted-api 'health' is not of the form <category>[,<category>...]:<key>=<value>"),
        (["nope:a=b"], "unknown restricted api 'nope' — --http-restricted-api 'nope:a=b': there is no category 'nope'; "),
        (["nope:a=b"], f"; there are {', '.join(CATEGORIES)}"),
        (["health:a=b", "health:c=d"], "restricted api 'health' can not be specified in multiple config groups — --http"),
    ],
)
def test_bad_flags(values: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(*(f"--http-restricted-api={value}" for value in values))
    assert message in capsys.readouterr().err
