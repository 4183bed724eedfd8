"""Count what the interpreter does for one request: files and frames passed, and instructions, by whose code it is.

    python bench/path.py [--only ROUTE ...] [--functions] [--check | --write]

Serves small models on an asyncio loop of this process, asks over real sockets, and traces every instruction of our own code; what
the standard library does is left out. The least of several tries counts, so the figures are the same on a busy machine. They
depend on the Python version. The routes `remote` ask a model of the backend `remote`, whose far end is this server's own gRPC
front end: both ends are counted, so less the route to the far end's model they are what the hop takes here. `--check` compares
them with path.json; where instructions, frames or files of a route have grown by more than 3 % it says so, says what to do, and
exits with 1. `--write` puts them there. The columns: the front end (kernel_http, kernel_grpc, and kernel_auth, which they ask),
the core (kernel), kernel_python, and kernel_remote.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import h2.config
import h2.connection
import h2.events
import numpy as np

from kernel import Kernel

ROOT = Path(__file__).resolve().parent.parent
FIGURES = Path(__file__).with_suffix(".json")
TRIES = 25
WARMUP = 110  # requests, before a model is counted: answers are looked at more closely at the beginning
BURST = 8
GROWTH = 0.03

#: Part of the code -> its folders. The order counts: the first that fits.
PARTS = {
    "frontend": ("plugins/kernel_http/", "plugins/kernel_grpc/", "plugins/kernel_auth/"),
    "core": ("kernel/",),
    "python": ("plugins/kernel_python/", "plugins/triton_python_backend_utils.py"),
    "remote": ("plugins/kernel_remote/",),
}

# -- counting --------------------------------------------------------------------------------------------------------------


@dataclass
class Count:
    """Instructions by part, frames entered, files they are in."""

    instructions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    frames: int = 0
    files: set[str] = field(default_factory=set)
    functions: dict[str, int] = field(default_factory=dict)

    def row(self, requests: int = 1) -> dict[str, int]:
        """Return the figures for one of so many requests."""
        parts = {part: round(count / requests) for part, count in self.instructions.items()}
        return {**parts, "frames": round(self.frames / requests), "files": len(self.files)}


class Counter:
    """Traces all threads that start after it was made, and the one that made it; counts while told to."""

    def __init__(self) -> None:
        self._count: Count | None = None
        self._parts: dict[str, str | None] = {}
        threading.settrace(self._called)
        sys.settrace(self._called)

    def close(self) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def start(self) -> Count:
        self._count = Count()
        return self._count

    def stop(self) -> None:
        self._count = None

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        file = frame.f_code.co_filename
        try:
            part = self._parts[file]
        except KeyError:
            part = self._parts[file] = part_of(file)
        if part is None:
            return None
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        count = self._count
        if count is not None:
            count.frames += 1
            count.files.add(file)

        def passed(frame: FrameType, event: str, argument: object) -> Any:
            if event == "opcode" and (count := self._count) is not None:
                count.instructions[part] += 1
                name = frame.f_code.co_qualname
                count.functions[name] = count.functions.get(name, 0) + 1
            return passed

        return passed


def part_of(file: str) -> str | None:
    for part, places in PARTS.items():
        if file.startswith(tuple(f"{ROOT}/{place}" for place in places)):
            return part
    return None


# -- models ----------------------------------------------------------------------------------------------------------------

HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"
ECHO = """\
    {define} execute(self, requests):
        out = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return out
"""
CALL = """\
    {define} execute(self, requests):
        out = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X")
            call = pb_utils.InferenceRequest(model_name="{callee}", requested_output_names=["Y"], inputs=[x])
            out.append(pb_utils.InferenceResponse({call}.output_tensors()))
        return out
"""
CONFIG = """\
backend: "python"
max_batch_size: 8
input {{ name: "X" data_type: TYPE_FP32 dims: [ 4 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }}
parameters {{ key: "placement" value {{ string_value: "{placement}" }} }}
{more}
"""

#: name -> placement, model, rest of the config
MODELS = {
    "loop": ("loop", ECHO.format(define="def"), ""),
    "thread": ("thread", ECHO.format(define="def"), ""),
    "batching": ("thread", ECHO.format(define="def"), "dynamic_batching { }"),
    "exec_loop": ("loop", CALL.format(define="def", callee="loop", call="call.exec()"), ""),
    "exec_thread": ("thread", CALL.format(define="def", callee="thread", call="call.exec()"), ""),
    "async_exec": ("loop", CALL.format(define="async def", callee="loop", call="(await call.async_exec())"), ""),
    "process": ("process", ECHO.format(define="def"), ""),
    "loaded": ("thread", ECHO.format(define="def"), ""),
}

#: The config of the model `remote`, which the far end calls `loop`.
REMOTE = """\
backend: "remote"
parameters {{ key: "endpoints" value {{ string_value: "127.0.0.1:{port}" }} }}
parameters {{ key: "remote_model" value {{ string_value: "loop" }} }}
"""


def write_models(folder: Path) -> None:
    for name, (placement, code, more) in MODELS.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(HEAD + code)
        (folder / name / "config.pbtxt").write_text(CONFIG.format(placement=placement, more=more))


# -- clients ---------------------------------------------------------------------------------------------------------------

ROW = np.arange(4, dtype=np.float32).tobytes()


#: What clients show where keys are on. Of the second one rate and concurrency are counted.
KEY, COUNTED_KEY = b"bench", b"counted"
KEYS = f"""[[client]]
name = "bench"
keys = ["sha256:{hashlib.sha256(KEY).hexdigest()}"]
may = [{{ models = ["*"], categories = ["*"] }}]

[[client]]
name = "counted"
keys = ["sha256:{hashlib.sha256(COUNTED_KEY).hexdigest()}"]
rate = 1000000
concurrency = 10000
may = [{{ models = ["*"], categories = ["*"] }}]
"""


def keyed(data: bytes, key: bytes = KEY) -> bytes:
    """Return the HTTP request with a key."""
    return data.replace(b"Host: bench", b"Host: bench\r\nAuthorization: Bearer " + key)


def http_request(model: str, blanks: int = 0) -> bytes:
    """Return the request that run.py sends; `blanks` make another of it that means the same."""
    inputs = [{"name": "X", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": len(ROW)}}]
    body = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode() + b" " * blanks
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: bench\r\nInference-Header-Content-Length: {len(body)}\r\n"
        f"Content-Length: {len(body) + len(ROW)}\r\n\r\n"
    )
    return head.encode() + body + ROW


class Http:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, data: bytes, answers: int = 1) -> None:
        self._writer.write(data)
        for _ in range(answers):
            head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
            if not head.startswith(b"http/1.1 200"):
                raise RuntimeError(head.decode())
            length = int(head.partition(b"\r\ncontent-length:")[2].split(b"\r\n")[0])
            await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


class Grpc:
    """One connection, whose calls are unary. `more`: further header fields of each."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, more: dict[str, str]) -> None:
        self._reader, self._writer, self._more = reader, writer, more
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()

    async def ask(self, message: bytes) -> None:
        stream = self._h2.get_next_available_stream_id()
        fields = {":method": "POST", ":scheme": "http", ":authority": "bench", "te": "trailers"}
        fields |= {":path": "/inference.GRPCInferenceService/ModelInfer", "content-type": "application/grpc"}
        fields |= self._more
        self._h2.send_headers(stream, sorted(fields.items()))
        self._h2.send_data(stream, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)
        self._writer.write(self._h2.data_to_send())
        while True:
            for event in self._h2.receive_data(await self._reader.read(65536)):
                if isinstance(event, h2.events.TrailersReceived) and dict(event.headers).get("grpc-status") != "0":
                    raise RuntimeError(str(event.headers))
                if isinstance(event, h2.events.StreamEnded):
                    return

    def close(self) -> None:
        self._writer.close()


def grpc_request(model: str) -> bytes:
    """Return a ModelInferRequest, written by hand so that no schema is needed here."""

    def field_of(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    tensor = field_of(1, b"X") + field_of(2, b"FP32") + field_of(3, bytes([1, 4]))
    return field_of(1, model.encode()) + field_of(5, tensor) + field_of(7, ROW)


# -- routes ----------------------------------------------------------------------------------------------------------------


#: Makes ready for a try, whose number it gets, and returns what is counted.
Attempt = Callable[[int], Awaitable[Callable[[], Awaitable[None]]]]


class Bench:
    """A kernel with its front ends, and how to ask them."""

    def __init__(self, kernel: Kernel, counter: Counter, models: Path) -> None:
        self.kernel = kernel
        self.models = models
        self.counter = counter
        self.http = self.grpc = 0
        self.functions: dict[str, int] = {}  # of the least try of the last route

    async def start(self, keys: str = "") -> list[Any]:
        """`keys`: the file of --auth-keys."""
        parser = argparse.ArgumentParser()
        self.kernel.plugins.add_options(parser)
        local = ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--http-port=0", "--grpc-port=0"]
        options = parser.parse_args([*local, "--allow-metrics=false", f"--auth-keys={keys}"])
        self.kernel.gate = self.kernel.plugins.gate(self.kernel, options)
        frontends = list(self.kernel.plugins.frontends(self.kernel, options))
        for frontend in frontends:
            await frontend.start()
            scheme, port = frontend.address.partition(":")[0], int(frontend.address.rpartition(":")[2])
            setattr(self, scheme, port)
        return frontends

    async def open_http(self) -> Http:
        return Http(*await asyncio.open_connection("127.0.0.1", self.http))

    async def open_grpc(self, more: dict[str, str] | None = None) -> Grpc:
        return Grpc(*await asyncio.open_connection("127.0.0.1", self.grpc), more or {})

    async def least(self, attempt: Attempt, requests: int = 1) -> dict[str, int]:
        """Return the least of several counts."""
        counts = []
        for number in range(TRIES):
            work = await attempt(number)
            await settled()
            count = self.counter.start()
            await work()
            await settled()
            self.counter.stop()
            counts.append(count)
        least = min(counts, key=lambda count: sum(count.instructions.values()))
        self.functions = least.functions
        return least.row(requests)

    async def repeated(self, data: bytes, answers: int = 1) -> dict[str, int]:
        client = await self.open_http()
        for _ in range(WARMUP):
            await client.ask(data, answers)

        async def attempt(number: int) -> Callable[[], Awaitable[None]]:
            return lambda: client.ask(data, answers)

        row = await self.least(attempt, answers)
        client.close()
        return row

    async def http_new(self) -> dict[str, int]:
        """The head is known, what it says of the inputs is not."""
        client = await self.open_http()
        for _ in range(WARMUP):
            await client.ask(http_request("loop"))

        async def attempt(number: int) -> Callable[[], Awaitable[None]]:
            return lambda: client.ask(http_request("loop", number + 1))

        row = await self.least(attempt)
        client.close()
        return row

    async def http_first(self) -> dict[str, int]:
        """The first request of a connection, whose head nobody has seen."""

        async def attempt(number: int) -> Callable[[], Awaitable[None]]:
            client = await self.open_http()
            data = http_request("loop").replace(b"Host: bench", f"Host: b{number:04}".encode())
            return lambda: client.ask(data)

        return await self.least(attempt)

    async def grpc_repeated(self, more: dict[str, str] | None = None) -> dict[str, int]:
        client = await self.open_grpc(more)
        for _ in range(WARMUP):
            await client.ask(grpc_request("loop"))

        async def attempt(number: int) -> Callable[[], Awaitable[None]]:
            return lambda: client.ask(grpc_request("loop"))

        row = await self.least(attempt)
        client.close()
        return row

    async def grpc_first(self) -> dict[str, int]:
        """The first call of a connection."""

        async def attempt(number: int) -> Callable[[], Awaitable[None]]:
            client = await self.open_grpc()
            return lambda: client.ask(grpc_request("loop"))

        return await self.least(attempt)

    async def remote(self, answers: int = 1) -> dict[str, int]:
        """The front end of the far end has its port only now."""
        if not (self.models / "remote").exists():
            (self.models / "remote" / "1").mkdir(parents=True)
            (self.models / "remote" / "config.pbtxt").write_text(REMOTE.format(port=self.grpc))
            await self.kernel.load("remote")
        return await self.repeated(http_request("remote") * answers, answers)

    async def load(self) -> dict[str, int]:
        async def attempt(number: int) -> Callable[[], Awaitable[None]]:
            self.kernel.unload("loaded")
            return lambda: self.kernel.load("loaded")

        return await self.least(attempt)


#: Route -> how it is asked.
ROUTES: dict[str, Callable[[Bench], Awaitable[dict[str, int]]]] = {
    "HTTP, loop, repeated": lambda bench: bench.repeated(http_request("loop")),
    "HTTP, loop, new": Bench.http_new,
    "HTTP, loop, first": Bench.http_first,
    "HTTP, thread": lambda bench: bench.repeated(http_request("thread")),
    "HTTP, thread, batching, alone": lambda bench: bench.repeated(http_request("batching")),
    "HTTP, thread, batching, one of 8": lambda bench: bench.repeated(http_request("batching") * BURST, BURST),
    "HTTP, process, one of 8": lambda bench: bench.repeated(http_request("process") * BURST, BURST),
    "HTTP, exec on the loop": lambda bench: bench.repeated(http_request("exec_loop")),
    "HTTP, exec, thread to thread": lambda bench: bench.repeated(http_request("exec_thread")),
    "HTTP, async_exec on the loop": lambda bench: bench.repeated(http_request("async_exec")),
    "gRPC, loop, repeated": Bench.grpc_repeated,
    "gRPC, loop, first": Bench.grpc_first,
    "load of a model": Bench.load,
    "HTTP, remote, alone": Bench.remote,
    "HTTP, remote, one of 8": lambda bench: bench.remote(BURST),
    "HTTP, loop, repeated, keys": lambda bench: bench.repeated(keyed(http_request("loop"))),
    "HTTP, thread, keys": lambda bench: bench.repeated(keyed(http_request("thread"))),
    "gRPC, loop, repeated, keys": lambda bench: bench.grpc_repeated({"authorization": f"Bearer {KEY.decode()}"}),
    "HTTP, thread, counted keys": lambda bench: bench.repeated(keyed(http_request("thread"), COUNTED_KEY)),
    "gRPC, loop, repeated, counted keys": lambda bench: bench.grpc_repeated(
        {"authorization": f"Bearer {COUNTED_KEY.decode()}"}
    ),
    "HTTP, loop, repeated, limits": lambda bench: bench.repeated(http_request("loop")),
    "gRPC, loop, repeated, limits": Bench.grpc_repeated,
}

#: What is on -> options of the kernel. Routes whose names end in it have a kernel of their own.
KINDS: dict[str, dict[str, int]] = {
    "keys": {},
    "counted keys": {},
    "limits": {"max_inflight": 10_000, "max_connections": 5000, "max_connections_per_address": 5000},
}


def kind_of(route: str) -> str:
    kind = route.rpartition(", ")[2]
    return kind if kind in KINDS else ""


async def settled() -> None:
    """Let what was put off happen: the ends of turns, what threads still do."""
    for _ in range(5):
        await asyncio.sleep(0.0005)


async def measure(routes: Sequence[str], functions: bool = False) -> dict[str, dict[str, int]]:
    """Return the figures of the routes; `functions`: print which functions the instructions are in."""
    folder = Path(tempfile.mkdtemp(prefix="kernel-path-"))
    counter = Counter()
    try:
        write_models(folder / "models")
        (folder / "keys.toml").write_text(KEYS)
        found = {}
        for kind in ("", *KINDS):
            chosen = [route for route in routes if kind_of(route) == kind]
            if not chosen:
                continue
            more: Any = KINDS.get(kind, {})
            async with Kernel(folder / "models", control_mode="explicit", load_models=list(MODELS), **more) as kernel:
                bench = Bench(kernel, counter, folder / "models")
                frontends = await bench.start(str(folder / "keys.toml") if kind.endswith("keys") else "")
                for route in chosen:
                    found[route] = await ROUTES[route](bench)
                    if functions:
                        tell(route, bench.functions)
                for frontend in frontends:
                    await frontend.stop()
        return found
    finally:
        counter.close()
        shutil.rmtree(folder)


def tell(route: str, functions: dict[str, int]) -> None:
    print(f"{route}:")
    for name, count in sorted(functions.items(), key=lambda item: -item[1]):
        print(f"{count:7} {name}")


# -- telling ---------------------------------------------------------------------------------------------------------------

COLUMNS = (*PARTS, "frames", "files")
NAMES = {"frontend": "front end", "core": "core", "python": "python", "remote": "remote"}

#: What has grown -> what to do first.
INSTEAD = {
    "instructions": "Instructions: `--functions --only ROUTE` prints which functions they are in; compare with before.",
    "frames": "Frames: a call has come into the route. Decide when a model loads or instances change, or inline it.",
    "files": "Files: the route passes one more. Move what it needs there to where it is needed, if that is where it belongs.",
}
OR_ELSE = "Where it is worth that: `python bench/path.py --write`, its table into bench/README.md, the reason into the commit."


def table(found: dict[str, dict[str, int]]) -> str:
    rows = [("route", *(NAMES.get(column, column) for column in COLUMNS))]
    rows += [(route, *(str(row[column]) for column in COLUMNS)) for route, row in found.items()]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "| --- " + "| ---: " * len(COLUMNS) + "|")
    return "\n".join(lines)


def version() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def grown(found: dict[str, dict[str, int]], known: dict[str, dict[str, int]]) -> list[str]:
    """Return a line for each figure of a route that has grown by more than 3 %, and below them what to do about it.

    Instructions have one to spare, which rounding may give; frames and files have none: a repeated request enters so few of them
    that each is seen.
    """
    lines, instead = [], set()
    for route, row in found.items():
        before = known.get(route)
        for column in COLUMNS if before is not None else ():
            of = "instructions" if column in PARTS else column
            if row[column] > before.get(column, 0) * (1 + GROWTH) + (column in PARTS):
                which = NAMES[column] if column in PARTS else "it"
                lines.append(f"{route}: {which} takes {row[column]} {of}, where it took {before.get(column, 0)}")
                instead.add(of)
    return [*lines, *(INSTEAD[of] for of in sorted(instead)), OR_ELSE] if lines else []


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ROUTES, metavar="ROUTE")
    parser.add_argument("--functions", action="store_true", help="print which functions the instructions are in")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true")
    what.add_argument("--write", action="store_true")
    options = parser.parse_args(argv)
    found = asyncio.run(measure(options.only or list(ROUTES), options.functions))
    print(table(found))
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    if options.write:
        known.setdefault(version(), {}).update(found)
        FIGURES.write_text(json.dumps(known, indent=1) + "\n")
    if options.check:
        if version() not in known:
            print(f"there are no figures for Python {version()}")
            return 0
        lines = grown(found, known[version()])
        if lines:
            print("\n".join(lines))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
