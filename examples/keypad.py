"""Streams the audio of many telephones to a running server at once, and prints the keys that it recognizes.

Each telephone is a sequence of requests with its own id, over its own connection: a gRPC stream, or HTTP requests. The
server keeps the detector's state of each sequence. The audio is generated here. It works with any server that speaks
Triton's protocol and has the demo's model `keypad`.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import clients
import numpy as np
from keypad_audio import FRAME, SAMPLE_RATE, Clip, make_clip, pressed


class Heard(NamedTuple):
    """The `keys` that the server recognized, and the `seconds` from each request to its answer."""

    keys: str
    seconds: list[float]


def listen(server: clients.Server, clip: Clip, sequence_id: int, piece: int, hurry: bool, show: bool = False) -> Heard:
    """Streams a clip in pieces of `piece` frames, in real time or, with `hurry`, as fast as they are answered."""
    pieces = np.split(clip.samples, range(piece * FRAME, len(clip.samples), piece * FRAME))
    classes: list[int] = []
    seconds: list[float] = []
    begin = time.monotonic()
    with server.asking() as ask:
        for number, samples in enumerate(pieces):
            if not hurry:
                time.sleep(max(0.0, begin + number * piece * FRAME / SAMPLE_RATE - time.monotonic()))
            tensor = server.triton.InferInput("audio", [1, len(samples)], "FP32")
            tensor.set_data_from_numpy(samples[None])
            asked = time.monotonic()
            answer = ask(
                "keypad",
                [tensor],
                sequence_id=sequence_id,
                sequence_start=number == 0,
                sequence_end=number == len(pieces) - 1,
            )
            before = pressed(classes)
            classes += [int(each) for each in answer.as_numpy("keys")[0].argmax(axis=-1)]
            seconds.append(time.monotonic() - asked)
            if show:
                print(pressed(classes)[len(before) :], end="", flush=True)
    return Heard(pressed(classes), seconds)


def listen_to_all(server: clients.Server, clips: Sequence[Clip], first_id: int, piece: int, hurry: bool) -> list[Heard]:
    """Streams all clips at once, each over its own stream."""
    with ThreadPoolExecutor(len(clips)) as pool:
        begun = [
            pool.submit(listen, server, clip, first_id + number, piece, hurry, len(clips) == 1)
            for number, clip in enumerate(clips)
        ]
        return [each.result() for each in begun]


def report(clips: Sequence[Clip], heard: Sequence[Heard]) -> str:
    lines = [
        f"{number:4}  {clip.keys:<24} {one.keys}" + ("" if one.keys == clip.keys else "   <- not the same")
        for number, (clip, one) in enumerate(zip(clips, heard, strict=True))
    ]
    right = sum(one.keys == clip.keys for clip, one in zip(clips, heard, strict=True))
    milliseconds = sorted(1e3 * each for one in heard for each in one.seconds)
    median, late = (milliseconds[int(share * (len(milliseconds) - 1))] for share in (0.5, 0.99))
    return "\n".join(
        [
            f"{'':4}  {'pressed':<24} heard",
            *lines,
            f"\n{right} of {len(clips)} streams heard without a mistake; a piece took {median:.1f} ms, "
            f"one in a hundred more than {late:.1f} ms",
        ]
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Stream telephone keys to the demo's detector.")
    clients.add_server(parser, "grpc")
    parser.add_argument("--streams", type=int, default=50, help="telephones at once (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of audio on each (default: %(default)s)")
    parser.add_argument("--piece", type=int, default=5, help="frames of 20 ms in a request (default: %(default)s)")
    parser.add_argument("--hurry", action="store_true", help="send as fast as the server answers, not in real time")
    parser.add_argument("--seed", type=int, default=1, help="seed of the audio (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.streams < 1 or options.piece < 1 or options.seconds < 1:
        parser.error("--streams, --piece and --seconds must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    return clients.run("keypad", partial(work, parse(arguments)))


def work(options: argparse.Namespace) -> None:
    random = np.random.default_rng(options.seed)
    clips = [make_clip(random, options.seconds) for _ in range(options.streams)]
    first_id = int(time.time()) * 1000  # another client may stream at the same time
    print(report(clips, listen_to_all(clients.server_of(options), clips, first_id, options.piece, options.hurry)))


if __name__ == "__main__":
    sys.exit(main())
