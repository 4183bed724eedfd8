"""Notes each X. A negative one waits to be cancelled or told to go on, 10 s at most."""

import time

import conformance_probe as probe

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        probe.log.append(f"began {x[0, 0]}")
        if x[0, 0] < 0:
            probe.began.set()
            end = time.monotonic() + 10
            while not request.is_cancelled() and not probe.go.is_set() and time.monotonic() < end:
                time.sleep(0.005)
            if request.is_cancelled():
                probe.log.append(f"cancelled {x[0, 0]}")
                probe.noticed.set()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])
