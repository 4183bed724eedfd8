"""An app that embeds the kernel and opens its front ends: `python app.py asyncio|uvloop REPOSITORY`.

Prints the address, serves until its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

import uvloop

from kernel import Kernel


async def main(repository: str) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, os._exit, 3)  # as apps have one
    async with Kernel(repository) as kernel:
        parser = argparse.ArgumentParser()
        kernel.plugins.add_options(parser)
        options = parser.parse_args(["--http-address=127.0.0.1", "--http-port=0", "--allow-grpc=false", "--allow-metrics=false"])
        frontends = kernel.plugins.frontends(kernel, options)
        for frontend in frontends:
            await frontend.start()
        print(*(frontend.address for frontend in frontends), flush=True)
        await asyncio.to_thread(os.read, 0, 1)  # no lock of `sys.stdin` is held, which a forked child would wait for
        for frontend in frontends:
            await frontend.drain()
            await frontend.stop()


if __name__ == "__main__":
    factory = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[sys.argv[1]]
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main(sys.argv[2]))
