"""The page as front ends see it: which path gives what. Knows no HTTP.

What is asked for besides the events is made anew for each question, and told again for a moment, as several people may look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from kernel import Code, Document, ServingError, SiteRoute, __version__, clipped, steered
from kernel_dashboard.assets import assets
from kernel_dashboard.details import details, graph
from kernel_dashboard.feed import Feed
from kernel_dashboard.group import merged_details
from kernel_dashboard.replicas import Replicas

if TYPE_CHECKING:
    from kernel import Kernel, Reader

__all__ = ["Dashboard"]

JSON = "application/json"
MODEL = "/dashboard/model/"

#: How many requests are shown: in flight, the oldest; the slowest; those that failed last.
INFLIGHT = 50
TOLD = 20

#: For how long an answer is told again; seconds.
TOLD_SECONDS = 0.5

#: How many different answers are kept for that.
MOST_TOLD = 64

ROUTES = (
    SiteRoute(r"/(?:dashboard/[a-z]+\.(?:js|css|svg))?", ""),
    SiteRoute(r"/dashboard/events", "statistics", follows=True),
    SiteRoute(r"/dashboard/inflight", "statistics", of_all_clients=True),
    SiteRoute(r"/dashboard/(?:slowest|failed|graph)", "statistics"),
    SiteRoute(r"/dashboard/model/[^/]+", "model-config"),
)


class Dashboard:
    """The page of `kernel`. `name`: of the server. `control`: whether it may load and unload models."""

    routes: Sequence[SiteRoute] = ROUTES

    def __init__(self, kernel: Kernel, name: str, *, control: bool) -> None:
        self.controls = control
        self._kernel = kernel
        self._all = steered(kernel)  # replicas
        replica = getattr(self._all, "replica", None)
        self._replicas = None if replica is None else Replicas(kernel, self._all)
        hello = {"server": name, "version": __version__, "replica": replica, "control": control}
        hello["mode"] = kernel.options.control_mode
        self._feed = Feed(kernel, hello, replica or 0, None if self._replicas is None else self._replicas.see)
        self._assets = assets()
        self._told: dict[str, tuple[float, Document]] = {}
        self._answers: dict[str, Callable[[], Any]] = {
            "inflight": lambda: [asdict(one) for one in self._all.inflight(INFLIGHT)],
            "slowest": lambda: msgspec.to_builtins(self._all.explain(slowest=TOLD)),
            "failed": lambda: msgspec.to_builtins(self._all.explain(failed=TOLD)),
            "graph": lambda: graph(kernel),
        }

    def document(self, path: str) -> Document:
        """Return a file of the page, or what it asks for. Raises ServingError."""
        found = self._assets.get(path)
        if found is not None:
            return found
        now = self._kernel.clock()
        until, told = self._told.get(path, (0.0, None))
        if told is None or until <= now:
            told = Document(msgspec.json.encode(self._asked(path)), JSON)
            if len(self._told) >= MOST_TOLD:
                self._told.clear()
            self._told[path] = now + TOLD_SECONDS, told
        return told

    def _asked(self, path: str) -> Any:
        if path.startswith(MODEL):
            return self._details(unquote(path.removeprefix(MODEL)))
        answer = self._answers.get(path.removeprefix("/dashboard/"))
        if answer is None:
            raise ServingError(Code.NOT_FOUND, f"the page has no file '{clipped(path)}'")
        return answer()

    def _details(self, name: str) -> dict[str, Any]:
        own, replicas = details(self._kernel, name), self._replicas
        if replicas is None:
            return own
        found: dict[str, Any] = self._all.asked(
            lambda: replicas.details(name), lambda others: merged_details({self._all.replica: own, **others})
        )
        return found

    def follow(self, path: str, reader: Reader) -> None:
        """Tell a reader what happens from now on. Raises ServingError where too many are told."""
        self._feed.follow(reader)

    def close(self) -> None:
        """End what is told."""
        self._feed.close()
