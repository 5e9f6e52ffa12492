"""Asks a worker whether its model says that it is ready (P9).

Event-loop thread only. At most one question to a worker is open; callers that ask meanwhile share its answer. Questions
have a socket of their own, so that neither batches nor the loop wait for a model that takes its time.

| state of the question | `ask` |
|---|---|
| none open | sends one, and waits for its answer |
| open | waits for its answer, also if those who asked before have given up |
| closed | False at once |

Each caller waits for LIMIT seconds at most, then it is told False.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from halimede.workers.child.readiness import QUESTION, READY
from halimede.workers.host.limit import Clock

LIMIT = 5.0
"""Seconds after which a model that has not answered is not ready."""

EARLY = 0.001
"""Seconds by which a timer of the loop may be early."""

Done = Callable[[bool], None]


class Question:
    """The question of one worker. `send` passes it to the model."""

    def __init__(self, clock: Clock, send: Callable[[], None]) -> None:
        self._clock = clock
        self._send = send
        self._open = False
        self._waiting: deque[tuple[float, Done]] = deque()
        """The end of each caller's time, in order."""
        self._armed = False
        self._closed = False

    def ask(self, done: Done) -> None:
        """Calls `done` once; at once if the model is gone."""
        if self._closed:
            done(False)
            return
        self._waiting.append((self._clock.time() + LIMIT, done))
        if not self._armed:
            self._arm(LIMIT)
        if not self._open:
            self._open = True
            self._send()

    def answered(self, ready: bool) -> None:
        self._open = False
        self._tell(ready)

    def close(self) -> None:
        """No answer will come."""
        self._closed = True
        self._tell(False)

    def _arm(self, delay: float) -> None:
        self._armed = True
        self._clock.call_later(delay, self._look)

    def _look(self) -> None:
        """Tells those whose time is over. One timer serves all of them: the next is set for the first who is left."""
        self._armed = False
        now = self._clock.time()
        late = []
        while self._waiting and self._waiting[0][0] <= now + EARLY:
            late.append(self._waiting.popleft()[1])
        if self._waiting:
            self._arm(self._waiting[0][0] - now)
        for done in late:
            done(False)

    def _tell(self, ready: bool) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, done in waiting:
            done(ready)


class Readiness:
    """The server's end of the socket for questions."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._loop = loop
        self._question = Question(loop, self._send)
        self._listening = False

    def ask(self, done: Done) -> None:
        if not self._listening and self._socket.fileno() >= 0:
            self._listening = True
            self._loop.add_reader(self._socket.fileno(), self._readable)
        self._question.ask(done)

    def close(self) -> None:
        """The worker is gone, or was asked to finish."""
        if self._socket.fileno() >= 0:
            if self._listening and not self._loop.is_closed():
                self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        self._question.close()

    def _send(self) -> None:
        with suppress(OSError):  # the worker is gone; its owner closes this object
            self._socket.send(QUESTION)

    def _readable(self) -> None:
        try:
            said = self._socket.recv(1)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said:
            self._question.answered(said == READY)
        else:
            self.close()
