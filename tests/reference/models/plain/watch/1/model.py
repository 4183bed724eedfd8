"""WHAT is to `wait` until cancelled, to `nap`, to `look` at what was seen since the last look, or anything else to be seen."""

import time

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.seen = []

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        what = pb_utils.get_input_tensor_by_name(request, "WHAT").as_numpy().ravel()[0].decode()
        if what == "look":
            seen, self.seen = self.seen, []
            text = " ".join(seen)
        else:
            text = what
            if what == "nap":
                time.sleep(0.4)
            if what == "wait":
                end = time.monotonic() + 2
                while not request.is_cancelled() and time.monotonic() < end:
                    time.sleep(0.01)
                text += " cancelled" if request.is_cancelled() else " in vain"
            self.seen.append(text)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", np.array([[text]], dtype=np.object_))])
