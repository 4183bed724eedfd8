"""Which wire an address means: HTTP is ours, others are plugins'."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kernel.errors import Code, ServingError
from kernel.loadtest.grpc_target import GrpcTarget
from kernel.loadtest.http_target import HttpTarget
from kernel.loadtest.target import Ask, CallChannel, LoadTarget, TargetOptions, channels, split

__all__ = ["open_channel", "open_target"]


def open_channel(url: str, headers: Mapping[str, str]) -> CallChannel:
    """Return what makes calls to the server at a URL, as a plugin has it. On the loop. Raises ServingError."""
    scheme = url.partition("://")[0]
    entry = channels().get(scheme)
    if entry is None:
        raise ServingError(Code.INVALID_ARG, f"'{url}': no plugin reaches {scheme}://; there are {_schemes()}")
    host, port, _ = split(url, 8001)
    host = f"[{host}]" if ":" in host else host
    channel: CallChannel = entry.load()(f"{scheme}://{host}:{port}", headers)
    return channel


async def open_target(address: str, model: str, options: TargetOptions, ask: Ask) -> LoadTarget:
    """Ask a server for a model, and return how requests get to it. Raises ServingError with what the server said.

    `ask`: how HTTP's servers are asked what the model is.
    """
    url = address if "://" in address else f"http://{address}"
    scheme = url.partition("://")[0]
    target: HttpTarget | GrpcTarget
    if scheme in ("http", "https"):
        target = HttpTarget(url, options)
    else:
        target = GrpcTarget(url, open_channel(url, options.headers), options)
    try:
        async with asyncio.timeout(options.timeout):
            await target.look(model, ask)
    except TimeoutError:
        await target.close()
        words = f"{address} has not said within {options.timeout:g} s what model '{model}' is"
        raise ServingError(Code.UNAVAILABLE, words) from None
    except BaseException:
        await target.close()
        raise
    return target


def _schemes() -> str:
    return ", ".join(f"{one}://" for one in ("http", "https", *sorted(channels())))
