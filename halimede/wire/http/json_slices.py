"""Large JSON documents, parsed in slices: the long arrays of tensor data are cut out, and parsed piece by piece.

orjson makes an object of each element, and holds the interpreter until it has made all of them. Twenty million empty
strings are 60 kB when compressed, and take gigabytes and seconds. So numpy finds the structure of a large document
without the interpreter. What stays after the arrays are cut out must be small. The elements of the arrays become bytes,
slice by slice, and other threads run in between. Knows no requests. Pure. Any thread.
"""

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from operator import add
from secrets import token_hex
from time import sleep
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from halimede.errors import Internal, Invalid
from halimede.tensors import Buffer
from halimede.wire.http import json

WHOLE_BYTES: Final = 1 << 16
"""Size of a document that is parsed as a whole, which takes at most some milliseconds."""
MAX_ELEMENTS: Final = 100_000
"""Elements and members of a JSON document besides those of `data` and other long arrays of a tensor. Beyond: 400."""
MAX_HEAD_BYTES: Final = 1 << 22
"""Bytes of the JSON of an inference besides its `data`. Beyond: 400."""

_SLICE_BYTES: Final = 1 << 15
"""Bytes of an array that are parsed without a break. Shorter arrays are not cut out."""
_BLOCK_BYTES: Final = 1 << 17
"""Bytes of a document that numpy looks at in one step."""

_NO_DEPTH: Final = 1 << 62
"""No array is at this depth."""
_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE, _OBJECT, _END_OBJECT = (np.uint8(byte) for byte in b'"\\,[]{}')
_SPACE: Final = b" \t\n\r"
_DEPTH: Final = np.zeros(256, np.int64)
"""The change of the depth at each byte."""
_DEPTH[[*b"[{"]], _DEPTH[[*b"]}"]] = 1, -1

Positions = npt.NDArray[np.int64]


def read_small(text: Buffer) -> Any:
    """Parses a document without tensors. Raises what `json.read` raises, and Invalid for more than `MAX_ELEMENTS`
    elements."""
    return outline(text, _NO_DEPTH).read()


class JsonArray:
    """An array in a document. `length` is the number of its elements; an array in it is one of them.

    `cuts` are commas within it, each with the number of arrays that are open there.
    """

    __slots__ = ("_cuts", "_end", "_start", "_text", "length")

    def __init__(self, text: Buffer, start: int, end: int, cuts: list[tuple[int, int]], length: int) -> None:
        self._text = text
        self._start = start
        self._end = end
        self._cuts = cuts
        self.length = length

    def slices(self) -> Iterator[list[Any]]:
        """Yields the elements in lists, which are nested as they stand in the array. Lets other threads run after each.
        Raises Internal if the array is malformed, and Invalid if it is nested a thousand deep."""
        at, opened = self._start, 0
        for cut, depth in (*self._cuts, (self._end, 0)):
            # The arrays that are open at a cut are closed there, and opened again behind it.
            piece = b"".join((b"[" * opened, self._text[at:cut], b"]" * depth))
            if at != self._start or depth:
                self._check_ends(at, cut, opened > 0, depth > 0)
            yield json.read(piece, partial(add, at - opened))
            sleep(0)
            at, opened = cut + 1, depth

    def _check_ends(self, at: int, end: int, after_cut: bool, before_cut: bool) -> None:
        """Raises Internal if no element stands between a bracket and a cut, which the added brackets would hide."""
        text = bytes(self._text[at:end])
        stripped = text.strip(_SPACE)
        if after_cut and stripped[:1] in (b"", b"]"):
            raise _no_element(at + len(text) - len(text.lstrip(_SPACE)))
        if before_cut and stripped[-1:] in (b"", b"["):
            raise _no_element(end)


def _no_element(offset: int) -> Internal:
    return Internal(f"failed to parse the request JSON buffer: Invalid value. at {offset}")


class JsonOutline:
    """A document without its long arrays. `skeleton` has a string in the place of each, by which `arrays` has it."""

    __slots__ = ("_places", "arrays", "skeleton")

    def __init__(self, skeleton: Buffer, arrays: dict[str, JsonArray], places: list[tuple[int, int]]) -> None:
        """`places` has the offsets in the skeleton behind each array, and how many bytes are missing there."""
        self.skeleton = skeleton
        self.arrays = arrays
        self._places = places

    def read(self) -> Any:
        """Parses the skeleton. Raises what `json.read` raises."""
        if not self._places:
            return json.read(self.skeleton)
        try:
            return json.read(self.skeleton, self._offset)
        except Internal:
            # The first error counts, and an array may have one.
            for array in self.arrays.values():
                for _ in array.slices():
                    pass
            raise

    def _offset(self, offset: int) -> int:
        """Returns where a byte of the skeleton stands in the document."""
        at = bisect_right(self._places, (offset, 1 << 62))
        return offset + (self._places[at - 1][1] if at else 0)


def outline(text: Buffer, depth: int, max_bytes: int | None = None) -> JsonOutline:
    """Cuts the long arrays at a depth out of a document with many elements: 1 is the depth of the document itself.

    Raises Invalid if more than `MAX_ELEMENTS` elements, or more than `max_bytes` bytes, are left.
    """
    if len(text) <= WHOLE_BYTES or (len(text) <= MAX_HEAD_BYTES and _has_few_elements(text)):
        return JsonOutline(text, {}, [])
    found = _Scan(text, depth).arrays()
    # Nobody outside knows the word, so no string of the document is equal.
    word = token_hex(8)
    arrays: dict[str, JsonArray] = {}
    parts: list[Buffer] = []
    places: list[tuple[int, int]] = []
    at = length = 0
    for array, start, end in found:
        name = f"{word}:{len(arrays)}"
        arrays[name] = array
        parts += (memoryview(text)[at:start], f'"{name}"'.encode())
        length += start - at + len(name) + 2
        places.append((length, end - length))
        at = end
    length += len(text) - at
    if max_bytes is not None and length > max_bytes:
        raise Invalid(f"the request JSON has {length} bytes besides its data; the largest number is {max_bytes}")
    return JsonOutline(b"".join((*parts, memoryview(text)[at:])), arrays, places)


def _is_structure(block: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Returns which bytes are quotes, or have a meaning outside of strings."""
    # Square brackets and braces differ in one bit.
    braces = block | 0x20
    found: npt.NDArray[np.bool_] = (block == _COMMA) | (block == _QUOTE) | (braces == _OBJECT) | (braces == _END_OBJECT)
    return found


def _has_few_elements(text: Buffer) -> bool:
    """Whether a document certainly has at most `MAX_ELEMENTS` elements, so that a whole takes some milliseconds."""
    data, found = np.frombuffer(text, np.uint8), 0
    for start in range(0, len(data), _BLOCK_BYTES):
        found += int(np.count_nonzero(_is_structure(data[start : start + _BLOCK_BYTES])))
    return found <= MAX_ELEMENTS


class _Scan:
    """Looks for the long arrays of a document at a depth, block by block."""

    def __init__(self, text: Buffer, depth: int) -> None:
        self._text = text
        self._level = depth
        self._depth = 0
        self._in_string = False
        self._backslashes = 0
        """Whether the number of backslashes at the end of the last block is odd."""
        self._elements = 0
        """Commas and opening brackets outside of the arrays that were found."""
        self._found: list[tuple[JsonArray, int, int]] = []
        self._leave()

    def _leave(self) -> None:
        """The text that follows is in no array of the level."""
        self._enter(-1)
        self._is_within = False

    def _enter(self, start: int) -> None:
        """The text that follows is in an array of the level that begins at `start`, or in an object (-1)."""
        self._is_within = True
        self._start = start
        self._pending = 0
        """Commas and opening brackets of the array."""
        self._length = 0
        self._has_objects = False
        self._cuts: list[tuple[int, int]] = []

    def arrays(self) -> list[tuple[JsonArray, int, int]]:
        """Returns the arrays, with start and end. Raises Invalid if too many elements are not in them."""
        data = np.frombuffer(self._text, np.uint8)
        for start in range(0, len(data), _BLOCK_BYTES):
            self._read(data[start : start + _BLOCK_BYTES], start)
            if self._elements > MAX_ELEMENTS:
                break
            sleep(0)
        # The elements of an array without an end count too.
        if self._elements + self._pending > MAX_ELEMENTS:
            raise Invalid(f"the request JSON has more than {MAX_ELEMENTS} elements besides the data of its tensors")
        return self._found

    def _read(self, block: npt.NDArray[np.uint8], start: int) -> None:
        at = self._without_escaped(block, np.flatnonzero(_is_structure(block)))
        kinds = block[at]
        quotes = kinds == _QUOTE
        inside = (np.cumsum(quotes) + self._in_string) & 1
        if not len(at):
            return
        self._in_string = bool(inside[-1])
        outside = ~quotes & (inside == 0)
        kinds, places = kinds[outside], at[outside] + start
        if len(kinds):
            self._follow(places, kinds)

    def _without_escaped(self, block: npt.NDArray[np.uint8], at: Positions) -> Positions:
        """Returns the places without those of escaped quotes."""
        slashes = block == _BACKSLASH
        carried = self._backslashes
        if not carried and not slashes.any():
            return at
        # For each place the last one up to it without a backslash.
        last = np.maximum.accumulate(np.where(slashes, -1, np.arange(len(block))))
        self._backslashes = (len(block) - 1 - int(last[-1]) + (carried if last[-1] < 0 else 0)) & 1
        before = np.where(at > 0, last[at - 1], -1)
        run = at - 1 - before + np.where(before < 0, carried, 0)
        kept: Positions = at[(run & 1 == 0) | (block[at] != _QUOTE)]
        return kept

    def _follow(self, places: Positions, kinds: npt.NDArray[np.uint8]) -> None:
        changes = _DEPTH[kinds]
        depths = self._depth + np.cumsum(changes)
        self._depth = int(depths[-1])
        level = self._level
        # Where an array or object of the level begins or ends.
        borders = np.flatnonzero(((changes > 0) & (depths == level)) | ((changes < 0) & (depths == level - 1)))
        done = 0
        for border in self._of_long_arrays(places, borders):
            self._take(places[done:border], kinds[done:border], depths[done:border])
            done = border
            place = int(places[border])
            if self._is_within:
                self._end(place + 1, kinds[border] == _CLOSE)
            else:
                self._enter(place if kinds[border] == _OPEN else -1)
        self._take(places[done:], kinds[done:], depths[done:])

    def _of_long_arrays(self, places: Positions, borders: Positions) -> list[int]:
        """Returns the borders without those of arrays that begin and end in this block and are short."""
        first = min(int(self._is_within), len(borders))
        last = len(borders) - (len(borders) - first) % 2
        pairs = borders[first:last].reshape(-1, 2)
        long = pairs[places[pairs[:, 1]] - places[pairs[:, 0]] >= _SLICE_BYTES]
        return [int(border) for border in (*borders[:first], *long.ravel(), *borders[last:])]

    def _take(self, places: Positions, kinds: npt.NDArray[np.uint8], depths: Positions) -> None:
        """Takes the structure up to the next border."""
        count = int(np.count_nonzero(_DEPTH[kinds] >= 0))
        if self._start < 0:
            self._elements += count
            return
        self._pending += count
        self._has_objects = self._has_objects or bool((kinds == _OBJECT).any())
        is_comma = kinds == _COMMA
        self._length += int(np.count_nonzero(is_comma & (depths == self._level)))
        commas, depths = places[is_comma], depths[is_comma]
        last = self._cuts[-1][0] if self._cuts else self._start
        while (index := int(np.searchsorted(commas, last + _SLICE_BYTES))) < len(commas):
            last = int(commas[index])
            self._cuts.append((last, int(depths[index]) - self._level + 1))

    def _end(self, end: int, is_array: bool) -> None:
        """Ends the array. A short one, or one with objects, which no tensor has, stays where it is."""
        if self._start >= 0 and is_array and not self._has_objects and end - self._start > _SLICE_BYTES:
            inside = bytes(self._text[self._start + 1 : end - 1]) if not self._length else b","
            length = self._length + 1 if inside.strip(_SPACE) else 0
            array = JsonArray(self._text, self._start, end, self._cuts, length)
            self._found.append((array, self._start, end))
        else:
            self._elements += self._pending
        self._leave()
