"""`kernel serve`: a process of its own for the kernel, from the command line to the exit code.

The order is the contract's (lifecycle, sections 3, 7 and 8): load, then open the ports; on a signal say that the server is not
ready, go on for a moment, close the ports, finish what is in flight, unload. What tunes a whole process (loop, switch interval,
garbage collection, log) happens here and nowhere else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import errno
import functools
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Collection, Coroutine, Sequence
from math import inf
from typing import Any, TextIO, cast
from urllib.parse import urlsplit

import uvloop

from kernel import __version__
from kernel.cli.cache_config import cache_options
from kernel.cli.ending import Ending, leave
from kernel.cli.flags import add_other_flags, add_serve_flags, auto_complete, log_options, repositories, storage_options
from kernel.cli.group import supervise
from kernel.cli.group_flags import check_group
from kernel.cli.load_line import load_line
from kernel.cli.notify import notify
from kernel.cli.parser import Parser
from kernel.cli.record_config import check_record, recorder_of
from kernel.cli.signals import Signals
from kernel.cli.streams import Streams
from kernel.cli.table import table
from kernel.cli.trace_config import trace_options
from kernel.cli.watch import Console
from kernel.errors import Code, ServingError
from kernel.frontends import ListeningFrontend, machine_share
from kernel.interfaces import Frontend
from kernel.observability import AccessLog, LogSettings, ProcessLog, set_up_log
from kernel.plugins import Plugins, is_location
from kernel.recording import Recorder
from kernel.registry import UNLOADED, ModelIndex, Progress
from kernel.replicas import SPARE, Member, PeerTable, Role, end_with_parent, take_place
from kernel.repository import StartFailed
from kernel.rules import Budget
from kernel.server import Kernel, client_of, join, steered, tune_collector, tune_process
from kernel.watchdog import Watchdog

__all__ = ["check_options", "serve", "serve_parser"]

log = logging.getLogger("kernel.serve")

FIRST = asyncio.FIRST_COMPLETED

#: How many files may be open, where the system lets a process choose: a connection takes one, an instance's thread two.
OPEN_FILES = 65_536

#: How long after an unload what the model has left behind is cleared away; others that go meanwhile are cleared away with it.
TIDY_SECONDS = 1.0

#: How often it is looked whether the standard descriptors are still open.
STREAMS_SECONDS = 0.1

#: How long the ports stay open after the signal without --drain-delay: who sends requests learns only by and by that the server
#: is not ready.
MOMENT_SECONDS = 0.5

#: How often a stopping server looks whether anybody still waits for something.
LOOK_SECONDS = 0.02

#: How long before the limit of a stop sequences that nobody goes on with are given up: after so much silence, and how much more
#: is left then for the end.
SILENCE_SECONDS, REST_SECONDS = 2.0, 1.0

#: What a stop may take beyond its limit before a thread ends the process, as the loop is held: longer than all that is below.
HELD_SECONDS = 8.0

#: How long a replica that leaves keeps connections on which nothing comes; the next answer on one of them says it is the last.
KEPT_SECONDS = 5.0

#: For how long connections may still turn up that were accepted when the ports were closed.
SETTLE_SECONDS = 0.1

#: What a stop may take beyond its limit, so that the answers given at the limit still reach their clients.
LAST_WORDS_SECONDS = 0.5

#: What is started, in the words of the reference, which has none for HTTP with TLS.
SERVICES = {
    "GRPC": "GRPCInferenceService",
    "GRPCS": "GRPCInferenceService",
    "HTTP": "HTTPService",
    "HTTPS": "HTTPSService",
    "METRICS": "Metrics Service",
}

#: What the flags of a front end's port and address begin with.
PORT_FLAGS = {"GRPC": "grpc", "GRPCS": "grpc", "HTTP": "http", "HTTPS": "http", "METRICS": "metrics"}

DESCRIPTION = """\
Load the models of one or more model repositories and serve them.

A repository is a folder with a folder for each model, laid out as for Triton Inference Server. Flags
have tritonserver's names; `--flag value` and `--flag=value` are the same, and so are a boolean flag
alone, with `true` and with `1`.
"""

EPILOG = """\
examples:
  kernel serve repository/
  kernel serve repository/ --http-port 9000 --log-verbose 1
  kernel serve --model-repository=/models --model-control-mode=explicit --load-model=add_sub

  kernel serve repository/ --replicas auto

The ports open once all models are loaded. SIGTERM or SIGINT ends the server: it is not ready from
then on, closes the ports after --drain-delay, begins no sequence any more, tells its clients to go
elsewhere when none runs, and serves them until nothing is in flight, for --exit-timeout-secs at most in
all; a second signal, a tenth of a second later or more, ends it at once. SIGHUP opens the log file anew.
With --replicas SIGUSR2, or POST /v2/kernel/replicas/reload, replaces one after another; no request fails.
Where NOTIFY_SOCKET names a socket, as systemd's does, it is told that the server serves, or stops.
Exit status: 0 after a clean stop, 1 after anything else.
"""


def serve_parser(plugins: Plugins, kind: type[Parser] = Parser) -> Parser:
    """Return what reads a command line of `kernel serve`, with the flags of these plugins."""
    parser = kind("kernel serve", "[FLAG ...] REPO [REPO ...]", DESCRIPTION, epilog=EPILOG, mistake_status=1)
    add_serve_flags(parser)
    plugins.add_options(parser)
    add_other_flags(parser)
    return parser


def check_options(parser: Parser, options: argparse.Namespace) -> list[str]:
    """Return the repositories of a command line whose flags go together; one of other flags is the parser's error."""
    paths = repositories(parser, options)
    if options.load_model and options.model_control_mode not in ("explicit", "on-demand"):
        parser.error("Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    if options.drain_delay is not None and 0 < options.exit_timeout_secs <= options.drain_delay:
        parser.error(
            f"--drain-delay {options.drain_delay} leaves nothing of --exit-timeout-secs {options.exit_timeout_secs} for what is "
            "in flight when the ports close"
        )
    if options.watch and (far := [path for path in paths if is_location(path)]):
        parser.error(f"--watch is for development, with folders: {far[0]} can't be watched; --model-control-mode=poll follows it")
    check_group(parser, options)
    check_record(parser, options)
    return paths


def serve(arguments: Sequence[str]) -> int:
    """Run `kernel serve`; return the exit status."""
    try:
        plugins = Plugins()
    except ServingError as error:
        return _not_created(error)
    parser = serve_parser(plugins)
    options = parser.read(arguments)
    paths = check_options(parser, options)
    if options.replica is not None and options.replica.index == SPARE:
        end_with_parent()
        _allow_files()  # what it starts beforehand has this from it
        options.replica = take_place(options.replica)
    chosen = log_options(options)
    streams = Streams()
    line = None if options.replica is not None and not options.replica.speaks else load_line(streams.log)
    if line is not None:
        Progress.shown = line.show
    try:
        process_log = set_up_log(chosen, streams.log if line is None else cast("TextIO", line))
    except OSError as error:
        print(f"error: creating server: Internal - failed to open the log file: {error}", file=sys.stderr)
        return 1
    role: Role | None = options.replica
    if role is None or role.speaks:
        for flag in options.without_effect:
            log.warning("%s has no effect: there is nothing here that it could act on", flag)
    _allow_files()
    if role is None and options.replicas > 1:
        return supervise(arguments, options, process_log)
    tune_process()
    process_log.protect()
    try:
        access = AccessLog(options.access_log, client_of) if options.access_log else None
    except OSError as error:
        return _not_created(ServingError(Code.INTERNAL, f"failed to open the access log: {error}"))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = _until_done(runner.get_loop(), _run(paths, options, process_log, access, streams))
        if access is not None:
            access.close()
        # Tasks of models are cancelled, and may answer that with a SystemExit; threads of the loop's executor are waited for.
        with Ending(status), contextlib.suppress(SystemExit, KeyboardInterrupt):
            runner.close()
    return status


def _until_done(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, int]) -> int:
    """Run `main` to its end, whatever model code does to the loop.

    A task that a model has made itself and that calls `sys.exit()` would end the server: asyncio lets SystemExit and
    KeyboardInterrupt through to whoever runs the loop. The process's own interrupts are handled as signals.
    """
    task = loop.create_task(main)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done():
                raise
            name = f"{type(error).__name__}({error})"
            log.error("model code has raised %s in a task of its own; the server goes on", name, exc_info=error)
        except RuntimeError:
            if task.done():
                raise
            log.error("model code has stopped the event loop; the server goes on")


def _tidier(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Return what is to be called when a model has gone: its memory goes back to the system soon afterwards.

    A model may hold its weights in reference cycles, which the collector would come to late, or never where they were frozen.
    """
    timer: asyncio.TimerHandle | None = None

    def tidy() -> None:
        nonlocal timer
        timer = None
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)

    def soon() -> None:
        nonlocal timer
        if timer is None:
            timer = loop.call_later(TIDY_SECONDS, tidy)

    return soon


def _allow_files() -> None:
    """Have as many files open as we may, up to `OPEN_FILES`: shells often allow 1024 where the system allows far more."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems have limits beside this one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _keep_open(loop: asyncio.AbstractEventLoop, streams: Streams, process_log: ProcessLog) -> None:
    """Open again what code of models has closed, now and from time to time."""
    for number in streams.restore(loop.time()):
        log.error("code of a model has closed descriptor %d, which is the server's; it has been opened again", number)
    process_log.flush()
    loop.call_later(STREAMS_SECONDS, _keep_open, loop, streams, process_log)


def _reopen(process_log: ProcessLog, access: AccessLog | None) -> None:
    process_log.reopen()
    if access is not None:
        access.reopen()


async def _run(
    paths: Sequence[str], options: argparse.Namespace, process_log: ProcessLog, access: AccessLog | None, streams: Streams
) -> int:
    stop = asyncio.Event()
    now = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled(number: signal.Signals) -> None:
        if stop.is_set():
            log.warning("%s again: stopping at once", number.name)
            now.set()
        else:
            log.info("%s: stopping", number.name)
            stop.set()

    _keep_open(loop, streams, process_log)
    limit = options.exit_timeout_secs + HELD_SECONDS
    signals = Signals(loop, signalled, functools.partial(leave, 1), limit, once=options.replica is not None)
    signals.start(signal.SIGTERM, signal.SIGINT)
    member = _member(loop, options.replica, signals, now)
    if options.log_file or access is not None:
        loop.add_signal_handler(signal.SIGHUP, _reopen, process_log, access)  # sent by who has moved the files away
    frontends: list[Frontend] = []
    try:
        kernel = _kernel(paths, options, LogSettings(log_options(options), process_log.apply, access))
        kernel.open()
        if member is not None:
            join(kernel, member)
            kernel.supervision.peers = member.peers = PeerTable(kernel, member.index, member.role.count)
        kernel.gate = kernel.plugins.gate(kernel, options)
        frontends = kernel.plugins.frontends(kernel, options)
        recorder = recorder_of(kernel, options, __version__)
    except ServingError as error:
        return _not_created(error)
    if not await _reserve(frontends, member):  # before models load, which may take minutes
        await kernel.stop(0.0)
        return 1
    Watchdog(kernel).start()
    modules = sorted(sys.modules) if _speaks(member) else []  # before models import what is theirs
    loading = asyncio.ensure_future(kernel.start())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((loading, stopping), return_when=FIRST)
    if not loading.done():
        # Nobody has been served yet: what is loaded is finalized, a model that is still being initialised is left at that.
        loading.cancel()
        await asyncio.wait((loading, asyncio.ensure_future(now.wait())), timeout=options.exit_timeout_secs, return_when=FIRST)
        leave(0)
    stopping.cancel()
    try:
        await loading
    except StartFailed as error:
        _log_models(kernel, stopped=True)
        seen = options.log_error and not options.log_file
        return _not_created(ServingError(error.code, error.brief) if seen else error)
    except ServingError as error:
        return _not_created(error)
    except Exception as error:
        log.exception("unexpected error while loading")
        return _not_created(ServingError(Code.INTERNAL, f"{type(error).__name__}: {error}"))
    process_log.protect()  # once more: loggers of ours that were made while models were loaded
    if kernel.broken is None:
        _log_models(kernel, tell=_speaks(member))
    elif options.watch:
        await kernel.stop(0.0)
        return _not_created(kernel.broken)
    if not await _begin(recorder, _open(kernel, frontends, member, stop, modules)):
        await kernel.stop(0.0)
        return 0 if stop.is_set() else 1
    if options.watch:
        kernel.watch(Console(sys.stderr))
    tune_collector()
    kernel.on_unload = _tidier(asyncio.get_running_loop())
    notify("READY=1", "STATUS=serving" if kernel.is_ready() else "STATUS=serving; not ready, as the log tells")
    leaving = await _until_told(stop, member)
    notify("STOPPING=1", "STATUS=stopping: what is in flight is answered")
    delay = MOMENT_SECONDS if options.drain_delay is None else options.drain_delay
    return await _stop(kernel, frontends, delay, options.exit_timeout_secs, now, leaving, recorder)


def _budget(options: argparse.Namespace) -> Budget | None:
    budget = Budget(options.model_budget, options.memory_budget, options.model_idle_timeout)
    return None if budget == Budget() else budget


def _kernel(paths: Sequence[str], options: argparse.Namespace, log_settings: LogSettings) -> Kernel:
    """Return the kernel that the flags ask for. Raises ServingError."""
    # What a process takes of the machine by default is for all replicas; 0 is that default of a process alone.
    share = 0 if options.replica is None else machine_share(options.replica.count)
    return Kernel(
        *paths,
        control_mode=options.model_control_mode,
        load_models=options.load_model,
        poll_seconds=options.repository_poll_secs,
        exit_on_error=options.exit_on_error and not options.watch,
        strict_readiness=options.strict_readiness,
        auto_complete=auto_complete(options),
        strict_outputs=options.strict_outputs or options.watch,
        config_name=options.model_config_name,
        load_threads=options.model_load_thread_count,
        load_retries=options.model_load_retry_count,
        budget=_budget(options),
        storage=storage_options(options),
        namespacing=options.model_namespacing,
        drain_seconds=options.exit_timeout_secs,
        allow_client_shm=options.allow_client_shm is not False,
        max_inflight=options.max_inflight,
        execution_timeout=options.execution_timeout,
        refuse_late=options.refuse_late,
        memory_limit_receive=options.memory_limit_receive or share,
        memory_limit_send=options.memory_limit_send or share,
        max_request_values=options.max_request_values,
        max_connections=options.max_connections,
        max_connections_per_address=options.max_connections_per_address,
        log_settings=log_settings,
        trace=trace_options(options),
        rate_limit=options.rate_limit,
        rate_limit_resources=options.rate_limit_resource,
        cache=cache_options(options),
        backend_config=options.backend_config,
    )


def _member(loop: asyncio.AbstractEventLoop, role: Role | None, signals: Signals, now: asyncio.Event) -> Member | None:
    """Join the group, where there is one. Without its supervisor this process stops as by a signal."""
    if role is None:
        return None

    def alone() -> None:
        if not signals.came:
            log.error("the supervisor has gone")
            os.kill(os.getpid(), signal.SIGTERM)

    end_with_parent()
    return Member(loop, role, alone, now.set)


async def _until_told(stop: asyncio.Event, member: Member | None) -> bool:
    """Wait until the end is to come; return whether another replica serves in the place of this one."""
    if member is None:
        await stop.wait()
        return False
    waiting = [asyncio.ensure_future(one.wait()) for one in (stop, member.leave)]
    await asyncio.wait(waiting, return_when=FIRST)
    for one in waiting:
        one.cancel()
    return not stop.is_set()


def _speaks(member: Member | None) -> bool:
    """Whether this process tells what is the same for all replicas."""
    return member is None or member.role.speaks


async def _begin(recorder: Recorder | None, opening: Coroutine[Any, Any, bool]) -> bool:
    """Record, where that is asked for, and open the ports. False: one of these can't be, and neither is then."""
    if recorder is None:
        return await opening
    try:
        recorder.start()
    except ServingError as error:
        opening.close()
        _not_created(error)
        return False
    opened = await opening
    if not opened:
        await recorder.stop()
    return opened


async def _open(
    kernel: Kernel, frontends: Sequence[Frontend], member: Member | None, stop: asyncio.Event, modules: Sequence[str]
) -> bool:
    """Open the ports, those of a replica when all are to open. False: they are not, as one can't be had, or all is to stop."""
    if member is None:
        return await _start(frontends)
    opened = await _may_open(member, stop, modules, kernel.supervision.ahead) and await _start(frontends, tell=_speaks(member))
    if opened:
        steered(kernel).watch()
        member.opened()
    return opened


async def _may_open(member: Member, stop: asyncio.Event, modules: Sequence[str], ahead: Collection[str]) -> bool:
    """Wait until the others have loaded, too; return whether that has come, and no stop."""
    loaded = asyncio.ensure_future(member.loaded(modules, ahead))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((loaded, stopping), return_when=FIRST)
    for waiting in (loaded, stopping):
        waiting.cancel()
    return not stop.is_set()


async def _reserve(frontends: Sequence[Frontend], member: Member | None) -> bool:
    """Take the ports, which nobody can connect to yet. Tell why not where one can't be had."""
    for frontend in frontends:
        if isinstance(frontend, ListeningFrontend):
            try:
                await frontend.reserve(None if member is None else member.bind)
            except OSError as error:
                return await _not_started(frontend, error, frontends)
    return True


async def _not_started(frontend: Frontend, error: OSError, others: Sequence[Frontend]) -> bool:
    if error.strerror is None:  # the front end has put it into words
        log.error("%s", error)
    else:
        log.error("failed to start %s service at %s: Unavailable - %s", *_service(frontend), error.strerror)
    if error.errno == errno.EADDRINUSE:
        log.error("%s", _how_to_move(*_service(frontend)))
    for other in others:
        await other.stop()
    return False


def _how_to_move(protocol: str, endpoint: str) -> str:
    """Say which flag has a front end listen elsewhere than at an endpoint that somebody else has."""
    kind = PORT_FLAGS.get(protocol)
    if kind is None:
        return "another process has that port"  # a front end of somebody else, whose flags nobody knows
    if endpoint.startswith("unix:"):
        return f"another process listens at that file; --{kind}-address=unix:FILE names another"
    flag = f"--{kind}-port=N takes another one, 0 any that is free"
    every = "two servers differ in --http-port, --grpc-port and --metrics-port"
    return f"another process has that port (ss -ltnp tells which); {flag}; {every}"


async def _start(frontends: Sequence[Frontend], *, tell: bool = True) -> bool:
    """Open the ports. Tell why not and close them again where one can't be had. `tell`: where they are."""
    for k, frontend in enumerate(frontends):
        try:
            await frontend.start()
        except OSError as error:
            return await _not_started(frontend, error, frontends[:k])
        if not tell:
            continue
        protocol, endpoint = _service(frontend)
        log.info("Started %s at %s", SERVICES.get(protocol, f"{protocol}Service"), endpoint)
    if not tell:
        return True
    if not frontends:
        log.warning("no front end is switched on: nobody can reach the models")
    open_to_all = [_service(frontend)[1] for frontend in frontends if getattr(frontend, "open_to_all", False)]
    if open_to_all:
        log.warning(
            "whoever can reach %s may change what is served: that is not restricted. Addresses such as 127.0.0.1 "
            "(--http-address, --grpc-address), --safe, or keys (--http-restricted-api, --grpc-restricted-protocol) change that",
            " and ".join(open_to_all),
        )
    return True


def _service(frontend: Frontend) -> tuple[str, str]:
    """Return a front end's protocol and endpoint, such as ("HTTP", "0.0.0.0:8000") or ("GRPCS", "unix:/run/grpc.sock")."""
    address = urlsplit(frontend.address)
    return address.scheme.upper(), f"{address.netloc}{address.path}"


async def _stop(
    kernel: Kernel, frontends: Sequence[Frontend], delay: float, limit: float, now: asyncio.Event, leaving: bool,
    recorder: Recorder | None,
) -> int:  # fmt: skip
    """End everything in its order, within `limit` seconds, of which the ports stay open for `delay`; return the exit status.

    `leaving`: another one serves at the same ports.
    """
    ending = asyncio.ensure_future(_drain(kernel, frontends, delay, limit, leaving))
    hurry = asyncio.ensure_future(now.wait())
    await asyncio.wait((ending, hurry), timeout=limit + LAST_WORDS_SECONDS, return_when=FIRST)
    if recorder is not None:
        await recorder.stop()
    if not ending.done() or not ending.result():
        log.error("failed to stop server: Internal - Exit timeout expired. Exiting immediately.")
        # A model that is still computing on its thread would hold up the interpreter's own end for ever.
        leave(1)
    hurry.cancel()
    return 0


async def _drain(kernel: Kernel, frontends: Sequence[Frontend], delay: float, limit: float, leaving: bool) -> bool:
    """Finish what is in flight; return whether that took no longer than `limit` seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit
    log_task = asyncio.ensure_future(_log_drain(kernel, limit))
    if kernel.supervision.peers is not None:
        kernel.supervision.peers.leave()
    listening = [frontend for frontend in frontends if isinstance(frontend, ListeningFrontend)]
    if leaving:
        await _leave(kernel, listening, end - SILENCE_SECONDS - REST_SECONDS)
    await _retire(kernel, listening, 0.0 if leaving else delay, end)
    draining = [asyncio.ensure_future(frontend.drain()) for frontend in frontends]
    await kernel.stop(max(0.0, end - loop.time()))
    log_task.cancel()
    in_time = loop.time() < end
    # What was answered has still to be sent.
    if draining:
        _, busy = await asyncio.wait(draining, timeout=max(LAST_WORDS_SECONDS, end - loop.time()))
        in_time = in_time and not busy
    for frontend in frontends:
        await frontend.stop()
    return in_time


async def _leave(kernel: Kernel, frontends: Sequence[ListeningFrontend], end: float) -> None:
    """Have all clients go on elsewhere, at the same ports, and serve them until they have; till `end` at most.

    The server as a whole is ready all the while, and so is this replica as far as its clients can see. They are told when no
    sequence is under way, as another replica does not know of it.
    """
    loop = asyncio.get_running_loop()
    for frontend in frontends:
        frontend.refuse()
    told: float | None = None
    while (now := loop.time()) < end:
        if told is None and not any(model.scheduler.queue.sequences for model in kernel.models()):
            told = now
        if told is not None and now <= told + SETTLE_SECONDS:
            for frontend in frontends:
                frontend.retire()
        elif told is not None and not any(frontend.busy for frontend in frontends):
            if now > told + KEPT_SECONDS or not any(frontend.connected for frontend in frontends):
                return
        await asyncio.sleep(LOOK_SECONDS)


async def _retire(kernel: Kernel, frontends: Sequence[ListeningFrontend], delay: float, end: float) -> None:
    """Go on serving for `delay` seconds, then until nobody waits for anything, till `end` at most, not ready.

    What has been sent to us by then has to find an open port and an open connection. So has who is in the midst of a sequence:
    nobody is sent elsewhere before these are over.
    """
    loop = asyncio.get_running_loop()
    kernel.retire()
    closing = min(loop.time() + delay, end)
    open_ports, told = True, False
    while True:
        now = loop.time()
        if open_ports and now >= closing:
            open_ports = False
            kernel.retire(inf)
        if not open_ports:  # each time, for connections that were accepted and not yet ours when the ports closed
            for frontend in frontends:
                frontend.refuse()
        hurried = now >= end - SILENCE_SECONDS - REST_SECONDS
        if not told and (hurried or not any(model.scheduler.queue.sequences for model in kernel.models())):
            told = True
            if hurried:
                kernel.retire(min(SILENCE_SECONDS, max(0.0, end - now) / 2))
            for frontend in frontends:
                frontend.retire()
        busy = any(frontend.busy for frontend in frontends) or any(not model.is_idle for model in kernel.models())
        if now >= end or not (busy or open_ports):
            return
        await asyncio.sleep(min(LOOK_SECONDS, end - now))


async def _log_drain(kernel: Kernel, limit: float) -> None:
    """Say once a second what is still waited for."""
    left = int(limit)
    while True:
        count = sum(not model.is_idle for model in kernel.models())
        log.info("Timeout %d: Found %d model versions that have in-flight inferences", left, count)
        await asyncio.sleep(1)
        left = max(0, left - 1)


def _not_created(error: ServingError) -> int:
    print(f"error: creating server: {error.code.value} - {error.message}", file=sys.stderr)
    return 1


def _log_models(kernel: Kernel, *, stopped: bool = False, tell: bool = True) -> None:
    """Tell what became of the models. `stopped`: none is served, since some have failed; why they have was told."""
    if not tell:
        return

    def status(line: ModelIndex) -> str:
        if not line.reason:
            return line.state
        if stopped and line.reason == UNLOADED:
            return "stopped: it had loaded, others have not"
        return f"{line.state}: {line.reason.splitlines()[0] if stopped else line.reason}"

    rows = [(line.name, line.version or "-", status(line)) for line in kernel.index() if line.state]
    if rows:
        log.info("models:", extra={"table": table(("Model", "Version", "Status"), rows)})
