"""The executor of a model with placement `ray`: sends requests to its actors, and ends them when it goes."""

from __future__ import annotations

from collections.abc import Callable

from kernel import Host, RemoteOwner
from kernel_ray.fleet import Fleet
from kernel_remote.elastic import ElasticModel, Endpoints, Settings

__all__ = ["RayModel"]


class RayModel(ElasticModel):
    """`fleet`: its actors, of which others may ask for more or fewer: `fleet.resize(size)` on the loop."""

    def __init__(
        self, host: Host, settings: Settings, decoupled: bool, known: Callable[[], Endpoints], most: int, fleet: Fleet
    ) -> None:
        super().__init__(host, settings, decoupled, known, most, fleet.unreachable)
        self.fleet = fleet

    def attach(self, instance: RemoteOwner) -> None:
        super().attach(instance)
        self.fleet.attach(self)

    async def close(self) -> None:
        """End the actors, and let go of their endpoints."""
        await self.fleet.close()
        await super().close()

    def kill(self) -> None:
        """End what runs, and the actors with it."""
        super().kill()
        self.fleet.kill()
