"""The `onnxruntime` backend: serves models whose version folder holds a `model.onnx`.

Checks what can be checked without the package; asks the model file where the config leaves something out; makes an instance of
a session and an executor. Failures are told in the reference's words, with the file and the cause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from kernel import Code, Finding, InstanceContext, Kernel, ModelConfig, PlacementChoice, ServingError
from kernel_onnx.advice import advice
from kernel_onnx.agreement import check_agreement
from kernel_onnx.autocomplete import completed, is_complete
from kernel_onnx.backend_settings import read_backend_settings
from kernel_onnx.executor import OnnxExecutor
from kernel_onnx.providers import check_accelerators
from kernel_onnx.runtime import has_cuda, installed
from kernel_onnx.sessions import Session, SharedSessions, instance_session, model_file, open_session
from kernel_onnx.settings import RunSettings, read_settings, warn_of_near_misses

__all__ = ["OnnxBackend"]

log = logging.getLogger("kernel_onnx")


class OnnxBackend:
    """The Backend of one kernel, with what that was told about it at start."""

    name = "onnxruntime"
    creates_on_loop = False
    #: What of a config it reads that other backends read without effect.
    heeds = ("optimization.graph", "optimization.execution_accelerators", "model_operations")

    def __init__(self, kernel: Kernel) -> None:
        self._settings = read_backend_settings(kernel.backend_settings(self.name))
        self._shared = SharedSessions()

    @property
    def uses_gpus(self) -> bool:
        """Whether KIND_AUTO may mean a GPU: not with an onnxruntime for the CPU alone."""
        return has_cuda()

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        """Refuse parameters and accelerators that make no sense, versions without a model file, and a missing package."""
        for version in versions:
            model_file(config, model_folder / str(version))
        read_settings(config)
        check_accelerators(config)
        if config.decoupled:
            at = ("model_transaction_policy", "decoupled")
            words = f"model '{config.name}' can't be decoupled"
            raise config.error(words, "an ONNX model gives one answer for each request", at=at)
        installed(config.name)

    def advise(
        self, config: ModelConfig, model_folder: Path, versions: Sequence[int], choice: PlacementChoice | None
    ) -> list[Finding]:
        """Return what of a config costs time, by the number of threads that it comes to."""
        return list(advice(config, read_settings(config, self._settings.threads)))

    def may_complete(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> bool:
        """Return whether the model file would be asked."""
        return not is_complete(config)

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        """Fill in inputs, outputs, batch size and batcher from the model file, where the config leaves them out."""
        if is_complete(config):
            return config
        settings = read_settings(config)
        check_accelerators(config)
        group = next((group for group in config.instance_groups if group.kind == "GPU"), config.instance_groups[0])
        device_id = group.gpus[0] if group.gpus else 0
        folders = (model_folder, version_folder)
        session = open_session(config, settings, folders, group.kind, device_id, group.name, to_look=True)
        return completed(config, session.signature, self._settings.default_max_batch_size)

    def create(self, context: InstanceContext) -> OnnxExecutor:
        """Make one instance: a session, or a share of one, for a config that agrees with the model file."""
        config = context.config
        settings = read_settings(config, self._settings.threads)
        session, close = self._session(context, settings)
        try:
            check_agreement(config, session.signature)
            inputs = (*config.inputs, *config.added_inputs)
            if any(spec.datatype == "BYTES" for spec in inputs) and any(
                spec.datatype == "BF16" for spec in (*inputs, *config.outputs, *config.kept_outputs)
            ):
                raise ServingError(
                    Code.UNSUPPORTED,
                    f"model '{config.name}' has inputs of strings and tensors of bfloat16, which onnxruntime can't be given "
                    "and return in one run from Python",
                )
            try:
                executor = OnnxExecutor(session, context, settings, close)
            except RuntimeError as error:  # a run's config entry
                raise ServingError(Code.INVALID_ARG, f"model '{config.name}': {error}") from error
        except BaseException:
            close()
            raise
        if context.instance_name.endswith("_0"):
            warn_of_near_misses(config)
        log.debug("model '%s': session of %s uses %s", config.name, session.file, session.inner.get_providers())
        return executor

    def _session(self, context: InstanceContext, settings: RunSettings) -> tuple[Session, Callable[[], None]]:
        if not settings.share_session:
            return instance_session(context, settings), lambda: None
        session, share = self._shared.take(context, settings)
        return session, lambda: self._shared.give_back(share)
