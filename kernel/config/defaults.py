"""Fills in what a config leaves out: name, backend, file name, version policy, instance groups, sizes.

Changes a message in place and judges nothing; the rules come after. Looks at file names in the first version folder,
opens no file. (Contract: model_config, sections 1–6, 10.)
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from kernel.config.elsewhere import elsewhere
from kernel.config.model_config_pb2 import ModelConfig as Message
from kernel.config.model_config_pb2 import ModelInstanceGroup

__all__ = ["DEFAULT_FILENAMES", "PLATFORM_BACKENDS", "complete_backend", "fill_defaults"]

#: Platforms of the reference and the backend that each of them means.
PLATFORM_BACKENDS = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorrt_plan": "tensorrt",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}

#: What the model file of a backend is called, unless the config says otherwise. The order decides when several are
#: there.
DEFAULT_FILENAMES = {
    "tensorrt": "model.plan",
    "onnxruntime": "model.onnx",
    "openvino": "model.xml",
    "pytorch": "model.pt",
    "python": "model.py",
}
_PLATFORMS = {"tensorrt": "tensorrt_plan", "onnxruntime": "onnxruntime_onnx", "pytorch": "pytorch_libtorch"}


def complete_backend(message: Message, model_name: str, model_folder: Path) -> None:
    """Tell the backend by the files of the model, or by the end of its name, where the config names none
    (auto-complete).
    """
    if message.backend or message.platform or message.default_model_filename or message.HasField("ensemble_scheduling"):
        return
    folder = _first_version_folder(model_folder)
    for backend, filename in DEFAULT_FILENAMES.items():
        if folder is not None and (folder / filename).exists():
            message.backend = backend
            message.platform = _PLATFORMS.get(backend, "")
            message.default_model_filename = filename
            return
    _, dot, suffix = model_name.rpartition(".")
    if dot and suffix:
        message.backend = suffix


def _first_version_folder(model_folder: Path) -> Path | None:
    try:
        folders = [
            entry
            for entry in model_folder.iterdir()
            if entry.name.isascii() and entry.name.isdigit() and entry.is_dir()
        ]
    except OSError:
        return None
    return min(folders, key=lambda entry: int(entry.name[:18]), default=None)


def fill_defaults(
    message: Message, model_name: str, gpus: tuple[int, ...] = (), cpu_backends: Collection[str] = ()
) -> None:
    """Fill in every default that the config of a loaded model shows. `cpu_backends`: those that don't compute on `gpus`."""
    if not message.name:
        message.name = model_name
    if not message.backend:
        message.backend = PLATFORM_BACKENDS.get(message.platform, "")
    if message.backend == "onnxruntime" and not message.platform:
        message.platform = _PLATFORMS["onnxruntime"]  # of the backends here, the one whose models have a platform
    is_ensemble = message.platform == "ensemble" or message.HasField("ensemble_scheduling")
    if not message.default_model_filename and not is_ensemble:
        message.default_model_filename = DEFAULT_FILENAMES.get(message.backend, "")
    if message.version_policy.WhichOneof("policy_choice") is None:
        message.version_policy.latest.num_versions = 1
    _fill_scheduling(message)
    if is_ensemble:
        message.model_transaction_policy.SetInParent()
        return
    for name in ("input_pinned_memory", "output_pinned_memory"):
        if not message.optimization.HasField(name):
            getattr(message.optimization, name).enable = True
    if not elsewhere(message):  # else who executes it fills them in: he knows the GPUs
        _fill_instance_groups(message, gpus, on_gpus=message.backend not in cpu_backends)


def _fill_scheduling(message: Message) -> None:
    size = message.max_batch_size
    if message.HasField("dynamic_batching"):
        if not message.dynamic_batching.preferred_batch_size and size > 0:
            message.dynamic_batching.preferred_batch_size.append(size)
    elif message.HasField("sequence_batching"):
        batching = message.sequence_batching
        if not batching.max_sequence_idle_microseconds:
            batching.max_sequence_idle_microseconds = 1_000_000
        if batching.HasField("oldest") and not batching.oldest.preferred_batch_size and size > 0:
            batching.oldest.preferred_batch_size.append(size)


def _fill_instance_groups(message: Message, gpus: tuple[int, ...], *, on_gpus: bool) -> None:
    if not message.instance_group:
        message.instance_group.add(name=message.name)
    onnx_on_cpu = 2 if message.backend == "onnxruntime" else 1
    for index, group in enumerate(message.instance_group):
        if not group.name:
            group.name = f"{message.name}_{index}"
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            usable = on_gpus and bool(gpus) and all(gpu in gpus for gpu in group.gpus)
            group.kind = ModelInstanceGroup.KIND_GPU if usable else ModelInstanceGroup.KIND_CPU
        if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus)
        if group.count < 1:
            group.count = onnx_on_cpu if group.kind == ModelInstanceGroup.KIND_CPU else 1
