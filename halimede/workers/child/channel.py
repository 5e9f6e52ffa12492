"""The worker's end of the socket to the server: whole frames in, lists of buffers out.

Sending is safe on any thread; only the worker's main thread receives. A second thread does nothing but notice that the
server is gone, even while a model computes.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from typing import Any

from . import frames

_MOST_BUFFERS = 512
"""Buffers given to the kernel at once (it takes 1024)."""


class Channel:
    """A stream socket that speaks frames."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()
        self._late: deque[list[Any]] = deque()
        self._assembler = frames.Assembler()
        self._whole: deque[frames.Frame] = deque()

    def receive(self) -> frames.Frame | None:
        """The next frame, None at the end of the stream. Raises FrameError."""
        while not self._whole:
            count = self._socket.recv_into(self._assembler.space())
            if not count:
                return None
            self._whole.extend(self._assembler.received(count))
        return self._whole.popleft()

    def send(self, buffers: list[Any]) -> None:
        """Blocks until the kernel has taken everything. Raises OSError."""
        with self._sending:
            self._write(buffers)
        self._flush()

    def send_from_finaliser(self, buffers: list[Any]) -> None:
        """Like `send`, but leaves the buffers to whoever is sending: that may be this very thread, further up."""
        self._late.append(buffers)
        self._flush()

    def _flush(self) -> None:
        while self._late and self._sending.acquire(blocking=False):
            try:
                while self._late:
                    self._write(self._late.popleft())
            finally:
                self._sending.release()

    def _write(self, buffers: list[Any]) -> None:
        for start in range(0, len(buffers), _MOST_BUFFERS):
            self._send_some(buffers[start : start + _MOST_BUFFERS])

    def _send_some(self, buffers: list[Any]) -> None:
        sent = self._socket.sendmsg(buffers)
        for buffer in buffers:
            size = len(buffer)
            if sent < size:
                self._socket.sendall(memoryview(buffer)[sent:])
            sent = max(0, sent - size)

    def end_with_server(self) -> None:
        """From now on this process ends as soon as the server's end of the socket is closed."""
        threading.Thread(target=self._watch, name="server watch", daemon=True).start()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._socket, 0)  # a hang-up is reported whatever one asks for, and data would only wake us
        poll.poll()
        os._exit(1)

    def abandon(self) -> None:
        """Closes this process's copy of the descriptor: a forked child must not keep the connection open."""
        self._socket.close()
