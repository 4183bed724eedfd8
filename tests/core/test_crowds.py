"""How many connections there may be: of all, of one address, and of what descriptors there are; who is idle."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from kernel import Access, Crowd, idle_seconds


class Transport:
    def __init__(self, address: Any = ("10.0.0.1", 1), fd: int = 10, idle: float = 0.0) -> None:
        info = struct.pack("=8x11I", *[0] * 11) + struct.pack("=I", int(idle * 1000)) + bytes(48)
        self._extra = {"peername": address, "socket": SimpleNamespace(fileno=lambda: fd, getsockopt=lambda *_: info)}

    def get_extra_info(self, name: str) -> Any:
        return self._extra[name]


def entered(crowd: Crowd, count: int, **options: Any) -> list[Access]:
    return [crowd.enter(object(), Transport(**options)) for _ in range(count)]


def test_without_limits_all_are_served() -> None:
    assert set(entered(Crowd(), 5000)) == {Access.SERVED}


def test_above_the_limit_of_all_some_may_ask_for_health_and_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    crowd = Crowd(most=3, now=lambda: now[0])
    entries = entered(crowd, 25)
    assert entries == [Access.SERVED] * 3 + [Access.PROBES] * 16 + [Access.REFUSED] * 6
    assert caplog.messages == ["there are 3 connections, as many as --max-connections allows; others may ask for health alone"]
    now[0] = 61.0
    entered(crowd, 1)
    assert len(caplog.messages) == 2


def test_one_that_goes_makes_room() -> None:
    crowd = Crowd(most=1)
    first = object()
    assert crowd.enter(first, Transport()) is Access.SERVED
    crowd.leave(first)
    crowd.leave(first)
    assert len(crowd) == 0
    assert entered(crowd, 1) == [Access.SERVED]


def test_above_the_limit_of_an_address_its_connections_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    crowd = Crowd(most_of_one=2)
    assert entered(crowd, 3) == [Access.SERVED, Access.SERVED, Access.REFUSED]
    assert entered(crowd, 1, address=("10.0.0.2", 1)) == [Access.SERVED]
    assert entered(crowd, 3, address="") == [Access.SERVED] * 3  # of a Unix-domain socket
    assert "10.0.0.1 has 2 connections, as many as --max-connections-per-address allows" in caplog.text


def test_descriptors_are_kept_back_and_the_log_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    crowd = Crowd(files=1024)
    assert entered(crowd, 1, fd=991) == [Access.SERVED]
    assert entered(crowd, 1, fd=992) == [Access.PROBES]
    assert entered(crowd, 1, fd=1016) == [Access.REFUSED]
    (message,) = caplog.messages
    assert message.startswith("nearly all of the 1024 files that this process may have open are taken (1 connections of clients)")
    assert "Raise the limit (ulimit -n, LimitNOFILE= of systemd)" in message


def test_how_long_a_connection_has_been_idle() -> None:
    assert idle_seconds(Transport(idle=12.5)) == 12.5
    assert idle_seconds(SimpleNamespace(get_extra_info=lambda name: None)) == 0.0

    def refused(*_: object) -> bytes:
        raise OSError

    assert idle_seconds(SimpleNamespace(get_extra_info=lambda name: SimpleNamespace(getsockopt=refused))) == 0.0
