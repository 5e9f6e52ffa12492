"""Decodes picture files into pixels, with Pillow: the first step of the demo's ensemble `shapes`.

A Triton Python model. The server runs it in a worker process.
"""

import io

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image, ImageOps, UnidentifiedImageError

SIZE = 64
FORMATS = ("PNG", "JPEG")
MOST_PIXELS = 40_000_000  # a small file may declare a picture that would fill the memory


class Refused(Exception):
    """The file is not a supported picture. The message gives the reason."""


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        """Decodes FILE [batch, 1] into picture FP32 [batch, 3, 64, 64]."""
        files = pb_utils.get_input_tensor_by_name(request, "FILE").as_numpy().reshape(-1)
        try:
            pictures = [pixels_of(file) for file in files]
        except Refused as error:  # an exception would fail the whole batch
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(f"FILE {error}", pb_utils.TritonError.INVALID_ARG)
            )
        return pb_utils.InferenceResponse([pb_utils.Tensor("picture", np.stack(pictures))])


def pixels_of(file):
    try:
        with Image.open(io.BytesIO(file), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise Refused(f"is a picture of {image.width} x {image.height} pixels, which is too large")
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError):
        raise Refused("is no PNG or JPEG") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise Refused(f"cannot be read: {error}") from None
    small = upright.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(small, np.float32).transpose(2, 0, 1) / 255)
