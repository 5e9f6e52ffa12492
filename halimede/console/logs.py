"""The last lines of the log, for the page. Any thread may log; the event loop reads."""

import logging
from collections import deque
from typing import Any, Final

MAX_LINES: Final = 1000
SECRET: Final = "secret"
"""Attribute of a record that the page must not show."""
MAX_CHARACTERS: Final = 4000
"""Of one message. A traceback may have more."""


class LogRing(logging.Handler):
    """Keeps the last records of the loggers it is added to, each with a number. A model that logs without end costs a
    bounded part of the memory."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[dict[str, Any]] = deque(maxlen=MAX_LINES)
        self._next = 0

    def emit(self, record: logging.LogRecord) -> None:
        """One thread at a time: `logging.Handler` holds its lock around this."""
        if getattr(record, SECRET, False):
            return
        try:
            text = record.getMessage()
            if record.exc_info and record.exc_info[1] is not None:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            rows = getattr(record, "table", "")
            text = f"{text}\n{rows}" if rows else text
        except Exception:  # the arguments do not fit the message; logging must not fail its caller
            self.handleError(record)
            return
        line = {
            "number": self._next,
            "time": round(record.created * 1000),
            "level": level_of(record.levelno),
            "text": text[:MAX_CHARACTERS],
            "model": str(getattr(record, "model", "")),
            "where": f"{record.filename}:{record.lineno}",
        }
        self._next += 1
        self._lines.append(line)

    def since(self, number: int) -> list[dict[str, Any]]:
        """Returns the lines that are kept, from this number on."""
        self.acquire()
        try:
            return [line for line in self._lines if line["number"] >= number]
        finally:
            self.release()


def level_of(number: int) -> str:
    for least, word in ((logging.ERROR, "error"), (logging.WARNING, "warning"), (logging.INFO, "info")):
        if number >= least:
            return word
    return "verbose"
