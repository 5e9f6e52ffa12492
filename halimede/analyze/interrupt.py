"""Ctrl-C: the first ends the search after the present measurement, the second at once, the third ends the program
(X45). SIGTERM ends it at once, as the second does. Main thread.
"""

import os
import signal
from types import FrameType

from halimede.perf import watch


class Interrupt(watch.Interrupt):
    """Counts signals; SIGTERM counts as two. `at_once` runs before the program ends by the third."""

    def is_set(self) -> bool:
        """Whether to stop during a measurement."""
        return self.count > 1

    @property
    def status(self) -> int:
        """The exit status after a signal: 130 or 143. Otherwise 0."""
        return 128 + self.number if self.number else 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        was_stopping = self.is_set()
        self.number = number
        self.count += 2 if number == signal.SIGTERM else 1
        if was_stopping:
            self.at_once()
            os._exit(self.status)
        elif self.is_set():
            self._say(
                "Interrupted: the present measurement is dropped, and everything else is saved. Again: end at once."
            )
        else:
            self._say("Interrupted: the present measurement is finished, and everything is saved. Again: stop it now.")
