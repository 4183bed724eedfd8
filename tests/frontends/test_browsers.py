"""What a browser may be talked into: requests that pages of others send, and names that others point at this machine."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path

import pytest
from frontends.fakes import Client, Response, request
from frontends.keys import CLIENTS, write_keys
from frontends.test_auth_http import Gated, bearer
from frontends.test_local_only import CHANGES, SHOWS
from hypothesis import example, given
from hypothesis import strategies as some

from kernel import Document, Reader, ServingError, SiteRoute
from kernel.errors import Code
from kernel_dashboard.site import Dashboard
from kernel_http.connection.browsers import ANY, Browsers, read_host

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


@pytest.mark.parametrize("path", ["/", "/site/told", "/docs", "/openapi.json", "/v2/kernel/calls"])
def test_all_that_is_shown_to_browsers_asks_by_which_name(path: str) -> None:
    def ask(host: str, *names: str) -> Response:
        client = served(None, *names)
        client.kernel.observed_calls = list  # type: ignore[attr-defined]
        return client.ask(hosted(host, path))

    assert ask("localhost:8000").status == ask("models.example", "models.example").status == ask("any.example", ANY).status == 200
    refused = ask("evil.example")
    assert refused.status == 403 and "--http-allowed-host=evil.example" in refused.error


#: What looks like a host that is known, and is none.
FORGED = (
    "[::1]evil.com", "[::1]:80evil.com", "[::1", "::1", "[::1]]", "[localhost]", "[127.0.0.1]", "[::1%evil.com]",
    "localhost:evil", "localhost:80:80", "localhost:99999", "localhost:-1", "localhost..", ".localhost", "a..localhost",
    "localhost@evil.com", "evil.com@localhost", "localhost/", "localhost#", "localhost?", "localhost evil.com",
    "localhost,evil.com", "127.0.0.1.", "http://localhost", "localhost\t", "", ":80", "xn--\xe4.localhost", "\xb2.localhost",
)  # fmt: skip


@pytest.mark.parametrize("host", FORGED)
def test_a_host_is_read_strictly(host: str) -> None:
    found = read_host(host)
    assert found is None or (not found.is_address and found.name not in ("localhost", "::1")) or host == "127.0.0.1."
    if host.strip() == host and host.isascii() and found is None:
        answer = served().ask(hosted(host))
        assert answer.status == 403 and "no name of a host" in answer.error
        change = hosted("localhost", "/v2/logging", "POST", b"{}", f"Origin: http://{host}")
        assert served(None, "", control=True).ask(change).status == 403


LETTERS = some.sampled_from("a1-_.:[]%@/#?, \t\x00LOCALhost\xb2\u212a\u0131::ffff127.0.0.1")


@given(some.text(LETTERS, max_size=24) | some.text(max_size=12))
@example("[::1]evil.com")
def test_what_is_read_of_a_host_is_all_of_it(text: str) -> None:
    found = read_host(text)
    if found is None:
        return
    name = f"[{found.name}]" if ":" in found.name else found.name
    whole = {f"{name}{dot}{colon}{found.port}" for dot in ("", ".") for colon in (":", "") if colon or not found.port}
    assert text.lower() in whole and text.isascii()
    assert found.port == "" or int(found.port) <= 65535
    if found.is_address:
        ip_address(found.name)
    else:
        assert not set(found.name) & set("[]:%@/?#, ") and all(found.name.split("."))


@given(some.ip_addresses(), some.none() | some.integers(0, 65535))
def test_each_address_is_read(address: object, port: int | None) -> None:
    name = f"[{address}]" if ":" in str(address) else str(address)
    if "%" in name:
        return  # of an interface, which is nobody's business
    found = read_host(name if port is None else f"{name}:{port}")
    assert found == (str(address), "" if port is None else str(port), True)


def test_the_way_to_the_docs_may_end_in_a_slash() -> None:
    answer = served().ask(hosted("localhost", "/docs/"))
    assert answer.status == 301 and answer.headers["Location"] == "../docs"
    assert served().ask(hosted("evil.example", "/docs/")).status == 403


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


def test_events_end_when_their_key_is_taken_away(tmp_path: Path) -> None:
    site = Site()
    gated = Gated(tmp_path / "keys.toml", sites=[site], browsers=Browsers(control=True))
    loop = gated.kernel.loop
    gated.client.send(hosted("localhost", "/site/events", "GET", b"", bearer("slow")))
    (reader,) = site.readers
    for _ in range(5):
        loop.advance(1.0)
        reader.send(b"data: 2\n\n")  # is counted as no request
    assert not reader.is_gone and gated.client.take().count(b"data: ") == 6
    write_keys(gated.file, clients={name: more for name, more in CLIENTS.items() if name != "slow"})
    loop.advance(1.0)
    reader.send(b"data: 3\n\n")  # whoever asks makes it look at the file
    while loop.jobs:  # it is read on another thread
        loop.run_jobs()
    gated.client.take()
    reader.send(b"data: 4\n\n")
    reader.send(b"data: 5\n\n")
    assert reader.is_gone and gated.client.take() == b"0\r\n\r\n"
    refused = gated.client.ask(hosted("localhost", "/site/events", "GET", b"", bearer("slow")))
    assert refused.status == 401 and len(site.readers) == 1
    others = gated.another()
    others.send(hosted("localhost", "/site/events", "GET", b"", bearer("all")))
    loop.advance(1.0)
    site.readers[1].send(b"data: 6\n\n")
    assert not site.readers[1].is_gone


@pytest.mark.parametrize(
    "path",
    ["/dashboard/events", "/dashboard/inflight", "/dashboard/slowest", "/dashboard/failed", "/dashboard/graph",
     "/dashboard/model/multi", "/dashboard/model/batch8", "/openapi.json", "/docs", "/v2/kernel/calls"],
)  # fmt: skip
def test_what_the_page_asks_for_wants_a_key_for_all_models(path: str, tmp_path: Path) -> None:
    site = Site()
    site.routes = Dashboard.routes  # type: ignore[assignment, misc]
    gated = Gated(tmp_path / "keys.toml", sites=[site])
    gated.kernel.observed_calls = list  # type: ignore[attr-defined]
    ask = gated.client.ask
    for file in ("/", "/dashboard/app.js"):  # tell nothing of the server
        assert ask(hosted("localhost", file)).status == 200
    assert ask(hosted("localhost", path)).status == ask(hosted("localhost", path, "GET", b"", bearer("nobody"))).status == 401
    assert ask(hosted("localhost", path, "GET", b"", bearer("some"))).status == 403  # it may use some models
    assert ask(hosted("localhost", path, "GET", b"", "Cookie: key=key-all")).status == 401
    assert ask(hosted("localhost", f"{path}?key=key-all")).status == 401
    gated.client.send(hosted("localhost", path, "GET", b"", bearer("all")))
    assert b"HTTP/1.1 40" not in gated.client.take() and not site.readers[1:]


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
