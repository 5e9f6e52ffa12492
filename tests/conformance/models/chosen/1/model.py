import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()) for request in requests]

    def answer(self, values):
        halves = (values / 2).astype(np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values), pb_utils.Tensor("OUTPUT1", halves)])
