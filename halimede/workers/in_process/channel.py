"""The connection of a model in this process to the server: the frames of workers, without a socket.

The server's end is used on its event loop, the other end on any thread of the model. A frame is copied into memory of
its own on the way, so that neither side can change what the other one reads.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from halimede.tensors import Buffer
from halimede.workers.child import frames
from halimede.workers.child.channel import BaseChannel
from halimede.workers.host.worker import write_to_log


class LocalChannel(BaseChannel):
    """`arrived` is called on the server's `loop` with each frame that the model sends."""

    gone = "the model is being unloaded"

    def __init__(self, loop: asyncio.AbstractEventLoop, arrived: Callable[[frames.Frame], None]) -> None:
        super().__init__()
        self._loop = loop
        self._arrived = arrived
        self._delivered: SimpleQueue[Sequence[Buffer] | None] = SimpleQueue()
        self.about: Mapping[str, object] = {}
        """What log lines of the model are about: `model` and `version`."""
        self._watchers: dict[asyncio.AbstractEventLoop, None] = {}

    # ---- the model's end

    def send(self, buffers: list[Buffer]) -> None:
        """Does not block. Raises BrokenPipeError if the server's loop has ended."""
        frame = whole(buffers)
        if frame.kind == frames.LOG:
            write_to_log(frame, self.about)
            return
        try:
            self._loop.call_soon_threadsafe(self._arrived, frame)
        except RuntimeError:
            raise BrokenPipeError(super().gone) from None

    send_from_finaliser = send

    def watched_by(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watchers[loop] = None
        if not self._delivered.empty():  # a frame came before this loop watched
            loop.call_soon(self.read_now)

    def unwatched_by(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watchers.pop(loop, None)

    def _read(self, wait: bool = True) -> bool:
        try:
            buffers = self._delivered.get(wait)
            while buffers is not None:
                self._sort(whole(buffers))
                if self._delivered.empty():
                    return True
                buffers = self._delivered.get(False)
        except Empty:
            raise BlockingIOError from None
        return False

    def _was_read(self) -> None:
        """Calls loops again: one that was called while this thread read has returned without reading."""
        super()._was_read()
        if not self._delivered.empty():
            self._call_watchers()

    # ---- the server's end

    def deliver(self, buffers: list[Buffer]) -> None:
        self._delivered.put(buffers)
        self._call_watchers()

    def close(self) -> None:
        """No more answers come: threads that wait for one, now or later, get an error."""
        self._delivered.put(None)
        self._call_watchers()

    def _call_watchers(self) -> None:
        for loop in tuple(self._watchers):
            with suppress(RuntimeError):  # the loop was closed, with its coroutines
                loop.call_soon_threadsafe(self.read_now)


def whole(buffers: Sequence[Buffer]) -> frames.Frame:
    """The frame in these buffers, copied into memory of its own."""
    data = frames.blank(sum(map(len, buffers)))
    at = 0
    for buffer in buffers:
        end = at + len(buffer)
        data[at:end] = buffer
        at = end
    return frames.Frame(frames.HEADER.unpack_from(data), data)
