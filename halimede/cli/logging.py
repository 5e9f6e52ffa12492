"""Installs the server's logging: Triton's line formats, streams and levels over the standard library's `logging`.

Every room logs to a logger below `halimede`; only `cli` calls `install`. Lines are formatted on the thread that logs
and written by a thread of their own, so that a slow terminal or disk never holds the event loop. While such a reader is
stuck, lines wait up to a limit; what comes beyond it is lost, and counted. The same error is a line a second at most.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from json import dumps
from operator import itemgetter
from queue import Empty, SimpleQueue
from select import PIPE_BUF
from typing import Protocol

from halimede.cli.log_file import LogFile
from halimede.cli.log_lines import ROWS, formatter_for
from halimede.cli.log_repeats import PERIOD, Repeats
from halimede.options import LogOptions

ROOT = "halimede"
_FLUSH_SECONDS = 5.0

PAUSE = 0.002
"""Seconds between two writes, so that of many lines many are written at once: each wakes a thread, which takes turns
with the loop. A single line is written at once. Who is killed outright has not written what was logged since the last
write."""
MOST_AT_ONCE = 500
MAX_WAITING = 10_000
"""Lines that wait to be written, at most: some megabytes."""


class Sink(Protocol):
    """Where lines go: a text stream."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


def verbose(level: int) -> int:
    """The level for `Logger.log` of a message that `--log-verbose` shows from `level` (1 or more) on (C4)."""
    return logging.INFO - level


def log_table(logger: logging.Logger, text: str, heading: str = "") -> None:
    """Log a table: the heading as a message, then the rows as they are (L3)."""
    logger.info(heading, extra={ROWS: text}, stacklevel=2)


def _is_wanted(options: LogOptions, level: int) -> bool:
    """The four switches are independent of each other: warnings may be on while errors are off (C4, C5)."""
    if level >= logging.ERROR:
        return options.error
    if level >= logging.WARNING:
        return options.warning
    return options.info if level >= logging.INFO else level >= verbose(options.verbose)


class Log(logging.Handler):
    """The handler on the `halimede` logger. Any thread may log; `close` writes what is left and ends the writer."""

    def __init__(self, options: LogOptions, out: Sink, err: Sink, file: LogFile | None = None) -> None:
        super().__init__()
        self._out: Sink = file or out
        self._err: Sink = file or err
        self._file = file
        self._console = err
        self._lines: SimpleQueue[tuple[Sink, str] | None] = SimpleQueue()
        self._repeats = Repeats()
        self._lost = 0
        self._is_open = True
        self._writer = threading.Thread(target=self._write, name="halimede-log", daemon=True)
        self._options = options
        self.addFilter(lambda record: _is_wanted(self._options, record.levelno))
        self.configure(options)
        self._writer.start()

    def say(self, text: str) -> None:
        """A line on standard error, behind what was logged before; it is in no log file. Any thread."""
        self._lines.put((self._console, f"{text}\n"))

    def configure(self, options: LogOptions) -> None:
        """From now on these levels and this format count (contract L5); the file stays. Any thread."""
        self._options = options
        self.setFormatter(formatter_for(options.format, options.escape))
        logging.getLogger(ROOT).setLevel(verbose(max(options.verbose, 0)))

    def emit(self, record: logging.LogRecord) -> None:
        """One thread at a time: `logging.Handler` holds its lock around this."""
        # Once lines are lost, half of the room must be free again: else every other line would be one that counts.
        if self._lines.qsize() >= (MAX_WAITING // 2 if self._lost else MAX_WAITING):
            self._lost += 1
            return
        try:
            waiting = self._repeats.waiting
            if not self._repeats.admits(record, time.monotonic()):
                if not waiting:
                    self._lines.put((self._out, ""))  # wakes the writer, which looks again later
                return
            line = self.format(record) + "\n"
        except Exception:  # arguments that do not fit the message: the one who logs must not fail by it
            self.handleError(record)
            return
        self._say_lost()
        self._put(record, line)

    def _put(self, record: logging.LogRecord, line: str) -> None:
        self._lines.put((self._err if record.levelno >= logging.WARNING else self._out, line))

    def _tell_repeats(self, now: float) -> None:
        """Says of what was left out how many there were. On the writer's thread, and at the end."""
        self.acquire()
        try:
            for record in self._repeats.due(now):
                self._put(record, self.format(record) + "\n")
        finally:
            self.release()

    def _say_lost(self) -> None:
        """Where lines are missing, a line says how many; no switch hides it, since it stands for lines that were on."""
        lost, self._lost = self._lost, 0
        if lost:
            text = f"{lost} lines lost" if lost > 1 else "1 line lost"
            record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
            self._lines.put((self._err, self.format(record) + "\n"))

    def close(self) -> None:
        """Idempotent; waits some seconds at most, since the reader of a pipe may be stuck."""
        if self._is_open:
            self._is_open = False
            self._tell_repeats(time.monotonic() + PERIOD)
            self._say_lost()
            self._lines.put(None)
            self._writer.join(_FLUSH_SECONDS)
            if self._file and not self._writer.is_alive():
                self._file.close()
        super().close()

    def _write(self) -> None:
        looks = 0.0
        while True:
            if self._repeats.waiting and time.monotonic() >= looks:
                self._tell_repeats(time.monotonic())
                looks = time.monotonic() + PERIOD / 2
            try:
                line = self._lines.get(timeout=PERIOD / 2 if self._repeats.waiting else None)
            except Empty:
                continue
            if line is None:
                return
            lines = [line, *self._more()]
            for sink, texts in groupby([each for each in lines if each is not None], key=itemgetter(0)):
                for piece in _pieces([text for _, text in texts if text]):
                    # A console that went away or a full disk must not end the server, and nowhere is left to say it.
                    with suppress(OSError, ValueError):
                        _write_piece(sink, piece)
            if lines[-1] is None:
                return
            time.sleep(PAUSE)

    def _more(self) -> Iterator[tuple[Sink, str] | None]:
        """What waits beside the line that was taken, up to the end."""
        for _ in range(MOST_AT_ONCE):
            try:
                line = self._lines.get_nowait()
            except Empty:
                return
            yield line
            if line is None:
                return


def _write_piece(sink: Sink, lines: Sequence[str]) -> None:
    """A line that the stream has no letters for (a name of a file that is no text, say) is escaped, and takes none of
    the others with it."""
    try:
        sink.write("".join(lines))
    except UnicodeEncodeError:
        for line in lines:
            _write_line(sink, line)
    sink.flush()


def _write_line(sink: Sink, line: str) -> None:
    try:
        sink.write(line)
    except UnicodeEncodeError:
        # As JSON escapes: what was a line of JSON is one still.
        sink.write("".join([each if each.isascii() else dumps(each)[1:-1] for each in line]))


def _pieces(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    """Of `PIPE_BUF` bytes at most, or one line: what is longer, a pipe that is full may cut where others write too."""
    piece: list[str] = []
    room = PIPE_BUF
    for line in lines:
        size = len(line) if line.isascii() else len(line.encode("utf-8", "backslashreplace"))
        if piece and size > room:
            yield piece
            piece, room = [], PIPE_BUF
        piece.append(line)
        room -= size
    if piece:
        yield piece


def install(options: LogOptions, out: Sink, err: Sink) -> Log:
    """Send what is logged below `halimede` to `out` (information) and `err` (warnings and errors), or all of it to the
    log file (L4). Replaces an earlier installation. Raises `Invalid` where the file cannot be opened (C7).
    """
    file = LogFile(options.file) if options.file else None
    logger = logging.getLogger(ROOT)
    for earlier in [handler for handler in logger.handlers if isinstance(handler, Log)]:
        logger.removeHandler(earlier)
        earlier.close()
    log = Log(options, out, err, file)
    logger.addHandler(log)
    logger.propagate = False
    return log
