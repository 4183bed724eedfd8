"""WHAT names a code of TritonError, or one of the ways to end an execute."""

import numpy as np

import triton_python_backend_utils as pb_utils

ONE = np.ones(1, dtype=np.float32)


def inner():
    raise ValueError("from inside\nof it")


class TritonPythonModel:
    def execute(self, requests):
        what = pb_utils.get_input_tensor_by_name(requests[0], "WHAT").as_numpy()[0].decode()
        if what.startswith("then:"):
            text = np.array([what.removeprefix("then:")], dtype=np.object_)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)])]
        if what.isupper():
            error = pb_utils.TritonError(f'a {what} "error"', getattr(pb_utils.TritonError, what))
            return [pb_utils.InferenceResponse(error=error)]
        return getattr(self, what)(requests[0])

    def default_code(self, request):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("no code given"))]

    def raise_value_error(self, request):
        raise ValueError("wrong value")

    def raise_deep(self, request):
        inner()

    def raise_model_exception(self, request):
        raise pb_utils.TritonModelException("of the model")

    def raise_without_words(self, request):
        raise RuntimeError

    def return_int(self, request):
        return 5

    def return_tuple(self, request):
        return (pb_utils.InferenceResponse([]),)

    def return_too_few(self, request):
        return []

    def return_too_many(self, request):
        return [pb_utils.InferenceResponse([]), pb_utils.InferenceResponse([])]

    def return_string(self, request):
        return ["x"]

    def nothing(self, request):
        return [pb_utils.InferenceResponse([])]

    def undeclared(self, request):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("NOBODY", ONE), pb_utils.Tensor("OUT", ONE)])]

    def other_type(self, request):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.arange(3, dtype=np.int64))])]

    def other_shape(self, request):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones((1, 2), dtype=np.float32))])]

    def other_order(self, request):
        text = np.array(["x"], dtype=np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text), pb_utils.Tensor("OUT", ONE)])]

    def twice(self, request):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", ONE), pb_utils.Tensor("OUT", ONE + 1)])]

    def not_finite(self, request):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([np.inf], dtype=np.float32))])]

    def strings(self, request):
        text = np.array([b"bytes", "str \u00e9", 5, None, "", "nul\x00", "\U0001f600"], dtype=np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)])]

    def fixed_strings(self, request):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", np.array([b"abc", b"d"]))])]

    def empty_strings(self, request):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", np.array([], dtype=np.object_))])]

    def unicode_array(self, request):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", np.array(["abc"]))])]

    def complex_array(self, request):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, dtype=np.complex64))])]

    def strided(self, request):
        out = np.arange(6, dtype=np.float32).reshape(2, 3).T
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)])]

    def scalar(self, request):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", 3.0)])]

    def error_and_outputs(self, request):
        error = pb_utils.TritonError("both", pb_utils.TritonError.UNAVAILABLE)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", ONE)], error)]

    def send(self, request):
        sender = request.get_response_sender()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", ONE)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def send_at_once(self, request):
        response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", ONE)])
        request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def send_error(self, request):
        error = pb_utils.TritonError("sent", pb_utils.TritonError.NOT_FOUND)
        response = pb_utils.InferenceResponse(error=error)
        request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def bad_calls(self, request):
        """Collect what the API answers to misuse."""
        calls = [
            lambda: pb_utils.Tensor("", ONE),
            lambda: pb_utils.InferenceResponse([None]),
            lambda: pb_utils.triton_string_to_numpy("TYPE_BF16"),
            lambda: pb_utils.triton_to_numpy_type(14),
            lambda: pb_utils.numpy_to_triton_type(np.float32),
            lambda: pb_utils.serialize_byte_tensor(np.array(["ab"], dtype=np.object_)),
            lambda: pb_utils.deserialize_bytes_tensor(b"\x01\x00\x00\x00a"),
            lambda: pb_utils.get_input_tensor_by_name(request, "NOPE"),
            lambda: request.get_response_sender() is request.get_response_sender(),
            lambda: request.get_response_sender().send(flags=0),
            lambda: request.get_response_sender().send(flags=7),
            lambda: request.get_response_sender().send(flags=1),
            lambda: request.is_cancelled(),
            lambda: pb_utils.Tensor("T", ONE).shape(),
            lambda: pb_utils.Tensor("T", np.ones((2, 3))[:, 0]).as_numpy().tolist(),
            lambda: sorted(request.requested_output_names()),
            lambda: pb_utils.is_model_ready("two"),
            lambda: pb_utils.is_model_ready("nope"),
            lambda: pb_utils.get_model_dir(),
        ]
        return told_all(calls)

    def bad_questions(self, request):
        """Wrong arguments about models and memory."""
        calls = [
            lambda: pb_utils.is_model_ready("two", 1),
            lambda: pb_utils.is_model_ready(),
            lambda: pb_utils.load_model(),
            lambda: pb_utils.load_model("two", config=1),
            lambda: pb_utils.load_model("two", files=[1]),
            lambda: pb_utils.unload_model(1),
            lambda: pb_utils.unload_model("two", unload_dependents="x"),
            lambda: pb_utils.PreferredMemory(),
            lambda: pb_utils.PreferredMemory(1),
            lambda: pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, "x"),
            lambda: [int(pb_utils.TRITONSERVER_MEMORY_CPU), int(pb_utils.TRITONSERVER_MEMORY_GPU)],
        ]
        return told_all(calls)

    def metrics(self, request):
        """Metrics, and of their misuse what the reference survives: the second that its server refuses is its end."""
        make = pb_utils.MetricFamily
        counters = make("behave_counters", "of behave", make.COUNTER)
        gauges = make(name="behave_gauges", description="of behave", kind=make.GAUGE)
        histograms = make("behave_histograms", "of behave", make.HISTOGRAM)
        counter = counters.Metric(labels={"a": "b"})
        gauge = gauges.Metric()
        histogram = histograms.Metric({"a": "b"}, [1, 2])
        orphan = make("behave_orphans", "of behave", make.GAUGE).Metric()
        calls = [
            lambda: (counter.increment(1.5), counter.increment(2), counter.value()),
            lambda: (gauge.set(5), gauge.increment(-7), gauge.value()),
            lambda: (histogram.observe(1), histogram.observe(3)),
            lambda: counters.Metric({"a": "b"}).value(),
            lambda: counters.Metric({"a": "c"}).value(),
            lambda: [make.COUNTER, int(make.GAUGE), repr(make.HISTOGRAM)],
            lambda: counters.Metric([1]),
            lambda: counters.Metric("x"),
            lambda: counters.Metric({}, "x"),
            lambda: counters.Metric({}, [1]),
            lambda: histograms.Metric(),
            lambda: histograms.Metric({}, (1, 2)),
            lambda: orphan.value(),
            lambda: make("behave_wrong", "of behave"),
            lambda: make("behave_wrong", "of behave", 1),
            lambda: make(1, "of behave", make.GAUGE),
        ]
        return told_all(calls)


def told_all(calls):
    """A response with what each of the calls returns or raises."""
    return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", np.array(list(map(told, calls)), dtype=np.object_))])]


def told(call):
    """What `call` returns or raises, in words."""
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
