"""Writes to the log that a model still loads, and at which line: some imports take minutes, and silence looks like a
hang."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain, count
from types import FrameType

from .tracebacks import is_ours

STAMP_COUNT = (5, 15, 30, 60, 120)
"""Seconds after which it writes a line; then every EVERY seconds."""
EVERY = 120

Emit = Callable[[str, int, str], None]
"""Gets file, line and text."""


def moments() -> Iterator[int]:
    """The times of all lines, in seconds from the beginning, without end."""
    return chain(STAMP_COUNT, count(STAMP_COUNT[-1] + EVERY, EVERY))


class Progress:
    """A context manager around code that may take long, on the thread that runs it. `what` begins each line, `path` is
    the model's file. `wait` waits for an event for some seconds and returns whether it is set."""

    def __init__(
        self, emit: Emit, what: str, path: str, wait: Callable[[threading.Event, float], bool] | None = None
    ) -> None:
        self._emit = emit
        self._what = what
        self._path = os.path.abspath(path)  # as the import system has it in the model's frames
        self._wait = wait or (lambda over, seconds: over.wait(seconds))
        self._over = threading.Event()
        self._watched = 0

    def __enter__(self) -> Progress:
        self._watched = threading.get_ident()
        _thread.start_new_thread(self._watch, ())  # below `threading`: models see no thread of ours
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        began = time.monotonic()
        for moment in moments():
            if self._wait(self._over, max(began + moment - time.monotonic(), 0.0)):
                return
            try:
                self._say(moment)
            except OSError:  # the server is gone
                return

    def _say(self, seconds: int) -> None:
        frame = sys._current_frames().get(self._watched)
        file, line, where = located(frame, self._path)
        if not self._over.is_set():
            self._emit(file, line, f"{self._what} after {seconds} s{f' ({where})' if where else ''}")


def located(frame: FrameType | None, path: str) -> tuple[str, int, str]:
    """File, line and description of where a thread is: what it imports, and the line of the model that caused it. The
    file is the model's if that line is known."""
    importing = ""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == path:
            line = frame.f_lineno
            here = f"{os.path.basename(path)} line {line}"
            method = "" if code.co_name == "<module>" else f"{code.co_name}, "
            return os.path.basename(path), line, f"{importing}{method}{here}"
        if not importing and code.co_name == "<module>" and not is_ours(code.co_filename):
            importing = f"importing {frame.f_globals.get('__name__')}, "
        frame = frame.f_back
    return os.path.basename(path), 0, importing.rstrip(", ")
