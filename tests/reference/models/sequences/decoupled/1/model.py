import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers each of three executions of a request with a response of its own."""

    def initialize(self, args):
        self.turns = {}

    def execute(self, requests):
        for request in requests:
            turn = self.turns[request.request_id()] = self.turns.get(request.request_id(), 0) + 1
            sender = request.get_response_sender()
            text = np.array([[f"{turn} {request.flags()}"]], dtype=object)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", text)]))
            if turn < 3:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
