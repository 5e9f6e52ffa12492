import json

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack, to_dlpack


def tried(function, *arguments, **named):
    """What it returns, or the exception that it raises."""
    try:
        return function(*arguments, **named)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def given(array):
    """An array as torch has it after the way through a tensor of the interface."""
    return told(from_dlpack(pb_utils.Tensor("T", array).to_dlpack()))


def taken(tensor):
    """What becomes of a torch tensor: by its capsule and by itself, and back again."""
    ways = [pb_utils.Tensor.from_dlpack("T", to_dlpack(tensor)), pb_utils.Tensor.from_dlpack("T", tensor)]
    back = [told(torch.from_dlpack(way)) for way in ways]
    return [[way.name(), way.shape(), way.is_cpu()] for way in ways], back, tried(lambda: str(ways[0].as_numpy().dtype))


def told(tensor):
    return [str(tensor.dtype), list(tensor.shape), tensor.tolist()]


class TritonPythonModel:
    """`found` in the source becomes the answer, or the exception that it raises."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        source = pb_utils.get_input_tensor_by_name(request, "SOURCE").as_numpy()[0].decode()
        names = {**globals(), "request": request}
        try:
            exec(source, names)
            found = names["found"]
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        text = json.dumps(found, sort_keys=True, default=repr)
        return pb_utils.InferenceResponse([pb_utils.Tensor("FOUND", np.array([text], object))])
