"""Ctrl-C: the first ends the search after the present measurement, the second at once, the third ends the program
(X45). Main thread.
"""

import os
from types import FrameType

from halimede.perf import watch


class Interrupt(watch.Interrupt):
    """Counts how often Ctrl-C was pressed. `at_once` runs before the program ends by the third."""

    def is_set(self) -> bool:
        """Whether to stop during a measurement."""
        return self.count > 1

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1:
            self._say("Interrupted: the present measurement is finished, and everything is saved. Again: stop it now.")
        elif self.count == 2:
            self._say("Interrupted twice: saving. Again: end at once.")
        else:
            self.at_once()
            os._exit(128 + number)
