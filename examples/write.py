"""Has a running server write several stories at once, and shows them as they grow, a letter at a time.

The stories begin one after the other, while those before them are still being written: the demo's model `writer` takes
them into its running batch and lets them go when they are finished. Nothing is particular to one server: `tritonclient`
speaks to any that has this model.
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
PATIENCE = 30.0  # seconds until the server has to have said something


class StreamError(Exception):
    """A stream went wrong; the text says how."""


class Told(NamedTuple):
    """A story, and for each of its letters how many stories got one in the same step."""

    text: str
    batches: list[int]


def _quiet(_text: str) -> None:
    pass


def tell(url: str, prompt: str, letters: int, seed: int, show: Callable[[str], None] = _quiet) -> Told:
    """Has one story written over a stream of its own; `show` is called with each letter."""
    answers: SimpleQueue[Any] = SimpleQueue()
    given = {"PROMPT": np.array([[prompt.encode()]], object)}
    given |= {name: np.array([[value]], np.int32) for name, value in (("LETTERS", letters), ("SEED", seed))}
    tensors = []
    for name, array in given.items():
        tensors.append(triton.InferInput(name, [1, 1], "BYTES" if array.dtype == object else "INT32"))
        tensors[-1].set_data_from_numpy(array)
    told = Told("", [])
    with closing(triton.InferenceServerClient(url)) as client:
        client.start_stream(partial(_answered, answers))
        client.async_stream_infer("writer", tensors, enable_empty_final_response=True)
        while True:
            answer = _next(answers)
            if answer.as_numpy("LETTER") is not None:
                letter = answer.as_numpy("LETTER").item().decode()
                told = Told(told.text + letter, [*told.batches, int(answer.as_numpy("BATCH").item())])
                show(letter)
            if answer.get_response().parameters["triton_final_response"].bool_param:
                return told


def _answered(answers: "SimpleQueue[Any]", result: Any, error: InferenceServerException | None) -> None:
    answers.put(error or result)


def _next(answers: "SimpleQueue[Any]") -> Any:
    try:
        answer = answers.get(timeout=PATIENCE)
    except Empty:
        raise StreamError(f"the server said nothing for {PATIENCE:g} s") from None
    if isinstance(answer, InferenceServerException):
        raise StreamError(f"the server says: {answer.message()}")
    return answer


def tell_all(url: str, prompts: Sequence[str], letters: int, seed: int, apart: float) -> list[Told]:
    """Each begins so many seconds after the one before it. The first is shown while it grows."""
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
    parser.add_argument("prompts", nargs="*", help="what the stories begin with (default: four of them)")
    parser.add_argument("--url", default=URL, help="host:port of the server's gRPC (default: %(default)s)")
    parser.add_argument("--letters", type=int, default=300, help="of each story (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same one tells the same (default: %(default)s)")
    parser.add_argument("--apart", type=float, default=0.05, help="seconds between beginnings (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.letters < 1:
        parser.error("a story has a letter at least")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    prompts = options.prompts or PROMPTS
    try:
        told = tell_all(options.url, prompts, options.letters, options.seed, options.apart)
    except (StreamError, InferenceServerException) as error:
        print(f"\nwrite: {options.url}: {error}", file=sys.stderr)
        return 1
    for prompt, story in zip(prompts[1:], told[1:], strict=True):
        print(f"\n\n{prompt}{story.text}", end="")
    print()
    for number, story in enumerate(told, 1):
        mean = sum(story.batches) / len(story.batches)
        print(f"\nstory {number}: {len(story.batches)} letters, each in a batch of {mean:.1f} on average", end="")
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
