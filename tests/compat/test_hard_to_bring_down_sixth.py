"""Attacks of a sixth round: many answers at the end of one batch.

Each test has the form of the attack, and checks the longest turn of the event loop, the delay of others, and memory.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from tests.compat.measured import LIMIT, Measured, attack
from tests.compat.serving import write_model

BATCH = 1024
NUMBERS = 2500
"""So few that the loop writes them as JSON, which takes it 0.3 ms."""
TURN_SECONDS = 0.05


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("sixth")
    batching = f"dynamic_batching {{ preferred_batch_size: [ {BATCH} ] max_queue_delay_microseconds: 20000000 }}\n"
    write_model(folder / "models", "wide", "FP32", max_batch_size=BATCH, more=batching)
    with Measured(folder / "models", folder / "server.log") as made:
        yield made.wait_until_live()
        assert made.stop() == 0


def test_large_batch_whose_answers_are_json(serving: Measured) -> None:
    text = b'{"inputs":[{"name":"INPUT0","shape":[1,%d],"datatype":"FP32","parameters":{"binary_data_size":%d}}]}' % (
        NUMBERS,
        4 * NUMBERS,
    )
    numbers = np.random.default_rng(0).standard_normal(NUMBERS).astype(np.float32).tobytes()
    head = b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: %d\r\n" % len(text)
    request = head + b"Content-Length: %d\r\n\r\n" % (len(text) + len(numbers)) + text + numbers

    with ExitStack() as stack:
        address = "127.0.0.1", serving.http_port
        clients = [stack.enter_context(socket.create_connection(address, LIMIT)) for _ in range(BATCH)]
        # Requests that arrive are work of their own. Here it is about the answers.
        for client in clients[1:]:
            client.sendall(request)
        deadline = time.monotonic() + LIMIT
        while serving.pending("wide") < BATCH - 1:
            assert time.monotonic() < deadline, "the requests did not arrive"
            time.sleep(0.1)

        def send() -> set[bytes]:
            """Returns how the answers begin."""
            clients[0].sendall(request)
            return {client.recv(15) for client in clients}

        assert attack(serving, send).answer == {b"HTTP/1.1 200 OK"}
    assert serving.longest_turn < TURN_SECONDS
