"""Traces as files of JSON arrays (contract T3, T6): one for all, or one after the other with a number.

The text of an unfinished file is kept in memory up to a limit, then what there is of it goes to the writer's thread,
which makes a whole array of the file each time.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Final

from halimede.traces import TENSORS, TIMESTAMPS, Root
from halimede.tracing.text import text_of
from halimede.tracing.writer import Outage, Writer

KEPT: Final = 1 << 20
"""Characters of an unfinished file that are kept in memory."""
SHORT: Final = 1 << 14
"""The cost of a root whose text takes some tens of microseconds at most."""
UNSPELLED: Final = 32
"""Roots without their text that are kept, at most: the thread is not at one batch of them for long."""


class ArrayFile:
    """A file that is an array of JSON objects. On the writer's thread."""

    def __init__(self, path: str, outage: Outage) -> None:
        self.path = path
        self._outage = outage
        self._begun = False

    def append(self, traces: Sequence[str | Root]) -> None:
        """Adds objects to the array; the first time what was there goes. A disk that is full or a folder that is not
        there is said once, and the text is lost."""
        text = ",".join([trace if isinstance(trace, str) else text_of(trace) for trace in traces])
        path = Path(self.path)
        try:
            with path.open("r+b" if self._begun and path.exists() else "wb", buffering=0) as file:
                self._begun = True
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


class TraceFile:
    """One name for all settings. On the event loop."""

    def __init__(self, path: str) -> None:
        self._outage = Outage()
        self._index = 0
        self.whole = ArrayFile(path, self._outage)
        """The file without a number, which begins anew with the server."""
        self.numbered = self._next()
        """The next file with a number."""

    def _next(self) -> ArrayFile:
        return ArrayFile(f"{self.whole.path}.{self._index}", self._outage)

    def take_number(self) -> None:
        """What is the next file now is somebody's."""
        self._index += 1
        self.numbered = self._next()


class FileStream:
    """Where the roots of one setting go, from its begin to its end. `frequency`: so many of them make a file, 0 for
    one file for all. `ends`: `finish` will most likely be called. On the event loop."""

    def __init__(self, file: TraceFile, frequency: int, writer: Writer, ends: bool = False) -> None:
        self._file = file
        self._frequency = frequency
        self._numbered = frequency > 0 or ends
        self._writer = writer
        self._kept: list[str | Root] = []
        self._size = 0
        self._unspelled = 0
        self._count = 0
        self._part: ArrayFile | None = None
        """The file with a number that was begun."""

    def take(self, root: Root) -> None:
        """Most become text here: a thread that made it would take turns with the loop at the interpreter, which costs
        both of them more than the text. Tensors and many responses become text on the thread."""
        if root.cost <= SHORT and not root.level & TENSORS:
            text = text_of(root)
            self._kept.append(text)
            self._size += len(text)
        elif root.level & TIMESTAMPS or root.tensors or any(call.tensors for call in root.calls):
            self._kept.append(root)
            self._size += root.cost
            self._unspelled += 1
        else:
            return
        self._count += 1
        if self._count == self._frequency:
            self.finish()
        elif self._size > KEPT or self._unspelled == UNSPELLED:
            self._hand_over(self._numbered)

    def finish(self) -> None:
        """What there is makes a file with a number: the setting has traced as many as it should."""
        self._end(True)

    def close(self) -> None:
        """The setting is replaced, or the server ends. What was begun with a number is ended so."""
        self._end(self._frequency > 0 or self._part is not None)

    def _end(self, numbered: bool) -> None:
        self._hand_over(numbered)
        self._part = None
        self._count = 0

    def _hand_over(self, numbered: bool) -> None:
        kept, self._kept = self._kept, []
        size, self._size = self._size, 0
        self._unspelled = 0
        if not kept:
            return
        file = self._part or self._file.numbered if numbered else self._file.whole
        if self._writer.put(partial(file.append, kept), size, len(kept)) and file is self._file.numbered:
            self._file.take_number()
            self._part = file
