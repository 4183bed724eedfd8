"""The ASGI application: scopes and messages in, messages out. Routes, prefixes, bodies, start and stop."""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import virtual
from frontends.asgi_server import Exchange, app_of, ask, turns
from frontends.fakes import FakeKernel, add_sub, binary, infer, request, tensor

from kernel import Code, Kernel, MemoryBudget, ServingError
from kernel_http.asgi import connection as asgi_connection
from kernel_http.asgi.app import NOT_STARTED, OTHER_LOOP, KernelApp
from kernel_http.asgi.request import path_of
from kernel_http.connection.bodies import BodyMemory
from kernel_http.connection.server import READ_SIZE

LIVE = request("GET", "/v2/health/live")
ONE = {"inputs": [tensor("IN_INT32", "INT32", [1], [1])]}
ONE_BACK = (
    b'{"model_name":"types","model_version":"1",'
    b'"outputs":[{"name":"OUT_INT32","datatype":"INT32","shape":[1],"data":[1]}]}'
)


def answer(data: bytes, *, kernel: FakeKernel | None = None, options: Any = None, **more: Any) -> Exchange:
    """Return the exchange of one request with an application of its own."""

    async def main() -> Exchange:
        app, _ = app_of(kernel, **(options or {}))
        return await ask(app, data, **more)

    return virtual.run(main())


# --- each kind of handler


def test_what_is_answered_at_once() -> None:
    got = answer(LIVE)
    assert (got.status, got.headers, got.body) == (200, {"content-length": "0", "content-type": "text/plain"}, b"")
    assert [message["type"] for message in got.sent] == ["http.response.start", "http.response.body"]
    assert got.received == 1, "nobody listens for the end of a client that has its answer"


def test_infer_json() -> None:
    got = answer(infer("types", ONE))
    assert (got.status, got.headers["content-type"], got.body) == (200, "application/json", ONE_BACK)


def test_infer_binary() -> None:
    """Twice, since what was seen before goes another way."""

    async def main() -> None:
        app, kernel = app_of()
        for k in range(3):
            got = await ask(app, add_sub([1, 2, 3, k], [1, 1, 1, 1]))
            length = int(got.headers["inference-header-content-length"])
            assert got.headers["content-type"] == "application/octet-stream"
            assert json.loads(got.body[:length])["model_name"] == "add_sub"
            assert np.frombuffer(got.body[length:], np.float32).tolist() == [2, 3, 4, k + 1, 0, 1, 2, k - 1]
        arrays = [request.inputs["INPUT0"].array for request in kernel.requests]
        assert all(array.flags.writeable for array in arrays)
        assert not np.shares_memory(*arrays[:2])

    virtual.run(main())


def test_raw_binary() -> None:
    got = answer(infer("multi", np.array([1, 2], np.float32).tobytes(), "Inference-Header-Content-Length: 0"))
    assert got.body.endswith(np.array([1, 2], np.float32).tobytes())


def test_compression_both_ways() -> None:
    body = zlib.compress(json.dumps(ONE).encode())
    got = answer(infer("types", body, "Content-Encoding: deflate", "Accept-Encoding: gzip"))
    assert got.headers["content-encoding"] == "gzip" and zlib.decompress(got.body, 31) == ONE_BACK


def test_generate_has_a_length() -> None:
    """Where the wire has a chunked body, the server decides."""
    got = answer(request("POST", "/v2/models/multi/generate", b'{"X":[1,2]}'))
    assert got.body == b'{"Y":[1.0,2.0],"model_name":"multi","model_version":"3"}'
    assert got.headers == {"content-type": "application/json", "content-length": str(len(got.body))}


def test_load_takes_its_time() -> None:
    kernel = FakeKernel()
    body = json.dumps({"parameters": {"config": "{}"}}).encode()
    got = answer(request("POST", "/v2/repository/models/m/load", body), kernel=kernel)
    assert (got.status, got.body) == (200, b"") and kernel.calls == [("load", "m", "{}", None)]
    kernel.load_error = ServingError(Code.INTERNAL, "no")
    assert answer(request("POST", "/v2/repository/models/m/load"), kernel=kernel).error == "no"


@pytest.mark.parametrize(
    ("data", "status", "error"),
    [
        (request("GET", "/v2/nothing"), 404, "Not Found"),
        (request("POST", "/v2/nothing", b"abc"), 404, "Not Found"),
        (request("POST", "/v2"), 405, "Method Not Allowed"),
        (request("HEAD", "/v2/health/live"), 405, "Method Not Allowed"),
        (request("OPTIONS", "/v2/models/types/infer"), 405, "Method Not Allowed"),
        (infer("types", b"{"), 400, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        (infer("nope", ONE), 404, "Request for unknown model: 'nope' is not found"),
        (infer("gen", ONE), 501, "HTTP end point doesn't support models with decoupled transaction policy"),
        (request("GET", "/v2", b"", "Transfer-Encoding: br"), 501, "Transfer-Encoding is not supported, except for 'chunked'"),
    ],
)
def test_refusals(data: bytes, status: int, error: str) -> None:
    got = answer(data)
    assert (got.status, got.error) == (status, error)


def test_a_body_in_pieces_counts_whatever_its_length_was_said_to_be() -> None:
    body = json.dumps(ONE).encode()
    head = f"POST /v2/models/types/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n{len(body):x}\r\n"
    assert answer(head.encode() + body + b"\r\n0\r\n\r\n").status == 200


def test_a_query_is_ignored() -> None:
    assert answer(request("GET", "/v2/health/live?x=1")).status == 200


def test_forwarded_headers() -> None:
    kernel = FakeKernel()
    answer(infer("types", ONE, "X-User: me", "Other: no"), kernel=kernel, options={"header_forward_pattern": "x-.*"})
    assert kernel.requests[0].parameters == {"x-user": "me"}
    got = answer(infer("types", ONE, "Priority: 1"), options={"header_forward_pattern": "priority"})
    assert got.error == "Header 'priority' is reserved for Triton usage and cannot be forwarded."


def test_restricted_apis() -> None:
    for given in ("health,shared-memory:X-Key=secret", ["health:x-key=secret", "shared-memory:x-key=secret"]):
        options = {"restricted_api": given}
        for data in (LIVE, request("GET", "/v2/systemsharedmemory/status"), request("POST", "/v2/health/live")):
            got = answer(data, options=options)
            assert (got.status, got.error.lower()) == (403, "this api is restricted, expecting header 'x-key'")
        assert answer(request("GET", "/v2/health/live", b"", "x-key: wrong"), options=options).status == 403
        assert answer(request("GET", "/v2/health/live", b"", "X-KEY: secret"), options=options).status == 200
        assert answer(request("GET", "/v2"), options=options).status == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"restricted_api": "health"}, "restricted_api 'health' is not of the form"),
        ({"restricted_api": ["helth:a=b"]}, "restricted_api 'helth:a=b': there is no category 'helth'"),
        ({"header_forward_pattern": "("}, r"header_forward_pattern '\(' is not a regular expression: missing \)"),
    ],
)
def test_arguments_that_the_flags_do_not_take(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KernelApp(tmp_path, **options)


def test_settings_and_shared_memory() -> None:
    assert answer(request("GET", "/v2/logging")).json["log_verbose_level"] == 0
    assert answer(request("POST", "/v2/logging", b'{"log_verbose_level":2}')).json["log_verbose_level"] == 2
    assert answer(request("GET", "/v2/trace/setting")).json["trace_mode"] == "triton"
    assert answer(request("GET", "/v2/systemsharedmemory/status")).json == []
    got = answer(request("POST", "/v2/systemsharedmemory/region/r/register", b"{}"))
    assert (got.status, got.error) == (400, "Shared memory register request has no 'key' field")


def test_pairs_that_are_lists() -> None:
    """The specification only speaks of iterables of two byte strings."""
    headers = [["content-length", "0"], ["x", "y"]]
    assert answer(LIVE, headers=[[name.encode(), value.encode()] for name, value in headers]).status == 200


def test_a_length_that_is_no_number() -> None:
    got = answer(LIVE, headers=[(b"content-length", b"x")])
    assert got.status == 400 and got.error.startswith("the request's head can't be read: ")


# --- prefixes


@pytest.mark.parametrize(
    ("path", "raw_path", "root", "expected"),
    [
        ("/v2", b"/v2", "", "/v2"),
        ("/v2", None, "", "/v2"),
        ("/api/v2", b"/api/v2", "/api", "/v2"),  # as it is now
        ("/v2", b"/v2", "/api", "/v2"),  # a proxy or an old Starlette has taken the prefix off
        ("/v2", b"/api/v2", "/api", "/v2"),  # off the decoded path alone
        ("/api/v2", None, "/api", "/v2"),
        ("/api/v2", b"/api/v2?x=/y", "/api/", "/v2"),
        ("/api", b"/api", "/api", ""),
        ("/api/", b"/api/", "/api", "/"),
        ("/apis/v2", b"/apis/v2", "/api", "/apis/v2"),
        ("/v2/v2/models", b"/v2/v2/models", "/v2", "/v2/models"),
        ("/v2/models/multi", b"/v2/models/mul%74i", "", "/v2/models/mul%74i"),
        ("/ä b/v2/models/multi", b"/%C3%A4%20b/v2/models/mul%74i", "/ä b", "/v2/models/mul%74i"),
        ("/a/b/v2/models/ü", b"/a%2Fb/v2/models/%C3%BC", "/a/b", "/v2/models/%C3%BC"),
        ("/v2/models/a/b", b"/x/v2/models/a%2fb", "/x", "/v2/models/a%2fb"),
        ("/v2/models/\ufffd", b"/v2/models/%FF", "", "/v2/models/%FF"),
        ("/rewritten/v2", b"/some%20thing/else", "/rewritten", "/v2"),  # a middleware changed one of the two
    ],
)
def test_path_under_the_prefix(path: str, raw_path: bytes | None, root: str, expected: str) -> None:
    scope = {"path": path, "root_path": root, **({} if raw_path is None else {"raw_path": raw_path})}
    assert path_of(scope) == expected


def test_escapes_are_not_decoded() -> None:
    assert answer(request("GET", "/v2/models/mul%74i/ready"), root="/models").error == "Model version not ready"
    assert answer(request("GET", "/v2/models/multi/ready"), root="/models").status == 200


def test_the_same_path_at_two_prefixes() -> None:
    """What is remembered of a head must not depend on half of what it says."""

    async def main() -> list[int]:
        app, _ = app_of()
        return [(await ask(app, request("GET", path), root=root)).status
                for root, path in (("", "/a/v2"), ("/a", "/v2"), ("", "/a/v2"), ("/a", "/v2"))]  # fmt: skip

    assert virtual.run(main()) == [404, 200, 404, 200]


# --- bodies


def big(count: int) -> bytes:
    tail = np.arange(count, dtype=np.float32).tobytes()
    return binary("types", [tensor("IN_FP32", "FP32", [count], binary_data_size=4 * count)], tail,
                  parameters={"binary_data_output": True})  # fmt: skip


@pytest.mark.parametrize("size", [1, 7, 100, 5000, 70_000, 0])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("count", [3, 1000, 50_000])
def test_pieces_of_any_size(count: int, chunked: bool, size: int) -> None:
    if size and count * 4 // size > 5000:
        size = 999
    headers = {} if not chunked else {"headers": [(b"inference-header-content-length", big(count).split(b"\r\n")[2].split()[1])]}
    got = answer(big(count), size=size, **headers)
    assert np.frombuffer(got.body[int(got.headers["inference-header-content-length"]) :], np.float32).tolist() == [*range(count)]


def test_a_tail_in_one_piece_is_aligned_and_its_own() -> None:
    kernel = FakeKernel()
    data = big(READ_SIZE)
    answer(data, kernel=kernel)
    array = kernel.requests[0].inputs["IN_FP32"].array
    array[:] = 0
    assert array.ctypes.data % 8 == 0 and data == big(READ_SIZE)
    assert type(array.base) is BodyMemory, "what a model on the loop needs to pass it on without a copy"


@pytest.mark.parametrize("size", [0, 1000])
def test_limits(size: int) -> None:
    options = {"max_input_size": 5000}
    json_body = json.dumps({**ONE, "x": "y" * 5000}).encode()
    got = answer(infer("types", json_body), options=options, size=size)
    assert (got.status, got.headers["content-type"]) == (400, "application/json")
    assert got.error == (
        f"request JSON size of {len(json_body)} bytes exceeds the maximum allowed input size of 5000 bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    got = answer(infer("multi", bytes(5001), "Inference-Header-Content-Length: 0"), options=options, size=size)
    assert got.error == (
        "Raw input has a byte_size (5001 bytes) that exceeds the maximum allowed value of 5000 bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    got = answer(infer("types", json_body), options=options, size=size, headers=[])
    assert got.error.startswith(f"request JSON size of {len(json_body)} bytes exceeds")
    assert answer(big(2000), options=options, size=size).status == 200, "a binary tail is not limited"


@pytest.mark.parametrize("size", [0, 10])
def test_a_length_that_is_wrong(size: int) -> None:
    body = json.dumps(ONE).encode()
    for length in (len(body) - 1, len(body) + 1, 0):
        got = answer(infer("types", body), size=size, headers=[(b"content-length", b"%d" % length)])
        assert got.error == f"the request's body has {len(body)} bytes, but its Content-Length says {length}"


@pytest.mark.parametrize("size", [0, 10])
def test_what_is_refused_is_read_to_its_end(size: int) -> None:
    got = answer(request("POST", "/nowhere", bytes(1000)), size=size)
    assert got.status == 404 and got.received == (100 if size else 1)


def test_large_answers_come_in_slices() -> None:
    got = answer(big(asgi_connection.SLICE))
    assert max(map(len, got.pieces)) == asgi_connection.SLICE and len(got.pieces) == 5
    assert b"" not in got.pieces
    body = json.dumps({"inputs": [tensor("IN_BYTES", "BYTES", [1], ["x" * 3 * asgi_connection.SLICE])]}).encode()
    got = answer(infer("types", body))
    assert got.json["outputs"][0]["data"] == ["x" * 3 * asgi_connection.SLICE]
    assert max(map(len, got.pieces)) == asgi_connection.SLICE and len(got.pieces) < 10 and b"" not in got.pieces


def test_headers_belong_to_the_response() -> None:
    """A middleware may add to them in place."""

    async def main() -> None:
        app, _ = app_of()
        first = await ask(app, LIVE)
        first.sent[0]["headers"].append((b"x-added", b"1"))
        assert "x-added" not in (await ask(app, LIVE)).headers

    virtual.run(main())


# --- other scopes


def test_websockets_are_refused() -> None:
    async def main() -> list[Any]:
        app, _ = app_of()
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await app({"type": "websocket", "path": "/v2"}, None, send)  # type: ignore[arg-type]
        return sent

    (message,) = virtual.run(main())
    assert message["type"] == "websocket.close"


def test_unknown_scopes() -> None:
    async def main() -> None:
        app, _ = app_of()
        await app({"type": "smtp"}, None, None)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="ASGI scope of type 'smtp': there are 'http', 'websocket' and 'lifespan'"):
        virtual.run(main())


# --- start and stop


class Lifespan:
    """A server that starts and stops an application."""

    def __init__(self, app: KernelApp) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.stop = asyncio.Event()
        self.messages = ["lifespan.startup", "lifespan.shutdown"]
        self.task = asyncio.create_task(app({"type": "lifespan"}, self.receive, self.sent.put))

    async def receive(self) -> Any:
        if len(self.messages) == 1:
            await self.stop.wait()
        return {"type": self.messages.pop(0)}


def write_repository(folder: Path) -> Path:
    return virtual.write_repository(folder, {"echo": virtual.BASE})


ECHO = infer("echo", {"inputs": [tensor("X", "FP32", [1], [5])]})


def test_alone_it_starts_and_stops_the_kernel(tmp_path: Path) -> None:
    async def main() -> None:
        app = KernelApp(write_repository(tmp_path), plugins=[virtual.TestBackend({})])
        got = await ask(app, ECHO)
        assert (got.status, got.error) == (503, NOT_STARTED)
        for _ in range(2):  # the server of a test suite does it again
            server = Lifespan(app)
            assert await server.sent.get() == {"type": "lifespan.startup.complete"}
            got = await Exchange(app, ECHO).start()
            assert got.json["outputs"][0]["data"] == [5.0]
            server.stop.set()
            assert await server.sent.get() == {"type": "lifespan.shutdown.complete"}
            await server.task
            assert not app.kernel.live

    virtual.run(main())


def test_a_start_that_fails(tmp_path: Path) -> None:
    async def main() -> None:
        server = Lifespan(KernelApp(tmp_path / "nowhere"))
        message = await server.sent.get()
        assert message["type"] == "lifespan.startup.failed" and str(tmp_path / "nowhere") in message["message"]
        await server.task

    virtual.run(main())


def test_a_kernel_that_runs_is_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with Kernel(write_repository(tmp_path), plugins=[virtual.TestBackend({})]) as kernel:
            app = KernelApp(kernel)
            async with app.lifespan():
                assert kernel.live
            assert kernel.live
            assert (await ask(app, ECHO)).status == 200
        assert (await ask(app, request("GET", "/v2/health/ready"))).status == 400

    virtual.run(main())


def test_a_kernel_of_the_apps_own_is_started(tmp_path: Path) -> None:
    async def main() -> None:
        kernel = Kernel(write_repository(tmp_path), plugins=[virtual.TestBackend({})])
        app = KernelApp(kernel)
        async with app.lifespan(object()):
            assert kernel.live and app.kernel is kernel
        assert not kernel.live
        with pytest.raises(ServingError, match="this Kernel has been stopped and can't start again; make a new one"):
            async with app.lifespan():
                pass

    virtual.run(main())


def test_another_loop() -> None:
    async def make() -> KernelApp:
        return app_of()[0]

    app = virtual.run(make())
    got = virtual.run(ask(app, LIVE))
    assert (got.status, got.error) == (500, OTHER_LOOP)


def test_arguments_for_a_kernel_that_is_made(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a Kernel that is made already, and for making one: 'b', control_mode"):
        KernelApp(Kernel(tmp_path), "b", control_mode="explicit")


# --- the memory budget


def zeros_of(count: int) -> bytes:
    """A request of `count` floats, the same of its answer, and its JSON in front."""
    text = json.dumps({"inputs": [tensor("IN_FP32", "FP32", [count], binary_data_size=4 * count)], "parameters": BINARY}).encode()
    return infer("types", text + bytes(4 * count), f"Inference-Header-Content-Length: {len(text)}")


BINARY = {"binary_data_output": True}
MB = 1024 * 1024


def test_bodies_and_answers_count_until_they_are_sent() -> None:
    async def main() -> None:
        app, kernel = app_of()
        memory = kernel.memory
        exchange = Exchange(app, zeros_of(MB), size=65_536)
        exchange.may_send.clear()
        await exchange.start()
        await turns(200)
        assert 0 < memory.send.used <= 4 * MB + 1024 and memory.receive.used >= 4 * MB - MemoryBudget.SMALL
        exchange.may_send.set()
        await exchange.end()
        assert exchange.status == 200
        assert (memory.receive.used, memory.send.used) == (0, 0)

    virtual.run(main())


def test_a_body_is_refused_where_the_budget_is_used_up() -> None:
    kernel = FakeKernel()
    kernel.memory = MemoryBudget(4 * MB, 4 * MB)
    kernel.memory.receive.add(3 * MB)
    got = answer(zeros_of(MB // 2), kernel=kernel, size=65_536)
    assert got.status == 503 and "--memory-limit-receive" in got.error
    assert kernel.memory.receive.used == 3 * MB


def test_a_client_that_goes_in_the_middle_gives_back() -> None:
    async def main() -> None:
        app, kernel = app_of()
        exchange = Exchange(app, zeros_of(MB), size=65_536, more=True)
        await exchange.start()
        await turns(200)
        assert kernel.memory.receive.used > 3 * MB
        exchange.lose()
        await exchange.end()
        assert kernel.memory.receive.used == 0

    virtual.run(main())
