"""Which lines of the log are left out since the same was said less than a second before. Pure, told the time."""

import copy
import logging
from collections.abc import Hashable
from typing import Final

from halimede.cli.log_lines import LEFT_OUT, ROWS

PERIOD: Final = 1.0
MAX_KNOWN: Final = 1024
"""Lines that are remembered, at most; with more of them at once some are said again."""


class Repeats:
    """`admits` is asked before a record is said; what was left out meanwhile is told with the next one that is said, or
    by `due` when none comes. `waiting`: something was left out and not told yet."""

    def __init__(self) -> None:
        self._said: dict[Hashable, tuple[float, int, logging.LogRecord]] = {}
        self.waiting = 0

    def admits(self, record: logging.LogRecord, now: float) -> bool:
        """Whether to say it. Only warnings and errors are ever left out."""
        if record.levelno < logging.WARNING:
            return True
        key = record.levelno, record.filename, record.lineno, record.getMessage(), getattr(record, ROWS, None)
        when, left_out, _ = self._said.get(key, (now - PERIOD, 0, record))
        if now - when < PERIOD:
            self.waiting += not left_out
            self._said[key] = when, left_out + 1, record
            return False
        if left_out:
            self.waiting -= 1
            setattr(record, LEFT_OUT, left_out)
        if len(self._said) >= MAX_KNOWN:
            self._forget(now)
        self._said[key] = now, 0, record
        return True

    def due(self, now: float) -> list[logging.LogRecord]:
        """What to say of lines that were left out and not followed by another, each once."""
        found = []
        for key, (when, left_out, record) in list(self._said.items()):
            if now - when < PERIOD:
                continue
            if not left_out:
                del self._said[key]
                continue
            self.waiting -= 1
            told = copy.copy(record)
            setattr(told, LEFT_OUT, left_out - 1 or None)
            found.append(told)
            self._said[key] = now, 0, record
        return found

    def _forget(self, now: float) -> None:
        """Those that are old; where none is, all that have nothing to tell."""
        old = [key for key, (when, left_out, _) in self._said.items() if not left_out and now - when >= PERIOD]
        for key in old or [key for key, (_, left_out, _) in self._said.items() if not left_out]:
            del self._said[key]
