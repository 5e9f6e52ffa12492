"""JSON as Triton reads and writes it: what rapidjson accepts, its error texts and offsets, its escapes and numbers.

orjson does the work. If it refuses a document, python-rapidjson tells whether Triton's parser accepts it all the same
(NaN, invalid UTF-8, a byte order mark), or with which text it refuses. Bytes that are not UTF-8 become surrogate
escapes in `str`. Knows no requests. Pure. Any thread.
"""

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import orjson
import rapidjson

from halimede.errors import Internal, Invalid
from halimede.tensors import Buffer

NESTING_LIMIT = 100
"""Depth at which Triton refuses a document."""
NESTING_TEXT = f"JSON nesting depth exceeds maximum allowed limit ({NESTING_LIMIT})"

MAX_LENIENT_BYTES = 1 << 23
"""Bytes of a piece of JSON that has NaN or is not UTF-8. A piece is a long string, or 32 KiB. Beyond: 400."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NUMBERS = rapidjson.NM_NATIVE | rapidjson.NM_NAN
# The native mode is faster, but every fourth double is wrong in the last bit or two.
_EXACT_NUMBERS = rapidjson.NM_NAN
_REFUSAL = re.compile(r"Parse error at offset (\d+): (.*)", re.DOTALL)
# Texts of the newer rapidjson in python-rapidjson, and what Triton's version says instead.
_OTHER_WORDS = {"Invalid encoding in string.": "Invalid escape character in string."}
# rapidjson treats all bytes from 0x80 alike: valid in a string and wrong elsewhere. As letters they keep every offset.
_AS_LETTERS = bytes(range(0x80)) + b"x" * 0x80
# python-rapidjson needs well-formed text, so bytes that are not UTF-8 pass through it as private characters.
_STAND_INS = {0xDC00 + byte: 0x10FF00 + byte for byte in range(0x80, 0x100)}
_FROM_STAND_INS = {stand_in: escape for escape, stand_in in _STAND_INS.items()}
_Utf8 = getincrementaldecoder("utf-8")
_ESCAPE = re.compile("[\udc80-\udcff]")
_STAND_IN = re.compile("[\U0010ff80-\U0010ffff]")
_PIECE = 1 << 15
"""Bytes or characters that are replaced without a break for other threads, which takes up to 3 ms."""


def read(text: Buffer, place: Callable[[int], int] | None = None) -> Any:
    """Parses a document into dicts, lists, str, int, float, bool and None. Integers beyond 64 bits become floats (H19,
    H20).

    Of equal keys the last counts (in Triton the first; see `read_first`). Raises Internal with rapidjson's text and
    offset, and Invalid for a document that is nested a thousand deep. If `text` is a part of a document, `place` turns
    an offset in the part into one in the document.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _read_as_rapidjson(bytes(text), place)


class RepeatedMembers(dict[str, Any]):
    """An object in which keys are given more than once. The first of equal keys counts. `sent` lists all keys."""

    __slots__ = ("sent",)

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(reversed(pairs))
        self.sent = [key for key, _ in pairs]


_MEMBER = re.compile(rb'"[ \t\n\r]*:')


def may_repeat(text: Buffer, members: int) -> bool:
    """Whether a document with this many members, as `read` returned them, may have equal keys in its text."""
    # Each member has such a place. Strings may have others, any number of them.
    return sum(1 for _ in islice(_MEMBER.finditer(text), members + 1)) != members


def read_first(text: Buffer) -> Any:
    """Parses a document that `read` has accepted. Objects with equal keys become `RepeatedMembers`. Slower than `read`.
    Raises Invalid for a document that is nested nearly a thousand deep."""
    try:
        return _restored(bytes(text), _FirstRestorer)
    except RecursionError:
        raise Invalid(NESTING_TEXT) from None


class _Restorer(rapidjson.Decoder):
    """Turns the private characters in strings back into surrogate escapes, and wide integers into floats."""

    def string(self, text: str) -> str:
        return _with_escapes(text)

    def end_array(self, elements: list[Any]) -> list[Any]:
        return list(map(_narrow, elements))

    def end_object(self, members: dict[str, Any]) -> dict[str, Any]:
        return {_with_escapes(key): _narrow(value) for key, value in members.items()}


class _FirstRestorer(rapidjson.Decoder):
    """Does what `_Restorer` does, and keeps the first of equal keys."""

    def string(self, text: str) -> str:
        return _with_escapes(text)

    def start_object(self) -> list[tuple[str, Any]]:
        return []

    # Without `end_array`, which python-rapidjson does not call rightly for a list within pairs.
    def end_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        restored = [(_with_escapes(key), _narrow_all(value)) for key, value in pairs]
        members = dict(restored)
        return members if len(members) == len(restored) else RepeatedMembers(restored)


def _narrow_all(value: Any) -> Any:
    return list(map(_narrow_all, value)) if type(value) is list else _narrow(value)


def _narrow(value: Any) -> Any:
    return value if type(value) is not int or -(2**63) <= value < 2**64 else float(value)


def _read_as_rapidjson(raw: bytes, place: Callable[[int], int] | None) -> Any:
    skipped = _skipped(raw)
    try:
        letters = [piece.translate(_AS_LETTERS) for piece in _pieces(memoryview(raw)[skipped:])]
        rapidjson.loads(b"".join(letters), number_mode=_NUMBERS)
        # The parser holds the interpreter for a tenth of a second.
        if len(raw) > MAX_LENIENT_BYTES:
            raise Invalid(
                f"a piece of the request JSON that has NaN, or is not UTF-8, has {len(raw)} bytes; "
                f"the largest number is {MAX_LENIENT_BYTES}"
            )
        return _restored(raw, _Restorer)
    except RecursionError:
        raise Invalid(NESTING_TEXT) from None
    except ValueError as error:
        raise _refusal(str(error), skipped, place) from None


def _skipped(raw: bytes) -> int:
    """Returns the size of the byte order mark. rapidjson skips it byte by byte, and accepts the beginning of one."""
    return next((n for n in (3, 2, 1) if raw.startswith(_BYTE_ORDER_MARK[:n])), 0)


def _restored(raw: bytes, decoder: Callable[..., Callable[[str], Any]]) -> Any:
    # A piece may end within a character.
    decode = _Utf8("surrogateescape").decode
    pieces = [decode(piece) for piece in _pieces(memoryview(raw)[_skipped(raw) :])]
    pieces.append(decode(b"", final=True))
    text = "".join([piece.translate(_STAND_INS) if _ESCAPE.search(piece) else piece for piece in pieces])
    return decoder(number_mode=_EXACT_NUMBERS)(text)


def _pieces(raw: memoryview) -> Iterator[bytes]:
    return (bytes(raw[at : at + _PIECE]) for at in range(0, len(raw), _PIECE))


def _with_escapes(text: str) -> str:
    """Turns the private characters back into surrogate escapes."""
    if text.isascii() or not _STAND_IN.search(text):
        return text
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    return "".join([piece.translate(_FROM_STAND_INS) for piece in pieces])


def _refusal(text: str, skipped: int, place: Callable[[int], int] | None) -> Internal:
    found = _REFUSAL.match(text)
    if found is None:
        return Internal(f"failed to parse the request JSON buffer: {text}")
    words, offset = _OTHER_WORDS.get(found[2], found[2]), int(found[1]) + skipped
    return Internal(f"failed to parse the request JSON buffer: {words} at {place(offset) if place else offset}")


# Writing.

_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
LONG_BYTES = 1 << 18
"""Bytes of strings that are searched for escapes without a break."""
_SPECIAL_BYTES = re.compile(rb'[\x00-\x1f"\\]')
_SPECIAL_BUT_QUOTES = re.compile(rb"[\x00-\x1f\\]")
_SHORT = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
_ESCAPES = {code: f"\\u{code:04X}" for code in range(0x20)} | _SHORT
_BYTE_ESCAPES = {bytes([code]): text.encode() for code, text in _ESCAPES.items()}


def encode(text: str) -> bytes:
    """Returns UTF-8. Surrogate escapes become the bytes that they stand for, and other surrogates `?`."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return "".join("?" if "\ud800" <= c < "\udc80" or "\udcff" < c <= "\udfff" else c for c in text).encode(
            "utf-8", "surrogateescape"
        )


def quote(text: str) -> str:
    """A JSON string: the short escapes, other control characters as \\u00XX in upper case, all else as it is."""
    if _ESCAPED.search(text) is None:
        return f'"{text}"'
    return f'"{text.translate(_ESCAPES)}"'


def write(value: Any) -> str:
    """Writes dicts with string keys, sequences, str, int, float and bool, without spaces."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return write_doubles([value])[1:-1].decode()
    if isinstance(value, dict):
        return "{" + ",".join([f"{quote(key)}:{write(item)}" for key, item in value.items()]) + "}"
    return "[" + ",".join(map(write, value)) + "]"


def write_strings(elements: Sequence[bytes]) -> bytes:
    """Writes an array of strings. Bytes other than escapes stay as they are, UTF-8 or not."""
    if not elements:
        return b"[]"
    joined = b'","'.join(elements)
    # Most strings need no escape, which one search over all of them shows.
    if joined.count(b'"') != 2 * (len(elements) - 1) or _SPECIAL_BUT_QUOTES.search(joined):
        joined = b'","'.join([_SPECIAL_BYTES.sub(_byte_escape, element) for element in elements])
    return b'["' + joined + b'"]'


def escaped_slices(element: bytes) -> Iterator[bytes]:
    """Yields the text of a long string, without its quotes. A search for escapes holds the interpreter, so it is done
    in slices."""
    for at in range(0, len(element), LONG_BYTES):
        yield _SPECIAL_BYTES.sub(_byte_escape, element[at : at + LONG_BYTES])


def _byte_escape(found: re.Match[bytes]) -> bytes:
    return _BYTE_ESCAPES[found[0]]


def write_doubles(values: Any) -> bytes:
    """Writes an array of numbers from floats or a flat float64 array, with the shortest digits that read back the same,
    in rapidjson's notation.

    (rapidjson's own digits are not always the shortest: one in four ends otherwise, and reads back the same.)
    """
    text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    # Without an exponent and without null, orjson's notation is that of rapidjson.
    if b"u" in text:
        text = _with_names(text, values)
    return _renotated(text) if b"e" in text else text


def _with_names(text: bytes, values: Iterable[float]) -> bytes:
    """Replaces each null by NaN or an infinity. orjson has no text for these."""
    parts = zip(text[1:-1].split(b","), values, strict=True)
    return b"[%b]" % b",".join([part if part != b"null" else _name(value) for part, value in parts])


def _name(value: float) -> bytes:
    return b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity"


# Numbers that orjson writes with an exponent and rapidjson without: 1e-6 to 1e-5, and 1e16 to 1e21. Older versions of
# orjson write `e16`, newer ones `e+16`.
_DECIMAL_THERE = re.compile(rb"e(?:-6|\+?1[6-9]|\+?20)[,\]]")


def _renotated(text: bytes) -> bytes:
    """Turns orjson's notation into rapidjson's: `1e+30` becomes `1e30`, and `1e+16` all its digits."""
    parts: list[bytes] = []
    done = 0
    for found in _DECIMAL_THERE.finditer(text):
        # The pattern matches the end of a number only, because a search for whole numbers takes fifteen times as long.
        at, end = found.span()
        end -= 1
        start = text.rfind(b",", 0, at) + 1 or 1
        parts += (text[done:start], _decimal(text[start:at], int(text[at + 1 : end])))
        done = end
    if done:
        text = b"".join((*parts, text[done:]))
    # Removing one byte is seven times as fast as replacing two bytes by one.
    return text.replace(b"+", b"")


def _decimal(mantissa: bytes, power: int) -> bytes:
    """Writes out a number: `mantissa`, one digit and perhaps a fraction, times ten to the power."""
    whole, _, fraction = mantissa.partition(b".")
    if power > 0:
        return (whole + fraction).ljust(len(whole) + power, b"0") + b".0"
    return b"%b0.%b%b%b" % (whole[:-1], b"0" * (-power - 1), whole[-1:], fraction)
