import json

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Asks for three executions of each request, and answers with what it was told in each."""

    def initialize(self, args):
        self.told = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            told = self.told.setdefault(request.request_id(), [])
            start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy().ravel().tolist()
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            told.append({"flags": request.flags(), "START": start, "X": x.ravel().tolist()})
            x += 1  # seen by nobody
            if len(told) < 3:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
            else:
                text = np.array([[json.dumps(self.told.pop(request.request_id()), sort_keys=True)]], dtype=object)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", text)]))
        return responses
