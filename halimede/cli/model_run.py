"""`halimede model run`: one model, one request, and what came of it on the terminal.

Outputs go to standard output and nothing else does: what the model prints, tracebacks and its log go to standard error.
Runs on the main thread.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from time import perf_counter
from typing import TextIO

from halimede.devtools.inputs import request_of
from halimede.devtools.outputs import response_json, response_text, timing_text
from halimede.devtools.session import Response, Session
from halimede.errors import Error, Unavailable
from halimede.options import ModelRun
from halimede.platform.limits import allow_many_files
from halimede.platform.loops import new_event_loop

CLOSE_SECONDS = 30.0
_FROM_MODELS = "halimede.workers.host.worker"
_ANSWERED = "Failed to process the request(s) for model "
"""Begins errors that are the answers of a model, which are printed anyway."""


def run(order: ModelRun) -> int:
    """0 where the model answered without an error."""
    out = own_output()
    _install_log(order.server.log.verbose)
    allow_many_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        status, finished = runner.run(_run(order, out))
    if not finished:
        # Threads that run on, in a model or a runtime, would hold the interpreter's own end for ever.
        sys.stderr.flush()
        os._exit(1)
    return status


def own_output() -> TextIO:
    """Standard output, for us alone: whoever else writes there, also a process started later, comes to standard
    error."""
    sys.stdout.flush()
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    os.dup2(2, 1)
    return ours


async def _run(order: ModelRun, out: TextIO) -> tuple[int, bool]:
    """The exit status, and whether everything came to its end."""
    loop = asyncio.get_running_loop()
    try:
        session = Session(Path(order.path), order.version, order.server)
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1, True
    status, work = 1, loop.create_task(_ask(order, session, out))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, work.cancel)
    try:
        status = await work
    except asyncio.CancelledError:
        print("error: interrupted", file=sys.stderr)
    except Error as error:
        print(f"error: {str(error).rstrip()}", file=sys.stderr)
    finally:
        finished = await session.close(0.0 if work.cancelled() else CLOSE_SECONDS)
    return status, finished


async def _ask(order: ModelRun, session: Session, out: TextIO) -> int:
    config = await session.open()
    request = request_of(order.inputs, config, order.version)
    printer = _Printer(out, order.json, config.decoupled)
    seconds: list[float] = []
    answers: Sequence[Response] = ()
    while len(seconds) < order.repeat and not _failed(answers):
        fresh = copy(request)  # the engine may keep what is its own in a request
        fresh.inputs = dict(request.inputs)
        began = perf_counter()
        answers = await session.infer(fresh, printer.print if order.repeat == 1 else _Printer.nothing)
        seconds.append(perf_counter() - began)
    if order.repeat > 1:
        for answer in answers:
            printer.print(answer)
        _write(timing_text(seconds), sys.stderr if order.json else out)
    elif not answers and not order.json:
        _write("no response", out)
    return 1 if _failed(answers) else 0


def _failed(answers: Sequence[Response]) -> bool:
    return any(isinstance(answer, Error) for answer in answers)


def _write(text: str, out: TextIO) -> None:
    """A line, at once. Raises Unavailable where nothing more can be written: a full disk, a pipe that nobody reads."""
    try:
        print(text, file=out, flush=True)
    except OSError as error:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), out.fileno())  # or Python tries once more when it ends
        raise Unavailable(f"the output cannot be written: {error.strerror}") from None


class _Printer:
    """Prints responses: as JSON, each on a line, or readable, under numbers where there may be several."""

    def __init__(self, out: TextIO, json: bool, numbered: bool) -> None:
        self._out = out
        self._json = json
        self._numbered = numbered
        self._number = 0

    def print(self, answer: Response) -> None:
        self._number += 1
        if self._json:
            _write(response_json(answer), self._out)
        else:
            self._print_text(answer)

    def _print_text(self, answer: Response) -> None:
        """Errors go to standard error."""
        if self._numbered:
            _write(f"-- response {self._number}", self._out)
        if isinstance(answer, Error):
            print(f"error: {str(answer).rstrip()}", file=sys.stderr)
        else:
            _write(response_text(answer), self._out)

    @staticmethod
    def nothing(answer: Response) -> None:
        """For responses of which only the last are printed."""


class _Readable(logging.Formatter):
    """The message as it is, after file and line where a model logged it; of a traceback the rows below it (`table`)."""

    def format(self, record: logging.LogRecord) -> str:
        place = f"{record.filename}:{record.lineno}: " if record.name == _FROM_MODELS else ""
        text = f"{record.levelname.lower()}: {place}{record.getMessage()}"
        rows = getattr(record, "table", None)
        if rows is not None:
            return f"{text}\n{rows}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _install_log(verbose: int) -> None:
    """What models log, and of the rest what went wrong; all of it with --log-verbose."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Readable())
    if not verbose:
        handler.addFilter(_is_shown)
    logger = logging.getLogger("halimede")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO - verbose)
    logger.propagate = False


def _is_shown(record: logging.LogRecord) -> bool:
    if record.name == _FROM_MODELS:
        return True
    return record.levelno >= logging.WARNING and not record.getMessage().startswith(_ANSWERED)
