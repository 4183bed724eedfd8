"""How an ONNX model is to be run: the package that has to be there, parameters, execution providers."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest
from onnx_models import CPU, SCALE, OnnxRepo, ask, config_of, parameter_lines, rows

import kernel_onnx.runtime
import kernel_onnx.sessions as sessions
from kernel import Batch, ConfigErrors, InferenceRequest, InstanceContext, Kernel, ServingError, Tensor
from kernel.config import read_config
from kernel_onnx.backend import OnnxBackend
from kernel_onnx.backend_settings import read_backend_settings
from kernel_onnx.providers import check_accelerators, providers, require
from kernel_onnx.settings import KNOWN, SESSION_PREFIXES, read_settings


@pytest.fixture
def repo(tmp_path: Path) -> OnnxRepo:
    return OnnxRepo(tmp_path / "models")


IO = 'input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }'


def settings(tmp_path: Path, **parameters: str) -> Any:
    return read_settings(config_of(tmp_path, parameter_lines(parameters)))


# -- without onnxruntime -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("auto_complete", [True, False])
@pytest.mark.parametrize("io", ["", IO], ids=["to complete", "complete"])
def test_without_the_package_the_model_says_how_to_get_it(
    repo: OnnxRepo, monkeypatch: pytest.MonkeyPatch, auto_complete: bool, io: str
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    repo.add("m", SCALE, f'backend: "onnxruntime" max_batch_size: 4\n{io}')
    reason = repo.load_error("m", auto_complete=auto_complete)
    assert "model 'm' needs onnxruntime, which is not installed: pip install 'kernel-serve[onnx]'" in reason


def test_what_is_left_of_a_package_is_not_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(__file__=None, __path__=["/site/onnxruntime"]))
    with pytest.raises(ServingError, match=r"imported by that name is something else: \['/site/onnxruntime'\]"):
        kernel_onnx.runtime.load("m")


def test_a_package_that_can_not_be_imported_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "onnxruntime")
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('libfoo.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ServingError, match=r"is installed but can't be imported: libfoo.so.1: cannot open"):
        kernel_onnx.runtime.load("m")


# -- parameters ------------------------------------------------------------------------------------------------------------


def test_settings_have_defaults(tmp_path: Path) -> None:
    found = settings(tmp_path)
    assert (found.intra_op_threads, found.inter_op_threads, found.parallel) == (0, 0, False)
    assert (found.memory_arena, found.memory_pattern, found.share_session) == (None, None, False)
    assert found.session_entries == {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}
    assert (found.graph_level, found.placement, found.run_entries) == ("ORT_ENABLE_ALL", "thread", {})


@pytest.mark.parametrize(
    "level, name",
    [(0, "ORT_ENABLE_ALL"), (-1, "ORT_ENABLE_BASIC"), (1, "ORT_ENABLE_EXTENDED"), (2, "ORT_DISABLE_ALL"), (7, "ORT_ENABLE_ALL")],
)
def test_graph_levels_are_those_of_the_reference(tmp_path: Path, level: int, name: str) -> None:
    assert read_settings(config_of(tmp_path, f"optimization {{ graph {{ level: {level} }} }}")).graph_level == name


def test_all_wrong_parameters_are_told_at_once_with_their_places(tmp_path: Path) -> None:
    wrong = {
        "intra_op_thread_count": "two",
        "inter_op_thread_count": "1.5",
        "execution_mode": "2",
        "enable_mem_arena": "perhaps",
        "enable_mem_pattern": "",
        "share_session_between_instances": "yes",
        "placement": "process",
    }
    with pytest.raises(ConfigErrors) as caught:
        settings(tmp_path, **wrong)
    lines = caught.value.message.split("\n")
    assert len(lines) == len(wrong)
    for line, (key, text) in zip(lines, wrong.items()):
        assert f"parameter '{key}' of model 'm' is '{text}' — wanted " in line
        assert "config.pbtxt:" in line


@pytest.mark.parametrize("text, count", [("3", 3), (" 2 ", 2), ("0", 0), ("-1", 0)])
def test_thread_counts_below_one_leave_the_choice_to_onnxruntime(tmp_path: Path, text: str, count: int) -> None:
    assert settings(tmp_path, intra_op_thread_count=text).intra_op_threads == count


def session_options(repo: OnnxRepo, text: str) -> Any:
    """Load a model and return (the options of its session, a run's options)."""
    repo.add("m", SCALE, CPU + text)

    async def main(kernel: Kernel) -> Any:
        executor: Any = kernel.model("m").scheduler.instances[0].executor
        return executor._session.inner.get_session_options(), executor._options(False), executor._options(True)

    return repo.run(main)


def test_settings_reach_the_session_and_its_runs(repo: OnnxRepo) -> None:
    parameters = {
        "intra_op_thread_count": "2",
        "inter_op_thread_count": "3",
        "execution_mode": "1",
        "enable_mem_arena": "0",
        "enable_mem_pattern": "false",
        "session.use_device_allocator_for_initializers": "1",
        "session.intra_op.allow_spinning": "1",
        "memory.enable_memory_arena_shrinkage": "cpu:0",
    }
    text = parameter_lines(parameters) + "\noptimization { graph { level: 1 } }"
    options, run, partial = session_options(repo, text)
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 3)
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (False, False)
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert options.get_session_config_entry("session.use_device_allocator_for_initializers") == "1"
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    assert options.get_session_config_entry("session.inter_op.allow_spinning") == "0"
    assert run.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
    assert (run.only_execute_path_to_fetches, partial.only_execute_path_to_fetches) == (False, True)


def test_a_parameter_that_nobody_reads_is_warned_of(repo: OnnxRepo, caplog: pytest.LogCaptureFixture) -> None:
    repo.add("m", SCALE, f'backend: "onnxruntime"\n{parameter_lines({"intra_op_threads_count": "2", "purpose": "none"})}')
    with caplog.at_level(logging.WARNING):
        repo.config("m")
    warnings = [record.getMessage() for record in caplog.records if "nothing reads" in record.getMessage()]
    assert warnings == [
        "model 'm': nothing reads the parameter 'intra_op_threads_count'; did you mean 'intra_op_thread_count'?"
    ]


def test_a_missing_library_of_operators_is_named(repo: OnnxRepo) -> None:
    repo.add("m", SCALE, 'backend: "onnxruntime" model_operations { op_library_filename: "libnone.so" }')
    assert "while loading the custom operators of 'libnone.so'" in repo.load_error("m")


# -- settings of the backend -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, size, threads",
    [
        ({}, 4, None),
        ({"default-max-batch-size": "16"}, 16, None),
        ({"default-max-batch-size": "0", "enable-global-threadpool": "0"}, 0, None),
        ({"enable-global-threadpool": "1"}, 4, (0, 0)),
        ({"enable-global-threadpool": "1", "intra_op_thread_count": "3", "inter_op_thread_count": "2"}, 4, (3, 2)),
    ],
)
def test_settings_of_the_backend(given: dict[str, str], size: int, threads: Any) -> None:
    found = read_backend_settings(given)
    assert (found.default_max_batch_size, found.threads) == (size, threads)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"default-max-batch-size": "-1"}, "onnxruntime,default-max-batch-size is '-1', wanted a whole number, 0 or more"),
        ({"enable-global-threadpool": "yes"}, "onnxruntime,enable-global-threadpool is 'yes', wanted 0 or 1"),
        ({"intra_op_thread_count": "many"}, "onnxruntime,intra_op_thread_count is 'many', wanted a whole number, 0 or more"),
    ],
)
def test_wrong_settings_of_the_backend(given: dict[str, str], words: str) -> None:
    with pytest.raises(ServingError) as caught:
        read_backend_settings(given)
    assert words in caught.value.message


@pytest.mark.parametrize(
    "given, words",
    [
        ({"default_max_batch_size": "8"}, "onnxruntime,default_max_batch_size is not known; there are default-max-batch-size,"),
        ({"inter_op_thread_count": "2"}, "inter_op_thread_count has no effect without enable-global-threadpool=1"),
    ],
)
def test_settings_that_do_nothing_are_told(given: dict[str, str], words: str, caplog: pytest.LogCaptureFixture) -> None:
    assert read_backend_settings(given) == read_backend_settings({})
    assert words in caplog.text


def test_sessions_may_share_their_threads(repo: OnnxRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pool in a process, whatever the models' own parameters say; asked for once."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(ort, "set_global_thread_pool_sizes", lambda *sizes: asked.append(sizes))
    monkeypatch.setattr(kernel_onnx.runtime, "_shared_threads", [])
    made: list[Any] = []
    real = ort.InferenceSession

    def session(path: str, options: Any, **more: Any) -> Any:
        made.append((options.use_per_session_threads, options.intra_op_num_threads))
        options.use_per_session_threads = True  # this process has no such pools
        return real(path, options, **more)

    monkeypatch.setattr(ort, "InferenceSession", session)
    for name in ("a", "b"):
        repo.add(name, SCALE, CPU + IO + "\nmax_batch_size: 8\n" + parameter_lines({"intra_op_thread_count": "1"}))

    async def main(kernel: Kernel) -> None:
        assert (await ask(kernel, "a", {"X": rows(1)}))["Y"].tolist() == [[3, 3]]

    settings = {"enable-global-threadpool": "1", "intra_op_thread_count": "2"}
    repo.run(main, backend_config={"onnxruntime": settings})
    assert asked == [(2, 0)] and made == [(False, 0)] * 2


# -- execution providers -----------------------------------------------------------------------------------------------------

GPU = "optimization { execution_accelerators { gpu_execution_accelerator %s } }"


def test_a_cpu_instance_has_the_cpu_provider_alone(tmp_path: Path) -> None:
    config = config_of(tmp_path, GPU % '{ name: "tensorrt" }')
    assert providers(config, "CPU", 0) == [("CPUExecutionProvider", {})]
    assert providers(config, "MODEL", 0) == [("CPUExecutionProvider", {})]


def test_a_gpu_instance_has_cuda_on_its_device(tmp_path: Path) -> None:
    cuda, cpu = providers(config_of(tmp_path, ""), "GPU", 3)
    assert cuda == ("CUDAExecutionProvider", {"device_id": "3"})
    assert cpu == ("CPUExecutionProvider", {})


def test_cuda_options_come_from_the_accelerator_and_the_older_parameters(tmp_path: Path) -> None:
    older = parameter_lines({"cudnn_conv_algo_search": "1", "gpu_mem_limit": "1000", "arena_extend_strategy": "1"})
    newer = '{ name: "cuda" parameters { key: "gpu_mem_limit" value: "2000" } parameters { key: "use_tf32" value: "0" } }'
    (name, options), _ = providers(config_of(tmp_path, older + "\n" + GPU % newer), "GPU", 0)
    assert name == "CUDAExecutionProvider"
    assert options == {
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        "gpu_mem_limit": "2000",
        "use_tf32": "0",
        "device_id": "0",
    }


def test_tensorrt_goes_before_cuda_with_its_options_renamed(tmp_path: Path) -> None:
    given = {
        "precision_mode": "FP16",
        "max_workspace_size_bytes": "1024",
        "int8_calibration_table_name": "table",
        "trt_engine_cache_enable": "1",
    }
    text = "".join(f' parameters {{ key: "{key}" value: "{value}" }}' for key, value in given.items())
    found = providers(config_of(tmp_path, GPU % f'{{ name: "tensorrt" {text} }}'), "GPU", 1)
    assert [name for name, _ in found] == ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    assert found[0][1] == {
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "1024",
        "trt_int8_calibration_table_name": "table",
        "trt_engine_cache_enable": "1",
        "device_id": "1",
    }


@pytest.mark.parametrize(
    "text, words",
    [
        (GPU % '{ name: "cudda" }', "unknown Execution Accelerator 'cudda' is requested — wanted one of cuda, tensorrt"),
        (
            "optimization { execution_accelerators { cpu_execution_accelerator { name: 'mkl' } } }",
            "unknown Execution Accelerator 'mkl' is requested — wanted one of openvino for model 'm'",
        ),
        (
            GPU % '{ name: "tensorrt" parameters { key: "precision_mode" value: "FP8" } }',
            "unsupported precision mode 'FP8' is requested — wanted one of FP32, FP16, BF16, INT8",
        ),
        (
            GPU % '{ name: "tensorrt" parameters { key: "workspace" value: "1" } }',
            "unknown parameter 'workspace' is provided for TensorRT Execution Accelerator",
        ),
        (
            GPU % '{ name: "cuda" parameters { key: "do_copy_in_default_stream" value: "maybe" } }',
            "parameter 'do_copy_in_default_stream' of Execution Accelerator 'cuda' of model 'm' is 'maybe' — wanted 1 or 0",
        ),
        (
            parameter_lines({"cudnn_conv_algo_search": "9"}),
            "unsupported cudnn_conv_algo_search value '9' is requested — wanted one of 0 (EXHAUSTIVE), 1 (HEURISTIC)",
        ),
    ],
)
def test_accelerators_that_do_not_exist_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        check_accelerators(config_of(tmp_path, text))
    assert words in caught.value.message
    assert "config.pbtxt:" in caught.value.message


def test_an_accelerator_that_is_not_installed_is_refused(repo: OnnxRepo) -> None:
    accelerator = 'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }'
    repo.add("m", SCALE, f'backend: "onnxruntime" {accelerator}')
    reason = repo.load_error("m")
    assert "of model 'm' needs onnxruntime's OpenVINOExecutionProvider, which this installation doesn't have" in reason
    assert "it comes with onnxruntime-openvino" in reason


def test_a_gpu_instance_without_cuda_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, "")
    with pytest.raises(ServingError) as caught:
        require(config, providers(config, "GPU", 0), ["CPUExecutionProvider"], "m_0_0")
    assert caught.value.message == (
        "instance 'm_0_0' of model 'm' needs onnxruntime's CUDAExecutionProvider, which this installation doesn't have (it has "
        "CPUExecutionProvider); it comes with onnxruntime-gpu"
    )


def test_without_a_gpu_an_instance_on_one_can_not_be_had(repo: OnnxRepo) -> None:
    repo.add("m", SCALE, 'backend: "onnxruntime" instance_group { kind: KIND_GPU }')
    assert "instance group m_0 of model m has kind KIND_GPU but no GPUs are available" in repo.load_error("m")


def test_a_provider_whose_libraries_are_missing_is_told(repo: OnnxRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime goes on without it, which nobody who asked for a GPU wants."""
    monkeypatch.setattr(sessions, "require", lambda *_: None)
    monkeypatch.setattr(sessions, "providers", lambda *_: [("CUDAExecutionProvider", {}), ("CPUExecutionProvider", {})])
    real = kernel_onnx.runtime.load("m")

    class Session:
        def __init__(self, path: str, options: Any, providers: Any, **more: Any) -> None:
            self._inner = real.InferenceSession(path, options, providers=["CPUExecutionProvider"])

        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    runtime = SimpleNamespace(**{name: getattr(real, name) for name in dir(real) if name[0].isalpha()})
    runtime.__version__ = real.__version__
    runtime.InferenceSession, runtime.preload_dlls = Session, lambda: None
    monkeypatch.setattr(sessions, "load", lambda _: runtime)
    repo.add("m", SCALE)
    reason = repo.load_error("m")
    assert "of model 'm' can't use onnxruntime's CUDAExecutionProvider: its libraries can't be loaded" in reason


@pytest.mark.skipif("CUDAExecutionProvider" not in ort.get_available_providers(), reason="this onnxruntime has no CUDA")
def test_cuda_computes_what_the_cpu_does(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(SCALE.SerializeToString())
    (folder / "config.pbtxt").write_text(f'backend: "onnxruntime" max_batch_size: 8 instance_group {{ kind: KIND_GPU }} {IO}')
    config = read_config(folder, gpus=(0,))
    clock: Any = SimpleNamespace(clock=time.monotonic, backend_settings=lambda name: {})
    context = InstanceContext(clock, config, 1, "m_0_0", "GPU", 0, folder, folder / "1")
    executor = OnnxBackend(clock).create(context)
    assert executor._session.inner.get_providers()[0] == "CUDAExecutionProvider"
    requests = [InferenceRequest("m", {"X": Tensor("X", "FP32", rows(k, -k))}, lambda *_: None) for k in range(3)]
    for request in requests:
        request.wanted, request.batch_size = frozenset({"Y"}), 2
    for k, response in enumerate(executor.execute(Batch(requests, 6)) or ()):
        assert response is not None and response["Y"].tolist() == [[3 * k] * 2, [-3 * k] * 2]
    executor.finalize()


# -- documentation -----------------------------------------------------------------------------------------------------------


def test_every_parameter_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "onnx.md").read_text()
    prefixes = tuple(SESSION_PREFIXES)
    missing = [key for key in KNOWN if f"`{key}`" not in text and not key.startswith(prefixes)]
    assert not missing
    assert all(f"`{prefix}…`" in text for prefix in prefixes)
