"""Exceptions of a model as Python prints them, for the log: with files, lines, source lines and causes, but without the
frames of this room; and how many of them the log shall get.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

MOST_CHARACTERS = 20_000
"""Of one traceback: messages may be long. What is left out is in the middle."""
SECONDS = 1.0
"""For so long a traceback that was shown is counted and not shown again."""
MOST_KINDS = 256
"""Of how many kinds of failures is known when they were shown."""

_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""That of `workers`: with what stands around a model that runs in the server's process."""
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
"""What a terminal might obey, or what would begin a new line."""
_CONTROLS_OF_ROWS = {code: text for code, text in _CONTROLS.items() if chr(code) not in "\t\n"}


def readable(error: BaseException) -> str:
    """The traceback, each line indented, so that no message can pass for a line of the log. Does not raise."""
    try:
        text = "".join(_without_ours(traceback.TracebackException.from_exception(error)).format())
    except Exception as broken:  # whatever a model's exceptions do when they are printed
        text = f"{type(error).__name__} (it cannot be printed: {type(broken).__name__})"
    lines = _shortened(text.rstrip("\n")).translate(_CONTROLS_OF_ROWS).split("\n")
    return "\n".join(f"    {line}" for line in lines)


def _shortened(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _without_ours(shown: traceback.TracebackException) -> traceback.TracebackException:
    """With causes and contexts, which form no circle, and the exceptions of groups."""
    todo: list[Any] = [shown]
    while todo:
        each = todo.pop()
        each.stack[:] = [frame for frame in each.stack if not is_ours(frame.filename)]
        todo += [other for other in (each.__cause__, each.__context__) if other is not None]
        todo += getattr(each, "exceptions", None) or ()
    return shown


def is_ours(filename: str) -> bool:
    """Whether a frame of this file is ours, or of the import system: nobody wants to see it."""
    return filename.startswith((_OWN_FOLDER, "<frozen importlib"))


def place_of(error: BaseException) -> tuple[str, int]:
    """File and line that raised; an empty name where no code of the model did."""
    file, line, trace = "", 0, error.__traceback__
    while trace is not None:
        if not is_ours(trace.tb_frame.f_code.co_filename):
            file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    if not file and isinstance(error, SyntaxError):  # of the model's own file, no line of which has run
        return error.filename or "", error.lineno or 0
    return file, line


class Reporter:
    """Tells of exceptions: `emit` is given file, line and text, whose first line is a heading.

    Those of the same type from the same line count as the same, since messages name what cannot be repeated. Any
    thread.
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
        """`where` is what of the model failed: `execute`, `thread 'x'`."""
        file, line = place_of(error)
        unseen = self._admit((type(error).__name__, file, line))
        if unseen is None:
            return
        more = f" ({unseen} more since it was last shown)" if unseen else ""
        heading = f"exception in {where} of {self._who}{more}:".translate(_CONTROLS)
        name = os.path.basename(file).translate(_CONTROLS) or "model"  # code can be compiled under any name
        self._emit(name, line, f"{heading}\n{readable(error)}")

    def _admit(self, kind: tuple[str, str, int]) -> int | None:
        """How many of this kind were not shown since one was; None where this one shall not be either."""
        with self._lock:
            now = self._clock()
            last, unseen = self._shown.pop(kind, (float("-inf"), 0))
            shows = now - last >= SECONDS
            self._shown[kind] = (now, 0) if shows else (last, unseen + 1)
            if len(self._shown) > MOST_KINDS:
                del self._shown[next(iter(self._shown))]
            return unseen if shows else None

    def watch_threads(self) -> None:
        """From now on exceptions that end a thread of the model are told, too."""
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
