"""WHAT is `wait` until cancelled, or `look` at what was seen since the last look."""

import time

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.seen = []

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            what = pb_utils.get_input_tensor_by_name(request, "WHAT").as_numpy()[0].decode()
            if what == "look":
                seen, self.seen = self.seen, []
                self.tell(sender, " ".join(seen))
            else:
                self.tell(sender, "waiting")
                end = time.monotonic() + 2
                while not (request.is_cancelled() and sender.is_cancelled()) and time.monotonic() < end:
                    time.sleep(0.01)
                self.seen.append(f"request:{request.is_cancelled()} sender:{sender.is_cancelled()}")
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def tell(self, sender, text):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", np.array([text], dtype=np.object_))]))
