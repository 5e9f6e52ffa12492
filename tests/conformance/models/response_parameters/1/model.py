import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0]) for request in requests]

    def answer(self, text):
        output = pb_utils.Tensor("OUTPUT0", np.zeros(1, np.int32))
        return pb_utils.InferenceResponse([output], parameters=json.loads(text))
