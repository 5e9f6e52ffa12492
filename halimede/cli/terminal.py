"""What commands print on a terminal: mistakes with a coloured `error:`, and lines that fit its width. Main thread.

A stream gets colours if it is a terminal. `NO_COLOR` switches them off and `FORCE_COLOR` on, as other tools have it.
"""

import os
import sys
from collections.abc import Mapping
from typing import TextIO

_CODES = {"error": "31", "warning": "33", "note": "36"}


def has_colours(stream: TextIO | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether to write colours to this stream; None for one that the parent process closed."""
    # https://no-color.org: set to anything but nothing.
    if environment.get("NO_COLOR"):
        return False
    forced = environment.get("FORCE_COLOR", "")
    if forced:
        return forced != "0"
    return is_terminal(stream) and environment.get("TERM") != "dumb"


def is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def painted(text: str, level: str, colours: bool) -> str:
    """The text in the colour of a level: `error`, `warning` or `note`. Other levels have none."""
    code = _CODES.get(level) if colours else None
    return f"\x1b[{code}m{text}\x1b[0m" if code else text


def say(text: str) -> None:
    """Prints to standard error."""
    print(text, file=sys.stderr)


def say_error(text: str) -> None:
    """Prints `error: text` to standard error."""
    say(f"{painted('error:', 'error', has_colours(sys.stderr))} {text}")


def say_warning(text: str, word: str = "warning") -> None:
    """Prints `warning: text` to standard error."""
    say(f"{painted(f'{word}:', 'warning', has_colours(sys.stderr))} {text}")


def help_width() -> int:
    """Columns for a help text: those of the terminal, within what is easy to read."""
    import shutil  # only help needs it

    return max(80, min(shutil.get_terminal_size().columns - 2, 120))
