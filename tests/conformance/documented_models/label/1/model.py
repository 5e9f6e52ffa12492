import numpy as np
import triton_python_backend_utils as pb_utils

NAMES = np.array(["negative", "neutral", "positive"], dtype=object)


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, "logits").as_numpy()
            names = NAMES[np.argmax(logits, axis=1)].reshape(-1, 1)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("LABEL", names)]))
        return responses
