"""`halimede model run`: sends requests to one model, one after the other, and prints the responses. Main thread.

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
from halimede.cli.terminal import has_colours, painted, say_error, say_warning
from halimede.devtools.inputs import requests_of
from halimede.devtools.outputs import mismatches, response_json, response_text, timing_text
from halimede.devtools.session import Response, Session
from halimede.errors import Error, Unavailable
from halimede.platform.limits import allow_many_files
from halimede.platform.loops import new_event_loop
from halimede.requests import InferRequest

CLOSE_SECONDS = 30.0
_FROM_MODELS = "halimede.workers.host.worker"
_ANSWERED = "Failed to process the request(s) for model "
"""The start of log lines about error responses, which are printed anyway."""
_PLACE = "\n\nAt:\n"
"""What precedes the places in the code, in the error of a Python model's exception."""


def run(order: ModelRun) -> int:
    """Returns 0 if the model answered without an error, else 1."""
    out = own_output()
    shown = _install_log(order.server.log.verbose)
    allow_many_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        status, finished = runner.run(_run(order, out, shown))
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


async def _run(order: ModelRun, out: TextIO, shown: "_ShownLog") -> tuple[int, bool]:
    """Returns the exit status, and whether the model was closed in time."""
    loop = asyncio.get_running_loop()
    try:
        session = Session(Path(order.path), order.version, order.server)
    except Error as error:
        say_error(str(error))
        return 1, True
    # A task of its own, so that a signal can cancel the request and the model is closed all the same.
    status, work = 1, loop.create_task(_ask(order, session, out, shown))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, work.cancel)
    try:
        status = await work
    except asyncio.CancelledError:
        say_error("interrupted")
    except Error as error:
        say_error(str(error).rstrip())
    finally:
        finished = await session.close(0.0 if work.cancelled() else CLOSE_SECONDS)
    return status, finished


async def _ask(order: ModelRun, session: Session, out: TextIO, shown: "_ShownLog") -> int:
    await session.start()
    before = shown.errors
    try:
        config = await session.load()
    except Error:
        # The log has said why; the error is the same in other words.
        if shown.errors > before:
            return 1
        raise
    requests = requests_of(order.inputs, config, order.version, order.sequence, order.sequence_id)
    printer = _Printer(out, order.json, len(requests) > 1, config.decoupled)
    seconds: list[float] = []
    answers: list[Sequence[Response]] = []
    for _ in range(order.repeat):
        answers = await _send_all(session, requests, seconds, printer if order.repeat == 1 else None)
        if _failed(answers[-1]):  # an error is not worth repeating
            break
    if order.repeat > 1:
        for each in answers:
            printer.print_all(each)
        # With --json, standard output has responses only.
        _write(timing_text(seconds), sys.stderr if order.json else out)
    if not any(request.outputs for request in requests):
        responses = [answer for each in answers for answer in each if not isinstance(answer, Error)]
        for text in mismatches(responses, config):
            say_warning(text)
    return 1 if _failed(answers[-1]) else 0


async def _send_all(
    session: Session, requests: Sequence[InferRequest], seconds: list[float], printer: "_Printer | None"
) -> list[Sequence[Response]]:
    """Sends the requests one after the other, until one fails: those after it may depend on it. Adds the time of each
    to `seconds`. Prints the responses as they come if there is a `printer`."""
    answers: list[Sequence[Response]] = []
    for request in requests:
        fresh = copy(request)  # the engine changes requests
        fresh.inputs = dict(request.inputs)
        if printer is not None:
            printer.begin()
        began = perf_counter()
        answers.append(await session.infer(fresh, printer.print if printer is not None else _ignore))
        seconds.append(perf_counter() - began)
        if printer is not None:
            printer.end()
        if _failed(answers[-1]):
            break
    return answers


def _ignore(answer: Response) -> None:
    """Of repeated requests only the last responses are printed."""


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
    """Prints the responses to each request: each as a line of JSON, or as text. `several`: there are several requests.
    With `decoupled`, a request may have several responses. Both are numbered then."""

    def __init__(self, out: TextIO, json: bool, several: bool, decoupled: bool) -> None:
        self._out = out
        self._json = json
        self._several = several
        self._decoupled = decoupled
        self._request = self._response = 0

    def begin(self) -> None:
        """A request is sent."""
        self._request += 1
        self._response = 0
        if self._several and not self._json:
            _write(f"-- request {self._request}", self._out)

    def print(self, answer: Response) -> None:
        self._response += 1
        if self._json:
            _write(response_json(answer), self._out)
        else:
            self._print_text(answer)

    def end(self) -> None:
        """All responses to the request have come."""
        if not self._response and not self._json:
            _write("no response", self._out)

    def print_all(self, answers: Sequence[Response]) -> None:
        """The responses to a request."""
        self.begin()
        for answer in answers:
            self.print(answer)
        self.end()

    def _print_text(self, answer: Response) -> None:
        """Errors go to standard error."""
        if self._decoupled:
            _write(f"-- response {self._response}", self._out)
        if isinstance(answer, Error):
            # The log has shown the traceback of a Python model, of which this is a part.
            say_error(str(answer).partition(_PLACE)[0].rstrip())
        else:
            _write(response_text(answer), self._out)


class _Readable(logging.Formatter):
    """The message with its level. File and line precede what a model logged; the rows of a traceback follow it."""

    def __init__(self, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        place = f"{record.filename}:{record.lineno}: " if record.name == _FROM_MODELS else ""
        level = record.levelname.lower()
        text = f"{painted(f'{level}:', level, self._colours)} {place}{record.getMessage()}"
        rows = getattr(record, "table", None)
        if rows is not None:
            return f"{text}\n{rows}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _ShownLog(logging.StreamHandler[TextIO]):
    """The log on standard error. `errors` is the number of errors that it has shown."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(_Readable(has_colours(sys.stderr)))
        self.errors = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.errors += record.levelno >= logging.ERROR
        super().emit(record)


def _install_log(verbose: int) -> _ShownLog:
    """Shows what models log, and warnings and errors of the server; with --log-verbose the whole log."""
    handler = _ShownLog()
    if not verbose:
        handler.addFilter(_is_shown)
    logger = logging.getLogger("halimede")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO - verbose)
    logger.propagate = False
    return handler


def _is_shown(record: logging.LogRecord) -> bool:
    if record.name == _FROM_MODELS:
        return True
    return record.levelno >= logging.WARNING and not record.getMessage().startswith(_ANSWERED)
