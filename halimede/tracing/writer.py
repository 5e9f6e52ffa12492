"""The thread that writes traces, so that no disk and no collector holds serving.

What waits for it is bounded by its bytes; what comes beyond that is lost, and said so. The thread starts with the first
work, gathers for a moment what comes, and lets the event loop go before its own work.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic, sleep
from typing import Final

log = logging.getLogger(__name__)

MAX_WAITING: Final = 1 << 26
"""Bytes that wait to be written, at most."""
_GATHER_SECONDS = 0.05
_YIELD_EVERY = 32
"""Pieces of work after which the event loop goes first, if it waits."""

Work = Callable[[], object]


class Writer:
    """`put` is for the event loop; the work runs in its order on the thread. `close` writes what is left, within a
    limit. `gather` is how long the thread waits for more before it begins."""

    def __init__(self, gather: float = _GATHER_SECONDS) -> None:
        self._gather = gather
        self._jobs: deque[tuple[Work, int]] = deque()
        self._wake = threading.Event()
        self._put_bytes = 0
        self._done_bytes = 0
        self._lost = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, work: Work, cost: int, traces: int = 1) -> bool:
        """`cost` are the bytes, about, that wait with the work. False where so many traces are lost, since the writer
        does not keep up."""
        waiting = self._put_bytes - self._done_bytes
        if waiting > MAX_WAITING or self._closed:
            if not self._lost:
                log.warning(
                    "traces are dropped: they arrive faster than the disk or collector takes them; lower the trace rate"
                )
            self._lost += traces
            return False
        if self._lost and waiting * 2 < MAX_WAITING:
            log.warning("%d traces were dropped", self._lost)
            self._lost = 0
        self._put_bytes += cost
        self._jobs.append((work, cost))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="halimede-traces", daemon=True)
            self._thread.start()
        if not self._wake.is_set():
            self._wake.set()
        return True

    @property
    def busy(self) -> bool:
        """Whether there is work that is not done."""
        return self._put_bytes != self._done_bytes

    def close(self, timeout: float) -> bool:
        """Whether all was written. Waits so many seconds at most."""
        self._closed = True
        if self._lost:
            log.warning("%d traces were dropped", self._lost)
        if self._thread is None:
            return True
        self._wake.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            if not self._closed:
                sleep(self._gather)
            self._wake.clear()
            self._drain()
            if self._closed and not self._jobs:
                return

    def _drain(self) -> None:
        count = 0
        while self._jobs:
            work, cost = self._jobs.popleft()
            try:
                work()
            except Exception:
                log.exception("failed to write a trace")
            self._done_bytes += cost
            count += 1
            if count % _YIELD_EVERY == 0 and not self._closed:
                sleep(0)


class Outage:
    """Says once that something does not work, and once that it works again. One thread."""

    def __init__(self) -> None:
        self._since = 0.0

    def failed(self, text: str, *values: object) -> None:
        if not self._since:
            self._since = monotonic()
            log.error(text, *values)

    def worked(self, text: str, *values: object) -> None:
        if self._since:
            self._since = 0.0
            log.info(text, *values)
