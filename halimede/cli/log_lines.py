"""One record of the log as text: Triton's line formats (L1 to L3), and lines of JSON. Pure; any thread.

A record may have the attributes `model`, `version`, `instance` and `request_id`, which say what it is about. They are
fields of a line of JSON. The other formats add them to a message that does not name them.
"""

import logging
import time
from collections.abc import Callable
from functools import lru_cache
from json import dumps

from halimede.cli.terminal import painted

ROWS = "table"
"""The attribute of a record with the rows of a table."""
LEFT_OUT = "left_out"
"""The attribute of a record with the number of repetitions that were not written."""
AUDIT_FIELDS = ("identity", "shown", "peer", "action", "outcome")
"""The attributes of a line of the audit: who, by which key or certificate, from where, did what, and the result."""
VERBATIM = "verbatim"
"""The attribute of a record whose message comes from a model and is not changed."""

_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_C0 = range(0x20)
_MISLEADING = (0x7F, *range(0x80, 0xA0), 0x061C, *range(0x200E, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Characters that a terminal obeys or that change the order of a line: DEL, C1, line separators, marks of direction.
Triton writes them as they are."""
# Triton writes capital hexadecimal digits, and escapes only control characters, quotes and backslashes.
_ESCAPES = str.maketrans({**{chr(code): f"\\u{code:04X}" for code in (*_C0, *_MISLEADING)}, **_SHORT})
_JSON_ESCAPES = str.maketrans({chr(code): f"\\u{code:04X}" for code in _MISLEADING})
VISIBLE = str.maketrans({chr(code): f"\\u{code:04X}" for code in (*_C0, *_MISLEADING)})
"""For `str.translate`: makes characters visible that a terminal obeys, also line ends."""


@lru_cache(4)
def _stamp(seconds: int) -> str:
    return time.strftime("%m%d %H:%M:%S", time.gmtime(seconds))


def _default_prefix(record: logging.LogRecord, letter: str) -> str:
    seconds, microseconds = divmod(int(record.created * 1_000_000), 1_000_000)
    return f"{letter}{_stamp(seconds)}.{microseconds:06} {record.process} {record.filename}:{record.lineno}] "


def _iso_prefix(record: logging.LogRecord, letter: str) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
    return f"{stamp} {letter} {record.process} {record.filename}:{record.lineno}] "


_PREFIXES: dict[str, Callable[[logging.LogRecord, str], str]] = {"default": _default_prefix, "ISO8601": _iso_prefix}


class TritonFormatter(logging.Formatter):
    """The line formats `default` (L1) and `ISO8601` (L2), in UTC. Verbose messages have the letter I.

    With `colours`, for a terminal, the prefix of warnings and errors is coloured.
    """

    def __init__(self, style: str = "default", escape: bool = True, colours: bool = False) -> None:
        super().__init__()
        self._prefix = _PREFIXES[style]
        self._escape = escape
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        letter = _letter(record.levelno)
        prefix = painted(self._prefix(record, letter), _LEVELS[letter].lower(), self._colours)
        rows = getattr(record, ROWS, None)
        if rows is not None:
            return f"{prefix}{_said(record)}\n{rows}\n"
        message = _said(record)
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        return prefix + (f'"{message.translate(_ESCAPES)}"' if self._escape else message)


def _said(record: logging.LogRecord) -> str:
    """The message. Request, model and instance are added if it does not name them."""
    message = record.getMessage()
    left_out = getattr(record, LEFT_OUT, 0)
    more = f" ({left_out} more of this)" if left_out else ""
    if getattr(record, VERBATIM, False):  # the author of a model searches for exactly this text
        return message + more
    request_id, model = getattr(record, "request_id", ""), getattr(record, "model", "")
    if request_id and str(request_id) not in message:
        message = f"[request id: {request_id}] {message}"
    about, instance = [], getattr(record, "instance", "")
    if model and str(model) not in message:
        about.append(f"model '{model}' version {getattr(record, 'version', '-')}")
    if instance and str(instance) not in message:
        about.append(f"instance '{instance}'")
    return f"{message} ({', '.join(about)}){more}" if about else message + more


class JsonFormatter(logging.Formatter):
    """An object on one line: time, level, process, place, message, and what it is about (D24)."""

    def format(self, record: logging.LogRecord) -> str:
        seconds, microseconds = divmod(int(record.created * 1_000_000), 1_000_000)
        line: dict[str, object] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{microseconds:06}Z",
            "level": _LEVELS[_letter(record.levelno)] if record.levelno >= logging.INFO else "VERBOSE",
            "pid": record.process,
            "file": record.filename,
            "line": record.lineno,
            "message": record.getMessage(),
        }
        for name in ("model", "version", "instance", "request_id", *AUDIT_FIELDS, ROWS, LEFT_OUT):
            value = getattr(record, name, None)
            if value is not None and value != "":
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # Names of files may have surrogates, which UTF-8 cannot encode.
        text = dumps(line, ensure_ascii=False, default=str).translate(_JSON_ESCAPES)
        return text.encode("utf-8", "replace").decode()


_LEVELS = {"E": "ERROR", "W": "WARNING", "I": "INFO"}


def _letter(level: int) -> str:
    return "E" if level >= logging.ERROR else "W" if level >= logging.WARNING else "I"


def formatter_for(style: str, escape: bool, colours: bool) -> logging.Formatter:
    """`style` is one of those of `--log-format`. Lines of JSON have no colours."""
    return JsonFormatter() if style == "json" else TritonFormatter(style, escape, colours)
