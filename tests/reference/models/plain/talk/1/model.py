"""Plays a script, one response per word: what is no command is said."""

import numpy as np

import triton_python_backend_utils as pb_utils


def said(name, values, dtype, **more):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, np.array(values, dtype=dtype))], **more)


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            script = pb_utils.get_input_tensor_by_name(request, "SCRIPT").as_numpy().ravel()[0].decode()
            for word in script.split():
                if word == "raise":
                    raise ValueError("no more words")
                word, last = word.removeprefix("last-"), word.startswith("last-")
                sender.send(self.response(request, word), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0)
                if last:
                    break
            else:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def response(self, request, word):
        if word.startswith("error"):
            code = getattr(pb_utils.TritonError, word.partition(":")[2] or "INTERNAL")
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"an {word}", code))
        if word == "half":
            return said("HALF", [1.5], np.float16)
        if word == "nothing":
            return pb_utils.InferenceResponse([])
        if word == "empty":
            return said("ALSO", [], np.float32)
        if word == "grid":
            return said("ALSO", [[1, 2], [3, 4]], np.float32)
        if word == "both":
            also = pb_utils.Tensor("ALSO", np.array([0.5], np.float32))
            return pb_utils.InferenceResponse([pb_utils.Tensor("WORD", np.array([b"x", b"y"], object)), also])
        if word == "request":
            shapes = ";".join(f"{each.name()}{list(each.as_numpy().shape)}" for each in request.inputs())
            text = f"{request.request_id()}|{request.parameters()}|{request.correlation_id()}|{shapes}"
            return said("WORD", [text.encode()], object)
        return said("WORD", [word.encode()], object)
