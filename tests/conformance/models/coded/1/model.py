import triton_python_backend_utils as pb_utils

CODES = ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED")


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        name = CODES[int(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0])]
        error = pb_utils.TritonError(f"the code is {name}", getattr(pb_utils.TritonError, name))
        return pb_utils.InferenceResponse(error=error)
