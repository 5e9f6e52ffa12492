"""A server in one file: functions as models, with batching, a stream and state. It needs no model repository.

    python examples/bind.py                  # serves on ports 8000 (HTTP), 8001 (gRPC) and 8002 (metrics) until Ctrl-C
    curl -s localhost:8000/v2/models/distance/infer -d '{"inputs": [
        {"name": "a", "shape": [1, 2], "datatype": "FP32", "data": [0, 0]},
        {"name": "b", "shape": [1, 2], "datatype": "FP32", "data": [3, 4]}]}'
    curl -s localhost:8000/v2/models/spell/generate_stream -d '{"text": "abc"}'

Flags of `halimede serve` can follow, such as --http-port=9000.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halimede import Request, Server, Tensor
from halimede.errors import Error

Floats = NDArray[np.float32]


def distance(a: Floats, b: Floats) -> NDArray[Any]:
    """FP32 [rows, n] each. The server joins the requests of many clients to one call."""
    distances: NDArray[Any] = np.linalg.norm(a - b, axis=1, keepdims=True)
    return distances


def spell(text: NDArray[np.object_]) -> Iterator[Mapping[str, Any]]:
    """A response for each letter: clients read them as a stream."""
    for letter in text.item().decode():
        yield {"letter": [letter]}


class Votes:
    """A model with state. It gets requests instead of arrays, so it can read their parameters."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __call__(self, requests: Sequence[Request]) -> list[Any]:
        return [self._vote(request) for request in requests]

    def _vote(self, request: Request) -> Mapping[str, Any]:
        choice = request["choice"].item().decode()
        if not choice:
            raise ValueError("an empty choice does not count")
        self._counts[choice] += int(request.parameters.get("weight", 1))
        return {"count": [self._counts[choice]]}


def server_of(*flags: str) -> Server:
    """The server with its three models. Raises Error for a wrong flag."""
    server = Server(*flags)
    server.bind(
        "distance",
        distance,
        inputs=[Tensor("a", np.float32, [-1]), Tensor("b", np.float32, [-1])],
        outputs=[Tensor("distance", np.float32, [1])],
        max_batch_size=64,
    )
    server.bind("spell", spell, [Tensor("text", bytes, [1])], [Tensor("letter", bytes, [1])])
    server.bind("votes", Votes(), [Tensor("choice", bytes, [1])], [Tensor("count", np.int64, [1])], pass_requests=True)
    return server


def main(flags: Sequence[str]) -> int:
    try:
        server_of(*flags).serve()
    except Error as error:
        print(f"bind: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
