import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.model_config = model_config = json.loads(args["model_config"])
        output0 = pb_utils.get_output_config_by_name(model_config, "OUTPUT0")
        output1 = pb_utils.get_output_config_by_name(model_config, "OUTPUT1")
        self.output0_dtype = pb_utils.triton_string_to_numpy(output0["data_type"])
        self.output1_dtype = pb_utils.triton_string_to_numpy(output1["data_type"])

    def execute(self, requests):
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            total = pb_utils.Tensor("OUTPUT0", (left + right).astype(self.output0_dtype))
            difference = pb_utils.Tensor("OUTPUT1", (left - right).astype(self.output1_dtype))
            responses.append(pb_utils.InferenceResponse(output_tensors=[total, difference]))
        return responses

    def finalize(self):
        print("Cleaning up...")
