"""Trace files, each a JSON array (T3, T6): one for all traces, or numbered ones.

The event loop keeps the text of an unfinished file in memory, up to a limit. Then the writer's thread appends it, and
leaves a complete array each time.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Final

from halimede.traces import TENSORS, TIMESTAMPS, RootTrace
from halimede.tracing.text import text_of
from halimede.tracing.writer import OutageLog, Writer

MAX_KEPT: Final = 1 << 20
"""Characters of an unfinished file that are kept in memory."""
MAX_INLINE_COST: Final = 1 << 14
"""The cost of a root up to which the event loop makes its text: some tens of microseconds."""
MAX_UNFORMATTED: Final = 32
"""Roots without text that are kept at most, so that the thread formats none of its batches for long."""


class ArrayFile:
    """A file that is an array of JSON objects. Used on the writer's thread."""

    def __init__(self, path: str, outage: OutageLog) -> None:
        self.path = path
        self._outage = outage
        self._begun = False

    def append(self, traces: Sequence[str | RootTrace]) -> None:
        """Appends objects to the array. The first call replaces the file's old content.

        If the file cannot be written, the traces are lost, and that is logged once.
        """
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
        """Overwrites the closing bracket with the new objects. If that fails, the array is what it was."""
        end = file.seek(0, 2)
        last = file.seek(max(0, end - 1))
        left = memoryview(b"%b%b]" % (b"," if last else b"[", text))
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            with suppress(OSError):  # a device cannot be truncated
                file.truncate(end)
                file.seek(last)
                file.write(b"]" if last else b"")
            raise


class TraceFile:
    """The files of one path, shared by all settings with this path. Used on the event loop."""

    def __init__(self, path: str) -> None:
        self._outage = OutageLog()
        self._index = 0
        self.whole = ArrayFile(path, self._outage)
        """The file without a number. A new server replaces it."""
        self.numbered = self._next()
        """The next numbered file."""

    def _next(self) -> ArrayFile:
        return ArrayFile(f"{self.whole.path}.{self._index}", self._outage)

    def take_number(self) -> None:
        """The caller takes `numbered`; the next number follows."""
        self._index += 1
        self.numbered = self._next()


class FileStream:
    """Takes the roots of one setting, and decides which file each goes to (T6). Used on the event loop.

    `frequency` is the number of traces per numbered file, 0 for one file for all. `ends`: the setting has a trace
    count, so `finish` will probably be called.
    """

    def __init__(self, file: TraceFile, frequency: int, writer: Writer, ends: bool = False) -> None:
        self._file = file
        self._frequency = frequency
        self._numbered = frequency > 0 or ends
        self._writer = writer
        self._kept: list[str | RootTrace] = []
        self._size = 0
        self._unformatted = 0
        self._count = 0
        self._part: ArrayFile | None = None
        """The numbered file that has traces, and will get more."""

    def take(self, root: RootTrace) -> None:
        # The thread would compete with the loop for the interpreter, which costs more than a short text. So the loop
        # makes short texts itself; the thread makes those of tensors and of many responses.
        if root.cost <= MAX_INLINE_COST and not root.level & TENSORS:
            text = text_of(root)
            self._kept.append(text)
            self._size += len(text)
        elif root.level & TIMESTAMPS or root.tensors or any(call.tensors for call in root.calls):
            self._kept.append(root)
            self._size += root.cost
            self._unformatted += 1
        else:
            return
        self._count += 1
        if self._count == self._frequency:
            self.finish()
        elif self._size > MAX_KEPT or self._unformatted == MAX_UNFORMATTED:
            self._hand_over(self._numbered)

    def finish(self) -> None:
        """Ends a numbered file: the setting has traced as many requests as it wants."""
        self._end(True)

    def close(self) -> None:
        """The setting is replaced, or the server ends. A numbered file that was begun keeps its number."""
        self._end(self._frequency > 0 or self._part is not None)

    def _end(self, numbered: bool) -> None:
        self._hand_over(numbered)
        self._part = None
        self._count = 0

    def _hand_over(self, numbered: bool) -> None:
        kept, self._kept = self._kept, []
        size, self._size = self._size, 0
        self._unformatted = 0
        if not kept:
            return
        file = self._part or self._file.numbered if numbered else self._file.whole
        # A file takes its number only if its first traces were not lost, so that no number is left out.
        if self._writer.put(partial(file.append, kept), size, len(kept)) and file is self._file.numbered:
            self._file.take_number()
            self._part = file
