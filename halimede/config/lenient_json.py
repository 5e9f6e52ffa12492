"""JSON as protobuf's C++ library reads it (H113): clients send a configuration with a load in this form.

It takes more than JSON: keys without quotes, single quotes, a comma after the last member, any escape, and NUL as the
end of the text. A key that is given twice is kept twice; the reader of the message decides what that means.
Synchronous, any thread.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

_MAX_DEPTH = 100
"""Objects and lists within each other. protobuf limits only objects."""
MAX_VALUES: Final = 20_000
"""Values in the configuration of a load request, lists and objects included. Beyond: the load fails: 500."""
_SPACES = re.compile(r"[ \t\n\v\f\r]*")
_BARE_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_NUMBER = re.compile(r"[0-9.eE+x-]+")
_INTEGER = re.compile(r"-?[0-9]+")
_FLOAT = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_OCTAL = re.compile(r"-?0[0-9x]")
_PLAIN = {"'": re.compile(r"[^'\\]*"), '"': re.compile(r'[^"\\]*')}
_HEX = re.compile(r"[0-9A-Fa-f]{4}")
_WORDS = {"true": True, "false": False, "null": None}
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_HIGH, _LOW = range(0xD800, 0xDC00), range(0xDC00, 0xE000)
"""The two halves of a character beyond 16 bits."""
_INTEGERS = range(-(2**63), 2**64)


@dataclass(frozen=True, slots=True)
class Members:
    """An object: its members in their order. A key may occur more than once."""

    pairs: tuple[tuple[str, Any], ...]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.pairs)


def parse(text: str) -> Any:
    """The value of a text: Members, a list, str, int, float, bool or None. Raises ValueError with the place."""
    text.encode()  # lone surrogates stand for bytes that are not UTF-8
    reader = _Reader(text.partition("\0")[0])
    value = reader.value(0, "Expected a value.")
    if reader.next():
        raise reader.error("Parsing terminated before end of input.")
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._values = 0

    def error(self, problem: str) -> ValueError:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - self._text.rfind("\n", 0, self._at)
        return ValueError(f"{problem} (line {line} column {column})")

    def next(self) -> str:
        """The next character that is no space, or nothing at the end. It is not taken."""
        found = _SPACES.match(self._text, self._at)
        assert found is not None  # it matches an empty text too
        self._at = found.end()
        return self._text[self._at : self._at + 1]

    def _takes(self, character: str) -> bool:
        if self.next() != character:
            return False
        self._at += 1
        return True

    def value(self, depth: int, missing: str) -> Any:
        first = self.next()
        if depth > _MAX_DEPTH:
            raise self.error("Message too deep. Max recursion depth reached")
        self._values += 1
        # A model with as many would take minutes to load, on a thread that others wait for.
        if self._values > MAX_VALUES:
            raise self.error(f"more than {MAX_VALUES} values")
        if not first:
            raise self.error(f"Unexpected end of string. {missing}")
        if first in "'\"":
            return self._string(first)
        if first in "-0123456789":
            return self._number()
        if self._takes("{"):
            return Members(tuple(self._members(depth + 1)))
        if self._takes("["):
            return list(self._items(depth + 1))
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        raise self.error("Unexpected token." if first in "}],:" or _BARE_KEY.match(first) else missing)

    def _members(self, depth: int) -> Iterator[tuple[str, Any]]:
        while not self._takes("}"):
            key = self._key()
            if not self._takes(":"):
                raise self.error("Expected : between key:value pair.")
            yield key, self.value(depth, "Expected a value.")
            if not self._takes(",") and self.next() != "}":
                raise self.error("Expected , or } after key:value pair.")

    def _key(self) -> str:
        if (first := self.next()) and first in "'\"":
            return self._string(first)
        bare = _BARE_KEY.match(self._text, self._at)
        if bare is None or bare[0] in _WORDS:
            raise self.error("Expected an object key or }.")
        self._at = bare.end()
        return bare[0]

    def _items(self, depth: int) -> Iterator[Any]:
        while not self._takes("]"):
            yield self.value(depth, "Expected a value or ] within an array.")
            if not self._takes(",") and self.next() != "]":
                raise self.error("Expected , or ] after array value.")

    def _number(self) -> int | float:
        found = _NUMBER.match(self._text, self._at)
        assert found is not None  # the caller saw its first character
        word = found[0]
        if _OCTAL.match(word):
            raise self.error("Octal/hex numbers are not valid JSON values.")
        # `int` takes time that grows with the square of the length, and refuses very long texts.
        if _INTEGER.fullmatch(word) and len(word) <= len(str(_INTEGERS.stop)) and int(word) in _INTEGERS:
            self._at = found.end()
            return int(word)
        if not _FLOAT.fullmatch(word):
            raise self.error("Unable to parse number.")
        value = float(word)
        if value in (float("inf"), float("-inf")):
            raise self.error("Number exceeds the range of double.")
        self._at = found.end()
        return value

    def _string(self, quote: str) -> str:
        parts: list[str] = []
        self._at += 1
        while True:
            plain = _PLAIN[quote].match(self._text, self._at)
            assert plain is not None  # it matches an empty text too
            parts.append(plain[0])
            self._at = plain.end()
            ending = self._text[self._at : self._at + 2]
            if ending in ("", "\\"):
                raise self.error("Closing quote expected in string.")
            if ending[0] == quote:
                self._at += 1
                return "".join(parts)
            if ending[1] == "u":
                parts.append(self._unicode())
            else:
                parts.append(_ESCAPES.get(ending[1], ending[1]))
                self._at += 2

    def _unicode(self) -> str:
        code = self._unit(self._at)
        if code in _LOW:
            raise self.error("Invalid unicode code point.")
        if code not in _HIGH:
            self._at += 6
            return chr(code)
        if not self._text.startswith("\\u", self._at + 6):
            raise self.error("Missing low surrogate.")
        low = self._unit(self._at + 6)
        if low not in _LOW:
            raise self.error("Invalid low surrogate.")
        self._at += 12
        return chr(0x10000 + (code - _HIGH.start << 10) + low - _LOW.start)

    def _unit(self, at: int) -> int:
        digits = _HEX.match(self._text, at + 2)
        if digits is None:
            raise self.error("Invalid escape sequence.")
        return int(digits[0], 16)
