"""Y = X, with a configuration of its own making."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]})
        return config

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy())]) for x in inputs]
