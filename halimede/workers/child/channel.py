"""The worker's end of the connection to the server: whole frames in, lists of buffers out.

Sending is safe on any thread. The main thread takes the batches, any thread may ask the server something or call other
models through it; whoever waits first reads for all. A second thread does nothing but notice that the server is gone,
even while a model computes.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the same of `signal` takes ten times as long
import _thread
import os
import select
import signal
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from . import frames

if TYPE_CHECKING:
    import asyncio

_MOST_BUFFERS = 512
"""Buffers given to the kernel at once (it takes 1024)."""
_LOOKED_AGAIN = 1000
"""Milliseconds after which the server notices that a model has closed the connection."""


class BaseChannel(ABC):
    """A connection that frames come by: who reads them, and who gets them. How they come and go is the subclass's."""

    gone = "the server is gone"
    """What its end means."""

    def __init__(self) -> None:
        self._whole: deque[frames.Frame] = deque()
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)  # the lock itself is entered faster
        self._reading = False
        self._ended = False
        self._numbers = count(1)
        self._asleep = 0
        self._replies: dict[int, frames.Frame] = {}
        self._credited: dict[int, Callable[[int, int], None]] = {}
        self._expected: dict[int, Callable[[frames.Frame], None]] = {}

    def receive(self) -> frames.Frame | None:
        """The next frame that is no reply, None at the end of the stream. Raises FrameError. Main thread only."""
        whole = self._whole
        while not whole:
            if not self._read_unless(self._has_whole):
                return None
        return whole.popleft()

    def _has_whole(self) -> bool:
        return bool(self._whole)

    def ask(self, what: int, batch: int, index: int) -> int:
        """The server's answer to a question about a request; any thread, blocks. Raises OSError where the server is
        gone, and FrameError."""
        answer: int = self.question(what, batch, index).count
        return answer

    def question(
        self, what: int, batch: int, index: int, meta: list[bytes] | None = None, tensors: list[Any] | None = None
    ) -> frames.Frame:
        """The whole reply to a question that may bring more; as `ask`."""
        number = next(self._numbers)
        records = [frames.NUMBER.pack(number), *(meta or ())]
        self.send(frames.frame(frames.QUESTION, records, tensors, batch, index, what))
        self.wait_until(lambda: number in self._replies)
        return self._replies.pop(number)

    def new_number(self) -> int:
        """One that no question and no call has had."""
        return next(self._numbers)

    def expect(self, number: int, arrived: Callable[[frames.Frame], None]) -> None:
        """Now `arrived` is given each answer to this call, by whoever reads, up to the last one."""
        self._expected[number] = arrived

    def expect_no_more(self, number: int) -> None:
        """Nobody waits for these answers. May be called by a finaliser."""
        self._expected.pop(number, None)

    def take_credit(self, batch: int, credited: Callable[[int, int], None]) -> None:
        """Now `credited` is told how much of the answers to a request (its index) was taken, by whoever reads."""
        self._credited[batch] = credited

    def forget_credit(self, batch: int) -> None:
        """The batch is over. May be called by a finaliser."""
        self._credited.pop(batch, None)

    def wait_until(self, there: Callable[[], bool]) -> None:
        """Reads, or lets others read, until something is there; any thread. Raises OSError where the server is gone,
        FrameError, and what a signal handler of the model raises meanwhile: many have an alarm as their time limit."""
        while not there():
            if not self._read_unless(there, self._await):
                raise BrokenPipeError(self.gone)

    def _read_unless(self, there: Callable[[], bool], before: Callable[[], None] | None = None) -> bool:
        """Reads once, or lets another thread read that already does; not at all where what is wanted is there
        meanwhile. What `before` raises does not end the stream. False at its end."""
        with self._lock:
            while self._reading and not there():
                self._sleep()
            if there():
                return True
            if self._ended:
                return False
            self._reading = True
        begun = False
        try:
            if before is not None:
                before()
            begun = True
            self._ended = not self._read()
        except BaseException:
            self._ended = begun
            raise
        finally:
            self._was_read()
        return not self._ended

    def _sleep(self) -> None:
        """Until something was read. With the lock held."""
        self._asleep += 1
        try:
            self._turn.wait()
        finally:
            self._asleep -= 1

    def _was_read(self) -> None:
        with self._lock:
            self._reading = False
            if self._asleep:
                self._turn.notify_all()

    @abstractmethod
    def watched_by(self, loop: asyncio.AbstractEventLoop) -> None:
        """Has an event loop call `read_now` when something arrives, until `unwatched_by`. On that loop's thread."""

    @abstractmethod
    def unwatched_by(self, loop: asyncio.AbstractEventLoop) -> None: ...

    def read_now(self) -> None:
        """Reads what has arrived, if no other thread does. Does not block. Raises OSError, and FrameError."""
        with self._lock:
            if self._reading or self._ended:
                return
            self._reading = True
        try:
            self._ended = not self._read(wait=False)
        except BlockingIOError:
            pass  # another thread was quicker
        except BaseException:
            self._ended = True
            raise
        finally:
            self._was_read()

    def _await(self) -> None:  # noqa: B027  # elsewhere nothing breaks it off
        """Where an exception may break off the waiting: waits until something has arrived, and reads nothing of it, so
        that nothing is lost."""

    @abstractmethod
    def _read(self, wait: bool = True) -> bool:
        """Gives `_sort` what has arrived, waiting for it; False at the end of the stream. Raises BlockingIOError where
        it should not wait, OSError, and FrameError."""

    def _sort(self, frame: frames.Frame) -> None:
        if frame.kind == frames.REQUESTS:
            self._whole.append(frame)
        elif frame.kind == frames.CALL_ANSWER:
            self._answer(frame)
        elif frame.kind == frames.REPLY:
            self._replies[frame.batch] = frame
        elif frame.kind == frames.CREDIT:
            self._credit(frame)
        else:
            self._whole.append(frame)

    def _answer(self, frame: frames.Frame) -> None:
        last = frame.flags & frames.FINISHED
        arrived = self._expected.pop(frame.batch, None) if last else self._expected.get(frame.batch)
        if arrived is not None:  # else nobody waits for it any more
            arrived(frame)

    def _credit(self, frame: frames.Frame) -> None:
        credited = self._credited.get(frame.batch)
        if credited is not None:  # else the batch is over
            credited(frame.count, *frame.unpack(frames.NUMBER))

    @abstractmethod
    def send(self, buffers: list[Any]) -> None:
        """Blocks until the buffers may be written over. Raises OSError."""

    @abstractmethod
    def send_from_finaliser(self, buffers: list[Any]) -> None:
        """Like `send`, but a thread that is sending further up is not waited for."""


class Channel(BaseChannel):
    """A stream socket that speaks frames."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._socket = sock
        self._sending = threading.Lock()
        self._late: deque[list[Any]] = deque()
        self._assembler = frames.Assembler()
        self._bell: Any = None

    def watched_by(self, loop: asyncio.AbstractEventLoop) -> None:
        """By a descriptor of its own, which can be read when the socket can: uvloop makes what it watches non-blocking,
        for all threads."""
        with self._lock:  # else the descriptor of whoever was a moment quicker is closed under its loop
            if self._bell is None:
                bell = select.epoll()
                bell.register(self._socket, select.EPOLLIN)
                self._bell = bell
        loop.add_reader(self._bell.fileno(), self.read_now)

    def unwatched_by(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._bell.fileno())

    def _await(self) -> None:
        if _signal.getsignal(_signal.SIGALRM) is not _signal.SIG_DFL:  # what a time limit is made of
            self._socket.recv(1, socket.MSG_PEEK)

    def _read(self, wait: bool = True) -> bool:
        size = self._socket.recv_into(self._assembler.space(), 0, 0 if wait else socket.MSG_DONTWAIT)
        for frame in self._assembler.received(size):
            self._sort(frame)
        return size > 0

    def send(self, buffers: list[Any]) -> None:
        """Blocks until the kernel has taken everything. Raises OSError, and what a signal handler of the model raises
        meanwhile."""
        with self._sending:
            try:
                if len(buffers) == 1:
                    self._write_one(buffers[0])
                else:
                    self._write(buffers)
            except BaseException as error:
                self._break_off(error)
                raise
        if self._late:
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
            except BaseException as error:
                self._break_off(error)
                raise
            finally:
                self._sending.release()

    def offer(self, buffers: list[Any], sock: socket.socket) -> None:
        """Sends a small frame, and a socket with it, which is closed here. Raises OSError."""
        with self._sending, sock:
            socket.send_fds(self._socket, buffers, [sock.fileno()])
        if self._late:
            self._flush()

    def _break_off(self, error: BaseException) -> None:
        """Ends the connection, and with it this process: a part of the frame may have gone, and the server would take
        the next one for the rest of it."""
        if self._socket.fileno() >= 0 and not isinstance(error, ConnectionError):
            print(f"a message to the server was broken off ({type(error).__name__}): this worker ends", file=sys.stderr)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _write_one(self, buffer: Any) -> None:
        sent = self._socket.send(buffer)
        if sent < len(buffer):
            self._socket.sendall(memoryview(buffer)[sent:])

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
        _thread.start_new_thread(self._watch, ())  # models see no thread but their own, nor does gevent when it patches

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._socket, 0)  # a hang-up is reported whatever one asks for, and data would only wake us
        seen: list[tuple[int, int]] = []
        while not seen:  # while we wait here the socket stays open, also where the model has closed its descriptor
            seen = poll.poll(_LOOKED_AGAIN)
        if seen[0][1] & select.POLLNVAL:
            return
        if os.getpgrp() == os.getpid():  # what the model started ends with it
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    def abandon(self) -> None:
        """Closes this process's copy of the descriptor: a forked child must not keep the connection open."""
        self._socket.close()
