import triton_python_backend_utils as pb_utils


def call(model_name, inputs, *outputs):
    request = pb_utils.InferenceRequest(model_name=model_name, requested_output_names=list(outputs), inputs=inputs)
    response = request.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(f"{model_name}: {response.error().message()}")
    return [pb_utils.get_output_tensor_by_name(response, name) for name in outputs]


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT")
            tokens = call("tokenize", [text], "input_ids", "attention_mask")
            logits = call("classify", tokens, "logits")
            labels = call("label", logits, "LABEL")
            responses.append(pb_utils.InferenceResponse([*labels, *logits]))
        return responses
