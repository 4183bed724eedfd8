"""Cases that users of model servers reported, each with a real client at a real port, against a kernel in this process.

The models share the module `reported_probe` with their test: what they note there it reads, what they wait for it gives.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import http.client
import json
import socket
import sys
import threading
import time
import types
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel import Kernel

HEAD = """\
import json
import numpy as np
import reported_probe as probe
import triton_python_backend_utils as pb_utils

"""

ECHO = """\
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]) for x in inputs]
"""

#: Notes each X; while X is negative, waits to be cancelled.
PATIENT = """\
import time


class TritonPythonModel:
    def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        probe.log.append(float(x[0]))
        if x[0] < 0:
            probe.began.set()
            end = time.monotonic() + 2
            while not requests[0].is_cancelled():
                if time.monotonic() > end:
                    break
                time.sleep(0.01)
            else:
                probe.log.append("cancelled")
                probe.noticed.set()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])]
"""

BASE = """\
backend: "python"
max_batch_size: {rows}
input [ {{ name: "X" data_type: TYPE_{datatype} dims: [ -1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_{datatype} dims: [ -1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""


def base(datatype: str = "FP32", rows: int = 0, more: str = "") -> str:
    return BASE.format(datatype=datatype, rows=rows) + more


def ensemble(*steps: str, inputs: str = 'name: "X" data_type: TYPE_FP32 dims: [ -1 ]', output: str = "Y") -> str:
    return (
        f'platform: "ensemble"\ninput [ {{ {inputs} }} ]\noutput [ {{ name: "{output}" data_type: TYPE_FP32 dims: [ -1 ] }} ]\n'
        "ensemble_scheduling {\n  step [\n    " + ",\n    ".join(steps) + "\n  ]\n}\n"
    )


def step(model: str, reads: str, writes: str) -> str:
    """`reads` and `writes`: pairs `name of the model=name of the ensemble`, with commas between them."""
    maps = [
        f'{kind}_map {{ key: "{pair.partition("=")[0]}" value: "{pair.partition("=")[2]}" }}'
        for kind, pairs in (("input", reads), ("output", writes))
        for pair in pairs.split(",")
    ]
    return f'{{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}'


def tensor(name: str = "X", datatype: str = "FP32", shape: Sequence[int] = (1,), **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), **more}


def x(*values: Any, datatype: str = "FP32", shape: Sequence[int] | None = None, **more: Any) -> dict[str, Any]:
    """A request with one input X."""
    return {"inputs": [tensor("X", datatype, [len(values)] if shape is None else shape, data=list(values))], **more}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])

    @property
    def data(self) -> Any:
        """The data of the one output."""
        assert self.status == 200, self.body
        (output,) = self.json["outputs"]
        return output["data"]

    @property
    def tail(self) -> bytes:
        """The binary data behind the JSON part."""
        assert self.status == 200, self.body
        return self.body[int(self.headers["inference-header-content-length"]) :]


class Client:
    """Speaks to the port from threads. Whatever takes longer than `limit` seconds fails."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        limit: float = 5.0,
        on: http.client.HTTPConnection | None = None,
    ) -> Answer:
        def talk() -> Answer:
            connection = on or http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit)
            try:
                data = body if body is None or isinstance(body, bytes) else json.dumps(body)
                connection.request(method, path, data, headers or {})
                response = connection.getresponse()
                given = {name.lower(): value for name, value in response.getheaders()}
                return Answer(response.status, given, response.read())
            finally:
                if on is None:
                    connection.close()

        return await asyncio.to_thread(talk)

    async def infer(self, model: str, body: Any, headers: dict[str, str] | None = None, **more: Any) -> Answer:
        return await self.ask("POST", f"/v2/models/{model}/infer", body, headers, **more)

    async def binary(
        self, model: str, body: Any, tail: bytes, headers: dict[str, str] | None = None, **more: Any
    ) -> Answer:
        data = json.dumps(body).encode()
        lengths = {"Inference-Header-Content-Length": str(len(data))}
        return await self.infer(model, data + tail, {**lengths, **(headers or {})}, **more)

    async def load(self, model: str, limit: float = 5.0) -> Answer:
        return await self.ask("POST", f"/v2/repository/models/{model}/load", {}, limit=limit)

    async def unload(self, model: str) -> Answer:
        return await self.ask("POST", f"/v2/repository/models/{model}/unload", {})

    async def index(self) -> dict[str, dict[str, str]]:
        answer = await self.ask("POST", "/v2/repository/index")
        assert answer.status == 200
        return {row["name"]: row for row in answer.json}

    async def ready(self, model: str) -> bool:
        answer = await self.ask("GET", f"/v2/models/{model}/ready")
        assert answer.status == 200 or (answer.status, answer.error) == (400, "Model version not ready")
        return answer.status == 200

    def leave(self, path: str, body: Any) -> Callable[[], None]:
        """Send a request on a plain socket; the function returned goes away without its answer. Blocks."""
        data = json.dumps(body).encode()
        client = socket.create_connection(("127.0.0.1", self.port), 5)
        client.sendall(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
        return client.close


class Repo:
    """Models are added, then `serve` serves them over HTTP and calls its argument."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def add(self, name: str, code: str = ECHO, config: str | None = None, head: str = HEAD) -> Path:
        """Write a python model; return its model.py."""
        file = self.folder / name / "1" / "model.py"
        file.parent.mkdir(parents=True)
        file.write_text(head + code)
        self.config(name, base() if config is None else config)
        return file

    def config(self, name: str, text: str) -> Path:
        """Write a config; alone it is that of an ensemble."""
        file = self.folder / name / "config.pbtxt"
        (file.parent / "1").mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def serve(
        self,
        main: Callable[[Kernel, Client], Awaitable[None]],
        *flags: str,
        load: Sequence[str] = (),
        explicit: bool = False,
    ) -> None:
        explicit = explicit or bool(load)

        async def served() -> None:
            mode = "explicit" if explicit else "none"
            settings = {"python": {"shared-modules": "reported_probe"}}  # in which tests look into models
            async with Kernel(
                self.folder, control_mode=mode, load_models=load, exit_on_error=False, backend_config=settings
            ) as kernel:
                parser = argparse.ArgumentParser()
                kernel.plugins.add_options(parser)
                only_http = ["--http-address=127.0.0.1", "--http-port=0", "--allow-grpc=false", "--allow-metrics=false"]
                options = parser.parse_args([*only_http, *flags])
                (frontend,) = kernel.plugins.frontends(kernel, options)
                await frontend.start()
                try:
                    await main(kernel, Client(int(frontend.address.rpartition(":")[2])))
                finally:
                    await frontend.stop()

        async def limited() -> None:
            await asyncio.wait_for(served(), 15)

        asyncio.run(limited())


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "models")


@pytest.fixture(autouse=True)
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What the models of a test share with it."""
    module: Any = types.ModuleType("reported_probe")
    module.log = []
    module.began, module.noticed, module.go = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setitem(sys.modules, "reported_probe", module)
    yield module
    module.go.set()  # a test that has failed leaves no model waiting


async def happens(event: threading.Event, limit: float = 5.0) -> float:
    """Wait for an event of a model; return for how long."""
    began = time.monotonic()
    assert await asyncio.to_thread(event.wait, limit), "it never came to be"
    return time.monotonic() - began


# --- what execute returns


@pytest.mark.parametrize("placement", ["loop", "thread"])
@pytest.mark.parametrize("start", ["def", "async def"])
def test_bc05_execute_returns_none_and_nobody_has_answered(repo: Repo, placement: str, start: str) -> None:
    """BC05: the reference hangs."""
    code = f"""
class TritonPythonModel:
    {start} execute(self, requests):
        if requests[0].inputs()[0].as_numpy()[0] < 0:
            return None
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones(1, np.float32))])]
"""
    repo.add("silent", code, base(more=f'parameters {{ key: "placement" value {{ string_value: "{placement}" }} }}\n'))

    async def main(kernel: Kernel, client: Client) -> None:
        for _ in range(2):
            answer = await client.infer("silent", x(-1.0), limit=1.0)
            assert answer.status == 500
            assert "silent" in answer.error and "None" in answer.error
            assert "no response sender has sent a response for the request at index 0" in answer.error
        assert (await client.infer("silent", x(1.0), limit=1.0)).data == [1.0]

    repo.serve(main)


def test_bc05_a_sender_answered_one_request_but_not_the_other(repo: Repo, probe: Any) -> None:
    """BC05: returning None is fine for the one that has its answer; the other is told."""
    code = """
class TritonPythonModel:
    def execute(self, requests):
        probe.log.append(len(requests))
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if x[0, 0] > 0:
                response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])
                request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    batching = "dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 1000000 }\n"
    repo.add("some", code, base(rows=2, more=batching))

    async def main(kernel: Kernel, client: Client) -> None:
        good, bad = await asyncio.gather(
            *(client.infer("some", x(value, shape=[1, 1]), limit=1.0) for value in (1.0, -1.0))
        )
        assert probe.log == [2]
        assert good.data == [1.0]
        assert bad.status == 500
        assert "no response sender has sent a response for the request at index" in bad.error

    repo.serve(main)


@pytest.mark.parametrize(
    ("model", "made", "datatype", "shape"),
    [
        ("batched", "np.zeros((5, 2), np.float32)", "FP32", [5, 2]),
        ("plain", "np.zeros(2, np.float64)", "FP64", [2]),
        ("plain", "np.zeros(3, np.float32)", "FP32", [3]),
        ("plain", "np.zeros((2, 1), np.int8)", "INT8", [2, 1]),
    ],
)
def test_bc10_outputs_other_than_promised_pass_as_they_are(
    repo: Repo, model: str, made: str, datatype: str, shape: list[int]
) -> None:
    """BC10, the compatible way: like the reference, which checks none of this and drops what isn't declared."""
    code = f"""
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Z", np.ones(1, np.int8)), pb_utils.Tensor("Y", {made})])]
"""
    two = base().replace('"Y" data_type: TYPE_FP32 dims: [ -1 ]', '"Y" data_type: TYPE_FP32 dims: [ 2 ]')
    repo.add(model, code, base(rows=4) if model == "batched" else two)

    async def main(kernel: Kernel, client: Client) -> None:
        answer = await client.infer(model, x(1.0, shape=[1, 1] if model == "batched" else [1]))
        assert answer.status == 200, answer.body
        (output,) = answer.json["outputs"]
        assert (output["name"], output["datatype"], output["shape"]) == ("Y", datatype, shape)
        assert len(output["data"]) == np.prod(shape)

    repo.serve(main)


# --- clients that go away


def test_bc37_the_client_leaves_while_the_first_step_runs(repo: Repo, probe: Any) -> None:
    """BC37, by HTTP: the running step is told within 0.2 s, the second never starts."""
    repo.add("canc", PATIENT)
    repo.config("ens", ensemble(step("canc", "X=X", "Y=M"), step("canc", "X=M", "Y=Y")))

    async def main(kernel: Kernel, client: Client) -> None:
        leave = await asyncio.to_thread(client.leave, "/v2/models/ens/infer", x(-1.0))
        await happens(probe.began)
        leave()
        assert await happens(probe.noticed) < 0.2 + 0.05
        assert (await client.infer("canc", x(1.0))).data == [1.0]  # comes after a second step, if there were one
        assert probe.log == [-1.0, "cancelled", 1.0]
        (statistics,) = kernel.statistics("ens")
        assert statistics.success.count == 0 and statistics.failures["CANCELED"] >= 1

    repo.serve(main)


def test_bc38_the_client_leaves(repo: Repo, probe: Any) -> None:
    """BC38: the model is told within 0.3 s; what waits in the queue is never executed; both are counted as cancelled."""
    repo.add("canc", PATIENT)

    async def main(kernel: Kernel, client: Client) -> None:
        running = await asyncio.to_thread(client.leave, "/v2/models/canc/infer", x(-1.0))
        await happens(probe.began)
        waiting = await asyncio.to_thread(client.leave, "/v2/models/canc/infer", x(-2.0))
        assert (await client.ask("GET", "/v2/health/live")).status == 200  # what was sent before has been read
        waiting()
        running()
        assert await happens(probe.noticed) < 0.3 + 0.05
        assert (await client.infer("canc", x(3.0))).data == [3.0]
        assert probe.log == [-1.0, "cancelled", 3.0]
        (statistics,) = kernel.statistics("canc")
        assert statistics.failures["CANCELED"] == statistics.fail.count == 2
        assert statistics.success.count == 1

    repo.serve(main)


# --- ensembles


def test_bc40_optional_input_of_an_ensemble(repo: Repo) -> None:
    """BC40: absent, the model takes its default; present, the value."""
    code = """
class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        o = pb_utils.get_input_tensor_by_name(request, "O")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + (100 if o is None else o.as_numpy()))])]
"""
    optional = 'input [ {{ name: "{}" data_type: TYPE_FP32 dims: [ -1 ] optional: true }} ]\n'
    repo.add("opt", code, base(more=optional.format("O")))
    repo.config("ens", ensemble(step("opt", "X=X,O=OPT", "Y=Y")) + optional.format("OPT"))

    async def main(kernel: Kernel, client: Client) -> None:
        for _ in range(2):
            assert (await client.infer("ens", x(1.0))).data == [101.0]
            both = {"inputs": [tensor(data=[1.0]), tensor("OPT", data=[5.0])]}
            assert (await client.infer("ens", both)).data == [6.0]
        missing = await client.infer("ens", {"inputs": [tensor("OPT", data=[5.0])]})
        assert missing.status == 400 and "'X'" in missing.error

    repo.serve(main)


#: A model with two inputs.
TWO = base(more='input [ { name: "W" data_type: TYPE_FP32 dims: [ -1 ] } ]\n')


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (ensemble(step("echo", "X=X", "Y=elsewhere"), output="OY"), 6, ["OY", "elsewhere"]),
        (
            ensemble(step("echo", "X=X", "Y=Y")) + 'input [ { name: "IDLE" data_type: TYPE_FP32 dims: [ 1 ] } ]\n',
            9,
            ["IDLE", "not used"],
        ),
        (ensemble(step("echo", "X=X", "Y=Y"), step("echo", "X=X", "Y=Y")), 7, ["'Y'", "step 0", "step 1"]),
        (
            ensemble(step("echo", "X=B", "Y=A"), step("two", "X=A,W=X", "Y=B"), step("echo", "X=A", "Y=Y")),
            7,
            ["'A'", "wait for each other: step 0 ('echo') -> step 1 ('two') -> step 0 ('echo')"],
        ),
    ],
    ids=["unwritten", "unused", "twice", "cycle"],
)
def test_bc41_graphs_that_can_not_work(repo: Repo, text: str, line: int, words: list[str]) -> None:
    """BC41: the load says which tensor, what there is, and where; others are not concerned."""
    repo.add("echo")
    repo.add("two", ECHO, TWO)
    file = repo.config("ens", text)

    async def main(kernel: Kernel, client: Client) -> None:
        for _ in range(2):
            answer = await client.load("ens")
            assert answer.status == 500
            assert answer.error.startswith("failed to load 'ens', failed to poll from model repository: ")
            assert f"{file}:{line}:" in answer.error
            assert all(word in answer.error for word in words), answer.error
        reason = (await client.index())["ens"]
        assert (
            reason["state"] == "UNAVAILABLE" and f"{file}:{line}:" in reason["reason"] and words[0] in reason["reason"]
        )
        assert (await client.infer("ens", x(1.0))).status == 404
        assert (await client.infer("echo", x(2.0))).data == [2.0]

    repo.serve(main, load=["echo", "two"])


@pytest.mark.parametrize(
    ("steps", "name", "way"),
    [
        ({"one": "one"}, "one", "one -> one"),
        ({"one": "other", "other": "one"}, "one", "one -> other -> one"),
        ({"one": "other", "other": "third", "third": "one"}, "other", "other -> third -> one -> other"),
    ],
    ids=["one", "two", "three"],
)
def test_bc41_ensembles_that_consist_of_each_other(repo: Repo, steps: dict[str, str], name: str, way: str) -> None:
    """BC41, a cycle over several models: load and index spell it out, with the place."""
    repo.add("echo")
    for ens, other in steps.items():
        repo.config(ens, ensemble(step(other, "X=X", "Y=Y")))

    async def main(kernel: Kernel, client: Client) -> None:
        answer = await client.load(name, limit=1.0)
        assert answer.status == 400
        assert answer.error.startswith(f"load failed for model '{name}': ")
        row = (await client.index())[name]
        assert (await client.infer(name, x(1.0), limit=1.0)).status == 404
        assert (await client.infer("echo", x(2.0))).data == [2.0]
        for said in (answer.error, row.get("reason", "")):
            circle = f"{name} -> ... -> {way.split(' -> ')[-2]} -> {name}"
            words = f"circular dependency between ensembles: {circle} — the whole circle is {way}"
            assert words in said, said
            assert f"{repo.folder}/{name}/config.pbtxt:6:" in said, said

    repo.serve(main, load=["echo"])


def test_bc42_types_that_disagree_between_steps(repo: Repo) -> None:
    """BC42: the tensor, both models, both types."""
    repo.add("echo")
    integers = 'name: "I" data_type: TYPE_INT32 dims: [ -1 ]'
    file = repo.config("ens", ensemble(step("echo", "X=I", "Y=Y"), inputs=integers))
    repo.add(
        "wide", ECHO, base().replace('"X" data_type: TYPE_FP32 dims: [ -1 ]', '"X" data_type: TYPE_FP32 dims: [ 3, 3 ]')
    )
    repo.config("shapes", ensemble(step("echo", "X=X", "Y=M"), step("wide", "X=M", "Y=Y")))

    async def main(kernel: Kernel, client: Client) -> None:
        answer = await client.load("ens")
        assert answer.status == 400
        assert answer.error.startswith("load failed for model 'ens': ")
        assert (
            "in ensemble ens, ensemble tensor I: inconsistent data type: TYPE_INT32 is inferred from model ens while "
            "TYPE_FP32 is inferred from model echo"
        ) in answer.error
        assert f"{file}:6:" in answer.error
        answer = await client.load("shapes")
        assert answer.status == 400
        assert (
            "tensor M: inconsistent shape: [-1] is inferred from model echo while [3,3] is inferred from model wide"
            in (answer.error)
        )
        assert not await client.ready("ens") and await client.ready("echo")

    repo.serve(main, load=["echo", "wide"])


SPLIT = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for r in requests:
            x = r.inputs()[0].as_numpy()
            outputs = [pb_utils.Tensor("B", x)]
            if x[0] >= 0:
                outputs.append(pb_utils.Tensor("A", x + 1))
            answers.append(pb_utils.InferenceResponse(outputs))
        return answers
"""


@pytest.fixture
def splitting(repo: Repo) -> Repo:
    """A model `split` whose output A is missing for negative X."""
    outputs = "".join(f'output [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ -1 ] }} ]\n' for name in "AB")
    inputs = 'backend: "python"\ninput [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
    repo.add("split", SPLIT, inputs + outputs + "instance_group [ { kind: KIND_CPU count: 1 } ]\n")
    repo.add("two", ECHO, TWO)
    return repo


def test_bc43_a_step_that_omits_an_intermediate_tensor(splitting: Repo) -> None:
    """BC43: ensemble, step and tensor are named, and that the step before went well; good requests beside it are served."""
    splitting.config("ens", ensemble(step("split", "X=X", "A=a,B=b"), step("two", "X=a,W=b", "Y=Y")))

    async def main(kernel: Kernel, client: Client) -> None:
        for _ in range(2):
            answer = await client.infer("ens", x(-5.0), limit=1.0)
            assert answer.status == 400
            assert answer.error.startswith("in ensemble 'ens', step 1 (model 'two'): ")
            assert (
                "Ensemble tensor 'a' for input 'X' is missing: step 0 (model 'split') succeeded without its output 'A'"
                in (answer.error)
            )
            assert (await client.infer("ens", x(1.0), limit=1.0)).data == [2.0]
        answers = await asyncio.gather(*(client.infer("ens", x(float(value))) for value in range(100)))
        assert [answer.data for answer in answers] == [[value + 1.0] for value in range(100)]

    splitting.serve(main)


def test_bc43_a_step_that_omits_a_final_output(splitting: Repo) -> None:
    """BC43, and the table of oddities: the reference answers without it and says nothing."""
    splitting.config("ens", ensemble(step("split", "X=X", "A=Y")))

    async def main(kernel: Kernel, client: Client) -> None:
        answer = await client.infer("ens", x(-5.0), limit=1.0)
        assert answer.status == 200
        assert answer.json["outputs"] == []
        warning = answer.json["parameters"]["warning"]
        assert warning == "output 'Y' was not produced: step 0 (model 'split') succeeded without its output 'A'"
        assert "warning" not in (await client.infer("ens", x(5.0))).json.get("parameters", {})

    splitting.serve(main)


def test_bc44_a_composing_model_is_unloaded_and_comes_back(repo: Repo) -> None:
    """BC44: while it is away the ensemble is not ready; then it is, and nobody had to load it."""
    repo.add("echo")
    repo.config("ens", ensemble(step("echo", "X=X", "Y=Y")))

    async def main(kernel: Kernel, client: Client) -> None:
        assert (await client.infer("ens", x(1.0))).data == [1.0]
        for _ in range(2):
            assert (await client.unload("echo")).status == 200
            answer = await client.infer("ens", x(1.0), limit=1.0)
            assert answer.status in (400, 404)
            assert "'ens'" in answer.error and "no available versions" in answer.error
            assert not await client.ready("ens") and not await client.ready("echo")
            row = (await client.index())["ens"]
            assert (row["state"], row["reason"]) == ("UNAVAILABLE", "unloaded")
            assert (await client.load("echo")).status == 200
            assert await client.ready("ens")
            assert (await client.infer("ens", x(2.0))).data == [2.0]

    repo.serve(main, load=["ens"])


def test_bc45_what_is_no_change_reloads_nothing(repo: Repo, probe: Any) -> None:
    """BC45: byte code, swap files and dot files come and go; a changed line is a change."""
    code = ECHO + "\n    def initialize(self, args):\n        probe.log.append('initialize')\n"
    file = repo.add("echo", code)
    repo.config("ens", ensemble(step("echo", "X=X", "Y=Y")))

    async def main(kernel: Kernel, client: Client) -> None:
        assert (await client.infer("echo", x(1.0))).data == [1.0]
        version, model = file.parent, file.parent.parent
        for folder in (version, model):
            caches = (
                "__pycache__/model.cpython-311.pyc",
                "__pycache__/model.cpython-311.pyc.140213",
            )  # one half written
            for name in (*caches, ".ipynb_checkpoints/model-checkpoint.py", ".git/index"):
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(b"not the model")
            for name in (".model.py.swp", ".model.py.swo", "model.py~", "#model.py#", ".DS_Store", "model.pyc", "4913"):
                (folder / name).write_bytes(b"not the model")
            (folder / ".#model.py").symlink_to("user@host.1234")  # as emacs locks a file
        assert (await client.load("ens")).status == 200
        assert (await client.load("echo")).status == 200
        assert (await client.infer("ens", x(2.0))).data == [2.0]
        assert probe.log == ["initialize"]
        file.write_text(file.read_text() + "# changed\n")
        assert (await client.load("ens")).status == 200
        assert (await client.infer("ens", x(3.0))).data == [3.0]
        assert probe.log == ["initialize", "initialize"]

    repo.serve(main, load=["echo"])


# --- the wire

GZIP = {"Content-Encoding": "gzip"}


@pytest.mark.parametrize(
    ("body", "headers", "statuses", "words"),
    [
        (b'{"inputs":[{"name":"X","data', {}, {400}, ["failed to parse the request JSON buffer", "28"]),
        (b"[]", {}, {400}, ["inputs"]),
        (b"{}", {}, {400}, ["inputs", "non-existing"]),
        (b"null", {}, {400}, ["inputs"]),
        (b"{]", {}, {400}, ["failed to parse the request JSON buffer", "1"]),
        (b"\xff\xfe", {}, {400}, ["UTF-8"]),
        (b'{"inputs":{"name":"X"}}', {}, {400}, ["inputs", "non-array"]),
        (json.dumps(x(None)).encode(), {}, {400}, ["'X'", "null", "non-number"]),
        (json.dumps(x(1.0, None)).encode(), {}, {400}, ["'X'", "element 1 is null"]),
        (json.dumps(x("1")).encode(), {}, {400}, ["'X'", 'element 0 is "1"', "non-number"]),
        (json.dumps(x(1.0, shape=[-1])).encode(), {}, {400}, ["'X'", "shape"]),
        (json.dumps(x(1.0, shape=[])).encode(), {}, {400}, ["'X'", "shape"]),
        (json.dumps({"inputs": [{"name": "X", "shape": [1], "data": [1]}]}).encode(), {}, {400}, ["'X'", "datatype"]),
        (json.dumps({"inputs": []}).encode(), {}, {400}, ["X"]),
        (b"", {}, {400}, ["'silent"]),
        (json.dumps(x(1.0)).encode(), GZIP, {400}, ["compressed request can't be read"]),
        (gzip.compress(json.dumps(x(1.0)).encode(), mtime=0)[:-9], GZIP, {400}, ["compressed request can't be read"]),
        (b"", GZIP, {400}, ["decompressed"]),
        (json.dumps(x(1.0)).encode(), {"Content-Encoding": "br"}, {415, 501}, ["ompress"]),
    ],
)
def test_bc51_malformed_bodies(
    repo: Repo, probe: Any, body: bytes, headers: dict[str, str], statuses: set[int], words: list[str]
) -> None:
    """BC51: refused with the reason, never executed; the reference answers 200 to an empty and a feigned gzip body."""
    repo.add("silent", ECHO.replace("return", "probe.log.append(len(requests)); return"))

    async def main(kernel: Kernel, client: Client) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=2)
        try:
            for _ in range(2):
                answer = await client.infer("silent", body, headers, on=connection)
                assert answer.status in statuses, answer.body
                assert all(word in answer.error for word in words), answer.error
            assert kernel.live and probe.log == []
            assert (await client.infer("silent", x(1.0))).data == [1.0]
            assert probe.log == [1]
        finally:
            connection.close()

    repo.serve(main)


def test_bc52_counts_and_nested_lists(repo: Repo) -> None:
    """BC52: expected and actual counts; lists of unequal length are no matrix; nested and flat are the same."""
    repo.add("echo", ECHO, base(rows=8))
    repo.add("plain")

    async def main(kernel: Kernel, client: Client) -> None:
        for count in (2, 4):
            answer = await client.infer("plain", x(*map(float, range(count)), shape=[3]))
            assert answer.status == 400
            assert "'X'" in answer.error and f"expected 3 elements, got {count}" in answer.error
        for ragged in ([[1, 2], [3]], [[1, 2], [3, 4, 5]], [[1, 2, 3], [4]], [[1], [2, 3, 4]]):
            answer = await client.infer("echo", {"inputs": [tensor(shape=[2, 2], data=ragged)]})
            assert answer.status == 400, (ragged, answer.body)
            assert "'X'" in answer.error and "expected" in answer.error and "got" in answer.error, answer.error
        for whole in ([[1, 2], [3, 4]], [1, 2, 3, 4]):
            answer = await client.infer("echo", {"inputs": [tensor(shape=[2, 2], data=whole)]})
            assert answer.data == [1.0, 2.0, 3.0, 4.0]
            assert answer.json["outputs"][0]["shape"] == [2, 2]

    repo.serve(main)


def test_bc52_ragged_lists_of_strings(repo: Repo) -> None:
    """BC52: the same for BYTES."""
    repo.add("text", ECHO, base("STRING", rows=8))

    async def main(kernel: Kernel, client: Client) -> None:
        for ragged in ([["a", "b"], ["c"]], [["a"], ["b", "c", "d"]]):
            answer = await client.infer("text", {"inputs": [tensor("X", "BYTES", [2, 2], data=ragged)]})
            assert answer.status == 400, (ragged, answer.body)
            assert "'X'" in answer.error and "expected" in answer.error
        whole = {"inputs": [tensor("X", "BYTES", [2, 2], data=[["a", "b"], ["c", "d"]])]}
        assert (await client.infer("text", whole)).data == ["a", "b", "c", "d"]

    repo.serve(main)


@pytest.mark.parametrize(("datatype", "one"), [("FP16", b"\x00\x3c"), ("BF16", b"\x80\x3f")])
def test_bc55_half_precision(repo: Repo, datatype: str, one: bytes) -> None:
    """BC55: by JSON refused with the advice to send binary data, which works."""
    code = """
class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", request.inputs()[0].to_dlpack())])]
"""
    repo.add("half", code, base(datatype))

    async def main(kernel: Kernel, client: Client) -> None:
        answer = await client.infer("half", x(1.0, 2.0, datatype=datatype))
        assert answer.status == 400
        assert (
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input X"
            in (answer.error)
        )
        data = one + b"\x00\x00" + one
        body = {
            "inputs": [tensor("X", datatype, [3], parameters={"binary_data_size": 6})],
            "outputs": [{"name": "Y", "parameters": {"binary_data": True}}],
        }
        for _ in range(2):
            answer = await client.binary("half", body, data)
            assert answer.tail == data
            head = json.loads(answer.body[: -len(data)])
            assert (head["outputs"][0]["datatype"], head["outputs"][0]["shape"]) == (datatype, [3])
        body["outputs"] = [{"name": "Y"}]
        answer = await client.binary("half", body, data)
        assert answer.status == 400 and f"sending {datatype} data via JSON is not supported" in answer.error

    repo.serve(main)


def test_bc56_bytes(repo: Repo) -> None:
    """BC56: exact in binary, trailing NULs and all; by JSON what is UTF-8, and an error for what isn't."""
    repo.add("text", ECHO, base("STRING"))
    items = [b"\xff\xfe\x00", b"", b"\x00", b"tail\x00\x00", "\U0001f600".encode()]
    data = b"".join(len(item).to_bytes(4, "little") + item for item in items)
    sent = tensor("X", "BYTES", [len(items)], parameters={"binary_data_size": len(data)})

    async def main(kernel: Kernel, client: Client) -> None:
        wanted = {"outputs": [{"name": "Y", "parameters": {"binary_data": True}}]}
        for _ in range(2):
            assert (await client.binary("text", {"inputs": [sent], **wanted}, data)).tail == data
        texts = ["\0", "a\0\0", "\U0001f600", "", 'é"\\\n', "\u2028"]
        assert (await client.infer("text", x(*texts, datatype="BYTES"))).data == texts
        answer = await client.infer("text", x(*texts, datatype="BYTES", **wanted))
        assert answer.tail == b"".join(len(t.encode()).to_bytes(4, "little") + t.encode() for t in texts)
        for _ in range(2):
            answer = await client.binary("text", {"inputs": [sent]}, data)
            assert answer.status == 400
            assert "output 'Y'" in answer.error and "not UTF-8" in answer.error and "element 0" in answer.error
            assert "binary data format" in answer.error

    repo.serve(main)


TELL_PARAMETERS = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("T", np.array([r.parameters()], np.object_))]) for r in requests]
"""
TELLS = base(more='output [ { name: "T" data_type: TYPE_STRING dims: [ -1 ] } ]\n')


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("pattern", ["", "X-.*"])
def test_bc58_headers_to_the_model(repo: Repo, pattern: str, binary: bool) -> None:
    """BC58: not visible, but with a pattern; and each request has its own, however alike they are otherwise."""
    repo.add("tell", TELL_PARAMETERS, TELLS)
    parameters = {"k": "v"}

    async def main(kernel: Kernel, client: Client) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=2)

        async def told(headers: dict[str, str]) -> Any:
            if binary:
                body = {"parameters": parameters, "inputs": [tensor(parameters={"binary_data_size": 4})]}
                answer = await client.binary("tell", body, b"\0\0\0\0", headers, on=connection)
            else:
                answer = await client.infer("tell", x(1.0, parameters=parameters), headers, on=connection)
            return json.loads(answer.data[0])

        try:
            for user in ("me", "me", "you"):
                expected = {**parameters, "X-User": user} if pattern else parameters
                assert await told({"X-User": user, "Other": "no"}) == expected
            for _ in range(2):
                assert await told({}) == parameters
        finally:
            connection.close()

    repo.serve(main, *([f"--http-header-forward-pattern={pattern}"] if pattern else []))


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"parameters": {"ok": 1, "a": {"z": 1}}}, ["'a'", "string", "int", "bool"]),
        ({"parameters": {"a": [1]}}, ["'a'", "string", "int", "bool"]),
        ({"parameters": {"a": None}}, ["'a'", "string", "int", "bool"]),
        ({"parameters": {"triton_x": 1}}, ["'triton_'", "reserved"]),
        ({"parameters": [1]}, ["param", "non-object"]),
        ({"id": 7}, ["'id'", "non-string"]),
        ({"id": None}, ["'id'", "non-string"]),
    ],
)
def test_bc59_bad_parameters(repo: Repo, members: dict[str, Any], words: list[str]) -> None:
    """BC59: 400 with the key and what is allowed."""
    repo.add("tell", TELL_PARAMETERS, TELLS)

    async def main(kernel: Kernel, client: Client) -> None:
        answer = await client.infer("tell", x(1.0, **members))
        assert answer.status == 400, answer.body
        assert all(word in answer.error for word in words), answer.error

    repo.serve(main)


def test_bc59_parameters_arrive_typed(repo: Repo) -> None:
    """BC59: int, bool, string and float."""
    code = TELL_PARAMETERS.replace(
        "r.parameters()", "json.dumps({k: [type(v).__name__, v] for k, v in json.loads(r.parameters()).items()})"
    )
    repo.add("tell", code, TELLS)
    given = {"i": 2**53 + 1, "n": -3, "yes": True, "no": False, "s": "ä", "f": 0.1}

    async def main(kernel: Kernel, client: Client) -> None:
        for _ in range(2):
            told = json.loads((await client.infer("tell", x(1.0, parameters=given))).data[0])
            assert told == {key: [type(value).__name__, value] for key, value in given.items()}

    repo.serve(main)


def test_integers_out_of_range(repo: Repo) -> None:
    """Table of oddities: the reference wraps 300 to 44."""
    repo.add("small", ECHO, base("UINT8"))
    repo.add("signed", ECHO, base("INT8"))

    async def main(kernel: Kernel, client: Client) -> None:
        answer = await client.infer("small", x(1, 300, datatype="UINT8"))
        assert answer.status == 400
        assert "'X'" in answer.error and "element 1 is 300" in answer.error and "UINT8 holds 0 to 255" in answer.error
        for value in (-1, 256):
            assert "UINT8 holds 0 to 255" in (await client.infer("small", x(value, datatype="UINT8"))).error
        assert "INT8 holds -128 to 127" in (await client.infer("signed", x(-129, datatype="INT8"))).error
        assert (await client.infer("small", x(0, 255, datatype="UINT8"))).data == [0, 255]

    repo.serve(main)


# --- load and unload

NO_CLASS = "class Other:\n    pass\n"
NO_EXECUTE = "class TritonPythonModel:\n    def initialize(self, args):\n        pass\n"
RAISES = ECHO + '\n    def initialize(self, args):\n        raise KeyError("no weights today")\n'
NO_PYTHON = "class TritonPythonModel:\n    def execute(self, requests)\n        return []\n"


@pytest.mark.parametrize(
    ("code", "words", "at"),
    [
        (RAISES, ["KeyError", "no weights today", "initialize"], 'raise KeyError("no weights today")'),
        (NO_PYTHON, ["SyntaxError", "expected ':'"], "def execute(self, requests)"),
        (NO_CLASS, ["AttributeError", "has no attribute 'TritonPythonModel'"], "class Other"),
        (NO_EXECUTE, ["does not implement `execute`"], "class TritonPythonModel"),
        (
            "import no_such_module_at_all\n\n\n" + ECHO,
            ["ModuleNotFoundError", "no_such_module_at_all"],
            "import no_such",
        ),
        (ECHO + "\n1 / 0\n", ["ZeroDivisionError", "division by zero"], "1 / 0"),
    ],
    ids=["initialize", "syntax", "no class", "no execute", "no module", "top level"],
)
def test_bc63_models_that_can_not_be_loaded(repo: Repo, code: str, words: list[str], at: str) -> None:
    """BC63: class, text and line, at once, and as often as one asks; the index says it, too."""
    file = repo.add("broken", code, head=HEAD.replace("import reported_probe as probe\n", ""))  # which no process has
    repo.add("fine")
    line = next((number for number, text in enumerate(file.read_text().splitlines(), 1) if at and at in text), 0)

    async def main(kernel: Kernel, client: Client) -> None:
        answers = [await client.load("broken", limit=5.0) for _ in range(2)]
        assert answers[0].error == answers[1].error
        for answer in answers:
            assert answer.status == 400
            assert answer.error.startswith(
                "load failed for model 'broken': version 1 is at UNAVAILABLE state: Internal: "
            )
            assert all(word in answer.error for word in words), answer.error
            assert "model.py" in answer.error or "1.model" in answer.error
            if at:
                assert f"model.py({line})" in answer.error or f"model.py, line {line}" in answer.error, answer.error
        row = (await client.index())["broken"]
        assert (row["version"], row["state"]) == ("1", "UNAVAILABLE")
        assert row["reason"].startswith("Internal: ") and all(word in row["reason"] for word in words)
        assert not await client.ready("broken")
        assert (await client.load("fine")).status == 200
        assert (await client.infer("fine", x(1.0))).data == [1.0]
        file.write_text(HEAD + ECHO)
        assert (await client.load("broken")).status == 200  # and once it is mended it loads
        assert (await client.infer("broken", x(1.0))).data == [1.0]

    repo.serve(main, explicit=True)


HEADLESS = 'backend: "python"\nmax_batch_size: 4\ninput [\n  {\n    name: "X"\n'
OUTPUT = 'output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
FIRST = base().partition("instance_group")[0]


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (HEADLESS + "    dim: [ -1 ]\n    data_type: TYPE_FP32\n  }\n]\n" + OUTPUT, "6:5", ["'dim'", "'dims'"]),
        (
            HEADLESS + "    dims: [ -1 ]\n    data_type: TYPE_FLOAT32\n  }\n]\n" + OUTPUT,
            "7:16",
            ["TYPE_FLOAT32", "TYPE_FP32"],
        ),
        (FIRST.replace("size: 0", "size: ${rows}"), "2:17", ["$", "max_batch_size"]),
        ('name: "typos"\n' + base(), "1:7", ["'typos'", "'typo'"]),
        (
            base(rows=4, more="dynamic_batching {\n  preferred_batch_size: [ 2, 9 ]\n}\n"),
            "7:30",
            ["preferred size", "got 9", "max_batch_size is 4"],
        ),
    ],
    ids=["field", "enum", "placeholder", "name", "preferred size"],
)
def test_bc64_mistakes_in_a_config(repo: Repo, text: str, place: str, words: list[str]) -> None:
    """BC64: load and index say file, line, column, the token and what it could have been; other models load."""
    file = repo.add("typo", ECHO, text).parents[1] / "config.pbtxt"
    repo.add("fine")

    async def main(kernel: Kernel, client: Client) -> None:
        assert (await client.infer("fine", x(1.0))).data == [1.0]
        for _ in range(2):
            answer = await client.load("typo")
            assert answer.status in (400, 500)
            assert answer.error.startswith(("failed to load 'typo', failed to poll", "load failed for model 'typo'"))
            row = (await client.index())["typo"]
            assert row["state"] == "UNAVAILABLE"
            for said in (answer.error, row["reason"]):
                assert f"({file}:{place})" in said, said
                assert all(word in said for word in words), said
        assert not await client.ready("typo")
        file.write_text(base())
        assert (await client.load("typo")).status == 200
        assert (await client.infer("typo", x(1.0))).data == [1.0]

    repo.serve(main, load=["*"])


def test_bc69_infer_while_the_model_loads(repo: Repo, probe: Any) -> None:
    """BC69: told at once that it isn't ready, by whatever way it is asked for; nothing is executed before its time."""
    code = """
class TritonPythonModel:
    def initialize(self, args):
        probe.began.set()
        probe.go.wait(5)
        probe.log.append("initialized")

    def execute(self, requests):
        probe.log.append("executed")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""
    repo.add("slow", code)
    repo.add("fine")

    async def main(kernel: Kernel, client: Client) -> None:
        loading = asyncio.create_task(client.load("slow"))
        await happens(probe.began)
        for _ in range(2):
            answer = await client.infer("slow", x(1.0), limit=1.0)
            assert (answer.status, answer.error) == (404, "Request for unknown model: 'slow' has no available versions")
            answer = await client.infer("slow/versions/1", x(1.0), limit=1.0)
            assert (answer.status, answer.error) == (
                503,
                "Request for unknown model: 'slow' version 1 is not at ready state",
            )
            assert not await client.ready("slow")
            assert (await client.index())["slow"]["state"] == "LOADING"
            assert (await client.infer("fine", x(2.0), limit=1.0)).data == [2.0]
        assert probe.log == [] and not loading.done()
        probe.go.set()
        assert (await loading).status == 200
        assert await client.ready("slow")
        assert (await client.infer("slow", x(1.0))).data == [1.0]
        assert probe.log == ["initialized", "executed"]

    repo.serve(main, load=["fine"])


def test_load_of_an_unknown_model(repo: Repo) -> None:
    """Table of oddities: 404 with the nearest names; where none is near, those that there are."""
    repo.add("resnet50")
    repo.add("bert")

    async def main(kernel: Kernel, client: Client) -> None:
        answer = await client.load("resnet5")
        assert answer.status == 404
        assert answer.error.startswith("failed to load 'resnet5', failed to poll from model repository: ")
        assert "did you mean 'resnet50'?" in answer.error and "bert" not in answer.error
        answer = await client.load("zzz")
        assert answer.status == 404 and "bert" in answer.error and "resnet50" in answer.error
        assert "zzz" not in await client.index()

    repo.serve(main, load=["bert"])


def test_unload_of_an_unknown_model(repo: Repo, caplog: pytest.LogCaptureFixture) -> None:
    """Table of oddities: 200, and a warning for whoever runs the server."""
    repo.add("echo")

    async def main(kernel: Kernel, client: Client) -> None:
        answer = await client.unload("ehco")
        assert (answer.status, answer.body) == (200, b"")
        assert await client.ready("echo")

    repo.serve(main, load=["echo"])
    assert [record.levelname for record in caplog.records if "'ehco'" in record.getMessage()] == ["WARNING"]


@pytest.mark.parametrize("kind", ["input", "output"])
def test_two_tensors_of_one_name_in_a_config(repo: Repo, kind: str) -> None:
    """Table of oddities: the reference loads such a model."""
    name = {"input": "X", "output": "Y"}[kind]
    text = base(more=f'{kind} [ {{ name: "{name}" data_type: TYPE_INT32 dims: [ 1 ] }} ]\n')
    file = repo.add("twice", ECHO, text).parents[1] / "config.pbtxt"

    async def main(kernel: Kernel, client: Client) -> None:
        answer = await client.load("twice")
        assert answer.status in (400, 500)
        assert f"{file}:6:" in answer.error and f"'{name}'" in answer.error and kind in answer.error
        assert (await client.index())["twice"]["state"] == "UNAVAILABLE"
        assert (await client.infer("twice", x(1.0))).status == 404

    repo.serve(main, explicit=True)
