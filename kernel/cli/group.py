"""`kernel serve --replicas N`: the process that has no models, from its first replica to its exit code."""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import signal
import sys
from collections.abc import Sequence

from kernel.cli.notify import notify
from kernel.cli.signals import TOGETHER
from kernel.observability import ProcessLog
from kernel.replicas import Ports, Processes, Role, Spares, Supervisor
from kernel.rules import ScaleRule

__all__ = ["supervise"]

log = logging.getLogger("kernel.serve")

#: What a replica may take to end beyond --exit-timeout-secs, before it is killed: longer than it gives itself.
BEYOND_SECONDS = 12.0


def supervise(arguments: Sequence[str], options: argparse.Namespace, process_log: ProcessLog) -> int:
    """Run the group; return the exit status. `arguments`: what `kernel serve` was given."""
    return asyncio.run(_supervise(arguments, options, process_log))


async def _supervise(arguments: Sequence[str], options: argparse.Namespace, process_log: ProcessLog) -> int:
    loop = asyncio.get_running_loop()
    least, most = options.replicas.least, int(options.replicas)
    start = Spares(loop, Processes(loop, most, functools.partial(_command, arguments)), options.replica_spare)
    limit = options.exit_timeout_secs + BEYOND_SECONDS
    rule = ScaleRule(least, most) if least < most else None
    supervisor = Supervisor(loop, least, start, Ports(loop), limit, options.replica_hang_seconds, rule)
    first: float | None = None

    def signalled(number: signal.Signals) -> None:
        nonlocal first
        now = loop.time()
        if first is None:
            first = now
            log.info("%s: stopping", number.name)
            notify("STOPPING=1", "STATUS=stopping: what is in flight is answered")
            supervisor.stop()
        elif now - first >= TOGETHER:
            log.warning("%s again: stopping at once", number.name)
            supervisor.hurry()

    def reopen() -> None:
        process_log.reopen()
        supervisor.pass_on(signal.SIGHUP)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
    loop.add_signal_handler(signal.SIGUSR2, supervisor.reload)
    if options.log_file or options.access_log:
        loop.add_signal_handler(signal.SIGHUP, reopen)
    how = f"{least} replicas are started, the first before the others" if least > 1 else "1 replica is started"
    log.info("%s%s", how, f"; there are up to {most}, as the load says" if least < most else "")
    supervisor.served.add_done_callback(lambda _: notify("READY=1", f"STATUS={least} replicas serve"))
    supervisor.begin()
    return await supervisor.done


def _command(arguments: Sequence[str], role: Role) -> list[str]:
    """Return the command line of a replica: this process's own, with its role behind it."""
    own = sys.orig_argv
    if list(arguments) == own[len(own) - len(arguments) :]:
        program = [sys.executable, *own[1 : len(own) - len(arguments)]]
    else:  # called by a program of somebody else's
        program = [sys.executable, "-P", "-m", "kernel", "serve"]
    return [*program, *arguments, f"--replica={role}"]
