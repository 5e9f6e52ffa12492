import numpy as np
import triton_python_backend_utils as pb_utils

WEIGHTS = np.array([[0, 0, 0], [0, 0.5, 0], [0, 0, 2], [0, 0.5, 1], [2, 0, 0], [3, 0, 0], [1, 0.5, -2]], np.float32)


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        ids = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()
        mask = pb_utils.get_input_tensor_by_name(request, "attention_mask").as_numpy()
        logits = (WEIGHTS[ids] * mask[..., None]).sum(axis=1, dtype=np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("logits", logits)])
