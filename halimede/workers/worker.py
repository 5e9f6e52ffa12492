"""A worker as the server sees it: give it its order and wait, then exchange frames with it on the event loop.

It is used in two phases. First on a load thread, blocking: `ask`. Then, after `attach`, on the event loop. What the
frames mean is not its business, except for the two that belong to the process: the answer to the order, and log lines.
"""

import asyncio
import errno
import json
import logging
import os
import select
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from halimede.platform.worker_poller import WorkerPoller
from halimede.tensors import Buffer
from halimede.workers.child import frames
from halimede.workers.process import Process
from halimede.workers.readiness import Readiness

log = logging.getLogger(__name__)

_MOST_BUFFERS = 512
_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.EBADF, errno.ENOTCONN})
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.INFO - 1)
"""By the number of a `pb_utils.Logger` level; verbose is what `--log-verbose=1` shows."""
ROWS = "table"
"""The attribute of a log record for lines to be written below it as they are (`cli.log_lines`)."""
VERBATIM = "verbatim"
"""That of a record whose words are a model's own."""
_DESCRIPTOR = struct.Struct("i")
_ONE_DESCRIPTOR = socket.CMSG_SPACE(_DESCRIPTOR.size)
_RESULTS = frozenset({frames.READY, frames.REFUSED})


class WorkerLost(Exception):
    """The process ended, or talks nonsense."""


class WorkerSlow(Exception):
    """The process did not answer in time; it was killed."""


class WorkerRefused(Exception):
    """The process could not do what it was ordered to; the text says why."""


class Meanwhile:
    """Where the frames go that arrive before the answer to an order: to `arrived`, on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, arrived: Callable[[frames.Frame], None]) -> None:
        self.loop = loop
        self._arrived = arrived

    def pass_on(self, frame: frames.Frame) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody answers any more
            self.loop.call_soon_threadsafe(self._arrived, frame)


class Worker:
    """A process and the frames to and from it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._socket = process.socket
        self._assembler = frames.Assembler()
        self._unsent: list[memoryview] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_frame: Callable[[frames.Frame], None]
        self._on_lost: Callable[[], None] = lambda: None
        self._asking = False
        self._reading = False
        self.alive = True
        self.about: Mapping[str, object] = {}
        """What its messages to the log are about: `model` and `version`."""
        self.worker_poller: WorkerPoller | None = None
        """Who looks whether it has something to say while a turn of the loop is long."""
        self.readiness: Readiness | None = None
        """Where the model has a say in its readiness."""

    @property
    def pid(self) -> int:
        return self._process.pid

    # ---- on a load thread

    def ask(self, order: Mapping[str, Any], limit: float | None = None, meanwhile: Meanwhile | None = None) -> Any:
        """Gives the order and waits, at most `limit` seconds, for what comes of it. Other frames that arrive before it
        go to `meanwhile`, whose loop may `send` already.

        Raises WorkerRefused, WorkerLost or WorkerSlow; after each of them the process is gone.
        """
        try:
            try:
                self._asking = True
                return self._ask(order, limit, meanwhile)
            finally:
                self._asking = False
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

    def _ask(self, order: Mapping[str, Any], limit: float | None, meanwhile: Meanwhile | None) -> Any:
        end = None if limit is None else monotonic() + limit
        self._socket.settimeout(limit)
        self._socket.sendall(b"".join(frames.frame(frames.START, [json.dumps(order).encode()])))
        self._socket.setblocking(False)  # the loop may send while this thread reads
        if meanwhile is not None:
            self._loop = meanwhile.loop
        while True:
            count = self._receive(end)
            if not count:
                raise WorkerLost("the process ended")
            found = [frame for frame in self._assembler.received(count) if not self._is_log(frame)]
            results = [frame for frame in found if frame.kind in _RESULTS or meanwhile is None]
            for frame in found:
                if meanwhile is not None and frame.kind not in _RESULTS:
                    meanwhile.pass_on(frame)
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
        """The socket that comes with READY where the model is asked for its readiness. Raises OSError where it is
        something else."""
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                for (descriptor,) in _DESCRIPTOR.iter_unpack(data):  # a second one fits in where one is asked for
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
        """From now on the loop owns the socket, and calls back for each frame, and once when the process is lost: then
        it has hung up, and somebody shall `bury` it."""
        self._loop = loop
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._socket.setblocking(False)
        loop.call_soon_threadsafe(self._listen)

    def close(self, limit: float) -> None:
        """Lets the process finish, at most `limit` seconds, then ends it. Blocks; does not raise."""
        self.alive = False
        self._on_loop(lambda: self.send(frames.frame(frames.CLOSE, [])))
        if not self._process.wait(limit):
            log.error("worker process %d did not finish within %g seconds and is killed", self.pid, limit)
        self._on_loop(self._read_rest)
        self.kill()

    def bury(self, grace: float) -> str:
        """How the process ended, in words, after `on_lost`. Blocks; what goes on for `grace` seconds is killed."""
        return self._process.bury(grace)

    def kill(self) -> None:
        """Ends the process at once; `on_lost` is not called. Any thread."""
        self.alive = False
        self._process.kill()
        self._on_loop(self._disconnect)

    def _on_loop(self, callback: Callable[[], None]) -> None:
        """Runs the callback where the socket belongs: on the loop while that runs, else here."""
        if self._loop is not None and self._loop.is_running():
            with suppress(RuntimeError):  # the loop was closed in between: nothing listens any more
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
        """Sends them, or as much as fits now and the rest when there is room. Does not block and does not raise: a
        process that is gone is noticed by the reader, one that cannot be sent to for another reason is ended here."""
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
        """The system did not send: the process is gone, or the bytes are, as in shared memory that its owner made
        shorter. The rest of a frame that never comes would be read out of the next one: ends the process."""
        if error.errno not in _GONE:
            self.end(f"cannot be sent to and is killed: {error}")

    def _readable(self) -> None:
        """One read for each call: what a socket holds at once is what bounds the time that it takes. What its frames
        set off may look at this socket again (`worker_poller`): frames that came later are not taken up before."""
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
            self.distrust(error)
            return
        for frame in found:
            self._on_frame(frame)
        if not count:
            self._lost()

    def _read_rest(self) -> None:
        """What the process logged last, as from its `finalize`; nobody waits for anything else of it."""
        with suppress(OSError, *frames.MALFORMED):
            while count := self._socket.recv_into(self._assembler.space()):
                for frame in self._assembler.received(count):
                    self._is_log(frame)

    def distrust(self, error: Exception) -> None:
        """What the process sent makes no sense: ends it. `on_lost` is called."""
        self.end(f"sent a malformed frame and is killed: {error}")

    def end(self, why: str) -> None:
        """Ends the process, for a reason that is told in the log. `on_lost` is called."""
        log.error("worker process %d %s", self.pid, why)
        self._process.kill()
        self._lost()

    def _lost(self) -> None:
        """The connection has ended, and the process with it, or a moment later."""
        if self.alive:
            self.alive = False
            self._on_lost()
        self._disconnect()

    def _disconnect(self) -> None:
        if self.readiness is not None:
            self.readiness.close()
        if self._asking:  # whoever asks closes it: while a thread polls a number, that must not become another's
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
        self._unsent = []

    def _is_log(self, frame: frames.Frame) -> bool:
        if frame.kind != frames.LOG:
            return False
        write_to_log(frame, self.about)
        return True


def write_to_log(frame: frames.Frame, about: Mapping[str, object]) -> None:
    """A message of a model, which it is `about`. Raises what `frames.MALFORMED` lists."""
    file, line, text = frame.text(), int(frame.text()), frame.text()
    level = _LEVELS[frame.count % len(_LEVELS)]
    if log.isEnabledFor(level):
        message, more = text, {**about, VERBATIM: True}
        if frame.flags & frames.ROWS:
            message, _, below = text.partition("\n")
            more[ROWS] = below
        log.handle(log.makeRecord(log.name, level, file, line, message, (), None, extra=more))


def _result(frame: frames.Frame) -> Any:
    if frame.kind == frames.READY:
        return json.loads(frame.rest())
    if frame.kind == frames.REFUSED:
        raise WorkerRefused(frame.rest().decode())
    raise frames.FrameError(f"kind {frame.kind} is no answer to an order")


def _after(buffers: list[Buffer] | list[memoryview], sent: int) -> list[memoryview]:
    """What is left of the buffers when the first `sent` bytes are gone."""
    for i, buffer in enumerate(buffers):
        size = len(buffer)
        if sent < size:
            return [memoryview(buffer)[sent:], *(memoryview(rest) for rest in buffers[i + 1 :])]
        sent -= size
    return []
