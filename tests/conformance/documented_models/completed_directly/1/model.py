import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Sets what no method sets, and hands back a configuration of its own making."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        for name, optional in (("INPUT0", False), ("INPUT1", True)):
            tensor = {"name": name, "data_type": "TYPE_FP32", "dims": (4,), "optional": optional}
            auto_complete_model_config.add_input(tensor)
        auto_complete_model_config.set_dynamic_batching()
        auto_complete_model_config._model_config["dynamic_batching"]["max_queue_delay_microseconds"] = 100
        completed = pb_utils.ModelConfig(json.dumps(auto_complete_model_config.as_dict()))
        completed.set_max_batch_size(4)
        completed.add_output({"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [4]})
        return completed

    def initialize(self, args):
        self.batch = json.loads(args["model_config"])["max_batch_size"]

    def execute(self, requests):
        responses = []
        for request in requests:
            values = [tensor.as_numpy() for tensor in request.inputs()]
            total = np.sum(values, axis=0, dtype=np.float32) + np.float32(self.batch)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", total)]))
        return responses
