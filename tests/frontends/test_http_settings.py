"""Trace and logging settings over HTTP (http_protocol 9 and 10)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from frontends.fakes import Client, request

TRACE = "/v2/trace/setting"
MULTI = "/v2/models/multi/trace/setting"
LOG = "/v2/logging"
EMPTY = "failed to parse the request JSON buffer: The document is empty. at 0"
NON_STRING = "attempt to access JSON non-string as string"
NON_BOOL = "attempt to access JSON non-boolean as boolean"
NON_UINT = "attempt to access JSON non-unsigned-integer as unsigned-integer"

TRACE_DEFAULT = (
    b'{"trace_level":["OFF"],"trace_rate":"1000","trace_count":"-1","log_frequency":"0","trace_file":"","trace_mode":"triton"}'
)
LOG_DEFAULT = (
    b'{"log_file":"","log_info":true,"log_warning":true,"log_error":true,"log_verbose_level":0,"log_format":"default"}'
)


@pytest.fixture
def client() -> Client:
    return Client()


def post(client: Client, path: str, body: Any) -> Any:
    """Send settings and return the answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.ask(request("POST", path, data))
    assert response.names == ["Content-Type", "Content-Length"]
    assert response.headers["Content-Type"] == "application/json"
    return response


# --- trace


def test_trace_settings_are_shown(client: Client) -> None:
    for path in (TRACE, MULTI):
        response = client.ask(request("GET", path))
        assert (response.status, response.body) == (200, TRACE_DEFAULT)
        for nothing in (b"{}", b"[]", b"5", {"trace_level": ["OFF"]}, {"trace_level": []}, {"trace_level": ["X"]}):
            assert post(client, path, nothing).body == TRACE_DEFAULT


def test_trace_settings_of_all_and_of_one(client: Client) -> None:
    shown = post(client, MULTI, {"trace_rate": "77", "trace_count": "3"})
    assert (shown.status, shown.json["trace_rate"], shown.json["trace_count"]) == (200, "77", "3")
    assert client.ask(request("GET", TRACE)).body == TRACE_DEFAULT
    assert post(client, TRACE, {"trace_rate": "55", "log_frequency": "9"}).json["log_frequency"] == "9"
    assert client.ask(request("GET", MULTI)).json["trace_rate"] == "77"
    assert post(client, MULTI, {"trace_rate": None}).json["trace_rate"] == "55"
    assert client.ask(request("GET", "/v2/models/types/trace/setting")).json["trace_rate"] == "55"
    assert post(client, TRACE, {"trace_rate": None, "log_frequency": None}).body == TRACE_DEFAULT


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, EMPTY),
        (b"{", 400, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        ({"trace_level": "OFF"}, 400, "Unable to parse 'trace_level': attempt to access JSON non-array as array"),
        ({"trace_level": [5]}, 400, f"Unable to parse 'trace_level': {NON_STRING}"),
        ({"trace_level": ["OFF", "X"]}, 400, "Expect only one trace level 'OFF' is specified"),
        (
            {"trace_level": ["TIMESTAMPS"]},
            400,
            "Attempting to set invalid trace setting :trace file name is not given",
        ),
        ({"trace_rate": 5}, 400, f"Unable to parse 'trace_rate': {NON_STRING}"),
        ({"trace_rate": ["5"]}, 400, f"Unable to parse 'trace_rate': {NON_STRING}"),
        ({"trace_rate": "x"}, 400, "Unable to parse 'trace_rate', got: x"),
        ({"trace_count": "-2"}, 400, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        ({"log_frequency": "x"}, 400, "Unable to parse 'log_frequency', got: x"),
        ({"trace_file": "f"}, 501, "trace file location can not be updated through network protocol"),
        ({"trace_file": None}, 501, "trace file location can not be updated through network protocol"),
        (
            {"nope": {"any": 1}},
            400,
            "there is no trace setting 'nope' that can be updated; there are trace_level, trace_rate, trace_count, log_frequency",
        ),
        (
            {"trace_mode": "opentelemetry"},
            400,
            "there is no trace setting 'trace_mode' that can be updated; there are trace_level, trace_rate, trace_count, "
            "log_frequency",
        ),
    ],
)
def test_trace_settings_refused(client: Client, body: Any, status: int, message: str) -> None:
    if isinstance(body, dict):
        body = {"trace_count": "7", **body}
    for path in (TRACE, MULTI):
        response = post(client, path, body)
        assert (response.status, response.error) == (status, message)
        assert client.ask(request("GET", path)).body == TRACE_DEFAULT


def test_trace_settings_of_unknown_models(client: Client) -> None:
    path = "/v2/models/nope/trace/setting"
    for response in (client.ask(request("GET", path)), post(client, path, b""), post(client, path, {"trace_rate": "5"})):
        assert (response.status, response.error) == (400, "Request for unknown model : nope")


# --- logging


def test_log_settings(client: Client) -> None:
    assert client.ask(request("GET", LOG)).body == LOG_DEFAULT
    for nothing in (b"{}", b"[]", b"5", {"nope": 1}, {"log_file": None, "log_info": None, "log_format": None}):
        assert post(client, LOG, nothing).body == LOG_DEFAULT
    changed = {"log_info": False, "log_warning": False, "log_error": False, "log_verbose_level": 7, "log_format": "ISO8601"}
    assert post(client, LOG, changed).body.decode() == json.dumps({"log_file": "", **changed}, separators=(",", ":"))
    options = client.kernel.log_settings.options
    assert (options.info, options.warning, options.error, options.verbose, options.format) == (
        False, False, False, 7, "ISO8601")  # fmt: skip
    assert client.ask(request("GET", LOG)).json["log_verbose_level"] == 7


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, EMPTY),
        ({"log_info": 1}, 400, f"Unable to parse 'log_info': {NON_BOOL}"),
        ({"log_warning": "false"}, 400, f"Unable to parse 'log_warning': {NON_BOOL}"),
        ({"log_error": []}, 400, f"Unable to parse 'log_error': {NON_BOOL}"),
        ({"log_verbose_level": True}, 400, f"Unable to parse 'log_verbose_level': {NON_UINT}"),
        ({"log_verbose_level": -1}, 400, f"Unable to parse 'log_verbose_level': {NON_UINT}"),
        ({"log_verbose_level": 1.5}, 400, f"Unable to parse 'log_verbose_level': {NON_UINT}"),
        ({"log_format": 5}, 400, f"Unable to parse 'log_format': {NON_STRING}"),
        ({"log_format": "x"}, 503, "invalid argument for --log_format, got: x"),
        ({"log_file": "x"}, 501, "log file location can not be updated through network protocol"),
        ({"log_file": 5}, 501, "log file location can not be updated through network protocol"),
    ],
)
def test_log_settings_refused(client: Client, body: Any, status: int, message: str) -> None:
    if isinstance(body, dict):
        body = {"log_info": False, "log_warning": False, **body}
    response = post(client, LOG, body)
    assert (response.status, response.error) == (status, message)
    assert client.ask(request("GET", LOG)).body == LOG_DEFAULT


@pytest.mark.parametrize("path", [TRACE, MULTI, LOG])
def test_methods_and_paths(client: Client, path: str) -> None:
    response = client.ask(request("PUT", path))
    assert (response.status, response.error) == (405, "Method Not Allowed")
    assert response.headers["Content-Type"] == "application/json"
    assert client.ask(request("GET", f"{path}/")).status == 404
    assert client.ask(request("GET", "/v2/models/multi/versions/1/trace/setting")).status == 404
