"""What a browser may be talked into: requests that pages of others send, and names that others point at this machine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from frontends.fakes import Client, request
from frontends.test_auth_http import Gated, bearer
from frontends.test_local_only import CHANGES, SHOWS

from kernel import Document, Reader, ServingError, SiteRoute
from kernel.errors import Code
from kernel_http.connection.browsers import ANY, Browsers

ME = socket.gethostname()
CHANGING = [row[:3] for row in CHANGES if row[0] == "POST" and not row[1].endswith("/load")]


class Site:
    """A site of four paths."""

    controls = False
    routes = (
        SiteRoute("/", ""),
        SiteRoute("/site/told", "statistics"),
        SiteRoute("/site/everybody", "statistics", of_all_clients=True),
        SiteRoute("/site/events", "statistics", follows=True),
    )

    def __init__(self) -> None:
        self.readers: list[Reader] = []
        self.full = False

    def document(self, path: str) -> Document:
        if path == "/site/everybody":
            raise ServingError(Code.NOT_FOUND, "nobody")
        return Document(b"hello", "text/plain", (("X-Own", "1"),), b"packed")

    def follow(self, path: str, reader: Reader) -> None:
        if self.full:
            raise ServingError(Code.UNAVAILABLE, "too many")
        self.readers.append(reader)
        reader.send(b"data: 1\n\n")

    def close(self) -> None:
        for reader in self.readers:
            reader.end()


def served(site: Site | None = None, *names: str, control: bool = False, **options: object) -> Client:
    return Client(sites=[site or Site()], browsers=Browsers(names, control=control), **options)


def hosted(host: str, path: str = "/", method: str = "GET", body: bytes = b"", *headers: str) -> bytes:
    return request(method, path, body, *headers).replace(b"Host: test", b"Host: " + host.encode())


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "LOCALHOST", "a.localhost", "127.0.0.1:8000", "10.1.2.3", "[::1]:8000", "", ":80"]
)
def test_names_that_nobody_else_can_point_here(host: str) -> None:
    name = host if host[:1].isalnum() or host.startswith("[") else f"{ME}{host}"  # no test has a machine's name in its own
    assert served().ask(hosted(name)).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "-"])
def test_other_names_are_refused_until_they_are_named(host: str) -> None:
    answer = served().ask(hosted(host))
    assert answer.status == 403 and "--http-allowed-host=" in answer.error
    assert served(None, host.partition(":")[0].upper()).ask(hosted(host)).status == 200
    assert served(None, ANY).ask(hosted(host)).status == 200


def test_who_is_no_browser_is_not_asked_for_his_name() -> None:
    for method, path in SHOWS:
        assert served().ask(hosted("whatever.example", path, method)).status == 200


@pytest.mark.parametrize(("method", "path", "body"), CHANGING)
def test_changes_by_browsers(method: str, path: str, body: bytes) -> None:
    def status(origin: str, host: str = "localhost:8000", *names: str, control: bool = True) -> int:
        headers = [f"Origin: {origin}"] if origin else []
        return served(None, *names, control=control).ask(hosted(host, path, method, body, *headers)).status

    plain = status("")
    assert plain != 403  # clients that are no browsers
    assert status("http://localhost:8000") == plain
    assert status("http://localhost:8000", control=False) == 403
    assert {status(one) for one in ("http://evil.example", "null", "http://localhost:9000", "https://localhost")} == {403}
    assert status("http://127.0.0.1", "127.0.0.1:80") == status("https://[::1]", "[::1]:443") == plain
    assert status("http://evil.example", "evil.example") == 403  # a name that its owner has pointed at this machine
    assert status("https://models.example", "upstream:8000", "models.example") == plain
    assert status("https://models.example", "models.example", "models.example") == plain


def test_what_a_site_gives() -> None:
    client = served()
    answer = client.ask(hosted("localhost"))
    assert (answer.body, answer.headers["Content-Type"], answer.headers["X-Own"]) == (b"hello", "text/plain", "1")
    assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Cache-Control"] == "no-store"
    packed = client.ask(hosted("localhost", "/", "GET", b"", "Accept-Encoding: gzip"))
    assert packed.body == b"packed" and packed.headers["Content-Encoding"] == "gzip"
    assert client.ask(hosted("localhost", "/", "POST")).status == 405
    missing = client.ask(hosted("localhost", "/site/everybody"))
    assert missing.status == 404 and missing.error == "nobody"
    assert client.ask(hosted("localhost", "/site/nothing")).status == 404


def test_a_site_is_restricted_as_its_category_is() -> None:
    client = served(restrictions={"statistics": ("admin-key", "secret")})
    assert client.ask(hosted("localhost")).status == 200
    assert client.ask(hosted("localhost", "/site/told")).status == 403
    assert client.ask(hosted("localhost", "/site/told", "GET", b"", "admin-key: secret")).status == 200


def test_what_tells_of_all_clients_is_for_this_machine_where_that_is_asked_for() -> None:
    client = served(local={"inflight"})
    client.transport.extra["peername"] = ("10.0.0.7", 5)
    assert client.ask(hosted("localhost", "/site/everybody")).status == 403
    assert client.ask(hosted("localhost", "/site/told")).status == 200


def test_keys_are_asked_for_what_tells_something(tmp_path: Path) -> None:
    site = Site()
    gated = Gated(tmp_path / "keys.toml", sites=[site], browsers=Browsers(control=True))
    ask = gated.client.ask
    assert ask(hosted("localhost")).status == 200
    assert ask(hosted("localhost", "/", "GET", b"ignored")).status == 200  # a body, before which a door is asked elsewhere
    assert ask(hosted("localhost", "/site/told")).status == ask(hosted("localhost", "/site/events")).status == 401
    assert not site.readers
    assert ask(hosted("localhost", "/site/told", "GET", b"", bearer("all"))).status == 200
    assert ask(hosted("localhost", "/site/told", "GET", b"", bearer("some"))).status == 403
    assert ask(hosted("evil.example", "/site/told", "GET", b"", bearer("all"))).status == 403
    gated.client.send(hosted("localhost", "/site/events", "GET", b"", bearer("all")))
    assert len(site.readers) == 1
    changed = hosted("localhost", "/v2/logging", "POST", b"{}", bearer("all"), "Origin: http://evil.example")
    assert gated.another().ask(changed).status == 403


def test_events() -> None:
    site = Site()
    client = served(site)
    client.send(hosted("localhost", "/site/events"))
    begun = client.take()
    assert begun.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream") and b"data: 1\n\n" in begun
    (reader,) = site.readers
    reader.send(b"data: 2\n\n")
    client.server.outbox.flush()
    assert b"data: 2\n\n" in client.take() and not reader.is_gone
    site.close()
    client.server.outbox.flush()
    assert client.take().endswith(b"0\r\n\r\n") and reader.is_gone
    reader.send(b"data: 3\n\n")  # says nothing
    assert client.ask(hosted("localhost")).status == 200  # the connection goes on
    client.send(hosted("localhost", "/site/events"))
    client.lose()
    assert site.readers[1].is_gone
    site.readers[1].end()


def test_too_many_followers() -> None:
    site = Site()
    site.full = True
    answer = served(site).ask(hosted("localhost", "/site/events"))
    assert answer.status == 503 and answer.error == "too many"
