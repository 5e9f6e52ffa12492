"""Writes text a letter at a time, with the letter frequencies of `text.txt`, which lies next to this file.

A Triton Python model for iterative sequences. `execute` writes one letter of each story in the batch. It reschedules
the requests of unfinished stories, and the server runs them again in the next batch.
"""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

LONGEST = 7  # the most letters that determine the next one; fewer if the text does not contain them
MOST_STORIES = 4096  # stories in memory; if a client leaves between two steps, its story never comes again
AGAIN = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Letters:
    """How often each letter follows each context of up to `LONGEST` letters in a text."""

    def __init__(self, text):
        self.alphabet = sorted(set(text))
        number = {letter: i for i, letter in enumerate(self.alphabet)}
        counts = {}
        for at in range(len(text)):
            for length in range(min(at, LONGEST) + 1):
                row = counts.setdefault(text[at - length : at], np.zeros(len(self.alphabet)))
                row[number[text[at]]] += 1
        self.rows = {context: np.cumsum(row) / row.sum() for context, row in counts.items()}

    def following(self, texts, chances):
        """The next letter of each text. `chances` has a random number between 0 and 1 for each text."""
        rows = np.stack([self.row(text) for text in texts])
        return [self.alphabet[i] for i in (rows <= np.asarray(chances)[:, None]).sum(axis=1)]

    def row(self, text):
        for length in range(min(len(text), LONGEST), 0, -1):
            found = self.rows.get(text[-length:])
            if found is not None:
                return found
        return self.rows[""]


class Story:
    """An unfinished story."""

    def __init__(self, request):
        prompt, left, seed = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().item() for name in ("PROMPT", "LETTERS", "SEED")
        )
        self.text = prompt.decode("utf-8", "replace")
        self.left = left
        self.random = np.random.default_rng(abs(seed))


class TritonPythonModel:
    def initialize(self, args):
        path = Path(args["model_repository"], args["model_version"], "text.txt")
        self.letters = Letters(path.read_text(encoding="utf-8"))
        self.stories = OrderedDict()

    def execute(self, requests):
        stories = [self.story(request) for request in requests]
        letters = self.letters.following([s.text for s in stories], [s.random.random() for s in stories])
        for request, story, letter in zip(requests, stories, letters, strict=True):
            self.write(request, story, letter, len(stories))

    def story(self, request):
        """The story of a request: a new one at the start of its sequence, later the same one each time."""
        number = request.correlation_id()
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START or number not in self.stories:
            self.stories[number] = Story(request)
            while len(self.stories) > MOST_STORIES:
                self.stories.popitem(last=False)
        return self.stories[number]

    def write(self, request, story, letter, batch):
        sender = request.get_response_sender()
        story.text += letter
        story.left -= 1
        tensors = [
            pb_utils.Tensor("LETTER", np.array([[letter.encode()]], object)),
            pb_utils.Tensor("BATCH", np.array([[batch]], np.int32)),
        ]
        response = pb_utils.InferenceResponse(tensors)
        if story.left > 0 and not sender.is_cancelled():
            sender.send(response)
            request.set_release_flags(AGAIN)
        else:
            self.stories.pop(request.correlation_id(), None)
            sender.send(response, FINAL)
