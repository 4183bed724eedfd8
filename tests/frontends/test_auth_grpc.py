"""kernel_auth over gRPC: bytes in and out of real connections and the real methods, on a time that is told."""

from __future__ import annotations

import argparse
import logging
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hpack
import pytest
from frontends.callers import Answer, Caller, close_loops
from frontends.callers import message as framed
from frontends.fakes_grpc import GrpcKernel
from frontends.keys import CLIENTS, write_keys
from frontends.wires import REQUEST, block, data
from google.protobuf.message import Message

from kernel import Code, NotLoaded, ServingError
from kernel_auth.gate import KeyGate
from kernel_grpc import add_options
from kernel_grpc.frontend import meanings
from kernel_grpc.rpc.gated import open_gated_call
from kernel_grpc.rpc.server import Server
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_grpc.services.gated import CHANGING, MODEL_FIELDS, SETTINGS
from kernel_grpc.services.methods import methods
from kernel_grpc.services.paths import triton

UNAUTHENTICATED, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 16, 7, 8


class Gated:
    """A kernel with a gate, and a client. `file`: of keys."""

    def __init__(self, file: Path, text: str = "") -> None:
        self.file = write_keys(file, text)
        self.kernel = GrpcKernel()
        self.gate = self.kernel.gate = KeyGate(self.kernel, self.file)  # type: ignore[arg-type]
        made: Any = self.kernel
        parser = argparse.ArgumentParser()
        add_options(parser)
        found = methods(made, parser.parse_args([]))
        server = Server(made, found, open_gated_call, meanings=meanings(self.gate))
        self.caller = Caller(like=SimpleNamespace(kernel=self.kernel, service=None, server=server))  # type: ignore[arg-type]

    def ask(self, name: str, request: Message | None = None, key: str = "", **fields: str) -> Answer:
        """Make a unary call with the key of a client."""
        payload = request.SerializeToString() if request is not None else b""
        if key:
            fields["authorization"] = f"Bearer key-{key}"
        id = self.caller.begin("", **{":path": triton(name), **fields})
        self.caller.send(data(id, framed(payload), end=True))
        return self.caller.answers[id]


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Gated]:
    yield Gated(tmp_path / "keys.toml")
    close_loops()


def request(model: str, count: int = 2) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name=model)
    made.inputs.add(name="X", datatype="FP32", shape=[count])
    made.raw_input_contents.append(struct.pack(f"<{count}f", *range(count)))
    return made


def said(answer: Answer) -> tuple[int | None, str]:
    assert answer.ended
    return answer.status, answer.text


def test_every_method_wants_a_key(gated: Gated) -> None:
    for name, method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name.items():
        if method.client_streaming:
            continue
        answer = gated.ask(name)
        if name in ("ServerLive", "ServerReady", "ModelReady"):
            assert answer.status == 0
        else:
            assert said(answer) == (UNAUTHENTICATED, "a key is needed: 'Authorization: Bearer KEY' or 'x-api-key: KEY'"), name
            assert gated.ask(name, **{"x-api-key": "key-some"}).status == PERMISSION_DENIED, name
            gated.ask(name, key="all")
            gated.kernel.loop.run_tasks()
            gated.caller.read()
            assert list(gated.caller.answers.values())[-1].status not in (None, UNAUTHENTICATED, PERMISSION_DENIED), name
    assert gated.ask("Nope").status == 12


def test_each_field_that_names_a_model_is_known() -> None:
    """A method that is for a model, and is not said to be, could be asked for any model."""
    of_no_model = {"SystemSharedMemory", "CudaSharedMemory"}
    for name, method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name.items():
        fields = [field.name for field in method.input_type.fields]
        if not any(name.startswith(prefix) for prefix in of_no_model):
            named = next((field for field in ("model_name", "name") if field in fields), None)
            assert MODEL_FIELDS.get(triton(name)) == named, name
    paths = {triton(name) for name in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name}
    assert paths >= CHANGING | SETTINGS | MODEL_FIELDS.keys()


def test_who_is_refused_and_why(gated: Gated) -> None:
    assert said(gated.ask("ModelInfer", request("any"), "nobody")) == (UNAUTHENTICATED, "the key is not known")
    forbidden = (PERMISSION_DENIED, "client 'some' may not use 'inference' of model 'batch8'")
    for _ in range(3):  # read by the parser, by its head and by its size
        assert gated.ask("ModelInfer", request("any"), "some").status == 0
        assert gated.ask("ModelInfer", request("batch8"), "all").status == 3
        assert said(gated.ask("ModelInfer", request("batch8"), "some")) == forbidden
    for _ in range(3):  # of what others are served by its size alone
        assert gated.ask("ModelInfer", request("multi"), "all").status == 0
        assert gated.ask("ModelInfer", request("half"), "some").status == PERMISSION_DENIED
    for model in ("nowhere", "gen"):  # he isn't told what there is
        assert said(gated.ask("ModelInfer", request(model), "some"))[0] == PERMISSION_DENIED
    assert gated.ask("ModelInfer", request("nowhere"), "all").status == 5
    assert said(gated.ask("ModelMetadata", pb.ModelMetadataRequest(name="any"), "some")) == (
        PERMISSION_DENIED, "client 'some' may not use 'metadata' of any model",
    )  # fmt: skip


def test_keys_and_models_in_turn_on_one_connection(gated: Gated) -> None:
    """What a door has let pass says nothing of another model or key, nor of what the file says now."""
    turns = (("some", "any", 0), ("some", "half", PERMISSION_DENIED), ("all", "half", 3), ("nobody", "any", UNAUTHENTICATED))
    for _ in range(4):
        for key, model, status in turns:
            assert gated.ask("ModelInfer", request(model), key).status == status, (key, model)
            assert gated.ask("ModelInfer", request("any"), "some").status == 0
    write_keys(gated.file, clients={"some": 'may = [{ models = ["half"], categories = ["inference"] }]'})
    gated.kernel.loop.advance(1.0)
    gated.ask("ServerLive")
    assert gated.ask("ModelInfer", request("any"), "some").status == 0  # looks at the file, which a thread reads
    gated.kernel.loop.run_jobs()
    statuses = [gated.ask("ModelInfer", request(model), "some").status for model in ("any", "half", "any")]
    assert statuses == [PERMISSION_DENIED, 3, PERMISSION_DENIED]


def test_the_last_name_counts(gated: Gated) -> None:
    """As for the parser: a message may name two models."""
    twice = request("any").SerializeToString() + pb.ModelInferRequest(model_name="batch8").SerializeToString()
    id = gated.caller.begin("", **{":path": triton("ModelInfer"), "authorization": "Bearer key-some"})
    gated.caller.send(data(id, framed(twice), end=True))
    assert gated.caller.answers[id].text == "client 'some' may not use 'inference' of model 'batch8'"


def test_grants_of_one_model(tmp_path: Path) -> None:
    gated = Gated(tmp_path / "keys.toml")
    clients = {"admin": 'may = [{ models = ["any"], categories = ["*"] }]'}
    write_keys(gated.file, clients=clients)
    gated.kernel.loop.advance(1.0)
    gated.ask("ServerLive")
    gated.ask("ServerMetadata", key="all")
    gated.kernel.loop.run_jobs()
    for name, ours, other in (
        ("ModelMetadata", pb.ModelMetadataRequest(name="any"), pb.ModelMetadataRequest(name="multi")),
        ("ModelStatistics", pb.ModelStatisticsRequest(name="any"), pb.ModelStatisticsRequest()),
        ("TraceSetting", pb.TraceSettingRequest(model_name="any"), pb.TraceSettingRequest()),
        ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="any"),
         pb.RepositoryModelUnloadRequest(model_name="multi")),
    ):  # fmt: skip
        assert gated.ask(name, ours, "admin").status == 0, name
        assert gated.ask(name, other, "admin").status == PERMISSION_DENIED, name
    for name in ("RepositoryIndex", "LogSettings", "SystemSharedMemoryStatus", "ServerMetadata"):
        assert said(gated.ask(name, key="admin"))[1].endswith("of what belongs to no one model")
    assert gated.kernel.calls == [("unload", "any", False)]


def test_so_often(gated: Gated) -> None:
    answers = [gated.ask("ModelInfer", request("any"), "slow") for _ in range(3)]
    assert [answer.status for answer in answers] == [0, 0, RESOURCE_EXHAUSTED]
    assert answers[2].text == "client 'slow' may send 1 requests a second; try again in 1 s"
    assert answers[2].fields["grpc-retry-pushback-ms"] == "1000"
    gated.kernel.loop.advance(1.0)
    assert [gated.ask("ModelInfer", request("any"), "slow").status for _ in range(2)] == [0, RESOURCE_EXHAUSTED]


def test_so_many_at_a_time(gated: Gated) -> None:
    ask = partial(gated.ask, "ModelInfer", request("any"), "one")
    assert [ask().status for _ in range(3)] == [0, 0, 0]
    gated.kernel.hold = True
    waiting = ask()
    assert said(ask()) == (RESOURCE_EXHAUSTED, "client 'one' has 1 requests under way, which are as many as it may have")
    gated.kernel.finish(gated.kernel.held.pop())
    gated.caller.read()
    assert waiting.status == 0
    assert ask().status is None
    gated.caller.cancel(max(gated.caller.answers))
    assert ask().status is None
    gated.caller.transport.abort()
    assert gated.gate._usages["one"].running == 0


class Streaming:
    def __init__(self, gated: Gated, key: str = "", credential: str = "") -> None:
        self.caller = gated.caller
        fields = {":path": triton("ModelStreamInfer"), "authorization": f"Bearer {credential or f'key-{key}'}"}
        self.id = self.caller.begin("", **fields)
        self.answer = self.caller.answers[self.id]

    def send(self, *requests: Message) -> list[str]:
        """Send requests; return the errors of all responses so far, "" for none."""
        for one in requests:
            self.caller.send(data(self.id, framed(one.SerializeToString())))
        self.caller.server._end_turn()
        self.caller.read()
        return [pb.ModelStreamInferResponse.FromString(payload).error_message for _, payload in self.answer.messages]


def test_streams(gated: Gated) -> None:
    assert said(Streaming(gated, "nobody").answer) == (UNAUTHENTICATED, "the key is not known")
    stream = Streaming(gated, "some")
    forbidden = "client 'some' may not use 'inference' of model 'batch8'"
    assert stream.send(request("any"), request("batch8"), request("any")) == ["", forbidden, ""]
    slow = Streaming(gated, "slow")
    exhausted = "client 'slow' may send 1 requests a second; try again in 1 s"
    assert slow.send(*[request("any")] * 4) == ["", "", exhausted, exhausted]


def test_requests_of_streams_are_counted_one_by_one(gated: Gated) -> None:
    full = "client 'one' has 1 requests under way, which are as many as it may have"
    stream, other = Streaming(gated, "one"), Streaming(gated, "one")  # that they are open is no request
    assert stream.send(request("any"), request("any")) == ["", ""]
    gated.kernel.hold = True
    assert stream.send(request("any")) == ["", ""]
    assert other.send(request("any")) == [full]
    assert gated.ask("ModelInfer", request("any"), "one").text == full
    gated.kernel.finish(gated.kernel.held.pop())
    assert stream.send() == ["", "", ""]
    assert other.send(request("any")) == [full]
    assert stream.send(request("any"))[3:] == [full]
    gated.caller.cancel(other.id)
    assert gated.gate._usages["one"].running == 0
    gated.kernel.hold = False
    assert stream.send(request("any"))[4:] == [""]


def test_a_request_of_a_stream_that_waits_for_its_model_counts_once(gated: Gated) -> None:
    """And no more when its model can't be loaded."""
    waiting: list[Any] = []
    kernel, there = gated.kernel, gated.kernel.model

    def away(name: str, version: str = "") -> Any:
        raise NotLoaded("it is being loaded", lambda then, waits, called: waiting.append(then))

    stream = Streaming(gated, "one")
    kernel.model = away  # type: ignore[method-assign]
    assert stream.send(request("any")) == []
    usage = gated.gate._usages["one"]
    assert usage.running == 1
    kernel.model = there  # type: ignore[method-assign]
    waiting.pop()(None)
    assert stream.send() == [""] and usage.running == 0
    kernel.model = away  # type: ignore[method-assign]
    stream.send(request("batch8"))
    assert usage.running == 1
    kernel.model = there  # type: ignore[method-assign]
    waiting.pop()(ServingError(Code.UNAVAILABLE, "it can't be loaded"))
    assert stream.send()[1:] == ["it can't be loaded"] and usage.running == 0


def test_audit(gated: Gated, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kernel_auth")
    gated.ask("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="any"), "all")
    gated.ask("LogSettings", pb.LogSettingsRequest(), "all")
    settings = pb.LogSettingsRequest()
    settings.settings["log_info"].bool_param = True
    gated.ask("LogSettings", settings, "all")
    gated.ask("SystemSharedMemoryUnregister", key="all")
    gated.ask("ModelInfer", request("any"), "all")
    gated.ask("ModelInfer", request("batch8"), "some")
    lines = [message.replace(triton(""), "") for message in caplog.messages]
    peer = lines[0].partition("peer=")[2].partition(" operation")[0]
    assert [line.replace(f" peer={peer}", "") for line in lines] == [
        "audit result=allowed client=all operation=RepositoryModelUnload model=any",
        "audit result=allowed client=all operation=LogSettings",
        "audit result=allowed client=all operation=SystemSharedMemoryUnregister",
        "audit result=forbidden client=some operation=ModelInfer model=batch8 "
        "why=\"client 'some' may not use 'inference' of model 'batch8'\"",
    ]


def test_a_key_that_has_gone(gated: Gated) -> None:
    """Also on a stream that is open, and for calls whose fields are remembered."""
    stream = Streaming(gated, "some")
    assert stream.send(request("any")) == [""] and gated.ask("ModelInfer", request("any"), "some").status == 0
    write_keys(gated.file, clients={"all": CLIENTS["all"]})
    gated.kernel.loop.advance(1.0)
    stream.send(request("any"))
    gated.kernel.loop.run_jobs()
    assert stream.send(request("any"))[2:] == ["the key is not known"]
    assert gated.ask("ModelInfer", request("any"), "some").status == UNAUTHENTICATED


def test_large_messages_ask_for_their_model(gated: Gated) -> None:
    """They are read on a thread, and asked for when they have been."""
    made = pb.ModelInferRequest(model_name="any")
    made.inputs.add(name="X", datatype="FP32", shape=[30_000]).contents.fp32_contents.extend(range(30_000))
    for model, refused in (("half", "client 'some' may not use 'inference' of model 'half'"), ("any", "")):
        made.model_name = model
        answer = gated.ask("ModelInfer", made, "some")
        assert answer.status is None and gated.kernel.loop.jobs, "it isn't large enough"
        gated.kernel.loop.run_jobs()
        gated.caller.server._end_turn()
        gated.caller.read()
        stream = Streaming(gated, "some")
        stream.send(made)
        gated.kernel.loop.run_jobs()
        if refused:
            assert said(answer) == (PERMISSION_DENIED, refused) and stream.send() == [refused]
        assert len(gated.kernel.requests) == (0 if refused else 2)  # whose answers wait for the client's windows


#: The newest entry of HPACK's table, and the one before, as fields; which these are, the blocks before have said.
NEWEST, BEFORE = b"\xbe", b"\xbf"

#: What makes the table empty, and as large as it was.
EMPTIED = b"\x20\x3f\xe1\x1f"


def entering(name: str, value: str) -> bytes:
    """A field that stands in the table from then on."""
    return b"\x40" + b"".join(bytes(hpack.hpack.encode_integer(len(text), 7)) + text.encode() for text in (name, value))


class Indexing:
    """A client that names its key by HPACK's table, as real ones do; all that its calls have besides is the same each time."""

    FIELDS = block([(name, triton("ModelInfer") if name == ":path" else value) for name, value in REQUEST])

    def __init__(self, gated: Gated) -> None:
        self.caller = gated.caller

    def begin(self, key: bytes, model: str = "any", first: bytes = b"") -> Answer:
        """Make a call. `key`: how its block of fields ends; `first`: how it begins."""
        id = self.caller.begin(block=first + self.FIELDS + key)
        self.caller.send(data(id, framed(request(model).SerializeToString()), end=True))
        return self.caller.answers[id]

    def ask(self, key: bytes, model: str = "any", first: bytes = b"") -> tuple[int | None, str]:
        return said(self.begin(key, model, first))


def test_a_key_in_the_table_is_judged_by_what_the_table_says_now(gated: Gated) -> None:
    """The same bytes are another key when the table has moved on; the server remembers blocks by their bytes."""
    client = Indexing(gated)
    unknown, forbidden = "the key is not known", "client 'some' may not use 'inference' of model 'half'"
    assert client.ask(entering("authorization", "Bearer key-some")) == (0, "")
    for _ in range(3):
        assert client.ask(NEWEST) == (0, "") and client.ask(NEWEST, "half") == (PERMISSION_DENIED, forbidden)
    assert client.ask(entering("authorization", "Bearer key-nobody")) == (UNAUTHENTICATED, unknown)
    for _ in range(3):
        assert client.ask(NEWEST) == (UNAUTHENTICATED, unknown) and client.ask(BEFORE) == (0, "")
    assert client.ask(entering("authorization", "Bearer key-all"), "half")[0] == 3  # it may; the request is wrong
    for _ in range(3):
        assert client.ask(NEWEST, "half")[0] == 3 and client.ask(BEFORE) == (UNAUTHENTICATED, unknown)
    named = b"\x0f\x2f\x11Bearer key-nobody"  # the name alone is the table's
    assert client.ask(named) == (UNAUTHENTICATED, unknown)
    assert client.ask(entering("x-other", "Bearer key-all"), first=EMPTIED)[0] == UNAUTHENTICATED
    assert client.ask(NEWEST) == (UNAUTHENTICATED, "a key is needed: 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
    assert gated.caller.goaway() is None


def test_a_key_that_goes_while_it_stands_in_the_table(gated: Gated) -> None:
    client = Indexing(gated)

    def rewritten(clients: dict[str, str]) -> list[int | None]:
        write_keys(gated.file, clients=clients)
        gated.kernel.loop.advance(1.0)
        gated.ask("ServerLive")
        client.ask(NEWEST)  # has the file looked at, which a thread reads
        gated.kernel.loop.run_jobs()
        return [client.ask(NEWEST)[0] for _ in range(3)]

    assert client.ask(entering("x-api-key", "key-some")) == (0, "")
    assert rewritten({"all": CLIENTS["all"]}) == [UNAUTHENTICATED] * 3
    assert rewritten(CLIENTS) == [0] * 3
    assert rewritten({"some": 'may = [{ models = ["half"], categories = ["*"] }]'}) == [PERMISSION_DENIED] * 3
