"""One stream of events for each open page: what changed in the last second. Event-loop thread only.

The server is read only while a page is open. A page that does not read its stream misses events, and gets everything
again when it reads on.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from halimede.console.logs import LogRing
from halimede.console.readings import State, changes, state_of
from halimede.console.target import Target
from halimede.console.traces import TraceRing
from halimede.errors import Error
from halimede.transport.http1.exchange import Http1AnswerStream, Http1Exchange

log = logging.getLogger(__name__)

SECONDS: Final = 1.0
MAX_PAGES: Final = 32
MAX_SHARE: Final = 0.2
"""Largest share of the time that reading may take. With very many models the page is updated less often."""
FIELDS: Final = b"Content-Type: text/event-stream\r\nX-Accel-Buffering: no\r\n"


class _Page:
    """An open stream. `full`: it needs everything. `numbers` are those of the next log line and the next trace."""

    __slots__ = ("full", "log_line", "stream", "trace", "writable")

    def __init__(self, stream: Http1AnswerStream) -> None:
        self.stream = stream
        self.full = True
        self.writable = True
        self.log_line = 0
        self.trace = 0

    def send(self, event: Mapping[str, Any]) -> None:
        self.writable = self.stream.send((b"data: %b\n\n" % json.dumps(event, separators=(",", ":")).encode(),))
        if not self.writable:
            self.full = True
            self.stream.on_writable(self._resume)

    def _resume(self) -> None:
        self.writable = True


class Events:
    """`hello` returns what a page gets first. `logs` and `traces` are None if the server has none to show."""

    def __init__(
        self,
        target: Target,
        hello: Callable[[], Mapping[str, Any]],
        logs: LogRing | None = None,
        traces: TraceRing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._hello = hello
        self._logs = logs
        self._traces = traces
        self._clock = clock
        self._pages: set[_Page] = set()
        self._state = State()
        self._down = ""
        self._read_at = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return len(self._pages) >= MAX_PAGES

    def open(self, exchange: Http1Exchange, fields: bytes) -> None:
        """Answers with a stream that lasts until the page is closed."""
        page = _Page(exchange.begin(200, fields))
        self._pages.add(page)
        exchange.on_gone = lambda: self._pages.discard(page)
        page.send({"hello": dict(self._hello())})
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._follow())
        elif self._state.rows and page.writable:
            # Other pages are open, and the next reading may be a second away.
            self._tell(page, {**changes(State(), self._state), "full": True})

    def close(self) -> None:
        """Ends all streams, so that the server's end does not wait for them."""
        pages, self._pages = self._pages, set()
        if self._task is not None:
            self._task.cancel()
        for page in pages:
            page.stream.send((), last=True)

    async def _follow(self) -> None:
        while self._pages:
            began = self._clock()
            try:
                await self.tick()
            except Exception:
                # The next second may be better, and the pages must not be left without one.
                log.exception("the console failed to read the server")
            took = self._clock() - began
            await asyncio.sleep(max(SECONDS - took, took / MAX_SHARE - took))

    async def tick(self) -> None:
        """Reads the server once and tells every page what changed."""
        before, down = self._state, ""
        try:
            readings = await self._target.read()
            at = self._clock()
            # Statistics of many models are megabytes of JSON.
            self._state = await asyncio.get_running_loop().run_in_executor(None, state_of, readings)
        except (Error, ValueError) as error:
            at, down = self._clock(), str(error)
        # Not before: a page that comes meanwhile gets the state of the reading before, with its time.
        self._read_at, self._down = at, down
        if self._traces is not None:
            self._traces.settle()
        news = changes(before, self._state)
        everything: dict[str, Any] | None = None
        for page in list(self._pages):
            if not page.writable:
                continue
            if page.full and everything is None:
                everything = {**changes(State(), self._state), "full": True}
            self._tell(page, (everything or {}) if page.full else news)

    def _tell(self, page: _Page, news: Mapping[str, Any]) -> None:
        page.full = False
        event = {"t": self._read_at, "now": round(time.time() * 1000), **news, "down": self._down}
        page.send(self._with_lines(page, event))

    def _with_lines(self, page: _Page, event: dict[str, Any]) -> dict[str, Any]:
        """Adds the log lines and traces that the page does not know."""
        if self._logs is not None and (lines := self._logs.since(page.log_line)):
            page.log_line = lines[-1]["number"] + 1
            event["logs"] = lines
        if self._traces is not None:
            event["tracing"] = self._traces.is_on
            if traces := self._traces.since(page.trace):
                page.trace = traces[-1]["number"] + 1
                event["traces"] = traces
        return event
