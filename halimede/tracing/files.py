"""Traces as files of JSON arrays (contract T3, T6): one for all, or one after the other with a number.

Groups come from the event loop; everything about files happens on the writer's thread. The text of an unfinished file
is kept in memory up to a limit, then what there is of it is written, as a whole array each time.
"""

from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

from halimede.traces import Group
from halimede.tracing.text import group_text
from halimede.tracing.writer import Outage, Writer

KEPT: Final = 1 << 20
"""Characters of an unfinished file that are kept in memory."""


class TraceFile:
    """One name for all settings. On the writer's thread."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._index = 0
        self._begun = False
        self._outage = Outage()

    def numbered(self) -> str:
        name = f"{self.path}.{self._index}"
        self._index += 1
        return name

    def append(self, path: str, text: str, begun: bool) -> None:
        """Adds objects to the array in the file `path`; where it is not `begun`, what was there goes. A disk that is
        full or a folder that is not there is said once, and the text is lost."""
        try:
            with Path(path).open("r+b" if begun and Path(path).exists() else "wb", buffering=0) as file:
                self._add(file, text.encode("utf-8", "replace"))
        except OSError as error:
            self._outage.failed("failed creating trace file: %s: %s", path, error.strerror or error)
        else:
            self._outage.worked("trace files are written again: %s", path)

    @staticmethod
    def _add(file: FileIO, text: bytes) -> None:
        """Where the disk is full meanwhile, the array is again what it was."""
        end = file.seek(0, 2)
        last = file.seek(max(0, end - 1))
        left = memoryview(b"%b%b]" % (b"," if last else b"[", text))
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            with suppress(OSError):  # a device has no end
                file.truncate(end)
                file.seek(last)
                file.write(b"]" if last else b"")
            raise

    def append_to_whole(self, text: str) -> None:
        """To the file without a number, which begins anew with the server."""
        begun, self._begun = self._begun, True
        self.append(self.path, text, begun)


class FileStream:
    """Where the groups of one setting go, from its begin to its end. `frequency`: so many groups make a file, 0 for
    one file for all."""

    def __init__(self, file: TraceFile, frequency: int, writer: Writer) -> None:
        self._file = file
        self._frequency = frequency
        self._writer = writer
        self._texts: list[str] = []
        self._size = 0
        self._count = 0
        self._path = ""

    # On the event loop.

    def take(self, group: Group) -> None:
        self._writer.put_group(group, self._write)

    def finish(self) -> None:
        """The setting traces no more, for it has traced as many as it should: what there is makes a file with a
        number."""
        self._writer.put(lambda: self._close(True))

    def close(self) -> None:
        """The setting is replaced, or the server ends."""
        self._writer.put(lambda: self._close(self._frequency > 0))

    # On the writer's thread.

    def _write(self, group: Group) -> None:
        text = group_text(group)
        if not text:
            return
        self._texts.append(text)
        self._size += len(text)
        self._count += 1
        if self._frequency and self._count >= self._frequency:
            self._close(True)
        elif self._size > KEPT:
            self._flush(self._frequency > 0)

    def _flush(self, numbered: bool) -> None:
        text = ",".join(self._texts)
        self._texts.clear()
        self._size = 0
        if not text:
            return
        if not numbered:
            self._file.append_to_whole(text)
            return
        begun = bool(self._path)
        if not begun:
            self._path = self._file.numbered()
        self._file.append(self._path, text, begun)

    def _close(self, numbered: bool) -> None:
        self._flush(numbered)
        self._path = ""
        self._count = 0
