"""The progress of the start: a line at the bottom of a terminal that changes in place, below the lines of the log."""

import os
from typing import TextIO

from halimede.models.lifecycle import ModelRecord, ModelTable, VersionState

_ERASE = "\r\x1b[K"
_BAR = 24
"""Characters."""


class StatusLine:
    """A line that changes in place. Any thread may set its `text`. Only the log's thread calls the methods, since only
    one thread may write to the terminal at a time. `terminal` is None if there is none: then nothing is written."""

    def __init__(self, terminal: TextIO | None) -> None:
        self._terminal = terminal
        self.text = ""
        self._shown = ""

    @property
    def exists(self) -> bool:
        return self._terminal is not None

    def erase(self) -> None:
        """Makes room for a line of the log."""
        self._write("")

    def draw(self) -> None:
        self._write(self.text)

    def _write(self, text: str) -> None:
        if self._terminal is None or text == self._shown:
            return
        # A line that wraps could not be erased. The cursor goes back after the text, so that what a library prints by
        # itself begins in the first column.
        shown = text[: self._columns() - 1]
        self._terminal.write(f"{_ERASE}{shown}\r" if shown else _ERASE)
        self._terminal.flush()
        self._shown = text

    def _columns(self) -> int:
        assert self._terminal is not None
        try:
            return os.get_terminal_size(self._terminal.fileno()).columns or 80
        except OSError:
            return 80


def progress_text(models: ModelTable, seconds: float) -> str:
    """How many models of the start are loaded, or have failed, after so many seconds. Empty if there are none."""
    pending = [_is_pending(record) for record in models]
    if not pending:
        return ""
    done = len(pending) - sum(pending)
    bar = "#" * (_BAR * done // len(pending))
    return f"[{bar:-<{_BAR}}] {done} of {len(pending)} models loaded, {seconds:.0f} s"


def _is_pending(record: ModelRecord) -> bool:
    states = [version.state for version in record.versions.values()]
    return VersionState.LOADING in states if states else not record.reason
