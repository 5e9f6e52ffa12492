"""Makes a running server write several stories at once, and shows them as they grow, a letter at a time.

A story begins while earlier ones are still being written. The demo's model `writer` adds it to the running batch, and
removes it when it is finished. It works with any server that speaks Triton's protocol and has this model.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

URL = "localhost:8001"
PROMPTS = ("The keeper ", "In the winter ", "The children ", "Once ")
PATIENCE = 30.0  # seconds to wait for an answer


class StreamError(Exception):
    """A stream failed. The message gives the reason."""


class Story(NamedTuple):
    """The text of a story, and for each letter the number of stories in the same batch."""

    text: str
    batches: list[int]


def _quiet(_text: str) -> None:
    pass


def tell(url: str, prompt: str, letters: int, seed: int, show: Callable[[str], None] = _quiet) -> Story:
    """Requests one story over its own stream. Calls `show` with each letter."""
    answers: SimpleQueue[Any] = SimpleQueue()
    given = {"PROMPT": np.array([[prompt.encode()]], object)}
    given |= {name: np.array([[value]], np.int32) for name, value in (("LETTERS", letters), ("SEED", seed))}
    tensors = []
    for name, array in given.items():
        tensors.append(triton.InferInput(name, [1, 1], "BYTES" if array.dtype == object else "INT32"))
        tensors[-1].set_data_from_numpy(array)
    story = Story("", [])
    with closing(triton.InferenceServerClient(url)) as client:
        client.start_stream(partial(_answered, answers))
        client.async_stream_infer("writer", tensors, enable_empty_final_response=True)
        while True:
            answer = _next(answers)
            if answer.as_numpy("LETTER") is not None:
                letter = answer.as_numpy("LETTER").item().decode()
                story = Story(story.text + letter, [*story.batches, int(answer.as_numpy("BATCH").item())])
                show(letter)
            if answer.get_response().parameters["triton_final_response"].bool_param:
                return story


def _answered(answers: "SimpleQueue[Any]", result: Any, error: InferenceServerException | None) -> None:
    answers.put(error or result)


def _next(answers: "SimpleQueue[Any]") -> Any:
    try:
        answer = answers.get(timeout=PATIENCE)
    except Empty:
        raise StreamError(f"no answer from the server for {PATIENCE:g} s") from None
    if isinstance(answer, InferenceServerException):
        raise StreamError(f"the server says: {answer.message()}")
    return answer


def tell_all(url: str, prompts: Sequence[str], letters: int, seed: int, apart: float) -> list[Story]:
    """Starts one story every `apart` seconds. The first is shown while it grows."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        begun = []
        for number, prompt in enumerate(prompts):
            show = _quiet if number else partial(print, end="", flush=True)
            show(prompt)
            begun.append(pool.submit(tell, url, prompt, letters, seed + number, show))
            time.sleep(apart)
        return [each.result() for each in begun]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Have the demo's model write several stories at once.")
    parser.add_argument("prompts", nargs="*", help="beginnings of the stories (default: four of them)")
    parser.add_argument("--url", default=URL, help="host:port of the server's gRPC (default: %(default)s)")
    parser.add_argument("--letters", type=int, default=300, help="letters of each story (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=1, help="the same seed gives the same stories (default: %(default)s)"
    )
    parser.add_argument("--apart", type=float, default=0.05, help="seconds between two starts (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.letters < 1:
        parser.error("--letters must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    prompts = options.prompts or PROMPTS
    try:
        stories = tell_all(options.url, prompts, options.letters, options.seed, options.apart)
    except (StreamError, InferenceServerException) as error:
        print(f"\nwrite: {options.url}: {error}", file=sys.stderr)
        return 1
    for prompt, story in zip(prompts[1:], stories[1:], strict=True):
        print(f"\n\n{prompt}{story.text}", end="")
    print()
    for number, story in enumerate(stories, 1):
        mean = sum(story.batches) / len(story.batches)
        print(f"\nstory {number}: {len(story.batches)} letters, each in a batch of {mean:.1f} on average", end="")
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
