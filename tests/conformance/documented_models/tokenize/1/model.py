import re
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        vocabulary = Path(args["model_repository"], args["model_version"], "vocabulary.txt")
        self.numbers = {word: number for number, word in enumerate(vocabulary.read_text().split())}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        rows = [self.row(text[0].decode("utf-8")) for text in texts]
        length = max(map(len, rows), default=0)
        ids = np.array([row + [0] * (length - len(row)) for row in rows], np.int64).reshape(len(rows), length)
        mask = np.array([[1] * len(row) + [0] * (length - len(row)) for row in rows], np.int64).reshape(ids.shape)
        return pb_utils.InferenceResponse([pb_utils.Tensor("input_ids", ids), pb_utils.Tensor("attention_mask", mask)])

    def row(self, text):
        return [self.numbers.get(word, self.numbers["[UNK]"]) for word in re.findall(r"\w+", text.lower())]
