"""Makes a running server write several stories at once, and shows them as they grow, a letter at a time.

A story begins while earlier ones are still being written. The demo's model `writer` adds it to the running batch, and
removes it when it is finished. Over gRPC a story is a stream of responses, over HTTP a stream of events
(`generate_stream`). It works with any server that speaks Triton's protocol and has this model.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from typing import NamedTuple

import clients
import numpy as np

PROMPTS = ("The keeper ", "In the winter ", "The children ", "Once ")


class Story(NamedTuple):
    """The text of a story, and for each letter the number of stories in the same batch."""

    text: str
    batches: list[int]


def _quiet(_text: str) -> None:
    pass


def tell(server: clients.Server, prompt: str, letters: int, seed: int, show: Callable[[str], None] = _quiet) -> Story:
    """Requests one story over its own connection. Calls `show` with each letter."""
    story = Story("", [])
    stream = _events if server.protocol == "http" else _responses
    for letter, batch in stream(server, prompt, letters, seed):
        story = Story(story.text + letter, [*story.batches, batch])
        show(letter)
    return story


def _responses(server: clients.Server, prompt: str, letters: int, seed: int) -> Iterator[tuple[str, int]]:
    """Each letter with the size of its batch, from a gRPC stream."""
    given = {"PROMPT": np.array([[prompt.encode()]], object)}
    given |= {name: np.array([[value]], np.int32) for name, value in (("LETTERS", letters), ("SEED", seed))}
    tensors = []
    for name, array in given.items():
        tensors.append(server.triton.InferInput(name, [1, 1], "BYTES" if array.dtype == object else "INT32"))
        tensors[-1].set_data_from_numpy(array)
    with server.connected() as client:
        stream = clients.Stream(client)
        stream.send("writer", tensors, enable_empty_final_response=True)
        while True:
            answer = stream.receive()
            if answer.as_numpy("LETTER") is not None:
                yield answer.as_numpy("LETTER").item().decode(), int(answer.as_numpy("BATCH").item())
            if answer.get_response().parameters["triton_final_response"].bool_param:
                return


def _events(server: clients.Server, prompt: str, letters: int, seed: int) -> Iterator[tuple[str, int]]:
    """Each letter with the size of its batch, from server-sent events. The HTTP client has no such streams."""
    body = json.dumps({"PROMPT": prompt, "LETTERS": letters, "SEED": seed})
    with server.connected(), closing(HTTPConnection(server.url, timeout=clients.PATIENCE)) as connection:
        connection.request("POST", "/v2/models/writer/generate_stream", body)
        response = connection.getresponse()
        for line in response:
            event = json.loads(line.removeprefix(b"data: ")) if line.strip() else {}
            if "error" in event:
                raise clients.ClientError(f"the server at {server.url} says: {event['error']}")
            if event:
                yield event["LETTER"], int(event["BATCH"])


def tell_all(server: clients.Server, prompts: Sequence[str], letters: int, seed: int, apart: float) -> list[Story]:
    """Starts one story every `apart` seconds. The first is shown while it grows."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        begun = []
        for number, prompt in enumerate(prompts):
            show = _quiet if number else partial(print, end="", flush=True)
            show(prompt)
            begun.append(pool.submit(tell, server, prompt, letters, seed + number, show))
            time.sleep(apart)
        return [each.result() for each in begun]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Have the demo's model write several stories at once.")
    parser.add_argument("prompts", nargs="*", help="beginnings of the stories (default: four of them)")
    clients.add_server(parser, "grpc")
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
    return clients.run("write", partial(work, parse(arguments)))


def work(options: argparse.Namespace) -> None:
    prompts = options.prompts or PROMPTS
    try:
        stories = tell_all(clients.server_of(options), prompts, options.letters, options.seed, options.apart)
    except clients.ClientError:
        print()  # the message must not continue the story
        raise
    for prompt, story in zip(prompts[1:], stories[1:], strict=True):
        print(f"\n\n{prompt}{story.text}", end="")
    print()
    for number, story in enumerate(stories, 1):
        mean = sum(story.batches) / len(story.batches)
        print(f"\nstory {number}: {len(story.batches)} letters, each in a batch of {mean:.1f} on average", end="")
    print()


if __name__ == "__main__":
    sys.exit(main())
