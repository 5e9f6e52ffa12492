"""The worker's end of the socket to the server: whole frames in, lists of buffers out.

Sending is safe on any thread. The main thread takes the batches, any thread may ask the server something; whoever waits
first reads for all. A second thread does nothing but notice that the server is gone, even while a model computes.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
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
        self._turn = threading.Condition()
        self._reading = False
        self._ended = False
        self._numbers = count(1)
        self._waiters = 0
        self._replies: dict[int, frames.Frame] = {}
        self._credited: dict[int, Callable[[int, int], None]] = {}

    def receive(self) -> frames.Frame | None:
        """The next frame that is no reply, None at the end of the stream. Raises FrameError. Main thread only."""
        whole = self._whole
        while not whole:
            if not self._read_unless(lambda: bool(whole)):
                return None
        return whole.popleft()

    def ask(self, what: int, batch: int, index: int) -> int:
        """The server's answer to a question about a request; any thread, blocks. Raises OSError where the server is
        gone, and FrameError."""
        number = next(self._numbers)
        self.send(frames.frame(frames.QUESTION, [frames.NUMBER.pack(number)], None, batch, index, what))
        self.wait_until(lambda: number in self._replies)
        answer: int = self._replies.pop(number).count
        return answer

    def take_credit(self, batch: int, credited: Callable[[int, int], None]) -> None:
        """Now `credited` is told how much of the answers to a request (its index) was taken, by whoever reads."""
        self._credited[batch] = credited

    def forget_credit(self, batch: int) -> None:
        """The batch is over. May be called by a finaliser."""
        self._credited.pop(batch, None)

    def wait_until(self, there: Callable[[], bool]) -> None:
        """Reads, or lets others read, until something is there; any thread. Raises OSError where the server is gone,
        and FrameError."""
        with self._turn:
            self._waiters += 1
        try:
            while not there():
                if not self._read_unless(there):
                    raise BrokenPipeError("the server is gone")
        finally:
            with self._turn:
                self._waiters -= 1

    def _read_unless(self, there: Callable[[], bool]) -> bool:
        """Reads once, or lets another thread read that already does; not at all where what is wanted is there
        meanwhile. False at the end of the stream."""
        with self._turn:
            while self._reading and not there():
                self._turn.wait()
            if there():
                return True
            if self._ended:
                return False
            self._reading = True
        try:
            self._ended = not self._read()
        except BaseException:
            self._ended = True
            raise
        finally:
            with self._turn:
                self._reading = False
                if self._waiters:
                    self._turn.notify_all()
        return not self._ended

    def _read(self) -> bool:
        size = self._socket.recv_into(self._assembler.space())
        for frame in self._assembler.received(size):
            if frame.kind == frames.REPLY:
                self._replies[frame.batch] = frame
            elif frame.kind == frames.CREDIT:
                self._credit(frame)
            else:
                self._whole.append(frame)
        return size > 0

    def _credit(self, frame: frames.Frame) -> None:
        credited = self._credited.get(frame.batch)
        if credited is not None:  # else the batch is over
            credited(frame.count, *frame.unpack(frames.NUMBER))

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
