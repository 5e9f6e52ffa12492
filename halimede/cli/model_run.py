"""`halimede model run`: sends one request to one model and prints the response. Main thread.

Only outputs go to standard output. What the model prints, tracebacks and the log go to standard error.
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

from halimede.cli.arguments import ModelRun
from halimede.devtools.inputs import request_of
from halimede.devtools.outputs import response_json, response_text, timing_text
from halimede.devtools.session import Response, Session
from halimede.errors import Error, Unavailable
from halimede.platform.limits import allow_many_files
from halimede.platform.loops import new_event_loop

CLOSE_SECONDS = 30.0
_FROM_MODELS = "halimede.workers.host.worker"
_ANSWERED = "Failed to process the request(s) for model "
"""The start of log lines about error responses, which are printed anyway."""


def run(order: ModelRun) -> int:
    """Returns 0 if the model answered without an error, else 1."""
    out = own_output()
    _install_log(order.server.log.verbose)
    allow_many_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        status, finished = runner.run(_run(order, out))
    if not finished:
        # At its normal end the interpreter waits for threads, and one of a model or a runtime may never end.
        sys.stderr.flush()
        os._exit(1)
    return status


def own_output() -> TextIO:
    """Standard output for this command alone. What models, and the processes they start, write to descriptor 1 goes to
    standard error from now on."""
    sys.stdout.flush()
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    os.dup2(2, 1)
    return ours


async def _run(order: ModelRun, out: TextIO) -> tuple[int, bool]:
    """Returns the exit status, and whether the model was closed in time."""
    loop = asyncio.get_running_loop()
    try:
        session = Session(Path(order.path), order.version, order.server)
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1, True
    # A task of its own, so that a signal can cancel the request and the model is closed all the same.
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
    while len(seconds) < order.repeat and not _failed(answers):  # an error is not worth repeating
        fresh = copy(request)  # the engine changes requests
        fresh.inputs = dict(request.inputs)
        began = perf_counter()
        answers = await session.infer(fresh, printer.print if order.repeat == 1 else _Printer.nothing)
        seconds.append(perf_counter() - began)
    # With --json, standard output has responses only.
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
    """Writes a line at once. Raises Unavailable if that fails: a full disk, or a pipe without a reader."""
    try:
        print(text, file=out, flush=True)
    except OSError as error:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), out.fileno())  # or Python tries to write the rest again when it exits
        raise Unavailable(f"the output cannot be written: {error.strerror}") from None


class _Printer:
    """Prints responses: each as a line of JSON, or as text with a number if there may be several."""

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
        """Prints nothing: of repeated requests only the last response is printed."""


class _Readable(logging.Formatter):
    """The message with its level. File and line precede what a model logged; the rows of a traceback follow it."""

    def format(self, record: logging.LogRecord) -> str:
        place = f"{record.filename}:{record.lineno}: " if record.name == _FROM_MODELS else ""
        text = f"{record.levelname.lower()}: {place}{record.getMessage()}"
        rows = getattr(record, "table", None)
        if rows is not None:
            return f"{text}\n{rows}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _install_log(verbose: int) -> None:
    """Shows what models log, and warnings and errors of the server; with --log-verbose the whole log."""
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
