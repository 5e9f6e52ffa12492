"""`pb_utils.Logger` (P56): messages of a model to the server's log, with the line that wrote them."""

from __future__ import annotations

import enum
import os
import sys
from typing import Any

from . import frames
from .channel import BaseChannel
from .signatures import MODULE, Refused, native, text


class LogLevel(enum.IntEnum):
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3

    __str__ = enum.Enum.__str__  # Python 3.11 changed what an IntEnum prints
    __format__ = object.__format__  # type: ignore[assignment]  # the same in an f-string


Level = LogLevel
"""Models print the type, so it has the name of the interface."""


_ONE_MESSAGE = "(message: str) -> None"


class Logger:
    """Class methods only. `logger_for` makes the subclass that writes to the server's log."""

    LogLevel = Level
    INFO = Level.INFO
    WARNING = Level.WARNING
    ERROR = Level.ERROR
    VERBOSE = Level.VERBOSE

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError(f"{MODULE}.Logger: No constructor defined!")

    @classmethod
    @native(f"(message: str, level: {MODULE}.Logger.LogLevel = <LogLevel.INFO: 0>) -> None", hidden=1)
    def log(cls, message: str, level: Level = Level.INFO) -> None:
        if not isinstance(level, Level):
            raise Refused
        cls._write(message, level)

    @classmethod
    @native(_ONE_MESSAGE, hidden=1)
    def log_info(cls, message: str) -> None:
        cls._write(message, Level.INFO)

    @classmethod
    @native(_ONE_MESSAGE, hidden=1)
    def log_warn(cls, message: str) -> None:
        cls._write(message, Level.WARNING)

    @classmethod
    @native(_ONE_MESSAGE, hidden=1)
    def log_error(cls, message: str) -> None:
        cls._write(message, Level.ERROR)

    @classmethod
    @native(_ONE_MESSAGE, hidden=1)
    def log_verbose(cls, message: str) -> None:
        cls._write(message, Level.VERBOSE)

    @classmethod
    def _write(cls, message: str, level: Level) -> None:
        written: Any = message
        message = written.decode(errors="replace") if isinstance(written, (bytes, bytearray)) else text(written)
        caller = sys._getframe(3)  # past `native`
        cls._emit(int(level), os.path.basename(caller.f_code.co_filename), caller.f_lineno, message)

    @classmethod
    def _emit(cls, level: int, file: str, line: int, message: str) -> None:
        """Writes to standard error, for a model without a server."""
        print(f"{file}:{line}] {message}", file=sys.stderr)


def write_log(channel: BaseChannel, level: Level, flags: int, file: str, line: int, text: str) -> None:
    """A message to the server's log; `flags` are 0 or `frames.ROWS`. Raises OSError if the server is gone."""
    meta = [frames.text_record(file), frames.text_record(str(line)), frames.text_record(frames.cut(text))]
    channel.send(frames.frame(frames.LOG, meta, count=int(level), flags=flags))


def logger_for(channel: BaseChannel) -> Any:
    """A Logger whose messages go to the server."""

    class ServerLogger(Logger):
        @classmethod
        def _emit(cls, level: int, file: str, line: int, message: str) -> None:
            write_log(channel, Level(level), 0, file, line, message)

    return ServerLogger
