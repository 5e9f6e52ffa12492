"""A server whose model takes a fixed time in one of some places, so that queueing theory knows its latencies.

Speaks as much of the HTTP protocol as a measurement needs. One thread, which the test starts.
"""

import heapq
import json
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

METADATA = {
    "name": "m",
    "versions": ["1"],
    "platform": "",
    "inputs": [{"name": "A", "datatype": "INT32", "shape": [1]}],
    "outputs": [{"name": "O", "datatype": "INT32", "shape": [1]}],
}
ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "GET /v2": {"name": "stand-in", "version": "1", "extensions": []},
    "GET /v2/models/m": METADATA,
    "GET /v2/models/m/config": {"name": "m", "input": [{"name": "A"}], "output": [{"name": "O"}]},
}
RESULT = {"model_name": "m", "outputs": [{"name": "O", "datatype": "INT32", "shape": [1], "data": [1]}]}


class StandIn:
    """Serves requests of inference in the order of their arrival: each takes `seconds` in one of `places`."""

    def __init__(self, seconds: float, places: int) -> None:
        self._seconds, self._free = seconds, [0.0] * places
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.port = int(self._listener.getsockname()[1])
        self._received: dict[socket.socket, bytearray] = {}
        self._due: list[tuple[float, int, socket.socket]] = []
        self._count = 0
        self.is_over = False

    def run(self) -> None:
        poll = select.epoll()
        poll.register(self._listener, select.EPOLLIN)
        by_number: dict[int, socket.socket] = {}
        while not self.is_over:
            wait = min(0.05, max(0.0, self._due[0][0] - time.monotonic())) if self._due else 0.05
            select.select([poll.fileno()], [], [], wait)  # precise to the microsecond
            for number, _ in poll.poll(0):
                if number == self._listener.fileno():
                    accepted, _ = self._listener.accept()
                    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    by_number[accepted.fileno()] = accepted
                    self._received[accepted] = bytearray()
                    poll.register(accepted, select.EPOLLIN)
                elif not self._read(by_number[number]):
                    poll.unregister(number)
                    by_number.pop(number).close()
            while self._due and self._due[0][0] <= time.monotonic():
                _answer(heapq.heappop(self._due)[2], RESULT)
        for sock in (*by_number.values(), self._listener):
            sock.close()

    def _read(self, sock: socket.socket) -> bool:
        """Takes what a client has sent. Returns False if it has gone."""
        try:
            data = sock.recv(1 << 16)
        except OSError:
            return False
        if not data:
            return False
        received = self._received[sock]
        received += data
        head, blank, body = bytes(received).partition(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
        )
        if not blank or len(body) < length:
            return True
        received.clear()
        target = " ".join(head.decode().split(" ", 2)[:2])
        if target in ANSWERS:
            _answer(sock, ANSWERS[target])
            return True
        begin = max(time.monotonic(), heapq.heappop(self._free))
        heapq.heappush(self._free, begin + self._seconds)
        self._count += 1
        heapq.heappush(self._due, (begin + self._seconds, self._count, sock))
        return True


def _answer(sock: socket.socket, document: Mapping[str, Any]) -> None:
    body = json.dumps(document).encode()
    try:
        sock.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
    except OSError:
        return  # the client has gone


@contextmanager
def stand_in(seconds: float, places: int) -> Iterator[str]:
    """A running server; gives its address."""
    server = StandIn(seconds, places)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.is_over = True
        thread.join(10)
