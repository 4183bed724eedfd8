"""Models of the backend `remote`: two kernels of one process, and far ends that do what a test says; each call ends once."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certificates import Certificates, make_certificates
from live import ENSEMBLE
from virtual import TestBackend, answer

from kernel import Batch, Code, InferenceResponse, Kernel, ServingError, Tensor
from kernel_grpc import options as grpc_options
from kernel_grpc.frontend import GrpcFrontend
from kernel_grpc.http2 import literal, response
from kernel_grpc.http2.errors import ErrorCode
from kernel_grpc.http2.frames import (
    CONTINUATION,
    DATA,
    END_STREAM,
    PING,
    PUSH_PROMISE,
    SETTINGS,
    Setting,
    frame,
    goaway,
    header_frames,
    rst_stream,
    settings,
    window_update,
)
from kernel_remote.calls import Kind, Outcome
from kernel_remote.choice import FAILURES, SLOW_START, Standing, choose, home, reported
from kernel_remote.endpoints import Asked, Endpoint, Link
from kernel_remote.settings import Address
from kernel_remote.tls import Identity

CONFIG = """
backend: "test"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
X = {"X": np.arange(3, dtype=np.float32)}


def write(folder: Path, name: str, config: str) -> None:
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(config)


def remote(endpoints: str, more: str = "") -> str:
    return f'backend: "remote" parameters {{ key: "endpoints" value {{ string_value: "{endpoints}" }} }} {more}'


def frontend(kernel: Kernel, *flags: str) -> GrpcFrontend:
    parser = argparse.ArgumentParser()
    grpc_options.add_options(parser)
    return GrpcFrontend(kernel, parser.parse_args(["--grpc-port=0", "--grpc-address=127.0.0.1", *flags]))


Test = Callable[[Kernel, str], Awaitable[None]]


def parameters(**values: str) -> str:
    return " ".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items())


def pair(tmp_path: Path, behaviour: Any, test: Test, far_config: str = CONFIG) -> None:
    """Run `test` with a kernel whose model `m` is executed by another one."""

    async def main() -> None:
        write(tmp_path / "far", "m", far_config)
        async with asyncio.timeout(30), Kernel(tmp_path / "far", plugins=[TestBackend({"m": behaviour})]) as far:
            front = frontend(far)
            await front.start()
            address = front.address.removeprefix("grpc://")
            write(tmp_path / "near", "m", remote(address))
            write(tmp_path / "near", "e", ENSEMBLE % "m")
            async with Kernel(tmp_path / "near") as near:
                await test(near, address)
            await front.stop()

    asyncio.run(main())


def echo(batch: Batch) -> Any:
    return [answer(request) for request in batch.requests]


def test_answers_come_from_the_far_end_and_the_config_too(tmp_path: Path) -> None:
    async def test(near: Kernel, address: str) -> None:
        assert [spec.name for spec in near.model("m").config.inputs] == ["X"]
        assert (await near.infer("m", X))["Y"].tolist() == [0, 1, 2]
        large = np.arange(16 * 1024 * 1024, dtype=np.float32)  # 64 MiB: all windows are used up again and again, both ways
        assert (await near.infer("m", {"X": large}))["Y"].tobytes() == large.tobytes()
        answers = await asyncio.gather(*(near.infer("m", {"X": X["X"] + i}) for i in range(300)))
        assert [one["Y"][0] for one in answers] == list(range(300))

    pair(tmp_path, echo, test)


def test_who_has_no_remote_model_does_not_pay_for_them() -> None:
    code = "import kernel_remote, sys; print([name for name in sys.modules if 'http2' in name or 'grpc_service' in name])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_an_ensemble_has_a_remote_step(tmp_path: Path) -> None:
    async def test(near: Kernel, address: str) -> None:
        assert (await near.infer("e", X))["Y"].tolist() == [0, 1, 2]

    pair(tmp_path, echo, test)


def test_errors_have_the_far_ends_code_and_words_and_name_it(tmp_path: Path) -> None:
    def fail(batch: Batch) -> Any:
        raise ServingError(Code.NOT_FOUND, "nothing of that kind: ä%")

    async def test(near: Kernel, address: str) -> None:
        with pytest.raises(ServingError) as caught:
            await near.infer("m", X)
        assert caught.value.code is Code.NOT_FOUND
        assert caught.value.message.endswith(f"endpoint {address}: nothing of that kind: ä%")

    pair(tmp_path, fail, test)


def test_parameters_go_along_and_cancellation_too(tmp_path: Path) -> None:
    seen: list[Any] = []
    hang, gone = asyncio.Event(), asyncio.Event()

    async def wait(batch: Batch) -> Any:
        seen.append(batch.requests[0])
        if batch.requests[0].parameters == {"k": 5}:
            return [answer(batch.requests[0])]
        hang.set()
        while not seen[1].is_cancelled:  # noqa: ASYNC110
            await asyncio.sleep(0)
        gone.set()
        return [answer(batch.requests[0])]

    async def test(near: Kernel, address: str) -> None:
        await near.infer("m", X, parameters={"k": 5})
        assert seen[0].parameters == {"k": 5}
        asked = near.infer("m", X)
        await hang.wait()
        asked.cancel()
        await gone.wait()

    pair(tmp_path, wait, test)


def test_what_is_no_message_has_its_answer_and_the_next_one_too(tmp_path: Path) -> None:
    async def test(near: Kernel, address: str) -> None:
        with pytest.raises(ServingError, match=f"a request can't be made into a message for endpoint {address}: 'utf-8' codec"):
            await near.infer("m", X, parameters={"k": "\ud800"})
        assert (await near.infer("m", X))["Y"].tolist() == [0, 1, 2]

    pair(tmp_path, echo, test)


DECOUPLED = CONFIG + "model_transaction_policy { decoupled: true }"


def test_a_decoupled_model_sends_all_of_its_responses(tmp_path: Path) -> None:
    def count(batch: Batch) -> None:
        (request,) = batch.requests
        for number in range(5):
            one = InferenceResponse([Tensor("Y", "FP32", np.full(1, number, np.float32))])
            request.model.scheduler.send(request, one, False)
        request.model.scheduler.send(request, None, True)

    async def test(near: Kernel, address: str) -> None:
        assert near.model("m").decoupled
        assert [one["Y"][0] async for one in near.stream("m", X)] == [0, 1, 2, 3, 4]

    pair(tmp_path, count, test, DECOUPLED)


def test_a_load_fails_where_nobody_answers(tmp_path: Path) -> None:
    async def main() -> None:
        write(tmp_path, "m", remote("127.0.0.1:1,localhost:2"))
        async with Kernel(tmp_path, exit_on_error=False) as near:
            (index,) = near.index()
            assert index.state == "UNAVAILABLE"
            assert "no endpoint of model 'm' can serve it: endpoint 127.0.0.1:1 can't be connected to" in index.reason
            assert "endpoint localhost:2 can't be connected to" in index.reason

    asyncio.run(main())


# --- TLS


#: A key behind a passphrase.
LOCKED = """-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAisHUq4wNPxlQICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEIprclJN1Xh/uLt8NXx7AYkEgZDd
NYFyYwlsVm2bOL3EvqL8gGJJyn0AaKZVJhn9aG2J77CagNJYvutJbMq5jyg7xSN5
Q0dClfy3UKuS1cM2pWSG6neyoBNWuaQXwr+LNirE7axnQCoyMknjy6CqXAsl2mKO
sndoFyAx2YQeH2oFHueb1uYdtjXqALeMZ96+3r7P3HohUPMypRxfDbxOT9/BgYE=
-----END ENCRYPTED PRIVATE KEY-----
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


#: What a config says -> the words of the failure, "" where the model serves. `{}`: the far end's port.
SECURE = {
    "trusted": ("grpcs://localhost:{}", {"ca_file": "ca.pem"}, ""),
    "by address": ("grpcs://127.0.0.1:{}", {"ca_file": "ca.pem"}, ""),
    "by another name": ("grpcs://127.0.0.1:{}", {"ca_file": "ca.pem", "tls_server_name": "localhost"}, ""),
    "wrong name": ("grpcs://127.0.0.1:{}", {"ca_file": "ca.pem", "tls_server_name": "other"}, "is not valid for 'other'"),
    "a stranger": ("grpcs://localhost:{}", {"ca_file": "stranger.pem"}, "certificate is not trusted: unable to get local"),
    "the system's": ("grpcs://localhost:{}", {}, "certificate is not trusted: unable to get local"),
    "plain text to it": ("grpc://localhost:{}", {}, "perhaps it wants TLS (grpcs://), or is a port of HTTP"),
    "no file": ("grpcs://localhost:{}", {"ca_file": "none.pem"}, "use the ca_file 'none.pem' of model 'm' — No such file"),
    "no PEM": ("grpcs://localhost:{}", {"ca_file": "config.pbtxt"}, "cadata does not contain a certificate"),
    "outside": ("grpcs://localhost:{}", {"ca_file": "../ca.pem"}, "it must lie within the model's folder"),
}


TRUSTED = {"ca_file": "ca.pem"}

#: The same where the far end wants a certificate.
MUTUAL = {
    "shown": ({"cert_file": "client.pem", "key_file": "client.key"}, ""),
    "both in one file": ({"cert_file": "both.pem"}, ""),
    "none": ({}, "before it has said anything: perhaps it wants a certificate of ours, cert_file)"),
    "a stranger's": ({"cert_file": "stranger.pem", "key_file": "stranger.key"}, "perhaps it does not take our certificate)"),
    "no key": ({"cert_file": "client.pem"}, "use the cert_file 'client.pem' of model 'm' — it holds no private key in PEM"),
    "no certificate": ({"key_file": "client.key"}, "model 'm' has a key_file and no cert_file"),
    "another key": ({"cert_file": "client.pem", "key_file": "stranger.key"}, "the key_file 'stranger.key' of model 'm' — it is"),
    "no PEM": ({"cert_file": "config.pbtxt"}, "the cert_file 'config.pbtxt' of model 'm' — it holds no certificate in PEM"),
    "no file": ({"cert_file": "client.pem", "key_file": "none"}, "use the key_file 'none' of model 'm' — No such file"),
    "cut off": ({"cert_file": "cut.pem", "key_file": "client.key"}, "TLS can't use the cert_file 'cut.pem' of model 'm'"),
    "encrypted": ({"cert_file": "client.pem", "key_file": "locked.key"}, "it is encrypted, and there is nobody to ask"),
    "outside": ({"cert_file": "../client.pem", "key_file": "client.key"}, "it must lie within the model's folder"),
}


@pytest.mark.parametrize("what", [*SECURE, *(f"mutual: {name}" for name in MUTUAL)])
def test_tls(tmp_path: Path, certificates: Certificates, what: str) -> None:
    mutual = what.removeprefix("mutual: ")
    endpoint, values, words = SECURE[what] if mutual == what else ("grpcs://localhost:{}", *MUTUAL[mutual])
    certificate, key = Path(certificates.client).read_text(), Path(certificates.client_key).read_text()

    async def main() -> None:
        write(tmp_path / "far", "m", CONFIG)
        flags = [f"--grpc-server-cert={certificates.server}", f"--grpc-server-key={certificates.server_key}"]
        given = values if mutual == what else {**TRUSTED, **values}
        if mutual != what:
            flags += ["--grpc-use-ssl-mutual=true", f"--grpc-root-cert={certificates.ca}"]
        async with asyncio.timeout(30), Kernel(tmp_path / "far", plugins=[TestBackend({"m": echo})]) as far:
            front = frontend(far, "--grpc-use-ssl=true", *flags)
            await front.start()
            write(tmp_path / "near", "m", remote(endpoint.format(front.address.rpartition(":")[2]), parameters(**given)))
            for name in certificates:
                shutil.copy(name, tmp_path / "near/m")
            (tmp_path / "near/m/both.pem").write_text(certificate + key)
            (tmp_path / "near/m/cut.pem").write_text(certificate[:200] + certificate[-50:])
            (tmp_path / "near/m/locked.key").write_text(LOCKED)
            async with Kernel(tmp_path / "near", exit_on_error=False) as near:
                if words:
                    assert words in near.index()[0].reason
                else:
                    assert (await near.infer("m", X))["Y"].tolist() == [0, 1, 2]
            await front.stop()

    asyncio.run(main())


#: Who connects -> what far ends say to that, which send an alert.
ALERTS = {
    (): "it wants a certificate of ours, which cert_file and key_file name",
    ("stranger.pem", "stranger.key"): "it does not know who has signed our certificate",
}


@pytest.mark.parametrize("shown", ALERTS)
def test_what_a_far_end_says_of_our_certificate_is_told(certificates: Certificates, shown: tuple[str, ...]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)
    context.load_verify_locations(certificates.ca)
    context.verify_mode = ssl.CERT_REQUIRED

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(ssl.SSLError):
            context.wrap_socket(connection, server_side=True)
        connection.close()

    authorities = Path(certificates.ca).read_text()
    paths = [str(Path(certificates.ca).with_name(name)) for name in shown]

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(asyncio.to_thread(serve, listener))
            identity = Identity(b"", *paths) if paths else None
            address = Address("127.0.0.1", listener.getsockname()[1], True)
            endpoint = Endpoint(Link(address, authorities=authorities, identity=identity), asyncio.get_running_loop())
            outcome, _ = await endpoint.ask("/a/B", b"", 20)
            await serving
            endpoint.close()
            assert ALERTS[shown] in outcome.message

    asyncio.run(main())


def test_a_far_end_without_tls_is_told() -> None:
    async def main() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(settings({}))
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1], True)
        endpoint = Endpoint(Link(address), asyncio.get_running_loop())
        outcome, _ = await endpoint.ask("/a/B", b"", 20)
        assert outcome.message.endswith("can't be connected to (it speaks no TLS there: perhaps grpc:// is wanted)")
        endpoint.close()
        server.close()

    asyncio.run(main())


# --- metadata

#: What the file holds -> the words of the failure, "" where the model serves.
METADATA = {
    "# a key\n\ntriton-grpc-protocol-secret: a word\nother:\n": "",
    "triton-grpc-protocol-secret: another\n": "This protocol is restricted, expecting header 'triton-grpc-protocol-secret'",
    "a: b\nGRPC\n": "can't use the metadata_file 'metadata' of model 'm' — line 2 is no 'name: value'",
    "grpc-timeout: 1S": "line 1 is no 'name: value', with a name in lower case that is not gRPC's own",
    "a: \u00e4": "'ascii' codec can't decode byte",
}


@pytest.mark.parametrize("text", METADATA)
def test_metadata_from_a_file_go_along(tmp_path: Path, text: str) -> None:
    words = METADATA[text]

    async def main() -> None:
        write(tmp_path / "far", "m", CONFIG)
        async with asyncio.timeout(30), Kernel(tmp_path / "far", plugins=[TestBackend({"m": echo})]) as far:
            front = frontend(far, "--grpc-restricted-protocol=inference,model-config,health:secret=a word")
            await front.start()
            address = front.address.removeprefix("grpc://")
            write(tmp_path / "near", "m", remote(address, parameters(metadata_file="metadata")))
            (tmp_path / "near/m/metadata").write_text(text, encoding="utf-8")
            async with Kernel(tmp_path / "near", exit_on_error=False) as near:
                if words:
                    assert words in near.index()[0].reason
                else:
                    assert (await near.infer("m", X))["Y"].tolist() == [0, 1, 2]
                    assert "a word" not in str(near.model("m").config.message)
            await front.stop()

    asyncio.run(main())


# --- far ends that do what a test says

HEAD = header_frames(1, response(200, [(b"content-type", b"application/grpc")]), end_stream=False)
MESSAGE = frame(DATA, 0, 1, b"\0" + struct.pack(">I", 2) + b"ok")


def ending(name: bytes, value: bytes) -> bytes:
    return header_frames(1, literal(name, value), end_stream=True)


OK = ending(b"grpc-status", b"0")
HEADED = response(200, [(b"content-type", b"application/grpc")])
PAGE = header_frames(1, response(200, [(b"content-type", b"text/html")]), end_stream=False)
BOMB = b"\x88" + b"\x40\1a\x7f\x81\x1e" + b"x" * 4000 + b"\xbe" * 1000  # one field that enters the table, a thousand times
NOTHING = settings({})

FAR_ENDS = {
    "answers": (NOTHING + HEAD + MESSAGE + OK, 0, True, ""),
    "resets": (NOTHING + rst_stream(1, ErrorCode.INTERNAL_ERROR), 14, True, "has reset the stream (INTERNAL_ERROR)"),
    "refuses": (NOTHING + rst_stream(1, ErrorCode.REFUSED_STREAM), 14, False, "has reset the stream (REFUSED_STREAM)"),
    "resets in the middle": (NOTHING + HEAD + MESSAGE + rst_stream(1, ErrorCode.CANCEL), 14, True, "has reset the stream"),
    "goes away": (NOTHING + goaway(0, ErrorCode.NO_ERROR, "restart"), 14, False, "it goes away (NO_ERROR: restart)"),
    "goes away behind it": (NOTHING + goaway(1, ErrorCode.NO_ERROR) + HEAD + MESSAGE + OK, 0, True, ""),
    "HTTP/1": (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4, 14, False, "it answers in HTTP/1: this is no port for gRPC"),
    "TLS": (b"\x15\x03\x01\0\2\2\x50", 14, False, "it answers in TLS: perhaps grpcs:// is wanted"),
    "no HTTP/2": (b"220 mail.example ESMTP\r\n" * 4, 14, False, "breaks the rules of HTTP/2"),
    "garbage": (NOTHING + frame(1, 4, 1, b"\xff" * 20), 14, True, "breaks the rules of HTTP/2: a header block can't be decoded"),
    "half a message": (NOTHING + HEAD + MESSAGE[:-1], 14, True, "has closed the connection"),
    "half-closes": (NOTHING + HEAD + frame(DATA, END_STREAM, 1), 13, True, "ends an answer without trailers"),
    "closes": (NOTHING, 14, True, "has closed the connection"),
    "a page": (NOTHING + PAGE + MESSAGE + OK, 14, True, "answers with HTTP status 200 and content-type text/html"),
    "trailers only": (NOTHING + header_frames(1, HEADED + literal(b"grpc-status", b"5"), end_stream=True), 5, True, ""),
    "no number": (NOTHING + HEAD + ending(b"grpc-status", b"x" * 999), 13, True, "grpc-status 'xxxxxxxxxxxxxxxx', which is"),
    "no status": (NOTHING + HEAD + MESSAGE + ending(b"a", b"b"), 13, True, "ends an answer without a grpc-status"),
    "no such status": (NOTHING + HEAD + ending(b"grpc-status", b"99"), 99, True, ""),
    "a storm of resets": (NOTHING + rst_stream(1, ErrorCode.CANCEL) * 3000, 14, True, "has reset the stream (CANCEL)"),
    "a flood of SETTINGS": (NOTHING * 3000, 14, True, "too many frames that ask for nothing"),
    "a flood of PINGs": (NOTHING + frame(PING, 0, 0, bytes(8)) * 3000, 14, True, ""),  # or nobody takes our answers any more
    "empty data": (NOTHING + HEAD + frame(DATA, 0, 1) * 3000, 14, True, "too many frames that ask for nothing"),
    "empty CONTINUATION": (NOTHING + frame(1, 0, 1) + frame(CONTINUATION, 0, 1) * 3000, 14, True, "a header block in more than"),
    "a long block": (NOTHING + frame(1, 0, 1, bytes(60_000)) + frame(CONTINUATION, 0, 1, bytes(60_000)), 14, True, "longer than"),
    "a bomb": (NOTHING + frame(1, 4, 1, BOMB), 14, True, "a header list of more than 65536 bytes"),
    "a push": (NOTHING + frame(PUSH_PROMISE, 4, 1, bytes(4) + b"\x88"), 14, True, "PUSH_PROMISE, which we have forbidden"),
    "no window": (settings({Setting.INITIAL_WINDOW_SIZE: 0}), 14, True, "has closed the connection"),
    "too much window": (NOTHING + window_update(0, 2**31 - 1) * 2, 14, True, "makes the connection's window larger than"),
    "another stream": (NOTHING + frame(DATA, 0, 3, b"x"), 14, True, "DATA on stream 3, which was never opened"),
    "twice": (NOTHING + HEAD + MESSAGE + OK + OK, 0, True, ""),
    "compressed": (NOTHING + HEAD + frame(DATA, 0, 1, b"\1\0\0\0\1x"), 13, True, "a compressed message, for which nobody"),
    "other status": (NOTHING + header_frames(1, response(503, []), end_stream=True), 13, True, "without a grpc-status"),
}


@pytest.mark.parametrize("name", FAR_ENDS)
def test_each_call_ends_once(name: str) -> None:
    said, status, processed, words = FAR_ENDS[name]
    outcomes: list[Outcome] = []

    async def main() -> None:
        async def far(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            greeting = said[: 9 + said[2]] if said[3] == SETTINGS else b""
            if greeting:
                writer.write(greeting)
                await (reader.readuntil(b"request!") if greeting == NOTHING else reader.readuntil(b"/x/Y"))
            writer.write(said.removeprefix(greeting))
            writer.close()

        server = await asyncio.start_server(far, "127.0.0.1", 0)
        link = Link(Address("127.0.0.1", server.sockets[0].getsockname()[1]))
        endpoint = Endpoint(link, asyncio.get_running_loop())

        class Once(Asked):
            def concluded(self, outcome: Outcome) -> None:
                outcomes.append(outcome)
                super().concluded(outcome)

        call = Once(Kind("/x/Y"), [b"request!"])
        endpoint.start(call)
        async with asyncio.timeout(30):
            await call.outcome
        endpoint.close()
        server.close()

    asyncio.run(main())
    (outcome,) = outcomes
    assert (outcome.status, outcome.processed) == (status, processed)
    assert words in outcome.message


#: Where nobody is, or under another form of address -> what is said.
NOBODY = {
    "no.such.host.invalid": "can't be connected to (",
    "x" * 70 + ".example": "can't be connected to (",
    "127.0.0.1": "can't be connected to (Connect call failed",
    "::1": "endpoint [::1]:1 can't be connected to (",
}


@pytest.mark.parametrize("host", NOBODY)
def test_where_nobody_is_the_reason_is_told(host: str) -> None:
    async def main() -> None:
        endpoint = Endpoint(Link(Address(host, 1)), asyncio.get_running_loop())
        outcome, _ = await endpoint.ask("/a/B", b"", 30)
        assert (outcome.status, outcome.processed) == (14, False) and NOBODY[host] in outcome.message
        endpoint.close()

    asyncio.run(main())


# --- the choice of an endpoint


def test_the_better_of_two_is_taken() -> None:
    busy, idle = Standing("a"), Standing("b")
    busy.outstanding = 5
    assert choose([busy, idle], 0.0, lambda: 0.0) is choose([busy, idle], 0.0, lambda: 0.9) is idle
    busy.outstanding = 0
    idle.report(0.5, 0.0)
    assert choose([busy, idle], 0.0, lambda: 0.0) is busy
    assert choose([busy, idle], 0.0, lambda: 0.0, [busy]) is idle
    assert choose([busy, idle], 0.0, lambda: 0.0, [busy, idle]) is None


def test_who_fails_is_left_out_and_comes_back_slowly() -> None:
    bad, good = Standing("a"), Standing("b")
    for _ in range(FAILURES):
        bad.failed(10.0)
    assert bad.ejected(10.4) and not bad.ejected(10.5)
    assert choose([bad, good], 10.4, lambda: 0.0) is good
    assert choose([bad], 10.4, lambda: 0.0) is bad, "where all are left out, none is"
    good.outstanding = 9
    now = 10.5 + SLOW_START / 4
    assert choose([bad, good], now, lambda: 0.24) is bad and choose([bad, good], now, lambda: 0.26) is good
    assert choose([bad, good], 10.5 + SLOW_START, lambda: 0.99) is bad
    bad.failed(10.6)
    assert bad.ejected(11.5), "the second time is twice as long"


def test_a_sequence_has_a_home() -> None:
    all_of_them = [Standing(name) for name in "abcd"]
    before = {i: home(all_of_them, i) for i in range(200)}
    assert {one.name for one in before.values()} == set("abcd")
    after = {i: home(all_of_them[:0:-1], i) for i in range(200)}
    assert all(after[i] is before[i] for i in before if before[i] is not all_of_them[0]), "only those of who has gone move"


def test_load_as_answers_report_it() -> None:
    assert reported("TEXT cpu_utilization=0.3, application_utilization=0.7") == 0.7
    assert reported("cpu_utilization=0.3") == 0.3
    assert reported("mem_utilization=0.3") is reported("cpu_utilization=x") is reported("cpu_utilization=nan") is None
