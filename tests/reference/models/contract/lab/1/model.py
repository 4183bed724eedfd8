"""TOLD is what came of the experiment WHAT, a method of the model's: its result as JSON, or the exception that ended it."""

import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import triton_python_backend_utils as pb_utils


def call(model, *values):
    tensor = pb_utils.Tensor("X", np.array(values, np.float32))
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["Y"], inputs=[tensor])


def value(response):
    if response.has_error():
        return "error: " + response.error().message()
    return [pb_utils.get_output_tensor_by_name(response, "Y").as_numpy().tolist()] if response.output_tensors() else []


class TritonPythonModel:
    def initialize(self, args):
        try:
            self.early = value(call("echo", 1, 2).exec())
        except Exception as error:
            self.early = f"{type(error).__name__}: {error}"

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        what = pb_utils.get_input_tensor_by_name(request, "WHAT").as_numpy()[0].decode()
        try:
            told = json.dumps(getattr(self, what)())
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array([told], np.object_))])

    def call_in_initialize(self):
        return self.early

    def call_from_a_pool(self):
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(call("echo", number).exec) for number in range(4)]
            return [value(future.result()) for future in futures]

    def call_from_a_thread(self):
        told = []
        thread = threading.Thread(target=lambda: told.append(value(call("echo", 7).exec())))
        thread.start()
        thread.join()
        return told

    def stream_from_a_thread(self):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: [value(one) for one in call("count", 3, 0).exec(decoupled=True)]).result()

    def go_on_with_a_stream(self):
        responses = call("count", 4, 0).exec(decoupled=True)
        first = []
        for response in responses:
            first.append(value(response))
            if len(first) == 2:
                break
        return [first, [value(response) for response in responses]]

    def import_the_module_in_c(self):
        import c_python_backend_utils as module

        names = ("InferenceRequest", "InferenceResponse", "Tensor", "TritonError", "TritonModelException", "Logger")
        return [name for name in names if hasattr(module, name)]

    def one_module_two_names(self):
        import c_python_backend_utils as module

        return [module.Tensor is pb_utils.Tensor, module.TritonModelException is pb_utils.TritonModelException]

    def pickle_an_exception(self):
        copy = pickle.loads(pickle.dumps(pb_utils.TritonModelException("no weights")))
        return [type(copy).__name__, str(copy)]

    def memory_that_is_free(self):
        import c_python_backend_utils as module

        return type(module.shared_memory.free_memory()).__name__

    def a_capsule_outlives_its_tensor(self):
        tensor = pb_utils.Tensor("X", np.arange(1000, dtype=np.float32))
        capsule = tensor.to_dlpack()
        del tensor
        junk = [np.zeros(1000, np.float32) for _ in range(50)]
        return float(pb_utils.Tensor.from_dlpack("Y", capsule).as_numpy().sum()) + len(junk) * 0

    def call_of_an_absent_model(self):
        return value(call("nowhere", 1).exec())

    def decoupled_without_being_told(self):
        return value(call("count", 2, 0).exec())
