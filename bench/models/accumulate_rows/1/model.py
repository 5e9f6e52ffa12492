import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            value, start, ready, corrid = (
                int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().flat[0])
                for name in ("INPUT0", "START", "READY", "CORRID")
            )
            if not ready:
                responses.append(pb_utils.InferenceResponse([]))
                continue
            self.sums[corrid] = value + (0 if start else self.sums.get(corrid, 0))
            out = np.array([[self.sums[corrid]]]).astype(np.int32)
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT0", out)]))
        return responses
