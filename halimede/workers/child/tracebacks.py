"""Exceptions of a model as Python prints them, for the log: files, lines, source lines and causes, without the frames
of this package. Exceptions of the same kind are written at most once per second.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

MOST_CHARACTERS = 20_000
"""Characters of one traceback: messages may be long. The middle of a longer one is left out."""
SECONDS = 1.0
"""Seconds for which a traceback that was written is only counted."""
MOST_KINDS = 256
"""Kinds of failures whose last time is remembered."""

_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The folder of `workers`, with `in_process` as well."""
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
"""Characters that a terminal would obey, or that would begin a new line of the log."""
_CONTROLS_OF_ROWS = {code: text for code, text in _CONTROLS.items() if chr(code) not in "\t\n"}


def readable(error: BaseException) -> str:
    """The traceback, each line indented, so that no message can pass for a line of the log. Does not raise."""
    try:
        text = "".join(_without_ours(traceback.TracebackException.from_exception(error)).format())
    except Exception as broken:  # printing runs code of the model's exception
        text = f"{type(error).__name__} (it cannot be printed: {type(broken).__name__})"
    lines = _shortened(text.rstrip("\n")).translate(_CONTROLS_OF_ROWS).split("\n")
    return "\n".join(f"    {line}" for line in lines)


def _shortened(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _without_ours(shown: traceback.TracebackException) -> traceback.TracebackException:
    """Removes our frames, from causes, contexts and the exceptions of groups as well. They form no circle."""
    todo: list[Any] = [shown]
    while todo:
        each = todo.pop()
        each.stack[:] = [frame for frame in each.stack if not is_ours(frame.filename)]
        todo += [other for other in (each.__cause__, each.__context__) if other is not None]
        todo += getattr(each, "exceptions", None) or ()
    return shown


def is_ours(filename: str) -> bool:
    """Whether a frame of this file is ours, or of the import system."""
    return filename.startswith((_OWN_FOLDER, "<frozen importlib"))


def place_of(error: BaseException) -> tuple[str, int]:
    """The file and line of the model that raised; an empty name if no code of the model did."""
    file, line, trace = "", 0, error.__traceback__
    while trace is not None:
        if not is_ours(trace.tb_frame.f_code.co_filename):
            file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    if not file and isinstance(error, SyntaxError):  # no line of the file has run
        return error.filename or "", error.lineno or 0
    return file, line


class Reporter:
    """Writes exceptions: `emit` gets file, line and text, whose first line is a heading.

    Exceptions of the same type from the same line are of one kind, whatever their messages say. Any thread.
    """

    def __init__(
        self, emit: Callable[[str, int, str], None], who: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._emit = emit
        self._who = who
        self._clock = clock
        self._lock = threading.Lock()
        self._shown: dict[tuple[str, str, int], tuple[float, int]] = {}

    def report(self, where: str, error: BaseException) -> None:
        """`where` is the part of the model that failed, such as `execute` or `thread 'x'`."""
        file, line = place_of(error)
        unseen = self._admit((type(error).__name__, file, line))
        if unseen is None:
            return
        more = f" ({unseen} more since it was last shown)" if unseen else ""
        heading = f"exception in {where} of {self._who}{more}:".translate(_CONTROLS)
        name = os.path.basename(file).translate(_CONTROLS) or "model"  # code can be compiled under any file name
        self._emit(name, line, f"{heading}\n{readable(error)}")

    def _admit(self, kind: tuple[str, str, int]) -> int | None:
        """The number of exceptions of this kind that were not written since the last one; None if this one must not be
        written either."""
        with self._lock:
            now = self._clock()
            last, unseen = self._shown.pop(kind, (float("-inf"), 0))
            shows = now - last >= SECONDS
            self._shown[kind] = (now, 0) if shows else (last, unseen + 1)
            if len(self._shown) > MOST_KINDS:
                del self._shown[next(iter(self._shown))]
            return unseen if shows else None

    def watch_threads(self) -> None:
        """From now on exceptions that end a thread of the model are written as well."""
        usual = threading.excepthook

        def ended(args: Any) -> None:
            if args.exc_value is None or issubclass(args.exc_type, SystemExit):
                usual(args)
                return
            try:
                self.report(f"thread '{args.thread.name if args.thread else '?'}'", args.exc_value)
            except OSError:  # the server is gone
                usual(args)

        threading.excepthook = ended
