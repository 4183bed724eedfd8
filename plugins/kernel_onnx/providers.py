"""Execution providers of a session: by the kind of its instance, and by `optimization { execution_accelerators }`.

Names, parameters and their meaning are those of the reference's backend. Knows onnxruntime's names, not onnxruntime.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kernel import Code, ConfigError, ConfigErrors, Key, ModelConfig, ServingError
from kernel_onnx.settings import as_boolean

__all__ = ["CPU", "CUDA", "check_accelerators", "providers", "require"]

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"

Provider = tuple[str, dict[str, str]]

_GPU = {"cuda": CUDA, "tensorrt": TENSORRT}
_CPU = {"openvino": OPENVINO}

#: What else has to be installed for a provider.
PACKAGES = {CUDA: "onnxruntime-gpu", TENSORRT: "onnxruntime-gpu and TensorRT", OPENVINO: "onnxruntime-openvino"}

_TENSORRT_NAMES = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_PRECISIONS = {"FP32": "", "FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}
_CUDA_BOOLEANS = ("do_copy_in_default_stream", "use_ep_level_unified_stream")

#: The older way to set up CUDA, by parameters of the model: name -> what its numbers mean, or None where it is passed on.
_OLD_CUDA: dict[str, tuple[str, ...] | None] = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
    "gpu_mem_limit": None,
    "do_copy_in_default_stream": None,
}


def check_accelerators(config: ModelConfig) -> None:
    """Refuse accelerators and options that no provider has, all at once. Raises ConfigErrors."""
    errors: list[ConfigError] = []
    _gpu(config, errors)
    _cpu(config, errors)
    if errors:
        raise ConfigErrors(errors)


def providers(config: ModelConfig, kind: str, device_id: int) -> list[Provider]:
    """Return providers with their options, the first choice first, for a config that `check_accelerators` let pass."""
    chosen: list[Provider] = []
    if kind == "GPU":
        chosen += [(name, {**options, "device_id": str(device_id)}) for name, options in _gpu(config, [])]
    return [*chosen, *_cpu(config, []), (CPU, {})]


def require(config: ModelConfig, wanted: Collection[Provider], available: Collection[str], instance: str) -> None:
    """Refuse an instance whose providers this installation of onnxruntime doesn't have. Raises ServingError(UNAVAILABLE)."""
    for name, _ in wanted:
        if name not in available:
            raise ServingError(
                Code.UNAVAILABLE,
                f"instance '{instance}' of model '{config.name}' needs onnxruntime's {name}, which this installation "
                f"doesn't have (it has {', '.join(available)}); it comes with {PACKAGES.get(name, name)}",
            )


def _gpu(config: ModelConfig, errors: list[ConfigError]) -> list[Provider]:
    found: list[Provider] = []
    cuda = _old_cuda(config, errors)
    for at, one in _accelerators(config, "gpu_execution_accelerator"):
        if one.name not in _GPU:
            errors.append(_unknown(config, one.name, at, _GPU))
        elif one.name == "cuda":
            cuda.update(_cuda(config, one.parameters, at, errors))
        else:
            found.append((TENSORRT, _tensorrt(config, one.parameters, at, errors)))
    return [*found, (CUDA, cuda)]


def _cpu(config: ModelConfig, errors: list[ConfigError]) -> list[Provider]:
    found: list[Provider] = []
    for at, one in _accelerators(config, "cpu_execution_accelerator"):
        if one.name not in _CPU:
            errors.append(_unknown(config, one.name, at, _CPU))
        else:
            found.append((_CPU[one.name], {"device_type": "CPU", **one.parameters}))
    return found


def _accelerators(config: ModelConfig, which: str) -> list[tuple[tuple[Any, ...], Any]]:
    listed = getattr(config.message.optimization.execution_accelerators, which)
    return [(("optimization", "execution_accelerators", which, index), one) for index, one in enumerate(listed)]


def _unknown(config: ModelConfig, name: str, at: tuple[Any, ...], known: Mapping[str, str]) -> ConfigError:
    words = f"unknown Execution Accelerator '{name}' is requested"
    return config.error(words, f"wanted one of {', '.join(known)} for model '{config.name}'", at=(*at, "name"))


def _cuda(
    config: ModelConfig, parameters: Mapping[str, str], at: tuple[Any, ...], errors: list[ConfigError]
) -> dict[str, str]:
    for key in _CUDA_BOOLEANS:
        if key in parameters:
            _boolean(config, key, parameters[key], (*at, "parameters", Key(key)), errors)
    return {key: value for key, value in parameters.items() if value}


def _old_cuda(config: ModelConfig, errors: list[ConfigError]) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, meanings in _OLD_CUDA.items():
        value = config.parameters.get(key)
        if value is None:
            continue
        at = ("parameters", Key(key), "value", "string_value")
        if meanings is None:
            options[key] = value
        elif value in map(str, range(len(meanings))):
            options[key] = meanings[int(value)]
        else:
            words = f"unsupported {key} value '{value}' is requested"
            wanted = ", ".join(f"{number} ({meaning})" for number, meaning in enumerate(meanings))
            errors.append(config.error(words, f"wanted one of {wanted} for model '{config.name}'", at=at))
    return options


def _tensorrt(
    config: ModelConfig, parameters: Mapping[str, str], at: tuple[Any, ...], errors: list[ConfigError]
) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, value in parameters.items():
        where = (*at, "parameters", Key(key))
        if key == "precision_mode":
            if value not in _PRECISIONS:
                words = f"unsupported precision mode '{value}' is requested"
                errors.append(config.error(words, f"wanted one of {', '.join(_PRECISIONS)}", at=where))
            elif _PRECISIONS[value]:
                options[_PRECISIONS[value]] = "1"
        elif key in _TENSORRT_NAMES or key.startswith("trt_"):
            options[_TENSORRT_NAMES.get(key, key)] = value
        else:
            words = f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator"
            known = ", ".join(["precision_mode", *_TENSORRT_NAMES])
            errors.append(config.error(words, f"wanted {known} or an option trt_… of onnxruntime", at=where))
    return options


def _boolean(config: ModelConfig, key: str, value: str, at: tuple[Any, ...], errors: list[ConfigError]) -> None:
    try:
        as_boolean(value)
    except ValueError:
        words = f"parameter '{key}' of Execution Accelerator 'cuda' of model '{config.name}' is '{value}'"
        errors.append(config.error(words, "wanted 1 or 0", at=at))
