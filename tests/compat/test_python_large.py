"""Large tensors through a Python model: they arrive, and the memory is returned. `make soak` sends a gigabyte."""

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.serving import Serving, write_model

SIZE = int(os.environ.get("HALIMEDE_TENSOR_BYTES", 1 << 28))
PART = bytes(1 << 20)
LIMIT = 120.0
KEPT = 128 << 20
"""Bytes that the allocators of both processes may keep."""

_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        given[-1] = 7
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given)])
"""


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    version = write_model(tmp_path / "models", "large", "UINT8", backend="python")
    (version / "model.py").write_text(_MODEL)
    with Serving(tmp_path / "models", tmp_path / "server.log") as it:
        yield it.wait_until_live()
        assert it.stop() == 0


def infer(serving: Serving, size: int) -> tuple[int, bytes]:
    """Sends the given number of zeros. Returns how many bytes of tensor come back, and the last ones."""
    inputs = [{"name": "INPUT0", "datatype": "UINT8", "shape": [size], "parameters": {"binary_data_size": size}}]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    with socket.create_connection(("127.0.0.1", serving.http_port), LIMIT) as client:
        client.sendall(
            f"POST /v2/models/large/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: {len(head)}\r\n"
            f"Content-Length: {len(head) + size}\r\n\r\n".encode()
            + head
        )
        for _ in range(size // len(PART)):
            client.sendall(PART)
        return read(client)


def read(client: socket.socket) -> tuple[int, bytes]:
    """The length of the binary part of an answer, and its last four bytes. The rest is dropped."""
    held = b""
    while b"\r\n\r\n" not in held:
        held += client.recv(1 << 16)
    head, _, held = held.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert head.startswith(b"HTTP/1.1 200"), held
    left = int(fields[b"content-length"]) - len(held)
    buffer = memoryview(bytearray(1 << 20))
    last = held[-4:]
    while left:
        count = client.recv_into(buffer)
        assert count
        left -= count
        last = (last + bytes(buffer[max(0, count - 4) : count]))[-4:]
    return int(fields[b"content-length"]) - int(fields[b"inference-header-content-length"]), last


def memory(pid: int) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def children(pid: int) -> list[int]:
    """The child processes of all threads."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(child) for task in tasks for child in task.read_text().split())


def test_large_tensor_arrives_and_its_memory_is_returned(serving: Serving) -> None:
    assert infer(serving, len(PART)) == (len(PART), b"\0\0\0\7")
    processes = [serving.process.pid, *children(serving.process.pid)]
    assert len(processes) == 2
    before = [memory(pid) for pid in processes]
    for _ in range(2):
        assert infer(serving, SIZE) == (SIZE, b"\0\0\0\7")
    limit = time.monotonic() + LIMIT
    while any(memory(pid) > kept + KEPT for pid, kept in zip(processes, before, strict=True)):
        assert time.monotonic() < limit, [memory(pid) >> 20 for pid in processes]
        time.sleep(0.05)
    assert infer(serving, len(PART)) == (len(PART), b"\0\0\0\7")
    assert children(serving.process.pid) == processes[1:]
