"""A log file that may be moved away while the server writes to it, as logs are rotated (contract C7, L4). On the log's
own thread, but for its opening."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from halimede.errors import Invalid


class LogFile:
    """Appends to the file of that name: to another one, once there is another, or none. Raises Invalid where it cannot
    be opened at first."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._file = self._open()
        except OSError as error:
            raise Invalid(f"Failed to open log file '{path}': {error.strerror}") from None

    def write(self, text: str, /) -> object:
        if self._is_moved():
            with suppress(OSError):  # its folder went too: what can still be written to is written to
                file = self._open()
                self._file.close()
                self._file = file
        return self._file.write(text)

    def flush(self) -> object:
        return self._file.flush()

    def close(self) -> None:
        with suppress(OSError):  # a disk that is full
            self._file.close()

    def _open(self) -> TextIO:
        return Path(self._path).open("a", encoding="utf-8", errors="backslashreplace")

    def _is_moved(self) -> bool:
        mine = os.fstat(self._file.fileno())
        try:
            there = Path(self._path).stat()
        except OSError:
            return True
        return (mine.st_ino, mine.st_dev) != (there.st_ino, there.st_dev)
