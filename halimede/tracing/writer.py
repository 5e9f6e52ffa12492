"""The thread that writes traces, so that a slow disk or collector does not delay requests.

Its queue is limited in bytes. Traces beyond that are dropped, and the log says so. The thread starts with the first
job. It waits a little to gather jobs, and yields the interpreter to the event loop between them.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic, sleep
from typing import Final

log = logging.getLogger(__name__)

MAX_QUEUED_BYTES: Final = 1 << 26
"""The limit of the queue, in approximate bytes of its traces."""
_GATHER_SECONDS = 0.05
"""How long the thread waits for more jobs before it begins."""
_JOBS_PER_YIELD = 32
"""Jobs after which the thread yields the interpreter."""

Job = Callable[[], object]


class Writer:
    """Runs jobs on one thread, in their order. `put` and `close` are called on the event loop.

    `gather` is the number of seconds that the thread waits for more jobs before it begins.
    """

    def __init__(self, gather: float = _GATHER_SECONDS) -> None:
        self._gather = gather
        self._jobs: deque[tuple[Job, int]] = deque()
        self._wake = threading.Event()
        self._put_bytes = 0
        self._done_bytes = 0
        self._dropped = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, job: Job, cost: int, traces: int = 1) -> bool:
        """Queues a job. `cost` is the approximate number of bytes that it keeps in memory.

        Returns False if the queue is full. The job is dropped then, and with it that many traces.
        """
        # Two counters, each written by one thread only, need no lock.
        queued = self._put_bytes - self._done_bytes
        if queued > MAX_QUEUED_BYTES or self._closed:
            if not self._dropped:
                log.warning(
                    "traces are dropped: they arrive faster than the disk or collector takes them; lower the trace rate"
                )
            self._dropped += traces
            return False
        # At half the limit, so that the two lines do not alternate while the queue is nearly full.
        if self._dropped and queued * 2 < MAX_QUEUED_BYTES:
            log.warning("%d traces were dropped", self._dropped)
            self._dropped = 0
        self._put_bytes += cost
        self._jobs.append((job, cost))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="halimede-traces", daemon=True)
            self._thread.start()
        if not self._wake.is_set():
            self._wake.set()
        return True

    @property
    def busy(self) -> bool:
        """Whether a job is queued or running."""
        return self._put_bytes != self._done_bytes

    def close(self, timeout: float) -> bool:
        """Runs the remaining jobs. Waits at most `timeout` seconds. Returns whether all have run."""
        self._closed = True
        if self._dropped:
            log.warning("%d traces were dropped", self._dropped)
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
            self._wake.clear()  # before the jobs are taken, so that a later `put` wakes the thread again
            self._drain()
            if self._closed and not self._jobs:
                return

    def _drain(self) -> None:
        count = 0
        while self._jobs:
            job, cost = self._jobs.popleft()
            try:
                job()
            except Exception:
                log.exception("failed to write a trace")
            self._done_bytes += cost
            count += 1
            if count % _JOBS_PER_YIELD == 0 and not self._closed:
                sleep(0)  # lets the event loop take the interpreter lock, if it waits for it


class OutageLog:
    """Logs once that something fails, and once that it works again. Used on one thread."""

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
