import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        inputs = [
            {"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [4]},
            {"name": "INPUT1", "data_type": "TYPE_FP32", "dims": [4], "optional": True},
        ]
        outputs = [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [4]}]
        config = auto_complete_model_config.as_dict()
        present = [tensor["name"] for tensor in (*config["input"], *config["output"])]
        for tensor in inputs:
            if tensor["name"] not in present:
                auto_complete_model_config.add_input(tensor)
        for tensor in outputs:
            if tensor["name"] not in present:
                auto_complete_model_config.add_output(tensor)
        auto_complete_model_config.set_max_batch_size(4)
        auto_complete_model_config.set_dynamic_batching()
        return auto_complete_model_config

    def initialize(self, args):
        self.batch = json.loads(args["model_config"])["max_batch_size"]

    def execute(self, requests):
        responses = []
        for request in requests:
            values = [tensor.as_numpy() for tensor in request.inputs()]
            total = np.sum(values, axis=0, dtype=np.float32) + np.float32(self.batch)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", total)]))
        return responses
