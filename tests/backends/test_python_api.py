"""pb_utils without a server: Tensor, InferenceResponse, InferenceRequest, TritonError, helpers, Logger.

(Contract: python_backend, 1.1 to 1.9.) The texts were compared with what Triton 2.51 says to the same lines.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import struct
import sys
from typing import Any

import numpy as np
import pytest

import triton_python_backend_utils as pb_utils
from kernel_python import calling

X = np.arange(3, dtype=np.float32)
Tensor, Response, Request, Error = (
    pb_utils.Tensor,
    pb_utils.InferenceResponse,
    pb_utils.InferenceRequest,
    pb_utils.TritonError,
)
TENSOR_TYPES = (
    "__init__(): incompatible constructor arguments. The following argument types are supported:\n"
    "    1. c_python_backend_utils.Tensor(arg0: str, arg1: numpy.ndarray)\n\nInvoked with: "
)


HANGS = """
import threading
class TritonPythonModel:
    begun, go = threading.Event(), threading.Event()
    def execute(self, requests):
        self.begun.set()
        self.go.wait()
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


def raised(function: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(Exception) as caught:
        function(*args, **kwargs)
    return f"{type(caught.value).__name__}: {caught.value}"


def request(**changes: Any) -> Any:
    return Request(**{"model_name": "m", "inputs": [], "requested_output_names": [], **changes})


# -- Tensor ------------------------------------------------------------------------------------------------------------


def test_a_tensor_shares_its_array() -> None:
    tensor = Tensor("a", X)
    assert tensor.name() == "a"
    assert tensor.as_numpy() is X
    assert tensor.shape() == [3]
    assert Tensor("a", np.array(3.0)).shape() == []
    assert tensor.is_cpu() is True
    assert tensor.triton_dtype() == 11
    assert Tensor("a", X[::2]).as_numpy().flags.c_contiguous
    assert type(tensor).__module__ == "c_python_backend_utils"


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (("a", [1, 2]), "'a', [1, 2]"),
        (("a", None), "'a', None"),
        (("a", 1.5), "'a', 1.5"),
        (("a",), "'a'"),
        (("a", X, 1), "'a', array([0., 1., 2.], dtype=float32), 1"),
    ],
)
def test_a_tensor_of_something_else_is_refused(args: tuple[Any, ...], shown: str) -> None:
    assert raised(Tensor, *args) == f"TypeError: {TENSOR_TYPES}{shown}"


def test_keywords_are_refused() -> None:
    assert raised(Tensor, name="a", numpy_array=X).endswith(
        "Invoked with: kwargs: name='a', numpy_array=array([0., 1., 2.], dtype=float32)"
    )


def test_an_empty_name_is_refused() -> None:
    assert raised(Tensor, "", X) == "TritonModelException: Tensor name cannot be an empty string."
    assert raised(Tensor.from_dlpack, "", X) == "TritonModelException: Tensor name cannot be an empty string."


@pytest.mark.parametrize(
    ("array", "dtype", "fix"),
    [
        (np.array([1j]), "complex128", "real and imaginary parts"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "datetime64[D]", ".astype('int64')"),
        (np.array([1], dtype=">f4"), ">f4", ".astype('f4')"),
        (np.array([1], dtype="longdouble"), str(np.dtype("longdouble")), ".astype()"),
    ],
)
def test_an_unsupported_dtype_is_named_with_the_fix(array: Any, dtype: str, fix: str) -> None:
    text = raised(Tensor, "a", array)
    assert text.startswith("TritonModelException: NumPy dtype is not supported. Tensor 'a' has dtype")
    assert dtype in text
    assert fix in text


@pytest.mark.parametrize(
    "array", [np.array(["a", "ü"]), np.array([b"a", b"bc"]), np.array(["a", b"b", 3], dtype=object)]
)
def test_string_arrays_of_all_kinds_are_strings(array: Any) -> None:
    tensor = Tensor("a", array)
    assert tensor.triton_dtype() == 13
    assert tensor.as_numpy() is array


def test_dlpack_round_trips() -> None:
    tensor = Tensor("b", X.copy())
    assert np.from_dlpack(tensor).tolist() == [0, 1, 2]
    assert tensor.__dlpack_device__() == (1, 0)
    assert 'capsule object "dltensor" at' in repr(tensor.to_dlpack())
    for source in (tensor, tensor.to_dlpack(), X.copy()):
        copy = Tensor.from_dlpack("c", source)
        assert copy.as_numpy().tolist() == [0, 1, 2]
        assert copy.as_numpy().flags.writeable
    shared = Tensor.from_dlpack("c", tensor)
    shared.as_numpy()[0] = 7
    assert tensor.as_numpy()[0] == 7


def test_dlpack_refusals() -> None:
    assert raised(Tensor.from_dlpack, "a", 5) == (
        "TritonModelException: Provided tensor is not supported. Tensor must be a DLPack capsule         "
        "or have `__dlpack__` and `__dlpack_device__` attributes"
    )
    assert raised(Tensor("a", np.array(["a"], dtype=object)).to_dlpack) == (
        "TritonModelException: DLPack does not have support for string tensors."
    )
    assert raised(Tensor.from_dlpack, "a", np.zeros((4, 4), np.float32).T) == (
        "TritonModelException: DLPack tensor is not contiguous. "
        "Only contiguous DLPack tensors that are stored in C-Order are supported."
    )
    assert raised(Tensor.from_dlpack, 5, X).startswith(
        "TypeError: from_dlpack(): incompatible function arguments. The following argument types are supported:\n"
        "    1. (self: str, arg0: object) -> c_python_backend_utils.Tensor\n\nInvoked with: 5, array("
    )

    class OnDevice:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (13, 0)

        def __dlpack__(self) -> None:
            raise AssertionError

    assert raised(Tensor.from_dlpack, "a", OnDevice()) == (
        "TritonModelException: DLDevice type 13 is not support by Python backend."
    )


def test_bf16_goes_through_dlpack_only() -> None:
    from kernel import Tensor as CoreTensor
    from kernel_python.api.tensors import received

    bits = np.array([0x3F80, 0x4000], np.uint16)
    tensor = received(CoreTensor("a", "BF16", bits), False)
    assert tensor.triton_dtype() == 14
    assert raised(tensor.as_numpy) == (
        "TritonModelException: Tensor dtype is BF16 and cannot be converted to NumPy. "
        "Use to_dlpack() and from_dlpack() instead."
    )
    copy = Tensor.from_dlpack("b", tensor.to_dlpack())
    assert copy.triton_dtype() == 14
    assert "BF16" in raised(copy.as_numpy)
    assert copy._array.tolist() == bits.tolist()


def test_bf16_of_ml_dtypes_comes_and_goes() -> None:
    """The one numpy type there is for it, where that package is installed: from arrays, by DLPack's door too, and back."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    values = np.array([[1, -2], [0.5, 3]], bfloat16)
    for tensor in (Tensor("a", values), Tensor.from_dlpack("a", values), Tensor("a", values.T.copy().T)):
        assert (tensor.triton_dtype(), tensor.shape()) == (14, [2, 2])
        assert "cannot be converted to NumPy" in raised(tensor.as_numpy)
        again = Tensor.from_dlpack("b", tensor.to_dlpack())
        for one in (tensor, again):
            array = np.asarray(one)
            assert array.dtype == bfloat16 and array.tolist() == values.tolist()
        assert np.array(again, np.float32).dtype == np.float32
    shared = Tensor("a", values)
    np.asarray(shared)[0, 0] = 7
    assert values[0, 0] == 7
    assert "not contiguous" in raised(Tensor.from_dlpack, "a", values.T)


def test_bf16_without_ml_dtypes_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = Tensor.from_dlpack("a", bf16_capsule())
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert raised(np.asarray, tensor) == (
        "TritonModelException: Tensor 'a' is BF16, which numpy lacks: install the package ml_dtypes, or use to_dlpack()."
    )


def bf16_capsule() -> Any:
    from kernel import Tensor as CoreTensor
    from kernel_python.api.tensors import received

    tensor = received(CoreTensor("a", "BF16", np.array([0x3F80], np.uint16)), False)
    return tensor.to_dlpack()


def test_numpy_takes_a_tensor_as_an_array() -> None:
    assert np.asarray(Tensor("a", X)) is X
    assert np.array(Tensor("a", X)) is not X
    assert np.asarray(Tensor("a", np.array(["x"], dtype=object))).tolist() == ["x"]


def test_torch_tensors_come_and_go() -> None:
    torch = pytest.importorskip("torch")
    for dtype, number in ((torch.float32, 11), (torch.bfloat16, 14), (torch.int64, 9), (torch.float16, 10)):
        source = torch.arange(6).reshape(2, 3).to(dtype)
        tensor = Tensor.from_dlpack("a", source)
        assert (tensor.triton_dtype(), tensor.shape()) == (number, [2, 3])
        for back in (torch.from_dlpack(tensor), torch.utils.dlpack.from_dlpack(tensor.to_dlpack())):
            assert back.dtype == dtype and back.tolist() == source.tolist()
        assert Tensor.from_dlpack("a", torch.utils.dlpack.to_dlpack(source)).shape() == [2, 3]


# -- InferenceResponse and TritonError ---------------------------------------------------------------------------------


def test_a_response_holds_tensors_or_an_error() -> None:
    assert Response().output_tensors() == []
    assert Response([]).has_error() is False
    assert Response(error=None).error() is None
    assert Response((Tensor("a", X),)).output_tensors()[0].name() == "a"
    failed = Response(output_tensors=[Tensor("a", X)], error=Error("bad"))
    assert failed.has_error()
    assert failed.error().message() == "bad"
    given = [Tensor("a", X)]
    response = Response(given)
    given.clear()
    response.output_tensors().clear()
    assert len(response.output_tensors()) == 1


def test_a_response_has_parameters() -> None:
    assert Response([], parameters={"a": 1, "b": True, "c": "x"}).parameters() == '{"a": 1, "b": true, "c": "x"}'
    assert Response().parameters() == "{}"
    assert "bool/int/str, found type <class 'float'>" in raised(Response, [], parameters={"a": 1.5})


@pytest.mark.parametrize(
    ("args", "kwargs", "shown"),
    [
        ((), {"error": "x"}, "kwargs: error='x'"),
        (("x",), {}, "'x'"),
        (([1],), {}, "[1]"),
        ((None,), {}, "None"),
    ],
)
def test_a_response_of_something_else_is_refused(args: Any, kwargs: Any, shown: str) -> None:
    text = raised(Response, *args, **kwargs)
    assert text.startswith(
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:\n"
        "    1. c_python_backend_utils.InferenceResponse(output_tensors: List[c_python_backend_utils.Tensor] = []"
    )
    assert text.endswith(f"\n\nInvoked with: {shown}")


def test_a_response_without_a_tensor_is_refused() -> None:
    assert raised(Response, [None]) == (
        "TritonModelException: Output tensor for inference response should not be empty."
    )


def test_errors_have_a_message_and_a_code() -> None:
    assert Error("x").message() == "x"
    assert Error("x").code() is Error.INTERNAL
    assert str(Error("x", Error.NOT_FOUND).code()) == "__ErrorCode.NOT_FOUND"
    assert repr(Error.NOT_FOUND) == "<__ErrorCode.NOT_FOUND: 2>"
    names = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split()
    assert [int(getattr(Error, name)) for name in names] == list(range(8))
    assert raised(Error, "x", 3) == (
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:\n"
        "    1. c_python_backend_utils.TritonError(message: str, code: c_python_backend_utils.TritonError.__ErrorCode"
        " = <__ErrorCode.INTERNAL: 1>)\n\nInvoked with: 'x', 3"
    )
    assert raised(Error, 5).endswith("Invoked with: 5")
    assert pb_utils.TritonModelException.__mro__[1] is Exception


# -- InferenceRequest, as a model makes it -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"request_id": 5},
        {"inputs": None},
        {"inputs": [1]},
        {"requested_output_names": None},
        {"requested_output_names": [1]},
        {"model_name": 1},
        {"model_version": "1"},
        {"timeout": -1},
        {"flags": -1},
        {"priority": 3},
        {"correlation_id": None},
    ],
)
def test_a_request_of_wrong_types_is_refused(changes: dict[str, Any]) -> None:
    assert raised(request, **changes).startswith(
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:\n"
        "    1. c_python_backend_utils.InferenceRequest(request_id: str = '', correlation_id: object = 0, inputs: "
        "List[triton::backend::python::PbTensor], requested_output_names: List[str], model_name: str, "
    )


@pytest.mark.parametrize("missing", ["model_name", "inputs", "requested_output_names"])
def test_a_request_needs_model_inputs_and_outputs(missing: str) -> None:
    arguments = {"model_name": "m", "inputs": [], "requested_output_names": []}
    del arguments[missing]
    assert "incompatible constructor arguments" in raised(Request, **arguments)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"correlation_id": 1.5}, "Correlation ID must be integer or string"),
        (
            {"inputs": [None], "request_id": "r"},
            "Input tensor for request with id 'r' and model name 'm' should not be empty.",
        ),
        (
            {"requested_output_names": [""]},
            "Requested output name for request with id '' and model name 'm' should not be empty.",
        ),
        ({"parameters": {"a": 1.5}}, "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
        ({"parameters": {"a": [1]}}, "Expect parameters values to have type bool/int/str, found type <class 'list'>"),
        ({"parameters": {1: 1}}, "Expect parameters keys to have type str, found type <class 'int'>"),
        ({"parameters": 5}, "Expect N8pybind114dictE, got <class 'int'>"),
    ],
)
def test_a_request_with_wrong_values_is_refused(changes: dict[str, Any], text: str) -> None:
    assert raised(request, **changes) == f"TritonModelException: {text}"


def test_a_request_says_what_it_was_given() -> None:
    one = request(
        request_id="r",
        correlation_id="c",
        inputs=[Tensor("a", X)],
        requested_output_names=("Y", "Z"),
        flags=3,
        timeout=5,
        parameters={"a": 1, "s": "x", "b": True},
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
    )
    assert (one.request_id(), one.correlation_id(), one.flags(), one.timeout()) == ("r", "c", 3, 5)
    assert one.parameters() == '{"a": 1, "s": "x", "b": true}'
    assert one.requested_output_names() == {"Y", "Z"}
    assert one.inputs()[0].name() == "a"
    assert pb_utils.get_input_tensor_by_name(one, "a").as_numpy() is X
    assert one.trace().get_context() is None
    assert request().parameters() == "{}"
    assert request(model_name=b"m").request_id() == ""


def test_what_only_a_received_request_has() -> None:
    made = request(flags=1)
    assert raised(made.get_response_sender) == (
        "TritonModelException: Only a request that was received has a response sender, not one that the model made."
    )
    assert made.is_cancelled() is False
    assert made.trace().get_context() is None
    assert made.set_flags(2) is None and made.flags() == 2
    assert made.set_release_flags(7) is None, "any number, as in the reference"
    for function in ("set_flags", "set_release_flags"):
        for args, shown in (((), ""), (("x",), ", 'x'"), ((-1,), ", -1"), ((1, 2), ", 1, 2")):
            head, _, given = raised(getattr(made, function), *args).partition("\n\nInvoked with: ")
            assert head == (
                f"TypeError: {function}(): incompatible function arguments. The following argument types are supported:\n"
                "    1. (self: c_python_backend_utils.InferenceRequest, arg0: int) -> None"
            )
            assert given.startswith("<c_python_backend_utils.InferenceRequest object at 0x")
            assert given.partition(">")[2] == shown


@pytest.mark.parametrize("beside", [{}, {"request_id": "r"}])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("correlation_id", value) for value in (0.0, 0j, None, np.int64(0), np.array([0]), [])),
        *(("model_version", value) for value in (-1.0, None, np.float32(-1), np.array([-1.0]), "")),
        *((name, value) for name in ("flags", "timeout") for value in (0.0, None, "", [], np.float32(0))),
    ],
)
def test_what_is_equal_to_a_default_is_not_one(name: str, value: Any, beside: dict[str, Any]) -> None:
    words = raised(request, **{name: value}, **beside)
    assert "Correlation ID must be integer or string" in words or "incompatible constructor arguments" in words


def test_calls_outside_of_a_model_are_refused() -> None:
    assert raised(request().exec) == "TritonModelException: BLS is only supported during the 'execute' function."
    assert raised(request().async_exec) == "RuntimeError: no running event loop"
    assert "exec(): incompatible function arguments" in raised(request().exec, decoupled="x")
    assert "get_model_dir can only be used by the code of a model" in raised(pb_utils.get_model_dir)


def test_an_instance_that_hangs_is_nobody_once_its_kernel_is_closed(repo: Any, helpers: Any) -> None:
    """Its thread is never finalized: it was one of those that calls on threads of nobody's own are made for, for ever."""
    repo.add("hangs", HANGS, parameters={"placement": "thread"})
    stuck: list[Any] = []

    async def main(kernel: Any) -> None:
        helpers.Call(kernel, "hangs", [1.0])
        stuck.extend(one for one in calling._serving if one.kernel is kernel)
        await asyncio.to_thread(stuck[0].executor.model.begun.wait)

    try:
        repo.run(main, drain_seconds=0.01)
        assert not calling._serving
        assert raised(request().exec) == "TritonModelException: BLS is only supported during the 'execute' function."
    finally:
        stuck[0].executor.model.go.set()


# -- helpers -----------------------------------------------------------------------------------------------------------


def test_type_names() -> None:
    assert pb_utils.triton_string_to_numpy("TYPE_FP32") is np.float32
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    assert pb_utils.TRITON_STRING_TO_NUMPY["TYPE_BOOL"] is bool
    assert raised(pb_utils.triton_string_to_numpy, "TYPE_BF16") == "KeyError: 'TYPE_BF16'"
    assert [pb_utils.triton_to_numpy_type(n) for n in (0, 1, 13, 14)] == [None, np.bool_, np.object_, None]
    types = [bool, np.bool_, np.float64, np.object_, np.bytes_, np.str_, np.dtype("float32"), int]
    assert [pb_utils.numpy_to_triton_type(t) for t in types] == [None, 1, 12, 13, 13, None, 11, None]


def test_string_packing() -> None:
    pack, unpack = pb_utils.serialize_byte_tensor, pb_utils.deserialize_bytes_tensor
    array = np.array(["a", b"bc", 5], dtype=object)
    assert pack(array) == b"\x01\0\0\0a\x02\0\0\0bc\x01\0\0\x005"
    assert unpack(pack(array)).tolist() == [b"a", b"bc", b"5"]
    assert pack(np.array([b"abc"])) == b"\x03\0\0\0abc"
    assert pack(np.array([], dtype=object)) == ()
    assert pack(X) is None
    for short in (b"\x01\0", b"\x01\0\0\0"):
        with pytest.raises(struct.error):
            unpack(short)


def test_config_look_ups() -> None:
    config = {"input": [{"name": "A"}], "output": [{"name": "B"}], "model_transaction_policy": {"decoupled": True}}
    assert pb_utils.get_input_config_by_name(config, "A") == {"name": "A"}
    assert pb_utils.get_input_config_by_name(config, "B") is None
    assert pb_utils.get_output_config_by_name(config, "B") == {"name": "B"}
    assert pb_utils.get_output_config_by_name({}, "B") is None
    assert pb_utils.using_decoupled_model_transaction_policy(config) is True
    assert pb_utils.using_decoupled_model_transaction_policy({}) is False


def test_outputs_by_name() -> None:
    response = Response([Tensor("a", X)])
    assert pb_utils.get_output_tensor_by_name(response, "a").as_numpy() is X
    assert pb_utils.get_output_tensor_by_name(response, "b") is None


def test_the_log_shows_the_models_place(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "kernel_python.model"):
        pb_utils.Logger.log_info("one")
        pb_utils.Logger.log("two", pb_utils.Logger.WARNING)
        pb_utils.Logger.log("three")
        pb_utils.Logger.log_error("100%")
        pb_utils.Logger.log_verbose("five")
    assert [(r.getMessage(), r.levelname) for r in caplog.records] == [
        ("one", "INFO"),
        ("two", "WARNING"),
        ("three", "INFO"),
        ("100%", "ERROR"),
        ("five", "DEBUG"),
    ]
    assert {r.pathname for r in caplog.records} == {__file__}
    assert [r.lineno - caplog.records[0].lineno for r in caplog.records] == [0, 1, 2, 3, 4]
    assert raised(pb_utils.Logger.log, "m", 5) == (
        "TypeError: log(): incompatible function arguments. The following argument types are supported:\n"
        "    1. (message: str, level: c_python_backend_utils.Logger.LogLevel = <LogLevel.INFO: 0>) -> None\n\n"
        "Invoked with: 'm', 5"
    )
    assert repr(pb_utils.Logger.INFO) == "<LogLevel.INFO: 0>"


@pytest.mark.parametrize(
    ("args", "named", "shown"),
    [
        ((), {}, ""),
        ((1,), {}, "1"),
        ((pb_utils.TRITONSERVER_MEMORY_CPU, "x"), {}, "<MemoryType.TRITONSERVER_MEMORY_CPU: 1>, 'x'"),
        ((pb_utils.TRITONSERVER_MEMORY_GPU, 0, 1), {}, "<MemoryType.TRITONSERVER_MEMORY_GPU: 0>, 0, 1"),
        ((), {"memory": 1}, "kwargs: memory=1"),
    ],
)
def test_preferred_memory_of_something_else_is_refused(args: Any, named: Any, shown: str) -> None:
    assert raised(pb_utils.PreferredMemory, *args, **named) == (
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:\n"
        "    1. c_python_backend_utils.PreferredMemory(preferred_memory_type: triton::backend::python::PreferredMemory::"
        f"MemoryType, preferred_device_id: int = 0)\n\nInvoked with: {shown}"
    )


LOADERS = {
    "load_model": "(model_name: str, config: str = '', files: object = None) -> None",
    "unload_model": "(model_name: str, unload_dependents: bool = False) -> None",
    "is_model_ready": "(model_name: str, model_version: str = '') -> bool",
}


@pytest.mark.parametrize(
    ("function", "args", "named", "shown"),
    [
        ("load_model", (), {}, ""),
        ("load_model", (1,), {}, "1"),
        ("load_model", ("m",), {"config": 1}, "'m'; kwargs: config=1"),
        ("load_model", ("m", "", None, 1), {}, "'m', '', None, 1"),
        ("load_model", ("m",), {"model_name": "m"}, "'m'; kwargs: model_name='m'"),
        ("is_model_ready", ("m", 1), {}, "'m', 1"),
        ("unload_model", (), {"name": "m"}, "kwargs: name='m'"),
        ("unload_model", ("m",), {"unload_dependents": "x"}, "'m'; kwargs: unload_dependents='x'"),
        ("is_model_ready", (1,), {}, "1"),
        ("is_model_ready", ("m",), {"model_version": 1}, "'m'; kwargs: model_version=1"),
    ],
)
def test_wrong_arguments_about_models_are_refused(function: str, args: Any, named: Any, shown: str) -> None:
    assert raised(getattr(pb_utils, function), *args, **named) == (
        f"TypeError: {function}(): incompatible function arguments. The following argument types are supported:\n"
        f"    1. {LOADERS[function]}\n\nInvoked with: {shown}"
    )


def test_models_are_loaded_by_models_only() -> None:
    for function in LOADERS:
        assert raised(getattr(pb_utils, function), "m") == (
            f"TritonModelException: {function} can only be used by the code of a model that is being served."
        )


# -- c_python_backend_utils ----------------------------------------------------------------------------------------------


def test_the_names_of_the_module_without_a_file() -> None:
    """Those that models can use; the reference has a call-back of its own besides."""
    import c_python_backend_utils as module

    public = (
        "COUNTER GAUGE HISTOGRAM InferenceRequest InferenceResponse InferenceResponseSender InferenceTrace Logger MemoryType "
        "Metric MetricFamily MetricKind PreferredMemory ResponseIterator SharedMemory TRITONSERVER_MEMORY_CPU "
        "TRITONSERVER_MEMORY_GPU Tensor TritonError TritonModelException is_model_ready load_model shared_memory unload_model"
    )
    assert [name for name in dir(module) if not name.startswith("_")] == public.split()
    assert raised(module.SharedMemory) == "TypeError: c_python_backend_utils.SharedMemory: No constructor defined!"
    assert module.shared_memory.free_memory() == 1 << 20


def test_what_is_pickled_by_it() -> None:
    for value in (pb_utils.TRITONSERVER_MEMORY_CPU, pb_utils.MetricFamily.COUNTER, Error.NOT_FOUND):
        assert pickle.loads(pickle.dumps(value)) is value
    for error in (pb_utils.TritonModelException("a", 3), copy.copy(pb_utils.TritonModelException("a", 3))):
        assert repr(pickle.loads(pickle.dumps(error))) == "TritonModelException('a', 3)"


def test_a_capsule_holds_its_tensor() -> None:
    """As in the reference: who looks at the counts sees it, and the memory is not passed on meanwhile."""
    tensor = Tensor("a", X.copy())
    before = sys.getrefcount(tensor)
    capsule = tensor.to_dlpack()
    assert sys.getrefcount(tensor) == before + 1
    other = Tensor.from_dlpack("b", capsule)
    assert other.as_numpy().ctypes.data == tensor.as_numpy().ctypes.data
    del capsule
    assert sys.getrefcount(tensor) == before + 1
    del other
    assert sys.getrefcount(tensor) == before
