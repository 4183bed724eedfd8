"""Loads of models with placement `ray`: what an actor is to serve, and the first actor, which has to serve before a load is done.

The actor's kernel reads the model as any kernel does: what its config leaves out is filled in there, and taken over here. The
actor that was started for that is the first of the model's.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from kernel import Code, InstanceContext, Kernel, ModelConfig, ServingError, with_changes
from kernel_ray.actor import Order
from kernel_ray.cluster import Cluster, import_ray
from kernel_ray.files import listing
from kernel_ray.fleet import Actor, Fleet
from kernel_ray.model import RayModel
from kernel_ray.settings import PREFIX, read_cluster_settings, read_settings
from kernel_remote.elastic import Endpoints
from kernel_remote.elastic import Settings as Sending

__all__ = ["Loads"]

T = TypeVar("T")

#: Seconds that actors live which were started for a load that came to nothing.
LINGER = 10.0

#: Parameters that the kernel here acts on, for all actors together.
KEPT_HERE = (
    "max_inflight", "circuit_breaker", "refuse_late", "idle_timeout", "keepalive_timeout", "idempotent", "placement",
    "autoscale_target", "autoscale_cooldown",
)  # fmt: skip


class Loads:
    """What one kernel's backend does for models; made with the first one."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._cluster = Cluster(read_cluster_settings(kernel.backend_settings("ray")))
        self._known: Endpoints | None = None
        self._secret = secrets.token_hex(16)
        self._begun: dict[tuple[str, int], tuple[Order, Fleet]] = {}  # of loads that have not come to `create`; on the loop

    def complete_config(self, config: ModelConfig, model_folder: Path, version: int) -> ModelConfig:
        """Start the first actor; return the config as it has completed it. On a load thread. Raises ServingError."""
        actor = self._wait(self._first(config, model_folder, version))
        far = type(config.message).FromString(actor.config)

        def change(message: Any) -> None:
            for name in ("input", "output"):
                message.ClearField(name)
                getattr(message, name).extend(getattr(far, name))
            message.max_batch_size = far.max_batch_size
            message.model_transaction_policy.CopyFrom(far.model_transaction_policy)

        return with_changes(config, change)

    def create(self, context: InstanceContext) -> RayModel:
        """Make what sends requests to the actors, once the first one serves. On a load thread. Raises ServingError."""
        config = context.config
        self._wait(self._first(config, context.model_folder, context.version))
        return self._wait(self._model(context))

    def close(self) -> None:
        """The kernel has stopped."""
        for _, fleet in self._begun.values():
            fleet.kill()
        if self._known is not None:
            self._known.close()
        self._cluster.close()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait on a load thread for what is done on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._kernel.loop).result()

    async def _first(self, config: ModelConfig, folder: Path, version: int) -> Actor:
        """Return the first actor of a load, started for it at most once."""
        key = str(folder), version
        order = await self._cluster.do(self._order, config, folder, version)
        begun = self._begun.get(key)
        if begun is None or begun[0] != order:
            if begun is not None:
                await begun[1].close()
            fleet = self._fleet(config, order)
            self._begun[key] = order, fleet
            self._kernel.loop.call_later(LINGER + read_settings(config).start_timeout, self._forget, key, fleet)
        else:
            fleet = begun[1]
        try:
            return await fleet.first()
        except BaseException:
            self._begun.pop(key, None)
            raise

    def _forget(self, key: tuple[str, int], fleet: Fleet) -> None:
        """End what was started for a load that has come to nothing."""
        if self._begun.get(key, (None, None))[1] is fleet:
            del self._begun[key]
            self._closing = asyncio.ensure_future(fleet.close())

    def _fleet(self, config: ModelConfig, order: Order) -> Fleet:
        settings = read_settings(config)

        async def start() -> Actor:
            return await self._cluster.start(order, settings)

        return Fleet(config.name, start, settings.least, settings.most)

    async def _model(self, context: InstanceContext) -> RayModel:
        config = context.config
        _, fleet = self._begun.pop((str(context.model_folder), context.version))
        sending = Sending((), config.name, str(context.version), read_settings(config).idempotent)
        most = self._kernel.memory.receive.limit
        return RayModel(context.kernel, sending, config.decoupled, self._endpoints, most, fleet)

    def _endpoints(self) -> Endpoints:
        """Return the endpoints of all models. On the loop."""
        if self._known is None:
            self._known = Endpoints(self._kernel.loop)
        return self._known

    def _order(self, config: ModelConfig, folder: Path, version: int) -> Order:
        """Return what an actor is to serve."""
        import_ray()
        folder = folder.resolve()
        try:
            files = listing(folder, version)
        except OSError as error:
            raise ServingError(Code.INTERNAL, f"the files of model '{config.name}' can't be read: {error}") from error
        backend = config.backend
        return Order(
            config.name,
            version,
            there(config, version),
            str(folder),
            files,
            read_settings(config).ship,
            {backend: self._kernel.backend_settings(backend)},
            self._secret,
            self._kernel.memory.receive.limit,
        )


def there(config: ModelConfig, version: int) -> str:
    """Return the config with which an actor's kernel is to load the model, as JSON: without what is done here."""
    found = config.as_dict()
    parameters = found.get("parameters", {})
    found["parameters"] = {
        key: value for key, value in parameters.items() if key not in KEPT_HERE and not key.startswith(PREFIX)
    }
    found["version_policy"] = {"specific": {"versions": [version]}}
    found.pop("response_cache", None)
    return json.dumps(found)
