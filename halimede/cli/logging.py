"""Installs the server's logging: Triton's line formats, streams and levels over the standard library's `logging`.

Every room logs to a logger below `halimede`; only `cli` calls `install`. Backends of other distributions log below
their packages (`attach`). Records that no handler takes come here too: warnings and errors, unless a logger has another
level. Records of loggers that a library or a model has configured do not.

The thread that logs formats the line. Another thread writes it, so a slow terminal or disk never holds up the event
loop. While the reader of a stream is stuck, up to `MAX_WAITING` lines wait. Further lines are lost and counted. An
error that repeats within a second is written once, with the number of repetitions.
"""

import copy
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from json import dumps
from operator import itemgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from select import PIPE_BUF
from typing import Final, Protocol, TextIO

from halimede.cli.log_lines import LEFT_OUT, ROWS, formatter_for
from halimede.cli.progress import StatusLine
from halimede.cli.terminal import has_colours, is_terminal, painted
from halimede.errors import Invalid
from halimede.options import LogOptions

ROOT = "halimede"
AUDIT: Final = "halimede.audit"
"""The logger of what clients change. Its lines are written whatever the levels are, since a client may change those."""
_FLUSH_SECONDS = 5.0

PAUSE = 0.002
"""Seconds between two writes. Each write wakes a thread that competes with the event loop, so lines of a burst are
written together. A single line is written at once. A process that is killed loses what it logged during the pause."""
MOST_AT_ONCE = 500
MAX_WAITING = 10_000
"""Lines that may wait to be written: a few megabytes."""
PERIOD: Final = 1.0
"""Seconds in which the same warning or error is written once."""
MAX_KNOWN: Final = 1024
"""Different lines that are remembered. If more come at once, some are repeated."""


class Sink(Protocol):
    """Where lines go: a text stream."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Console:
    """Standard output and error. `terminal` is the one for a status line, if there is one. With `colours`, warnings and
    errors are coloured."""

    out: Sink
    err: Sink
    terminal: TextIO | None = None
    colours: bool = False


def verbose(level: int) -> int:
    """The level for `Logger.log` of a message that `--log-verbose` shows from `level` (1 or more) on (C4)."""
    return logging.INFO - level


def log_table(logger: logging.Logger, text: str, heading: str = "") -> None:
    """Logs a table: the heading as a message, then the rows unchanged (L3)."""
    logger.info(heading, extra={ROWS: text}, stacklevel=2)


def _is_wanted(options: LogOptions, level: int) -> bool:
    """The four switches are independent of each other: warnings may be on while errors are off (C4, C5)."""
    if level >= logging.ERROR:
        return options.error
    if level >= logging.WARNING:
        return options.warning
    return options.info if level >= logging.INFO else level >= verbose(options.verbose)


class Log(logging.Handler):
    """The handler of the `halimede` logger, of those that are attached, and of last resort. Any thread may log; `close`
    writes what is left and ends the writer."""

    def __init__(
        self, options: LogOptions, console: Console, file: "LogFile | None", clock: Callable[[], float]
    ) -> None:
        super().__init__()
        self._out: Sink = file or console.out
        self._err: Sink = file or console.err
        self._file = file
        self._console = console
        self.status = StatusLine(console.terminal)
        self._clock = clock
        self._lines: SimpleQueue[tuple[Sink, str] | None] = SimpleQueue()
        self._repeats = Repeats()
        self._lost = 0
        self._is_open = True
        self._writer = threading.Thread(target=self._write, name="halimede-log", daemon=True)
        self._options = options
        self._attached: list[logging.Logger] = []
        self._last_resort = logging.lastResort
        self.addFilter(lambda record: record.name == AUDIT or _is_wanted(self._options, record.levelno))
        self.configure(options)
        self._writer.start()

    def attach(self, *names: str) -> None:
        """Takes the records of these loggers and those below, at the levels of the server."""
        for logger in map(logging.getLogger, names):
            logger.addHandler(self)
            logger.propagate = False  # a handler of the root logger would write each line again
            self._attached.append(logger)
        self.configure(self._options)

    def say_error(self, text: str) -> None:
        """Writes `error: text` to standard error after what was logged before. It is in no log file. Any thread."""
        word = painted("error:", "error", self._console.colours)
        self._lines.put((self._console.err, f"{word} {text}\n"))

    def show(self, text: str) -> None:
        """Shows the text below the log on a terminal; an empty one removes it. Any thread."""
        if self.status.exists and text != self.status.text:
            self.status.text = text
            self._lines.put((self._console.err, ""))  # wakes the writer

    def configure(self, options: LogOptions) -> None:
        """Applies these levels and this format from the next line on (L5). The file stays. Any thread."""
        self._options = options
        colours = self._console.colours and self._file is None
        self.setFormatter(formatter_for(options.format, options.escape, colours))
        for logger in self._attached:
            logger.setLevel(verbose(max(options.verbose, 0)))

    def emit(self, record: logging.LogRecord) -> None:
        """One thread at a time: `logging.Handler` holds its lock around this."""
        # After a loss, half of the queue must be free before lines are taken again. Otherwise the queue would fill up
        # at once, and every other line would be "1 line lost".
        if self._lines.qsize() >= (MAX_WAITING // 2 if self._lost else MAX_WAITING):
            self._lost += 1
            return
        try:
            waiting = self._repeats.waiting
            if not self._repeats.admits(record, self._clock()):
                if not waiting:
                    # The writer sleeps until a line comes. It must wake up to report the repetitions in time.
                    self._lines.put((self._out, ""))
                return
            line = self.format(record) + "\n"
        except Exception:  # the arguments do not fit the message; logging must not fail its caller
            self.handleError(record)
            return
        self._report_lost()
        self._put(record, line)

    def _put(self, record: logging.LogRecord, line: str) -> None:
        self._lines.put((self._err if record.levelno >= logging.WARNING else self._out, line))

    def _report_repeats(self, now: float) -> None:
        """Writes how often lines were repeated. Called by the writer's thread, and at the end."""
        self.acquire()
        try:
            for record in self._repeats.due(now):
                self._put(record, self.format(record) + "\n")
        finally:
            self.release()

    def _report_lost(self) -> None:
        """Writes how many lines were lost. No switch hides this line, since the lost ones were switched on."""
        lost, self._lost = self._lost, 0
        if lost:
            lines = "line" if lost == 1 else "lines"
            text = f"{lost} log {lines} lost: the reader of the log did not keep up"
            record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
            self._lines.put((self._err, self.format(record) + "\n"))

    def close(self) -> None:
        """Idempotent. Waits up to `_FLUSH_SECONDS`, since the reader of a pipe may be stuck."""
        if self._is_open:
            self._is_open = False
            for logger in self._attached:
                logger.removeHandler(self)
            if logging.lastResort is self:
                logging.lastResort = self._last_resort
            self.status.text = ""
            self._report_repeats(self._clock() + PERIOD)
            self._report_lost()
            self._lines.put(None)
            self._writer.join(_FLUSH_SECONDS)
            if self._file and not self._writer.is_alive():
                self._file.close()
        super().close()

    def _write(self) -> None:
        """The writer's thread."""
        next_report = 0.0
        while True:
            if self._repeats.waiting and self._clock() >= next_report:
                self._report_repeats(self._clock())
                next_report = self._clock() + PERIOD / 2
            try:
                line = self._lines.get(timeout=PERIOD / 2 if self._repeats.waiting else None)
            except Empty:
                continue
            if line is None:
                self._show_status()
                return
            lines = [line, *self._more()]
            with suppress(OSError, ValueError):
                self.status.erase()
            for sink, texts in groupby([each for each in lines if each is not None], key=itemgetter(0)):
                for piece in _pieces([text for _, text in texts if text]):
                    # A closed console or a full disk must not end the server, and there is no place to report it.
                    with suppress(OSError, ValueError):
                        _write_piece(sink, piece)
            self._show_status()
            if lines[-1] is None:
                return
            time.sleep(PAUSE)

    def _show_status(self) -> None:
        with suppress(OSError, ValueError):  # as for lines
            self.status.draw()

    def _more(self) -> Iterator[tuple[Sink, str] | None]:
        """The lines that wait beside the one that was taken, up to the end."""
        for _ in range(MOST_AT_ONCE):
            try:
                line = self._lines.get_nowait()
            except Empty:
                return
            yield line
            if line is None:
                return


def _write_piece(sink: Sink, lines: Sequence[str]) -> None:
    """Writes the lines. One that the stream cannot encode is escaped and does not affect the others."""
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
        # JSON's escapes, so that a line of JSON remains one.
        sink.write("".join([each if each.isascii() else dumps(each)[1:-1] for each in line]))


def _pieces(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    """Groups of at most `PIPE_BUF` bytes, or one line. If several processes write to a full pipe, the system may cut
    longer writes in the middle of a line."""
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


class Repeats:
    """Finds warnings and errors that were written less than `PERIOD` before.

    `admits` is asked before a record is written. The number of records that it refused goes with the next one that it
    admits, or with the record that `due` returns if none comes. `waiting` is the number of lines with repetitions that
    were not reported yet. Told the time; one thread at a time.
    """

    def __init__(self) -> None:
        self._written: dict[Hashable, tuple[float, int, logging.LogRecord]] = {}
        self.waiting = 0

    def admits(self, record: logging.LogRecord, now: float) -> bool:
        """Whether to write the record."""
        # Information is not repeated by a fault, and verbose lines are wanted one by one.
        if record.levelno < logging.WARNING:
            return True
        # Equal words of two models, or of two processes of one, are not a repetition.
        about = [getattr(record, name, None) for name in ("model", "version", "instance", ROWS)]
        key = record.levelno, record.filename, record.lineno, record.getMessage(), *about
        when, left_out, _ = self._written.get(key, (now - PERIOD, 0, record))
        if now - when < PERIOD:
            self.waiting += not left_out
            self._written[key] = when, left_out + 1, record
            return False
        if left_out:
            self.waiting -= 1
            setattr(record, LEFT_OUT, left_out)
        if len(self._written) >= MAX_KNOWN:
            self._forget(now)
        self._written[key] = now, 0, record
        return True

    def due(self, now: float) -> list[logging.LogRecord]:
        """A record for each line whose repetitions were not followed by an admitted one within `PERIOD`."""
        found = []
        for key, (when, left_out, record) in list(self._written.items()):
            if now - when < PERIOD:
                continue
            if not left_out:
                del self._written[key]
                continue
            self.waiting -= 1
            reported = copy.copy(record)
            # The record stands for itself, so one less was left out.
            setattr(reported, LEFT_OUT, left_out - 1 or None)
            found.append(reported)
            self._written[key] = now, 0, record
        return found

    def _forget(self, now: float) -> None:
        """Drops the old lines without repetitions, or, if there are none, all lines without repetitions."""
        old = [key for key, (when, left_out, _) in self._written.items() if not left_out and now - when >= PERIOD]
        for key in old or [key for key, (_, left_out, _) in self._written.items() if not left_out]:
            del self._written[key]


class LogFile:
    """Appends to the file at `path`, and opens it again after something moved it away, as log rotation does (C7, L4).

    Raises Invalid if it cannot be opened at first. After that only the log's thread calls it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._file = self._open()
        except OSError as error:
            raise Invalid(f"Failed to open log file '{path}': {error.strerror}") from None

    def write(self, text: str, /) -> object:
        if self._is_moved():
            with suppress(OSError):  # its folder is gone too: the old file can still be written
                file = self._open()
                self._file.close()
                self._file = file
        return self._file.write(text)

    def flush(self) -> object:
        return self._file.flush()

    def close(self) -> None:
        with suppress(OSError):  # a full disk
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


def console_of_process() -> Console:
    """The console of this process. Warnings and errors, and so colours and the status line, are for standard error."""
    # A stream is None if the parent process closed it; the command opens /dev/null in its place.
    return Console(sys.stdout, sys.stderr, sys.stderr if is_terminal(sys.stderr) else None, has_colours(sys.stderr))


def install(
    options: LogOptions, console: Console, clock: Callable[[], float] = time.monotonic, audit_file: str = ""
) -> Log:
    """Sends information to standard output, warnings and errors to standard error, or all of it to the log file (L4).
    The audit goes to a file of its own if one is given. Replaces an earlier installation. Raises Invalid if a file
    cannot be opened (C7).
    """
    file = LogFile(options.file) if options.file else None
    # Tests and embedding programs install more than once in a process.
    for name in (ROOT, AUDIT):
        for earlier in [handler for handler in logging.getLogger(name).handlers if isinstance(handler, Log)]:
            earlier.close()
    log = Log(options, console, file, clock)
    log.attach(ROOT)
    if audit_file:
        Log(LogOptions(format="json"), console, LogFile(audit_file), clock).attach(AUDIT)
    # Not a handler of the root logger: `logging.basicConfig` in a model would have no effect then.
    logging.lastResort = log
    return log
