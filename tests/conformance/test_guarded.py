"""Restricted categories, and headers that go to the model (BC58), on both wires: the guarded front ends beside the open ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import grpc
import pytest

from .admin import admin_of
from .asks import Answered, Ask, Refused, Tensor
from .http_wire import HttpWire

#: Category -> operations of admin.py that belong to it, with their arguments; and the key that opens it.
CATEGORIES: dict[str, tuple[str, dict[str, tuple[Any, ...]]]] = {
    "health": ("admin", {"live": (), "ready": (), "model_ready": ("echo",)}),
    "model-repository": ("admin", {"index": (), "load": ("echo",), "unload": ("nope",)}),
    "statistics": ("other", {"statistics": ("echo",)}),
    "trace": ("other", {"trace": ()}),
    "logging": ("other", {"log": ()}),
    "shared-memory": (
        "other",
        {
            "regions": (),
            "unregister": ("r",),
            "register": ("r", "/conformance_nothing", 8),
            "cuda_regions": (),
            "cuda_unregister": ("r",),
            "cuda_register": ("r", bytes(64), 0, 8),
        },
    ),
}
VALUES = {"admin": "secret", "other": "x"}

operations = pytest.mark.parametrize(
    ("key", "operation", "arguments"),
    [(key, name, arguments) for key, rows in CATEGORIES.values() for name, arguments in rows.items()],
    ids=[f"{category} {name}" for category, (_, rows) in CATEGORIES.items() for name in rows],
)


def header(wire: Any, key: str, value: str | None = None) -> dict[str, str]:
    name = key if isinstance(wire, HttpWire) else f"triton-grpc-protocol-{key}"
    return {name: VALUES[key] if value is None else value}


def closed(answer: Any, wire: Any, key: str) -> bool:
    """Whether that is the answer of what is restricted."""
    if isinstance(wire, HttpWire):
        return answer == Refused("403", f"This API is restricted, expecting header '{key}'")
    return answer == Refused(
        "UNAVAILABLE", f"This protocol is restricted, expecting header 'triton-grpc-protocol-{key}'"
    )


@operations
def test_restricted(key: str, operation: str, arguments: tuple[Any, ...], guarded: Any) -> None:
    other = next(name for name in VALUES if name != key)
    wrong: list[Mapping[str, str]] = [
        {},
        header(guarded, key, "wrong"),
        header(guarded, key, VALUES[key].upper()),
        header(guarded, key, ""),
        header(guarded, other),
    ]
    for headers in wrong:
        assert closed(getattr(admin_of(guarded, headers), operation)(*arguments), guarded, key), headers


@operations
def test_opened(key: str, operation: str, arguments: tuple[Any, ...], guarded: Any) -> None:
    answer = getattr(admin_of(guarded, header(guarded, key)), operation)(*arguments)
    assert not closed(answer, guarded, key)


def test_what_is_not_restricted_is_open(guarded: Any) -> None:
    admin = admin_of(guarded)
    for answer in (admin.server(), admin.metadata("echo"), admin.config("echo")):
        assert not isinstance(answer, Refused)
    assert isinstance(guarded.infer(Ask("echo", (Tensor("X", "FP32", (2,), (1.0, 2.0)),))), Answered)


def test_the_open_front_ends_have_no_restrictions(wire: Any) -> None:
    for _, rows in CATEGORIES.values():
        for name, arguments in rows.items():
            answer = getattr(admin_of(wire), name)(*arguments)
            assert not isinstance(answer, Refused) or "restricted" not in answer.message


def test_a_method_is_wrong_only_where_the_path_is_open(guarded: Any) -> None:
    """A restricted path doesn't tell which methods it has."""
    if isinstance(guarded, HttpWire):
        assert guarded.request("POST", "/v2/health/live").status == 403
        assert guarded.request("POST", "/v2/health/live", None, header(guarded, "admin")).status == 405


def test_the_health_service_is_of_category_health(guarded: Any) -> None:
    if isinstance(guarded, HttpWire):
        return
    check = guarded.channel.unary_unary("/grpc.health.v1.Health/Check")
    with pytest.raises(grpc.RpcError) as caught:
        check(b"", timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
    assert check(b"", timeout=5, metadata=tuple(header(guarded, "admin").items())) == b"\x08\x01"


# --- BC58


def tells(headers: Mapping[str, str], wire: Any, **parameters: Any) -> Any:
    ask = Ask("tells", (Tensor("X", "FP32", (2,), (1.0, 2.0)),), parameters=parameters)
    answer = wire.infer(ask, headers)
    assert isinstance(answer, Answered), answer
    (told,) = answer.outputs[0].values or ()
    return json.loads(told)


def test_headers_reach_the_model(guarded: Any) -> None:
    """Each request has its own, however alike they are otherwise."""
    for user in ("me", "me", "you"):
        assert tells({"x-user": user, "other": "no", "not-x-": "no"}, guarded) == {"x-user": user}
        assert tells({"x-user": user}, guarded, a=1, b="z") == {"x-user": user, "a": 1, "b": "z"}
        assert tells({}, guarded) == {}


def test_a_header_wins_over_a_parameter(guarded: Any) -> None:
    assert tells({"x-user": "me"}, guarded, **{"x-user": "you"}) == {"x-user": "me"}


def test_headers_without_a_pattern_do_not(wire: Any) -> None:
    for _ in range(2):
        assert tells({"x-user": "me"}, wire, a=1) == {"a": 1}


def test_metadata_of_a_stream_reach_the_model(guarded: Any) -> None:
    if isinstance(guarded, HttpWire):
        return  # only inference forwards, not generate
    message = guarded.message(Ask("tells", (Tensor("X", "FP32", (2,), (1.0, 2.0)),))).SerializeToString()
    call = guarded.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    answers = list(call(iter([message, message]), metadata=(("x-user", "me"), ("other", "no")), timeout=5))
    assert len(answers) == 2 and all(b'{"x-user": "me"}' in answer for answer in answers)
