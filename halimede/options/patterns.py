"""Regular expressions of the command line, in the syntax of RE2 as in Triton (C25, H25, G14). Pure.

Most patterns mean the same to Python's `re`, which then does the work. Others need the package `google-re2`, an extra.
"""

import re
from collections.abc import Callable

from halimede.errors import Invalid, Unsupported

Search = Callable[[str], object]
"""Returns None if a text does not contain what the pattern describes."""

_LEADING_CASE = re.compile(r"\(\?(-?)i\)")
_REPEAT = r"(?:(?:[*+?]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})\??(?![*+?{]))?"
_CLASS_ITEM = r"(?:[A-Za-z0-9](?:-[A-Za-z0-9])?|[_ .:/@%,;=*+?!#$]|\\[dDwWsS\]\[\\.^-])"
_SAME = re.compile(
    rf"""(?:
        (?:
            [A-Za-z0-9_ \-:/@%,;=!\#&~'"<>.]        # itself, or any character
          | \\[dDwWsS]
          | \\[!-/:-@\[-`{{-~]                      # an escaped sign
          | \[\^?-?{_CLASS_ITEM}+-?\]
          | \)                                      # the end of a group
        ){_REPEAT}
      | \((?:\?:|\?P<[A-Za-z_][A-Za-z0-9_]*>)?(?![*+?{{])
      | (?:[\^$|]|\\[bB])(?![*+?{{])
    )*""",
    re.VERBOSE,
)
"""Patterns that mean the same to RE2 and to Python for ASCII texts without line ends, if Python accepts them."""


def search_of(pattern: str) -> Search:
    """Returns a search for the pattern, in any case unless the pattern says otherwise.

    Raises Invalid if it is no regular expression, and Unsupported if it needs the package, which is not there.
    """
    rest, any_case = pattern, True
    while (found := _LEADING_CASE.match(rest)) is not None:
        any_case = not found[1]
        rest = rest[found.end() :]
    if _SAME.fullmatch(rest) is None:
        return _search_by_re2(pattern)
    try:
        return re.compile(rest, re.ASCII | re.IGNORECASE if any_case else re.ASCII).search
    # Deep nesting fails in another way than a wrong character.
    except (re.error, RecursionError, OverflowError) as error:
        raise Invalid(f"'{pattern}' is no regular expression: {error}") from error


def _search_by_re2(pattern: str) -> Search:
    try:
        import re2
    except ImportError:
        raise Unsupported(
            f"'{pattern}', for forwarded headers, may mean something else to RE2 than to Python; for such patterns: "
            "pip install 'halimede[re2]'"
        ) from None
    options = re2.Options()
    options.log_errors = False
    try:
        search: Search = re2.compile("(?i)" + pattern, options).search
    except (re2.error, UnicodeEncodeError) as error:
        raise Invalid(f"'{pattern}' is no regular expression: {_text(error)}") from error
    return search


def _text(error: Exception) -> str:
    """Returns the text of an error, which RE2 has as bytes."""
    said = error.args[0] if error.args else ""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(error)
