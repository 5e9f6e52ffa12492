"""A child process and the frames to and from it, as the server sees them.

| phase | thread | what happens |
|---|---|---|
| new | load thread | `start` sends the order and waits for READY or REFUSED; other frames go to an `EarlyFrames` |
| attached | event loop | `attach`: the loop reads; every frame goes to `on_frame`; `send` never blocks |
| lost | event loop | the connection ended: `on_lost` is called once; a supervisor thread calls `reap` |
| closed | load thread | `close` sends CLOSE and waits, or `kill` ends the process at once; `on_lost` is not called |

`alive` is True in the first two phases. This module interprets READY, REFUSED and LOG, and no other frame.
"""

import asyncio
import errno
import logging
import os
import select
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic

from halimede.platform.worker_poller import WorkerPoller
from halimede.tensors import Buffer
from halimede.workers.child import frames
from halimede.workers.child.segments import SegmentReader, SegmentWriter
from halimede.workers.host.process import Process
from halimede.workers.host.readiness import Readiness

log = logging.getLogger(__name__)

_MOST_BUFFERS = 512
"""Buffers given to the kernel in one call. It takes 1024."""
_PROCESS_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.EBADF, errno.ENOTCONN})
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.INFO - 1)
"""By the number of a `pb_utils.Logger` level. The last one is verbose: `--log-verbose=1` shows it."""
ROWS = "table"
"""Attribute of a log record: lines that `cli.log_lines` writes below the message as they are."""
VERBATIM = "verbatim"
"""Attribute of a log record: the message is a model's own text."""
_DESCRIPTOR = struct.Struct("i")
_ONE_DESCRIPTOR = socket.CMSG_SPACE(_DESCRIPTOR.size)
_RESULTS = frozenset({frames.READY, frames.REFUSED})


class WorkerLost(Exception):
    """The process ended, or what it sends makes no sense."""


class WorkerSlow(Exception):
    """The process did not answer in time; it was killed."""


class WorkerRefused(Exception):
    """The process could not carry out its order. `content` says why: the text of a Python model, an error of a backend
    (`backends.child.order`)."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content.decode("utf-8", "replace"))
        self.content = content


class EarlyFrames:
    """Takes the frames that arrive before the answer to an order, and calls `arrived` with each, on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, arrived: Callable[[frames.Frame], None]) -> None:
        self.loop = loop
        self._arrived = arrived

    def pass_on(self, frame: frames.Frame) -> None:
        with suppress(RuntimeError):  # the loop was closed: nothing answers any more
            self.loop.call_soon_threadsafe(self._arrived, frame)


class Worker:
    """See the table above. `about` is what log lines of the process are about: `model`, `version`, and `instance` for a
    backend. VERBATIM: False lets the log add them to what the process logs."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._socket = process.socket
        self.segments = SegmentWriter(process.segments) if process.segments is not None else None
        """Where large tensors of sent frames go."""
        self._received_segments = SegmentReader(process.segments) if process.segments is not None else None
        self._assembler = frames.Assembler(self._received_segments, self.segments, frames.MAX_RECORDS_BYTES)
        self._unsent: list[memoryview] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_frame: Callable[[frames.Frame], None]
        self._on_lost: Callable[[], None] = lambda: None
        self._starting = False
        self._reading = False
        self.alive = True
        self.about: Mapping[str, object] = {}
        self.worker_poller: WorkerPoller | None = None
        """Reads the socket in between if a turn of the loop is long."""
        self.readiness: Readiness | None = None
        """Asks the model whether it is ready; None if the model does not want to be asked."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def prefix(self) -> str:
        """The beginning of a log line, "model 'm' version 1: "; empty if the process has no model yet."""
        return f"model '{self.about['model']}' version {self.about['version']}: " if self.about else ""

    @property
    def who(self) -> str:
        """The process for a log line: "model 'm' version 1: worker process 123"."""
        return f"{self.prefix}worker process {self.pid}"

    # ---- on a load thread

    def start(self, order: bytes, limit: float | None = None, early: EarlyFrames | None = None) -> bytes:
        """Sends the order and waits up to `limit` seconds (None: for ever) for READY, whose content it returns. Other
        frames go to `early`; its loop may call `send` already.

        Raises WorkerRefused, WorkerLost or WorkerSlow; each of them has ended the process. Blocks.
        """
        try:
            try:
                self._starting = True
                return self._start(order, limit, early)
            finally:
                self._starting = False
        except TimeoutError as error:
            self.kill()
            raise WorkerSlow(f"no answer within {limit:g} seconds") from error
        except frames.MALFORMED as error:
            self.kill()
            raise WorkerLost(str(error)) from error
        except OSError as error:
            self.kill()
            raise WorkerLost(str(error)) from error
        except (WorkerLost, WorkerRefused):
            self.kill()
            raise

    def _start(self, order: bytes, limit: float | None, early: EarlyFrames | None) -> bytes:
        end = None if limit is None else monotonic() + limit
        self._socket.settimeout(limit)
        self._socket.sendall(b"".join(frames.frame(frames.START, [order])))
        self._socket.setblocking(False)  # the loop may send while this thread reads
        if early is not None:
            self._loop = early.loop
        while True:
            count = self._receive(end)
            if not count:
                raise WorkerLost("the process ended")
            found = [frame for frame in self._assembler.received(count) if not self._is_log(frame)]
            results = [frame for frame in found if frame.kind in _RESULTS or early is None]
            for frame in found:
                if early is not None and frame.kind not in _RESULTS:
                    early.pass_on(frame)
            if results:
                return _result(results[0])

    def _receive(self, end: float | None) -> int:
        """Raises TimeoutError, OSError."""
        readable = select.poll()
        readable.register(self._socket, select.POLLIN)
        while True:
            if not readable.poll(None if end is None else max(end - monotonic(), 0.001) * 1000):
                raise TimeoutError
            with suppress(BlockingIOError):
                count, ancillary, *_ = self._socket.recvmsg_into([self._assembler.space()], _ONE_DESCRIPTOR)
                self._take(ancillary)
                return count

    def _take(self, ancillary: Sequence[tuple[int, int, bytes]]) -> None:
        """Takes the socket that comes with READY if the model wants to be asked whether it is ready. Raises OSError if
        the descriptor is no socket."""
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                for (descriptor,) in _DESCRIPTOR.iter_unpack(data):  # the room for one holds two: CMSG_SPACE rounds up
                    self._take_socket(descriptor)

    def _take_socket(self, descriptor: int) -> None:
        if self._loop is None or self.readiness is not None:
            os.close(descriptor)
            return
        try:
            sock = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            raise
        sock.set_inheritable(False)
        self.readiness = Readiness(sock, self._loop)

    def attach(
        self, loop: asyncio.AbstractEventLoop, on_frame: Callable[[frames.Frame], None], on_lost: Callable[[], None]
    ) -> None:
        """From now on the loop owns the socket. It calls `on_frame` for each frame, and `on_lost` once when the process
        has closed the connection; then somebody must call `reap`."""
        self._loop = loop
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._socket.setblocking(False)
        loop.call_soon_threadsafe(self._listen)

    def close(self, limit: float) -> None:
        """Asks the process to finish, waits up to `limit` seconds, then kills it. Blocks; does not raise."""
        self.alive = False
        self._on_loop(lambda: self.send(frames.frame(frames.CLOSE, [])))
        if not self._process.wait(limit):
            log.error("%s did not finish within %g seconds and is killed", self.who, limit, extra=self.about)
        self._on_loop(self._read_rest)
        self.kill()

    def reap(self, grace: float) -> str:
        """Waits, after `on_lost`, for the end of the process and returns in words how it ended. It is killed after
        `grace` seconds. Blocks."""
        return self._process.reap(grace)

    def kill(self) -> None:
        """Kills the process at once. `on_lost` is not called. Any thread."""
        self.alive = False
        self._process.kill()
        self._on_loop(self._disconnect)

    def _on_loop(self, callback: Callable[[], None]) -> None:
        """Runs the callback on the thread that owns the socket: on the loop while that runs, else here."""
        if self._loop is not None and self._loop.is_running():
            with suppress(RuntimeError):  # the loop was closed in between: the socket is ours
                self._loop.call_soon_threadsafe(callback)
                return
        callback()

    # ---- on the event loop

    def _listen(self) -> None:
        if self._loop is not None and self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._readable)
            if self.worker_poller is not None:
                self.worker_poller.watch(self._socket.fileno(), self._readable)

    def send(self, buffers: list[Buffer]) -> None:
        """Sends what fits now, and the rest when there is room. Does not block and does not raise: the reader notices a
        process that is gone; a process that cannot be sent to for another reason is ended here."""
        if self._received_segments is not None and self._received_segments.unused:
            buffers = [frames.numbers_frame(frames.RELEASE, self._received_segments.unused), *buffers]
        if self.segments is not None and self.segments.forgotten:
            buffers = [frames.numbers_frame(frames.FORGET, self.segments.forgotten), *buffers]
        if self._unsent:
            self._unsent += map(memoryview, buffers)
            return
        try:
            sent = self._socket.sendmsg(buffers[:_MOST_BUFFERS])
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._failed(error)
            return
        if len(buffers) > 1 or sent < len(buffers[0]):
            self._unsent = _after(buffers, sent)
            if self._unsent and self._loop is not None:
                self._loop.add_writer(self._socket.fileno(), self._writable)

    def _writable(self) -> None:
        try:
            self._unsent = _after(self._unsent, self._socket.sendmsg(self._unsent[:_MOST_BUFFERS]))
        except BlockingIOError:
            return
        except OSError as error:
            self._unsent = []
            self._failed(error)
        descriptor = self._socket.fileno()
        if not self._unsent and self._loop is not None and descriptor >= 0:
            self._loop.remove_writer(descriptor)

    def _failed(self, error: OSError) -> None:
        """The kernel did not take the bytes. Either the process is gone, or the bytes cannot be read: a client made its
        shared memory shorter. Then a part of the frame may have been sent, and the child would take the next frame for
        the rest of it: the process is ended."""
        if error.errno not in _PROCESS_GONE:
            self.end(f"cannot be sent to and is killed: {error}")

    def _readable(self) -> None:
        """Reads once: a socket holds a bounded number of bytes, which bounds the time. Whatever the frames set off may
        look at this socket again (`worker_poller`); frames that came later must wait until the first are handled."""
        if not self._reading:
            self._reading = True
            try:
                self._read()
            finally:
                self._reading = False

    def _read(self) -> None:
        try:
            count = self._socket.recv_into(self._assembler.space())
        except BlockingIOError:
            return
        except OSError:
            count = 0
        try:
            found = [frame for frame in self._assembler.received(count) if not self._is_log(frame)]
        except frames.MALFORMED as error:
            self.end_malformed(error)
            return
        for frame in found:
            self._on_frame(frame)
        if not count:
            self._lost()

    def _read_rest(self) -> None:
        """Writes what the process logged last, for example in `finalize`. Other frames are dropped."""
        with suppress(OSError, *frames.MALFORMED):
            while count := self._socket.recv_into(self._assembler.space()):
                for frame in self._assembler.received(count):
                    self._is_log(frame)

    def end_malformed(self, error: Exception) -> None:
        """Ends a process that sent bytes that make no sense. `on_lost` is called."""
        self.end(f"sent a malformed frame and is killed: {error}")

    def end(self, why: str) -> None:
        """Kills the process and writes the reason to the log. `on_lost` is called."""
        log.error("%s %s", self.who, why, extra=self.about)
        self._process.kill()
        self._lost()

    def _lost(self) -> None:
        """The connection ended. The process ends too, now or a moment later."""
        if self.alive:
            self.alive = False
            self._on_lost()
        self._disconnect()

    def _disconnect(self) -> None:
        if self.readiness is not None:
            self.readiness.close()
        if self._starting:  # a thread polls the descriptor: its number must not become another's meanwhile
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            return
        descriptor = self._socket.fileno()
        if descriptor < 0:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)
        if self.worker_poller is not None:
            self.worker_poller.forget(descriptor)
        self._socket.close()
        for side in (self.segments, self._received_segments):
            if side is not None:
                side.close()
        self._unsent = []

    def _is_log(self, frame: frames.Frame) -> bool:
        if frame.kind != frames.LOG:
            return False
        write_to_log(frame, self.about)
        return True


def write_to_log(frame: frames.Frame, about: Mapping[str, object]) -> None:
    """Writes a LOG frame of the model that `about` names. Raises what `frames.MALFORMED` lists."""
    file, line, text = frame.text(), int(frame.text()), frames.cut(frame.text())
    level = _LEVELS[frame.count % len(_LEVELS)]
    if log.isEnabledFor(level):
        message, more = text, {VERBATIM: True, **about}
        if frame.flags & frames.ROWS:
            message, _, below = text.partition("\n")
            more[ROWS] = below
        log.handle(log.makeRecord(log.name, level, file, line, message, (), None, extra=more))


def _result(frame: frames.Frame) -> bytes:
    if frame.kind == frames.READY:
        return frame.rest()
    if frame.kind == frames.REFUSED:
        raise WorkerRefused(frame.rest())
    raise frames.FrameError(f"kind {frame.kind} is no answer to an order")


def _after(buffers: list[Buffer] | list[memoryview], sent: int) -> list[memoryview]:
    """The buffers without their first `sent` bytes."""
    for i, buffer in enumerate(buffers):
        size = len(buffer)
        if sent < size:
            return [memoryview(buffer)[sent:], *(memoryview(rest) for rest in buffers[i + 1 :])]
        sent -= size
    return []
