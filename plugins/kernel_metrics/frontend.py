"""The front end as the kernel sees it: listening, drain. Puts the parts of this package together."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kernel import Endpoint, Listener, ListeningFrontend, steered
from kernel_metrics import options as flags
from kernel_metrics.connection import Connection, Server
from kernel_metrics.group import GroupPage
from kernel_metrics.lag import LoopLag
from kernel_metrics.page import Page

if TYPE_CHECKING:
    from kernel import Kernel

__all__ = ["MetricsFrontend"]


class MetricsFrontend(ListeningFrontend):
    """The Prometheus page over HTTP/1.1 on the kernel's loop."""

    def __init__(self, kernel: Kernel, options: argparse.Namespace) -> None:
        address = options.metrics_address or getattr(options, "http_address", None) or flags.DEFAULT_ADDRESS
        if options.metrics_address is None and address.startswith("unix:"):
            address = flags.DEFAULT_ADDRESS  # HTTP's own socket
        self.lag = LoopLag(kernel.loop, kernel.clock)
        group = steered(kernel)
        self.page = Page(kernel, flags.settings(options), self.lag, counts=group is not kernel)
        by_query = None if group is kernel else GroupPage(self.page.make, group).make
        server = Server(kernel, self.page.make, by_query)
        listener = Listener(Endpoint(address, options.metrics_port), "Metrics")
        super().__init__(kernel, listener, server, lambda: Connection(server), "metrics")

    async def start(self) -> None:
        """Listen. Raises OSError, in the reference's words when the endpoint is taken."""
        await super().start()
        self.lag.start()

    async def stop(self) -> None:
        """Close everything at once."""
        self.lag.stop()
        await super().stop()
