"""A long mixed load: what fails, what grows, and, with --triton, how long the real Triton lives under the same.

    python bench/soak.py --seconds 3600            ours alone
    python bench/soak.py --seconds 3600 --triton   the real Triton behind it, on the same models and the same load

The load is HTTP with and without pipelining, gRPC, streams of decoupled responses, sequences, a model that has sixteen calls of
others under way at a time (`fan`), clients that go before their answer comes, a model that is loaded anew under traffic and one
that comes and goes. Every answer is compared with what it has to be; one that is wrong, or has not come in 30 s, is an error, and
printed. The server's memory (proportional set size, children included) is looked at every second. After a tenth of the time to
warm up, the rest is cut into ten parts, of each the least figure counts, and the slope through them is printed per million
requests. The exit code is 1 when there was an error, when ours died, or when the slope is above `GROWTH_MB` after a million
requests; a shorter run only prints it.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import queue
import random
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from servers import PROJECT, Server, start, why_no_triton

sys.path.insert(0, str(PROJECT / "plugins"))

from kernel_grpc.schemas import grpc_service_pb2 as pb

GROWTH_MB = 1.0
PATIENCE_S = 30.0
WARM = 0.1
PARTS = 10
FAN = 16
FLAGS = ("--model-control-mode=explicit", "--load-model=*", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1")

HEAD = """import asyncio
import time
import numpy as np
import triton_python_backend_utils as pb_utils


def value(request, name="X"):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def answer(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)])


class TritonPythonModel:
"""
TWICE = """    def execute(self, requests):
        return [answer(value(r) * 2) for r in requests]
"""
SLOW = """    def execute(self, requests):
        time.sleep(0.005)
        return [answer(value(r) * 2) for r in requests]
"""
COUNT = """    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for r in requests:
            id = int(value(r, "CORRID").ravel()[0])
            if value(r, "START").any():
                self.sums[id] = 0
            self.sums[id] += value(r)
            responses.append(answer(self.sums[id]))
            if value(r, "END").any():
                del self.sums[id]
        return responses
"""
REPEAT = """    def execute(self, requests):
        for r in requests:
            sender = r.get_response_sender()
            for k in range(int(value(r).ravel()[0])):
                sender.send(answer(np.array([k], np.float32)))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
FAN_OUT = f"""    async def execute(self, requests):
        responses = []
        for r in requests:
            x = value(r)
            calls = [
                pb_utils.InferenceRequest(
                    model_name=("near", "far")[k % 2], requested_output_names=["Y"],
                    inputs=[pb_utils.Tensor("X", x + k)]
                ).async_exec()
                for k in range({FAN})
            ]
            total = np.zeros_like(x)
            for answered in await asyncio.gather(*calls):
                if answered.has_error():
                    responses.append(pb_utils.InferenceResponse([], answered.error()))
                    break
                total += pb_utils.get_output_tensor_by_name(answered, "Y").as_numpy()
            else:
                responses.append(answer(total))
        return responses
"""
CONFIG = """backend: "python"
max_batch_size: {batch}
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }} ]
{more}
"""
PLACED = 'parameters {{ key: "placement" value {{ string_value: "{}" }} }}\n'
SEQUENCE = """sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 16 }
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
"""

#: Name -> code, largest batch, what else stands in the config.
MODELS = {
    "near": (TWICE, 0, PLACED.format("loop")),
    "batched": (TWICE, 32, "dynamic_batching { }\n" + PLACED.format("thread")),
    "far": (TWICE, 0, PLACED.format("process")),
    "slow": (SLOW, 0, "instance_group { kind: KIND_CPU count: 4 }\n" + PLACED.format("thread")),
    "count": (COUNT, 8, SEQUENCE),
    "repeat": (REPEAT, 0, "model_transaction_policy { decoupled: true }\n"),
    "fan": (FAN_OUT, 0, ""),
    "renewed": (TWICE, 0, ""),
    "renewed_far": (TWICE, 0, PLACED.format("process")),
    "gone": (TWICE, 0, ""),
}


def write_models(repository: Path) -> None:
    for name, (code, batch, more) in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(HEAD + code)
        (repository / name / "config.pbtxt").write_text(CONFIG.format(batch=batch, more=more))


# -- the load ------------------------------------------------------------------------------------------------------------------


class Wrong(Exception):
    """An answer that is not what it has to be."""


class Task:
    """What one thread of a client process is given: where to send, and what it has counted."""

    def __init__(self, port: int, grpc_port: int, over: threading.Event) -> None:
        self.port = port
        self.grpc_port = grpc_port
        self.over = over
        self.requests = 0

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def channels(self, rounds: int) -> Iterator[grpc.Channel]:
        """Yield a channel for each round until it is over, another one after so many rounds."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        while not self.over.is_set():
            with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}", options) as channel:
                for _ in range(rounds):
                    if self.over.is_set():
                        return
                    yield channel

    def post(self, sock: socket.socket, path: str, body: bytes = b"", *more: bytes) -> tuple[int, bytes]:
        """Send one request over HTTP, and return the status and the body of its answer."""
        sock.sendall(head(path, len(body), *more) + body)
        self.requests += 1
        return take(sock, bytearray())


def head(path: str, length: int, *more: bytes) -> bytes:
    fields = [b"POST %b HTTP/1.1" % path.encode(), b"Host: a", b"Content-Length: %d" % length, *more, b"", b""]
    return b"\r\n".join(fields)


def take(sock: socket.socket, rest: bytearray) -> tuple[int, bytes]:
    """Read one answer; `rest`: what has come already, and what is left over afterwards."""
    while (end := rest.find(b"\r\n\r\n")) < 0:
        _more(sock, rest)
    fields = bytes(rest[:end]).split(b"\r\n")
    length = next((int(field[15:]) for field in fields if field[:15].lower() == b"content-length:"), 0)
    while len(rest) < end + 4 + length:
        _more(sock, rest)
    body = bytes(rest[end + 4 : end + 4 + length])
    del rest[: end + 4 + length]
    return int(fields[0].split()[1]), body


def _more(sock: socket.socket, rest: bytearray) -> None:
    piece = sock.recv(1 << 20)
    if not piece:
        raise ConnectionError("the connection was closed")
    rest += piece


def tensors(array: Any, batch: bool) -> tuple[bytes, bytes]:
    """Return a request's body over HTTP with a binary tail, and the field that tells how it is divided."""
    shape = [1, len(array)] if batch else [len(array)]
    one = {"name": "X", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": 4 * len(array)}}
    part = json.dumps({"inputs": [one], "outputs": [{"name": "Y", "parameters": {"binary_data": True}}]}).encode()
    return part + array.tobytes(), b"Inference-Header-Content-Length: %d" % len(part)


def pipelined(task: Task) -> None:
    """HTTP, eight at a time, over one connection that is renewed now and then."""
    chance = random.Random(1)
    while not task.over.is_set():
        rest = bytearray()
        with task.connect() as sock:
            for _ in range(500):
                if task.over.is_set():
                    return
                name = chance.choice(["near", "near", "batched", "far"])
                arrays = [np.full(chance.choice([1, 16, 1000]), chance.random(), np.float32) for _ in range(8)]
                bodies = [tensors(array, name == "batched") for array in arrays]
                path = f"/v2/models/{name}/infer"
                sock.sendall(b"".join(head(path, len(body), field) + body for body, field in bodies))
                task.requests += len(bodies)
                for array in arrays:
                    _expect(take(sock, rest), array * 2)


def _expect(answer: tuple[int, bytes], wanted: Any) -> None:
    status, body = answer
    if status != 200 or not body.endswith(wanted.tobytes()):
        raise Wrong(f"HTTP {status}: {body[:200]!r}")


def large(task: Task) -> None:
    """Bodies of some megabytes, JSON among them, one at a time."""
    array = np.arange(500_000, dtype=np.float32)
    body, field = tensors(array, False)
    text = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [50_000], "data": [0.5] * 50_000}]}).encode()
    while not task.over.is_set():
        with task.connect() as sock:
            for name in ("near", "far"):
                _expect(task.post(sock, f"/v2/models/{name}/infer", body, field), array * 2)
            status, answered = task.post(sock, "/v2/models/near/infer", text)
            if status != 200 or json.loads(answered)["outputs"][0]["data"] != [1.0] * 50_000:
                raise Wrong(f"HTTP {status}: {answered[:200]!r}")
        task.over.wait(0.2)


def fan(task: Task) -> None:
    """A model that has sixteen asynchronous calls under way, from several clients at once."""
    body, field = tensors(np.ones(4, np.float32), False)
    wanted = np.full(4, sum(2 * (1 + k) for k in range(FAN)), np.float32)
    while not task.over.is_set():
        with task.connect() as sock:
            for _ in range(50):
                _expect(task.post(sock, "/v2/models/fan/infer", body, field), wanted)


def leaving(task: Task) -> None:
    """Clients that go before their answer comes, in all stages."""
    chance = random.Random(2)
    body, field = tensors(np.ones(1000, np.float32), False)
    while not task.over.is_set():
        name = chance.choice(["slow", "fan", "far"])
        message = head(f"/v2/models/{name}/infer", len(body), field) + body
        with task.connect() as sock:
            sock.sendall(message[: chance.randrange(1, len(message) + 1)] if chance.random() < 0.5 else message * 3)
            task.over.wait(chance.choice([0.0, 0.002, 0.01]))
        task.requests += 1


def renewing(task: Task) -> None:
    """A model is loaded anew, while `renewed` has it asked; another comes and goes."""
    chance = random.Random(3)
    while not task.over.is_set():
        with task.connect() as sock:
            for name in ("renewed", chance.choice(["renewed", "renewed_far"])):
                config = {"backend": "python", "parameters": {"turn": {"string_value": str(chance.random())}}}
                config |= {"input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}]}
                config |= {"output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}]}
                if name == "renewed_far":
                    config["parameters"]["placement"] = {"string_value": "process"}
                wish = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
                status, answered = task.post(sock, f"/v2/repository/models/{name}/load", wish)
                if status != 200:
                    raise Wrong(f"load of {name}: HTTP {status}: {answered[:200]!r}")
            for what in ("unload", "load"):
                status, answered = task.post(sock, f"/v2/repository/models/gone/{what}")
                if status != 200:
                    raise Wrong(f"{what} of gone: HTTP {status}: {answered[:200]!r}")
        task.over.wait(0.3)


def renewed(task: Task) -> None:
    """Requests to what is loaded anew are all answered; those to what comes and goes are answered, or say that it isn't there."""
    body, field = tensors(np.ones(4, np.float32), False)
    while not task.over.is_set():
        with task.connect() as sock:
            for name in ("renewed", "renewed_far", "gone") * 20:
                answer = task.post(sock, f"/v2/models/{name}/infer", body, field)
                if name != "gone" or answer[0] == 200:
                    _expect(answer, np.full(4, 2, np.float32))
                elif answer[0] not in (400, 404, 503):
                    raise Wrong(f"a model that is gone: HTTP {answer[0]}: {answer[1][:200]!r}")


SERVICE = "/inference.GRPCInferenceService/"


def message(name: str, array: Any, **parameters: int | bool) -> pb.ModelInferRequest:
    """Return a request over gRPC; the arrays of models that batch have two dimensions."""
    made = pb.ModelInferRequest(model_name=name)
    made.inputs.add(name="X", datatype="FP32", shape=array.shape)
    made.raw_input_contents.append(array.tobytes())
    for key, value in parameters.items():
        if isinstance(value, bool):
            made.parameters[key].bool_param = value
        else:
            made.parameters[key].int64_param = value
    return made


def infer_of(channel: grpc.Channel) -> Any:
    return channel.unary_unary(
        f"{SERVICE}ModelInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )


def stream_of(channel: grpc.Channel) -> Any:
    return channel.stream_stream(
        f"{SERVICE}ModelStreamInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelStreamInferResponse.FromString,
    )


def calls(task: Task) -> None:
    """gRPC, eight at a time, some of them cancelled."""
    chance = random.Random(4)
    for channel in task.channels(200):
        infer = infer_of(channel)
        name = chance.choice(["near", "near", "batched", "far", "fan", "slow"])
        array = np.full((1, 16) if name == "batched" else 16, chance.randrange(8), np.float32)
        begun = [infer.future(message(name, array), timeout=PATIENCE_S) for _ in range(8)]
        task.requests += len(begun)
        if chance.random() < 0.1:
            for call in begun:
                call.cancel()
            continue
        wanted = array * 2 if name != "fan" else sum((array + k) * 2 for k in range(FAN))
        for call in begun:
            if call.result().raw_output_contents[0] != wanted.tobytes():
                raise Wrong(f"gRPC: {call.result()}")


def streams(task: Task) -> None:
    """Decoupled responses, in their order; every fourth stream is given up in the middle."""
    chance = random.Random(5)
    for turn, channel in enumerate(task.channels(50)):
        count, many = chance.choice([0, 1, 30]), 4
        sent = [message("repeat", np.array([count], np.float32), triton_enable_empty_final_response=True)] * many
        call = stream_of(channel)(iter(sent), timeout=PATIENCE_S)
        task.requests += many
        ended, seen = 0, Counter[float]()
        for got in call:
            if got.error_message:
                raise Wrong(f"stream: {got.error_message}")
            response = got.infer_response
            if response.raw_output_contents:
                seen[float(np.frombuffer(response.raw_output_contents[0], np.float32)[0])] += 1
            ended += response.parameters["triton_final_response"].bool_param
            if turn % 4 == 3 and seen[0.0] >= 2:
                call.cancel()
                break
        else:
            if ended != many or seen != Counter({float(k): many for k in range(count)}):
                raise Wrong(f"stream: {ended} ended of {many}, {seen}")


def sequences(task: Task) -> None:
    """Sequences of sums, over gRPC, each with an end; eight at a time."""
    ids = 1
    for channel in task.channels(50):
        infer = infer_of(channel)
        numbers, total, length = range(ids, ids + 8), 0, 5
        ids += 8
        for k in range(length):
            total += k
            marks = {"sequence_start": k == 0, "sequence_end": k == length - 1}
            array = np.full((1, 1), k, np.float32)
            begun = [infer.future(message("count", array, sequence_id=n, **marks), timeout=PATIENCE_S) for n in numbers]
            task.requests += len(begun)
            for call in begun:
                got = np.frombuffer(call.result().raw_output_contents[0], np.float32)
                if got[0] != total:
                    raise Wrong(f"sequence: {got}, not {total}")


def watching(task: Task) -> None:
    """What a monitor asks for, from new connections."""
    while not task.over.is_set():
        for path in (b"/v2/health/live", b"/v2/health/ready", b"/v2/models/stats", b"/v2/models/near/config"):
            with task.connect() as sock:
                sock.sendall(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path)
                task.requests += 1
                status, answered = take(sock, bytearray())
                if status != 200 and not path.endswith(b"/ready"):  # it is not, while a model is being loaded
                    raise Wrong(f"GET {path.decode()}: HTTP {status}: {answered[:200]!r}")
        task.over.wait(0.25)


#: Client processes, and what each does, on a thread each.
CLIENTS: tuple[tuple[Callable[[Task], None], ...], ...] = (
    (pipelined, pipelined, large, renewing, renewed, watching),
    (calls, calls, streams, sequences, fan, fan, fan, leaving),
)


def client(number: int, port: int, grpc_port: int, seconds: float, out: Any) -> None:
    """Run one client process: its counts and errors go to `out`, every second and at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    over = threading.Event()
    tasks = [(Task(port, grpc_port, over), function) for function in CLIENTS[number]]

    def run(task: Task, function: Callable[[Task], None]) -> None:
        while not over.is_set():
            try:
                function(task)
            except (Wrong, OSError, grpc.RpcError) as error:
                text = error.details() if isinstance(error, grpc.Call) else str(error)
                out.put(("error", f"{function.__name__}: {type(error).__name__}: {text}"))
                over.wait(0.5)

    threads = [threading.Thread(target=run, args=one, daemon=True) for one in tasks]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(1.0, max(0.0, end - time.monotonic())))
        out.put(("requests", (number, sum(task.requests for task, _ in tasks))))
    over.set()
    for thread, (_, function) in zip(threads, tasks, strict=True):
        thread.join(PATIENCE_S + 5)
        if thread.is_alive():
            out.put(("error", f"{function.__name__}: no answer in {PATIENCE_S:g} s"))
    out.put(("requests", (number, sum(task.requests for task, _ in tasks))))


# -- one server ----------------------------------------------------------------------------------------------------------------


class Story:
    """What became of a server: requests, errors, the memory by the number of requests, and when it died, None: it did not."""

    def __init__(self) -> None:
        self.requests = 0
        self.errors: Counter[str] = Counter()
        self.memory: list[tuple[int, float]] = []
        self.died_s: float | None = None
        self.status = 0

    def growth(self) -> float:
        """Megabytes for a million requests, by the least figure of each part of the time after the warmup."""
        points = self.memory[int(len(self.memory) * WARM) :]
        size = max(1, len(points) // PARTS)
        least = [min(points[at : at + size], key=lambda point: point[1]) for at in range(0, len(points), size)]
        if len({count for count, _ in least}) < 2:
            return 0.0
        slope, _ = statistics.linear_regression([count / 1e6 for count, _ in least], [size for _, size in least])
        return slope


def soak(server: Server, seconds: float) -> Story:
    """Put the load on the server until the time is over, or it has died."""
    story = Story()
    context = multiprocessing.get_context("spawn")
    out: Any = context.Queue()
    begin = time.monotonic()
    clients = [
        context.Process(target=client, args=(number, server.port, server.grpc_port, seconds, out), daemon=True)
        for number in range(len(CLIENTS))
    ]
    for process in clients:
        process.start()
    counts: dict[int, int] = {}
    looked = begin
    while any(process.is_alive() for process in clients) or not out.empty():
        with contextlib.suppress(queue.Empty):
            kind, what = out.get(timeout=0.2)
            if kind == "requests":
                counts[what[0]] = what[1]
                story.requests = sum(counts.values())
            elif not story.errors[what] and len(story.errors) < 50:
                print(f"{time.monotonic() - begin:8.1f} s  {what}", flush=True)
                story.errors[what] += 1
            else:
                story.errors[what] += 1
        now = time.monotonic()
        if server.process.poll() is not None:
            story.died_s, story.status = now - begin, server.process.returncode
            for process in clients:
                process.terminate()
            break
        if now - looked >= 1.0 and now - begin < seconds:
            looked = now
            story.memory.append((story.requests, server.pss_mb()))
    for process in clients:
        process.join(5)
    return story


def left_over(server: Server) -> str:
    """Return what the server says is still in flight when nobody has asked for anything for two seconds; "" for nothing."""
    time.sleep(2)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request("GET", "/v2/inflight")
        response = connection.getresponse()
        text = response.read().decode()
        found = json.loads(text) if response.status == 200 else {}  # the real Triton has no such page
        return text[:2000] if found.get("inflight") else ""
    finally:
        connection.close()


def report(name: str, story: Story, seconds: float) -> bool:
    """Print what became of it; return whether all is well."""
    first, last = (story.memory[int(len(story.memory) * WARM)][1], story.memory[-1][1]) if story.memory else (0.0, 0.0)
    print(f"{name}: {story.requests} requests in {story.died_s or seconds:.0f} s, {sum(story.errors.values())} errors")
    print(f"{name}: memory {first:.1f} MB when warm, {last:.1f} MB at the end: {story.growth():+.2f} MB for a million requests")
    for text, count in story.errors.most_common(10):
        print(f"{name}: {count} x {text}")
    if story.died_s is not None:
        how = signal.Signals(-story.status).name if story.status < 0 else f"exit status {story.status}"
        print(f"{name}: died after {story.died_s:.1f} s, {how}")
    grown = story.requests > 1_000_000 and story.growth() > GROWTH_MB
    return not story.errors and story.died_s is None and not grown


def run(name: str, seconds: float) -> tuple[Story, bool]:
    with tempfile.TemporaryDirectory(prefix="kernel-soak-") as folder:
        repository = Path(folder) / "models"
        write_models(repository)
        server = start(name, repository, *FLAGS)
        try:
            story = soak(server, seconds)
            if story.died_s is not None:
                print(server.tail())
            elif left := left_over(server):
                print(f"{name}: still in flight: {left}")
                story.errors["requests are left in flight"] += 1
        finally:
            began = time.monotonic()
            server.stop()
            print(f"{name}: stopped in {time.monotonic() - began:.1f} s")
        return story, report(name, story, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--triton", action="store_true", help="the real Triton behind it")
    parser.add_argument("--only-triton", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    told: dict[str, Any] = {}
    well = True
    names = ["triton"] if options.only_triton else ["default", "triton"] if options.triton else ["default"]
    for name in names:
        if name == "triton" and (reason := why_no_triton()):
            print(f"triton: {reason}")
            continue
        story, good = run(name, options.seconds)
        well = well and (good or name == "triton")
        told[name] = vars(story) | {"growth_mb": story.growth()}
    if options.json:
        options.json.write_text(json.dumps(told))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
