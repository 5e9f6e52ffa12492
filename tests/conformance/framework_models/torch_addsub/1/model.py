import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack, to_dlpack


class AddSub(torch.nn.Module):
    def forward(self, left, right):
        return left + right, left - right


class TritonPythonModel:
    def initialize(self, args):
        self.module = AddSub().eval()

    def execute(self, requests):
        responses = []
        for request in requests:
            left, right = (
                from_dlpack(pb_utils.get_input_tensor_by_name(request, name).to_dlpack()) for name in ("LEFT", "RIGHT")
            )
            with torch.no_grad():
                results = self.module(left, right)
            outputs = [
                pb_utils.Tensor.from_dlpack(name, to_dlpack(result))
                for name, result in zip(("SUM", "DIFFERENCE"), results, strict=True)
            ]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses

    def finalize(self):
        self.module = None
