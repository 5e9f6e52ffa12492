import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.names = [each["name"] for each in config["input"]]
        self.batches = config["max_batch_size"] > 0

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        seen = {
            "id": request.request_id(),
            "correlation": request.correlation_id(),
            "timeout": request.timeout(),
            "parameters": json.loads(request.parameters() or "{}"),
        }
        for name in self.names:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is not None:
                array = tensor.as_numpy()
                elements = [e.decode("latin-1") if isinstance(e, bytes) else e for e in array.reshape(-1).tolist()]
                seen[f"input {name}"] = [str(array.dtype), list(array.shape), elements]
        text = np.array([json.dumps(seen, sort_keys=True)], dtype=object)
        if self.batches:
            text = text.reshape(1, 1)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", text)])
