import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            given = {name: pb_utils.get_input_tensor_by_name(request, name) for name in ("INPUT0", "INPUT1")}
            calls = []
            for order in (("INPUT0", "INPUT1"), ("INPUT1", "INPUT0")):
                renamed = [pb_utils.Tensor(f"INPUT{i}", given[name].as_numpy()) for i, name in enumerate(order)]
                call = pb_utils.InferenceRequest(
                    model_name="add_sub", requested_output_names=["OUTPUT0", "OUTPUT1"], inputs=renamed
                )
                calls.append(call.async_exec())
            answers = await asyncio.gather(*calls)
            for answer in answers:
                if answer.has_error():
                    raise pb_utils.TritonModelException(answer.error().message())
            total = pb_utils.get_output_tensor_by_name(answers[0], "OUTPUT0")
            backwards = pb_utils.get_output_tensor_by_name(answers[1], "OUTPUT1")
            responses.append(pb_utils.InferenceResponse([total, backwards]))
        return responses
