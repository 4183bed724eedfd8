import time

import numpy as np

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.answer(*request.inputs()[0].as_numpy().tolist(), request.get_response_sender())

    def answer(self, count, mode, sender):
        for number in range(int(count)):
            response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([number, mode], np.float32))])
            if mode == 1 and number == count - 1:
                sender.send(response, flags=FINAL)
                return
            sender.send(response)
            if mode == 2:
                time.sleep(0.1)
        if mode == 3:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("boom")), flags=FINAL)
        else:
            sender.send(flags=FINAL)
