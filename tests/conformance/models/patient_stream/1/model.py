"""Answers X; a negative one goes on for as long as it isn't cancelled, 10 s at most."""

import time

import conformance_probe as probe
import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            x = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0])
            self.say(sender, x)
            end = time.monotonic() + 10
            while x < 0 and time.monotonic() < end:
                if request.is_cancelled() and sender.is_cancelled():
                    probe.log.append(f"cancelled {x}")
                    probe.noticed.set()
                    break
                time.sleep(0.005)
                self.say(sender, x)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def say(self, sender, x):
        probe.began.set()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([x], np.int32))]))
