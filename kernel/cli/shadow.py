"""`kernel shadow`: stands in front of another server, passes everything through, and compares a sample with our own answers.

The process that the command starts passes on; the one that it starts itself, by the same line and a descriptor, looks on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from kernel.cli.flags import add_config_flags, add_storage_flags, auto_complete, storage_options
from kernel.cli.grpc_calls import GrpcCalls
from kernel.cli.parser import Parser, seconds, share
from kernel.cli.replaying import OverHttp
from kernel.cli.table import columns
from kernel.errors import Code, ServingError, clipped
from kernel.interfaces import Frontend
from kernel.observability import LogOptions, set_up_log
from kernel.recording import Tolerance
from kernel.server import Kernel
from kernel.shadow import Comparer, Mismatch, Proxy, Tee, frames

__all__ = ["shadow"]

DESCRIPTION = """\
Stand in front of a server that speaks KServe v2, such as Triton, pass everything through unchanged, and
compare a sample of its answers with those of a candidate: the models of REPO, served by another process of
this command, or the server at --candidate.

Clients are sent to --http-port instead of the upstream's; what they get is what the upstream says, and they
never wait for a comparison. Compared are inferences over HTTP and gRPC; all else passes through.
"""

EPILOG = """\
examples:
  kernel shadow --upstream localhost:8000 --http-port 9000 models/
  kernel shadow --upstream localhost:8000 --http-port 9000 --candidate localhost:8100 --sample 0.05
  kernel shadow --upstream triton:8000 --upstream-grpc triton:8001 --http-port 9000 --grpc-port 9001 models/

A line is printed for each output that differs, at SIGTERM or SIGINT a table of all. Not compared are requests
of sequences and with shared memory, what the upstream had too much to do for, and streams whose requests have no ids.

Exit status: 0 if something was compared and all of it is the same, 1 if not, 2 if the command line is wrong.
"""

#: How long a stop waits for what is under way: for answers of the upstream, then for comparisons; seconds.
PASSING_SECONDS = 10.0
COMPARING_SECONDS = 20.0

#: How much the candidate may answer to one call; bytes.
MOST_ANSWERED = 256 * 1024 * 1024

#: How many differences are printed; all are in the report.
PRINTED = 100


def shadow(arguments: Sequence[str]) -> int:
    """Run `kernel shadow`; return the exit status."""
    usage = "[FLAG ...] --upstream HOST:PORT REPO | --candidate URL"
    parser = Parser("kernel shadow", usage, DESCRIPTION, epilog=EPILOG)
    parser.add_argument("repository", metavar="REPO", nargs="?", default="", help="model repository of the candidate")
    parser.add_argument("--candidate", default="", metavar="URL", help="a server that is compared with, instead of REPO")
    parser.add_argument("--candidate-grpc", default="", metavar="HOST:PORT", help="its gRPC port; else gRPC is not compared")
    parser.add_argument("--upstream", required=True, metavar="HOST:PORT", help="HTTP port of the server that serves")
    parser.add_argument("--http-address", default="127.0.0.1", metavar="ADDRESS", help="where clients come (default: 127.0.0.1)")
    parser.add_argument("--http-port", type=_port, required=True, metavar="PORT", help="where clients come; 0: any that is free")
    parser.add_argument("--upstream-grpc", default="", metavar="HOST:PORT", help="gRPC port of that server")
    parser.add_argument("--grpc-port", type=_port, metavar="PORT", help="where clients come over gRPC")
    parser.add_argument("--sample", type=share, default=1.0, metavar="SHARE", help="of inferences compared (default: 1)")
    parser.add_argument("--relative", type=float, default=1e-5, metavar="X", help="tolerance (default: 1e-5)")
    parser.add_argument("--absolute", type=float, default=1e-6, metavar="X", help="tolerance (default: 1e-6)")
    parser.add_argument(
        "--upstream-timeout", type=seconds, default=0, metavar="SECONDS",
        help="answer with 504 where the upstream has said nothing for so long (default: 0, never)",
    )  # fmt: skip
    parser.add_argument("--report", type=Path, metavar="FILE", help="write each difference as a line of JSON")
    parser.add_argument("--header", action="append", default=[], metavar="NAME: VALUE", help="send this to the candidate")
    parser.add_argument("--compare-fd", type=int, help=argparse.SUPPRESS)  # the process that looks on; given by the other
    add_config_flags(parser)
    add_storage_flags(parser)
    options = parser.read(arguments)
    if bool(options.repository) == bool(options.candidate):
        parser.error("one of REPO and --candidate is wanted")
    if bool(options.upstream_grpc) != (options.grpc_port is not None):
        parser.error("--upstream-grpc and --grpc-port go together")
    if options.candidate_grpc and not (options.candidate and options.upstream_grpc):
        parser.error("--candidate-grpc goes together with --candidate and --upstream-grpc")
    if min(options.relative, options.absolute) < 0:
        parser.error("a tolerance below 0 is none")
    set_up_log(LogOptions(info=False, warning=False, error=True))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_pass(arguments, options) if options.compare_fd is None else _look_on(options))
    except ServingError as error:
        print(f"error: {error.message.strip()}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.strerror or error}", file=sys.stderr)
        return 1


# -- the process that passes on --------------------------------------------------------------------------------------------


async def _pass(arguments: Sequence[str], options: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    upstream, grpc = _address(options.upstream), _address(options.upstream_grpc) if options.upstream_grpc else None
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "kernel", "shadow", *arguments, "--compare-fd", str(theirs.fileno())]
        other = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    _, tee = await loop.create_connection(Tee, sock=ours)
    try:
        await _first(tee.ready, tee.ended, stop)
        if not tee.ready.is_set():
            return 0 if stop.is_set() else await _ended(tee, other)
        proxies = [Proxy(*upstream, tee, timeout=options.upstream_timeout)]
        ports = [await _listen(proxies[0], options.http_address, options.http_port)]
        print(f"passing on HTTP at {options.http_address}:{ports[0]} to {options.upstream}", file=sys.stderr, flush=True)
        if grpc is not None:
            proxies.append(Proxy(*grpc, tee, speaks_http=False))
            ports.append(await _listen(proxies[1], options.http_address, options.grpc_port))
            words = f"passing on gRPC at {options.http_address}:{ports[1]} to {options.upstream_grpc}"
            if not (options.repository or options.candidate_grpc):
                words += "; it is not compared, as there is no --candidate-grpc"
            print(words, file=sys.stderr, flush=True)
        await _first(stop, tee.ended)
        if not stop.is_set():
            print("error: nothing is compared any more; all goes on passing through", file=sys.stderr, flush=True)
            await stop.wait()
        await asyncio.gather(*(proxy.stop(PASSING_SECONDS) for proxy in proxies))
        return await _ended(tee, other)
    finally:
        tee.close()
        if other.returncode is None and not tee.ready.is_set():
            other.terminate()


async def _listen(proxy: Proxy, address: str, port: int) -> int:
    try:
        return await proxy.start(address, port)
    except OSError as error:
        words = f"{address}:{port} can't be listened at: {error.strerror or error}"
        raise ServingError(Code.UNAVAILABLE, words) from None


async def _ended(tee: Tee, other: Process) -> int:
    """Wait until the other process has compared what it has, and return its exit status."""
    tee.close()
    try:
        return await asyncio.wait_for(other.wait(), COMPARING_SECONDS + 5.0)
    except TimeoutError:
        other.kill()
        print("error: the comparison did not end", file=sys.stderr)
        return 1


async def _first(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(one.wait()) for one in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()


# -- the process that looks on ---------------------------------------------------------------------------------------------


async def _look_on(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both; the end of the pair is the end of this one
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=options.compare_fd))
    os.set_inheritable(options.compare_fd, False)  # models may start processes
    told = _Told(options.report)
    headers = _headers(options.header)
    async with _candidate(options) as (url, grpc):
        asking = OverHttp(url, COMPARING_SECONDS, headers=headers)
        calls = GrpcCalls(grpc, headers, MOST_ANSWERED) if grpc else None
        tolerance = Tolerance(options.relative, options.absolute)
        comparer = Comparer(asking.post, told.mismatch, options.sample, tolerance, calls, COMPARING_SECONDS)
        writer.write(b"R")
        await frames(reader, comparer.told)
        await asyncio.to_thread(comparer.finish, COMPARING_SECONDS)
        if calls is not None:
            calls.close()
    writer.close()
    told.close()
    return _summary(comparer)


class _Told:
    """Where mismatches are told. Any thread."""

    def __init__(self, report: Path | None) -> None:
        try:
            self._report = None if report is None else open(report, "a")
        except OSError as error:
            raise ServingError(Code.INVALID_ARG, f"{report} can't be written: {error.strerror or error}") from None
        self._lock = threading.Lock()
        self._count = 0

    def mismatch(self, one: Mismatch) -> None:
        with self._lock:
            self._count += 1
            if self._count <= PRINTED:
                id = f" '{clipped(one.id)}'" if one.id else ""
                print(f"request{id} of model '{clipped(one.model)}': {one.words}", flush=True)
            elif self._count == PRINTED + 1:
                print("… further differences are only counted, and written to --report", flush=True)
            if self._report is not None:
                try:
                    print(json.dumps(asdict(one)), file=self._report, flush=True)
                except OSError as error:
                    print(f"error: the report ends, as it can't be written: {error.strerror or error}", file=sys.stderr)
                    self._report = None

    def close(self) -> None:
        if self._report is not None:
            self._report.close()


@asynccontextmanager
async def _candidate(options: argparse.Namespace) -> AsyncIterator[tuple[str, str]]:
    """Have somebody to compare with; yield where, over HTTP and over gRPC, "" for not at all."""
    if options.candidate:
        grpc = options.candidate_grpc
        url = options.candidate if "://" in options.candidate else f"http://{options.candidate}"
        yield url, grpc if "://" in grpc or not grpc else f"grpc://{grpc}"
        return
    kernel = Kernel(
        options.repository, exit_on_error=False, auto_complete=auto_complete(options),
        config_name=options.model_config_name, storage=storage_options(options),
    )  # fmt: skip
    async with kernel:
        if kernel.broken is not None:
            raise kernel.broken
        for name, failure in kernel.failures().items():
            print(f"warning: model '{name}' of the candidate has not loaded: {failure.message.strip()}", file=sys.stderr)
        async with AsyncExitStack() as stack:
            for frontend in (frontends := _own_frontends(kernel, options)):
                await frontend.start()
                stack.push_async_callback(frontend.stop)
            addresses = {frontend.address.partition("://")[0]: frontend.address for frontend in frontends}
            yield addresses["http"], addresses.get("grpc", "")


def _own_frontends(kernel: Kernel, options: argparse.Namespace) -> list[Frontend]:
    """Return front ends for what is compared, at ports of this machine that nobody else knows."""
    from kernel.cli.serve import serve_parser  # not at the top: the process that passes on needs none of it

    flags = [f"--{name}-{what}" for name in ("http", "grpc") for what in ("address=127.0.0.1", "port=0")]
    flags += [f"--allow-grpc={'true' if options.upstream_grpc else 'false'}", "--allow-metrics=false"]
    found = kernel.plugins.frontends(kernel, serve_parser(kernel.plugins).read([options.repository, *flags]))
    return [one for one in found if one.address.partition("://")[0] in ("http", "grpc")]


def _summary(comparer: Comparer) -> int:
    """Print what came of all; return the exit status."""
    rows: list[tuple[str, ...]] = [("model", "passed", "same", "differ", "failed", "not compared")]
    same = wrong = 0
    for model, tally in sorted(comparer.models.items()):
        outcomes = dict(tally.outcomes)
        counts = [outcomes.pop(name, 0) for name in ("same", "differ", "failed")]
        same, wrong = same + counts[0], wrong + counts[1] + counts[2]
        rest = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
        rows.append((clipped(model), str(tally.passed), *map(str, counts), rest or "-"))
    print("\n".join(columns(rows)), flush=True)
    if comparer.lost:
        print(f"{comparer.lost} connections could not be followed to their end; they passed all the same", file=sys.stderr)
    return 0 if same and not wrong else 1


# -- the command line ------------------------------------------------------------------------------------------------------


def _address(text: str) -> tuple[str, int]:
    """Read HOST:PORT, with http:// in front or not. Raises ServingError."""
    try:
        address = urlsplit(text if "://" in text else f"http://{text}")
        host, port = address.hostname or "", address.port
    except ValueError:
        host, port = "", None
    if not host or port is None or address.scheme != "http" or address.path.strip("/"):
        words = f"'{text}' is no address of an upstream, wanted is one such as localhost:8000, without TLS and path"
        raise ServingError(Code.INVALID_ARG, words)
    return host, port


def _headers(lines: Sequence[str]) -> Mapping[str, str]:
    pairs = [line.partition(":") for line in lines]
    for line, (_, colon, _) in zip(lines, pairs):
        if not colon:
            raise ServingError(Code.INVALID_ARG, f"--header '{line}' is not of the form NAME: VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _port(text: str) -> int:
    port = seconds(text)
    if port > 65535:
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text} — a port is 65535 at most")
    return port
