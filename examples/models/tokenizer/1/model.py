"""Sentences to word pieces: the first half of the demo's way from text to embedding.

A Triton Python model; the server runs `execute` in a worker process of its own. `tokenizer.json` lies beside this file.
"""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

LONGEST = 256  # word pieces; all-MiniLM-L6-v2 was trained on no more


class TritonPythonModel:
    def initialize(self, args):
        version_folder = Path(args["model_repository"], args["model_version"])
        self.tokenizer = Tokenizer.from_file(str(version_folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(LONGEST)
        self.tokenizer.enable_padding()  # to the longest sentence of a request; the file says 128 always

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        """TEXT [batch, 1] to input_ids and attention_mask, both INT64 [batch, longest]."""
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        try:
            sentences = [sentence.decode() for sentence in text.reshape(-1)]
        except UnicodeDecodeError as error:  # answered here, or it would fail the whole batch
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(f"TEXT is not UTF-8: {error}", pb_utils.TritonError.INVALID_ARG)
            )
        encodings = self.tokenizer.encode_batch_fast(sentences)
        ids = np.array([encoding.ids for encoding in encodings], np.int64)
        mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
        return pb_utils.InferenceResponse([pb_utils.Tensor("input_ids", ids), pb_utils.Tensor("attention_mask", mask)])
