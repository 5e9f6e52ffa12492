"""The live line of a running measurement, and the signals that end it. Main thread."""

import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TextIO

import numpy as np

from halimede.perf.statistics import DUE, END, FLAGS, Counts, Records, ServerStats

REDRAW_SECONDS = 0.2
RECENT_NANOSECONDS = 1_000_000_000
"""The live figures are those of the last second."""
BAR = 20


class Interrupted(Exception):
    """The user wants the program to stop."""


class Interrupt:
    """Counts SIGINT (Ctrl-C) and SIGTERM: the first ends the measurement in order, the second ends the program at once
    (X26)."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.count = 0
        self.number = 0
        """The last signal."""
        self.at_once: Callable[[], None] = lambda: None
        """Runs before the program ends at once."""
        self._old: dict[int, Any] = {}

    def install(self) -> None:
        self._old = {each: signal.signal(each, self._handle) for each in (signal.SIGINT, signal.SIGTERM)}

    def remove(self) -> None:
        for each, old in self._old.items():
            signal.signal(each, old)

    @property
    def status(self) -> int:
        """The exit status: 0 after Ctrl-C, as perf_analyzer has it."""
        return 128 + self.number if self.number == signal.SIGTERM else 0

    def is_set(self) -> bool:
        return self.count > 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.number = number
        self._say(f"Interrupt signal ({number}) received.")
        if self.count == 1:
            self._say("Waiting for in-flight inferences to complete.")
            return
        self._say("Exiting immediately...")
        # The load processes end when this one is gone.
        self.at_once()
        os._exit(self.status)


class Watch:
    """Draws the live line on a stream, if there is one."""

    def __init__(self, stops: Callable[[], bool], stream: TextIO | None, columns: int = 100) -> None:
        """`stops` says whether the user has pressed Ctrl-C."""
        self._stops, self._stream, self._columns = stops, stream, columns
        self._drawn = False
        self._next = 0.0
        self._server = ""

    def is_interrupted(self) -> bool:
        return self._stops()

    def told(self, server: ServerStats | None) -> None:
        """Notes what the server did in the last window."""
        counts = server.counts if server is not None else Counts()
        if counts.successes:
            queue, compute = counts.queue_ns / max(1, counts.queued), counts.compute_ns / max(1, counts.inputs)
            self._server = f"server: queue {queue / 1e6:.2f} ms, compute {compute / 1e6:.2f} ms"

    def tick(self, title: str, recent: Records, seconds: float, share: float, failures: int) -> None:
        now = time.monotonic()
        if self._stream is None or now < self._next:
            return
        self._next = now + REDRAW_SECONDS
        line = live_line(title, recent, share, failures, self._server)
        self._stream.write("\r\x1b[K" + line[: self._columns - 1])
        self._stream.flush()
        self._drawn = True

    def clear(self) -> None:
        """Removes the line, so that other text can be printed."""
        if self._stream is not None and self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False


def live_line(title: str, recent: Records, share: float, failures: int, server: str) -> str:
    """One line: what runs, how far it is, and the figures of the last second."""
    full = round(share * BAR)
    parts = [title, "[" + "#" * full + "." * (BAR - full) + "]"]
    if len(recent):
        last = int(recent[:, END].max())
        latest = recent[(recent[:, END] > last - RECENT_NANOSECONDS) & ((recent[:, FLAGS] & 1) == 0)]
        if len(latest):
            spent = max(1, last - int(latest[:, END].min()))
            latencies = (latest[:, END] - latest[:, DUE]) / 1e6
            p50, p99 = np.percentile(latencies, (50, 99))
            parts.append(f"{len(latest) / spent * 1e9:,.0f}/s p50 {p50:.2f} ms p99 {p99:.2f} ms")
    if failures:
        parts.append(f"{failures} failed")
    if server:
        parts.append(server)
    return "  ".join(parts)


def live_stream(wanted: bool | None) -> TextIO | None:
    """Where the live line goes: standard error if it is a terminal, unless the command line says otherwise."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        return None
    return sys.stderr
