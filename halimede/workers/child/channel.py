"""The child's end of the connection to the server: whole frames in, lists of buffers out.

Any thread may send. The main thread takes the batches; any thread may ask the server something or call another model.
One thread reads at a time, and reads for all that wait:

| state | fields | goes on |
|---|---|---|
| no thread reads | `_reading` False | the next thread that waits becomes the reader |
| one thread reads | `_reading` True | it sorts what it read, wakes the others, and stops reading |
| the stream ended | `_ended` True | threads that wait get BrokenPipeError, `receive` gives None |

A second thread notices that the server is gone, also while a model computes, and ends the process.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal.getsignal` takes ten times as long
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
from .segments import SegmentReader, SegmentWriter

if TYPE_CHECKING:
    import asyncio

_MOST_BUFFERS = 512
"""Buffers given to the kernel in one call. It takes 1024."""
_CLOSED_SOCKET_CHECK_MS = 1000
"""Milliseconds between two checks that the model has not closed our socket."""


class BaseChannel(ABC):
    """A connection that frames come by: which thread reads, and which gets which frame. Subclasses move the bytes."""

    segments: SegmentWriter | None = None
    """Where large tensors of sent frames go, if there is shared memory."""
    gone = "the server is gone"
    """The text of the error if the stream has ended."""

    def __init__(self) -> None:
        self._whole: deque[frames.Frame] = deque()
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)  # we enter the lock itself: that is faster
        self._reading = False
        self._ended = False
        self._numbers = count(1)
        self._asleep = 0
        self._replies: dict[int, frames.Frame] = {}
        self._credited: dict[int, Callable[[int, int], None]] = {}
        self._expected: dict[int, Callable[[frames.Frame], None]] = {}

    def receive(self) -> frames.Frame | None:
        """The next frame that answers nothing, None at the end of the stream. Raises FrameError. Main thread only."""
        whole = self._whole
        while not whole:
            if not self._read_unless(self._has_whole):
                return None
        return whole.popleft()

    def _has_whole(self) -> bool:
        return bool(self._whole)

    def ask(self, what: int, batch: int, index: int) -> int:
        """The server's answer to a question about a request, as a number. Any thread; blocks. Raises OSError if the
        server is gone, and FrameError."""
        answer: int = self.question(what, batch, index).count
        return answer

    def question(
        self, what: int, batch: int, index: int, meta: list[bytes] | None = None, tensors: list[Any] | None = None
    ) -> frames.Frame:
        """The REPLY to a question. Any thread; blocks. Raises OSError if the server is gone, and FrameError."""
        number = next(self._numbers)
        records = [frames.NUMBER.pack(number), *(meta or ())]
        self.send(frames.frame(frames.QUESTION, records, tensors, batch, index, what))
        self.wait_until(lambda: number in self._replies)
        return self._replies.pop(number)

    def new_number(self) -> int:
        """A number that no question and no call has had."""
        return next(self._numbers)

    def expect(self, number: int, arrived: Callable[[frames.Frame], None]) -> None:
        """From now on the reading thread gives `arrived` each answer to this call, up to the last one."""
        self._expected[number] = arrived

    def expect_no_more(self, number: int) -> None:
        """Nobody waits for these answers any more. A finalizer may call this."""
        self._expected.pop(number, None)

    def take_credit(self, batch: int, credited: Callable[[int, int], None]) -> None:
        """From now on the reading thread calls `credited(index of the request, bytes taken in all)`."""
        self._credited[batch] = credited

    def forget_credit(self, batch: int) -> None:
        """The batch has finished. A finalizer may call this."""
        self._credited.pop(batch, None)

    def wait_until(self, there: Callable[[], bool]) -> None:
        """Reads, or lets another thread read, until `there()`. Any thread. Raises OSError if the server is gone,
        FrameError, and whatever a signal handler of the model raises: many models limit their time by an alarm."""
        while not there():
            if not self._read_unless(there, self._await):
                raise BrokenPipeError(self.gone)

    def _read_unless(self, there: Callable[[], bool], before: Callable[[], None] | None = None) -> bool:
        """Reads once, or waits for the thread that reads already; returns at once if `there()`. False at the end of
        the stream. `before` waits for bytes and may be interrupted: what it raises does not end the stream."""
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
            self._ended = begun  # a read that broke off may have lost a part of a frame
            raise
        finally:
            self._was_read()
        return not self._ended

    def _sleep(self) -> None:
        """Waits until something was read. The caller holds the lock."""
        self._asleep += 1
        try:
            self._turn.wait()
        finally:
            self._asleep -= 1

    def _was_read(self) -> None:
        with self._lock:
            self._reading = False
            if self._asleep:  # notify_all costs more than this look, and mostly no thread sleeps
                self._turn.notify_all()

    @abstractmethod
    def watched_by(self, loop: asyncio.AbstractEventLoop) -> None:
        """Has an event loop call `read_now` whenever bytes arrive, until `unwatched_by`. On that loop's thread."""

    @abstractmethod
    def unwatched_by(self, loop: asyncio.AbstractEventLoop) -> None: ...

    def read_now(self) -> None:
        """Reads what has arrived, unless another thread reads. Does not block. Raises OSError, and FrameError."""
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

    def _await(self) -> None:  # noqa: B027  # only a socket has to
        """Waits until bytes have arrived and reads none, so that an exception of a signal handler loses none."""

    @abstractmethod
    def _read(self, wait: bool = True) -> bool:
        """Gives `_sort` what has arrived; False at the end of the stream. Raises BlockingIOError if it must not wait
        and nothing is there, OSError, and FrameError."""

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
        if arrived is not None:  # else the caller has given up
            arrived(frame)

    def _credit(self, frame: frames.Frame) -> None:
        credited = self._credited.get(frame.batch)
        if credited is not None:  # else the batch has finished
            credited(frame.count, *frame.unpack(frames.NUMBER))

    @abstractmethod
    def send(self, buffers: list[Any]) -> None:
        """Blocks until the buffers may be overwritten. Raises OSError."""

    @abstractmethod
    def send_from_finaliser(self, buffers: list[Any]) -> None:
        """Sends from a finalizer, which may run on a thread that is in `send` itself: it must not wait for the lock."""


class Channel(BaseChannel):
    """A stream socket that frames go through. `segments` is the socket for the descriptors of shared memory, if any."""

    def __init__(self, sock: socket.socket, segments: socket.socket | None = None) -> None:
        super().__init__()
        self._socket = sock
        self._sending = threading.Lock()
        self._late: deque[list[Any]] = deque()
        self._epoll: Any = None
        self._descriptors = segments
        self.segments = SegmentWriter(segments) if segments is not None else None
        self._received_segments = SegmentReader(segments) if segments is not None else None
        self._assembler = frames.Assembler(self._received_segments, self.segments)

    def watched_by(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop watches an epoll descriptor, which is readable when the socket is. It must not watch the socket
        itself: uvloop makes what it watches non-blocking, for all threads."""
        with self._lock:  # two loops at once would make two, and one of them would be closed while it is watched
            if self._epoll is None:
                epoll = select.epoll()
                epoll.register(self._socket, select.EPOLLIN)
                self._epoll = epoll
        loop.add_reader(self._epoll.fileno(), self.read_now)

    def unwatched_by(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._epoll.fileno())

    def _await(self) -> None:
        if _signal.getsignal(_signal.SIGALRM) is not _signal.SIG_DFL:  # the model has a time limit by alarm
            self._socket.recv(1, socket.MSG_PEEK)

    def _read(self, wait: bool = True) -> bool:
        try:
            size = self._socket.recv_into(self._assembler.space(), 0, 0 if wait else socket.MSG_DONTWAIT)
        except ConnectionResetError:  # the server was killed before it had read everything
            return False
        for frame in self._assembler.received(size):
            self._sort(frame)
        return size > 0

    def send(self, buffers: list[Any]) -> None:
        """Blocks until the kernel has taken everything. Raises OSError, and what a signal handler of the model raises
        meanwhile."""
        with self._sending:
            try:
                if self._received_segments is not None and self._received_segments.unused:
                    self._write_one(frames.numbers_frame(frames.RELEASE, self._received_segments.unused))
                if self.segments is not None and self.segments.forgotten:
                    self._write_one(frames.numbers_frame(frames.FORGET, self.segments.forgotten))
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
        """Queues the buffers. The thread that is in `send` sends them: it may be this very thread, further up."""
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
        """Sends a small frame together with a socket, which is closed here. Raises OSError."""
        with self._sending, sock:
            socket.send_fds(self._socket, buffers, [sock.fileno()])
        if self._late:
            self._flush()

    def _break_off(self, error: BaseException) -> None:
        """Ends the connection, and with it this process. A part of the frame may have been sent, and the server would
        take the next frame for the rest of it."""
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
        """From now on this process ends as soon as the server closes its end of the socket, or dies."""
        _thread.start_new_thread(
            self._watch, ()
        )  # below `threading`: models see no thread of ours, nor does gevent when it patches

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._socket, 0)  # a hang-up is always reported; data would only wake us
        seen: list[tuple[int, int]] = []
        while not seen:  # a poll keeps the socket open, even if the model has closed its descriptor
            seen = poll.poll(_CLOSED_SOCKET_CHECK_MS)
        if seen[0][1] & select.POLLNVAL:
            return
        if os.getpgrp() == os.getpid():  # processes that the model started end too
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    def abandon(self) -> None:
        """Closes this process's copy of the sockets: a forked child must not keep the connection open."""
        self._socket.close()
        if self._descriptors is not None:
            self._descriptors.close()


def connect(descriptor: int, segments: int | None) -> Channel:
    """The connection to the server. From now on this process ends with it."""
    channel = Channel(_own_socket(descriptor), None if segments is None else _own_socket(segments))
    _ignore_interrupts(channel)
    channel.end_with_server()
    return channel


def _own_socket(descriptor: int) -> socket.socket:
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    sock.setblocking(True)
    return sock


def _ignore_interrupts(channel: Channel) -> None:
    """SIGINT and SIGTERM do nothing here: an operator who sends them to all processes means the server, which must
    drain first. The end of its socket ends this process.

    A handler and not SIG_IGN: programs that the model starts have the default action again. A forked child gets the
    default handlers and gives up the connection. The signals are blocked during a fork: a signal that came before the
    child has its own handlers would be lost, and `multiprocessing.Pool.terminate` would wait for ever.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    masks: dict[int, Any] = {}  # by thread: several may fork at once

    def before() -> None:
        masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def after() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop(threading.get_ident()))

    def in_fork() -> None:
        channel.abandon()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=in_fork)
