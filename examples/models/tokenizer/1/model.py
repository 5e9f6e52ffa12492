"""Splits sentences into word pieces: the first step from text to embedding in the demo.

A Triton Python model. The server runs it in a worker process. `tokenizer.json` lies next to this file.
"""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

LONGEST = 256  # word pieces; all-MiniLM-L6-v2 was trained on at most this many


class TritonPythonModel:
    def initialize(self, args):
        version_folder = Path(args["model_repository"], args["model_version"])
        self.tokenizer = Tokenizer.from_file(str(version_folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(LONGEST)
        self.tokenizer.enable_padding()  # to the longest sentence of a request; the file would always pad to 128

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        """Turns TEXT [batch, 1] into input_ids and attention_mask, both INT64 [batch, longest]."""
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        try:
            sentences = [sentence.decode() for sentence in text.reshape(-1)]
        except UnicodeDecodeError as error:  # an exception would fail the whole batch
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(f"TEXT is not UTF-8: {error}", pb_utils.TritonError.INVALID_ARG)
            )
        encodings = self.tokenizer.encode_batch_fast(sentences)
        ids = np.array([encoding.ids for encoding in encodings], np.int64)
        mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
        return pb_utils.InferenceResponse([pb_utils.Tensor("input_ids", ids), pb_utils.Tensor("attention_mask", mask)])
