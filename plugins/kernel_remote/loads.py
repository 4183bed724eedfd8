"""Loads of remote models: what the far end is asked before its model is one of ours.

For the config where ours leaves inputs or outputs out, and whether the model is ready in any case. A load fails with every
endpoint's reason where none answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel import Code, InstanceContext, Kernel, ModelConfig, ServingError, with_changes
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_remote.calls import Outcome
from kernel_remote.endpoints import Endpoints, Link, links
from kernel_remote.executor import SERVICE, RemoteModel
from kernel_remote.files import read_authorities, read_fields, read_identity
from kernel_remote.messages import code_of
from kernel_remote.settings import Settings, read_settings

__all__ = ["Loads"]

#: Seconds that an endpoint has to answer what a load asks.
PATIENCE = 10.0


class Loads:
    """What one kernel's backend does for models; made with the first one."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._known: Endpoints | None = None

    def validate(self, config: ModelConfig, model_folder: Path) -> None:
        """Refuse parameters that make no sense, and what is the far end's to do; asks nobody."""
        reached(config, model_folder)
        if config.message.HasField("sequence_batching"):
            raise config.error(
                f"model '{config.name}' is remote and has sequence_batching",
                "leave it to the far end, which a sequence's requests reach in their order",
                at=("sequence_batching",),
            )

    def complete_config(self, config: ModelConfig, model_folder: Path) -> ModelConfig:
        """Fill in inputs, outputs, batch size and whether it is decoupled, where ours has no inputs or no outputs."""
        settings = read_settings(config)
        request = pb.ModelConfigRequest(name=settings.model, version=settings.version)
        there = reached(config, model_folder)
        answer = self._ask(settings, there, config.name, "ModelConfig", request, pb.ModelConfigResponse)
        far = answer.config

        def change(message: Any) -> None:
            if not message.input:
                for one in far.input:
                    added = message.input.add()
                    added.ParseFromString(one.SerializeToString())
                    added.ClearField("reshape")  # is done there
            if not message.output:
                for one in far.output:
                    added = message.output.add()
                    added.ParseFromString(one.SerializeToString())
                    added.ClearField("reshape")
                    added.ClearField("label_filename")  # a file of the far end's
            if not message.max_batch_size:
                message.max_batch_size = far.max_batch_size
            if far.model_transaction_policy.decoupled:
                message.model_transaction_policy.decoupled = True

        return with_changes(config, change)

    def create(self, context: InstanceContext) -> RemoteModel:
        """Make an instance, where some endpoint says that its model is ready. Raises ServingError."""
        config = context.config
        settings = read_settings(config)
        there = reached(config, context.model_folder)
        request = pb.ModelReadyRequest(name=settings.model, version=settings.version)
        self._ask(
            settings, there, config.name, "ModelReady", request, pb.ModelReadyResponse, lambda answer: answer.ready
        )
        most = self._kernel.memory.receive.limit
        return RemoteModel(context.kernel, settings, there, config.decoupled, self._endpoints, most)

    def close(self) -> None:
        """The kernel has stopped."""
        if self._known is not None:
            self._known.close()

    def _endpoints(self) -> Endpoints:
        """Return the endpoints of all models. On the loop."""
        if self._known is None:
            self._known = Endpoints(self._kernel.loop, self._kernel.memory.receive)
        return self._known

    def _ask(
        self,
        settings: Settings,
        there: Sequence[Link],
        model: str,
        method: str,
        request: Any,
        kind: Any,
        good: Any = lambda answer: True,
    ) -> Any:
        """Return the first good answer. On a load thread. Raises ServingError with what each endpoint has said."""
        problems: list[str] = []
        code = Code.UNAVAILABLE
        for link in there:
            asking = self._call(link, SERVICE + method, request.SerializeToString())
            outcome, data = asyncio.run_coroutine_threadsafe(asking, self._kernel.loop).result()
            if outcome.status == 0:
                answer = kind.FromString(data)
                if good(answer):
                    return answer
                problems.append(f"endpoint {link.address.name}: the model '{settings.model}' is not ready")
            else:
                told = f"endpoint {link.address.name}: {outcome.message}"
                problems.append(told if outcome.told else outcome.message)
                code = code_of(outcome.status)
        raise ServingError(code, f"no endpoint of model '{model}' can serve it: {'; '.join(problems)}")

    async def _call(self, link: Link, path: str, request: bytes) -> tuple[Outcome, bytes]:
        """Make one call."""
        endpoints = self._endpoints()
        endpoint = endpoints.take(link)
        try:
            return await endpoint.ask(path, request, PATIENCE)
        finally:
            endpoints.give_back(endpoint)


def reached(config: ModelConfig, model_folder: Path) -> list[Link]:
    """Return how the endpoints of a model are reached, as its config says. Raises ConfigError."""
    settings = read_settings(config)
    identity = read_identity(config, model_folder)
    return links(settings, read_authorities(config, model_folder), identity, read_fields(config, model_folder))
