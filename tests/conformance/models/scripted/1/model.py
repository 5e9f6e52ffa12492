import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def text(*values):
    return pb_utils.Tensor("TEXT", np.array(values, dtype=object))


def numbers(*values):
    return pb_utils.Tensor("NUMBERS", np.array(values, dtype=np.int32))


class TritonPythonModel:
    """A step is a word, perhaps a `!` (with the final flag), perhaps a colon and a value."""

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for step in pb_utils.get_input_tensor_by_name(request, "STEPS").as_numpy():
                word, _, value = step.decode().partition(":")
                flags = FINAL if word.endswith("!") else 0
                response = self.response(word.rstrip("!"), value, request)
                if response is None:
                    sender.send(flags=FINAL)
                else:
                    sender.send(response, flags=flags)

    def response(self, word, value, request):
        if word == "final":
            return None
        if word == "error":
            code, _, message = value.partition(" ")
            error = pb_utils.TritonError(message, getattr(pb_utils.TritonError, code))
            return pb_utils.InferenceResponse(error=error)
        seen = f"{request.request_id()} {request.parameters()}"
        outputs = {
            "text": [text(*value.split("|"))],
            "both": [numbers(1, 2), text(value)],
            "nothing": [],
            "empty": [numbers()],
            "seen": [text(seen)],
        }
        return pb_utils.InferenceResponse(outputs[word])
