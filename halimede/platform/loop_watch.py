"""Watches the event loop from a thread, and logs what it does if one turn takes long.

The loop pays ten short callbacks per second for it, and requests pay nothing. Compiled modules have no frames, so of
them the log shows only what they called.
"""

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from types import FrameType

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.1
"""Time between two looks."""
LONG_TURN_SECONDS = 0.05
"""A turn that takes longer is logged."""
SECONDS_BETWEEN_LINES = 1.0
SHOWN_FRAMES = 4


class LoopWatch:
    """Watches a loop. Make it on the loop's thread."""

    def __init__(
        self,
        call_soon_threadsafe: Callable[[Callable[[], object]], object],
        what: Callable[[], str] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`what` tells, on the watching thread, what the loop does."""
        self._call_soon_threadsafe = call_soon_threadsafe
        self._clock = clock
        self._watched = threading.get_ident()
        self._what = what or self._place
        self._answered = threading.Event()
        self._ended = threading.Event()
        self._logged = -SECONDS_BETWEEN_LINES
        self._thread = threading.Thread(target=self._run, name="loop watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends watching, also if it has not begun. Blocks until the thread has ended, which does not wait for the
        loop."""
        self._ended.set()
        self._answered.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_SECONDS):
            self.look()

    def look(self) -> None:
        """Waits until the loop has answered, and logs if that took long. Not on the loop's thread."""
        self._answered.clear()
        began = self._clock()
        try:
            self._call_soon_threadsafe(self._answered.set)
        except RuntimeError:
            # The loop is closed.
            return
        if self._answered.wait(LONG_TURN_SECONDS) or self._ended.is_set():
            return
        what = self._what()
        self._answered.wait()
        now = self._clock()
        if now - self._logged >= SECONDS_BETWEEN_LINES and not self._ended.is_set():
            self._logged = now
            log.warning("a turn of the event loop took %.2f s, and other clients waited: %s", now - began, what)

    def _place(self) -> str:
        """Returns the innermost functions that the loop's thread is in."""
        frame: FrameType | None = sys._current_frames().get(self._watched)
        places: list[str] = []
        while frame is not None and len(places) < SHOWN_FRAMES:
            code = frame.f_code
            places.append(f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})")
            frame = frame.f_back
        return " < ".join(places)
