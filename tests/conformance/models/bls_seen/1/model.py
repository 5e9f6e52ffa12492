import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        seen = {
            "id": request.request_id(),
            "correlation": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "parameters": json.loads(request.parameters()),
            "outputs": sorted(request.requested_output_names()),
        }
        text = np.array([[json.dumps(seen, sort_keys=True)]], object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given), pb_utils.Tensor("SEEN", text)])
