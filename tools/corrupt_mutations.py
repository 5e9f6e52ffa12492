"""Random changes of valid bytes, JSON documents and protobuf messages.

Pure: a `Draw` with the same seed makes the same changes. Knows the two encodings and no protocol. Any thread.
"""

import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

NUMBERS: Sequence[Any] = (
    *(0, 1, 2, 3, 7, 99, 100, 127, 128, 255, 256, 4095, 4096, 4097, 65535, 65536, 10**7),
    *(2**n + d for n in (31, 32, 53, 63, 64) for d in (-1, 0, 1)),
    *(-1, -2, -128, -(2**31), -(2**31) - 1, -(2**63), -(2**63) - 1),
    *(10**30, 0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
)
WORDS: Sequence[str] = (
    *("", "x", "INPUT0", "OUTPUT0", "INPUT9", "INT32", "FP32", "BYTES", "BOOL", "FP16", "STRING", "data", "parameters"),
    *("\0", "a\0b", "\ud800", "\udc80", "é€😀", "\n\r\t", '"', "\\", "..", "../..", "/", "%s%n", "-1", "1e3", "nan"),
    *("binary_data", "binary_data_size", "classification", "shared_memory_region", "shared_memory_byte_size"),
    *("triton_x", "sequence_id", "priority", "timeout", "a" * 300, "a" * 20_000),
)
_ASCII_NUMBER = re.compile(rb"-?[0-9]+")
_MOST_BYTES = 3 << 20
"""About the largest size that repetition grows to. The server does not handle so much on its event loop, and its memory
does not jump."""


class Draw(random.Random):
    """The random choices of one corruption."""

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def few(self) -> int:
        """A small count: 1 to 4, usually 1."""
        return 1 + sum(self.chance(0.35) for _ in range(3))

    def piece(self, size: int) -> slice:
        """A slice of `size` bytes. Short slices are more frequent; it may be empty."""
        start = self.randint(0, size)
        return slice(start, min(size, start + int(size ** self.random())))

    def number(self) -> Any:
        return self.choice(NUMBERS)

    def word(self) -> str:
        return self.choice(WORDS)


# Bytes.


def _flip(draw: Draw, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.few()):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _overwrite(draw: Draw, data: bytes) -> bytes:
    at = draw.randrange(len(data))
    new = draw.choice((b"\0", b"\xff", b"\x7f", b"\x80", b'"', b"\r\n", b"\xff" * 4, b"\xff" * 8, draw.randbytes(3)))
    return data[:at] + new + data[at + len(new) :]


def _cut(draw: Draw, data: bytes) -> bytes:
    return data[: draw.randrange(len(data))]


def _remove(draw: Draw, data: bytes) -> bytes:
    part = draw.piece(len(data))
    return data[: part.start] + data[part.stop :]


def _repeat(draw: Draw, data: bytes) -> bytes:
    part = draw.piece(len(data))
    piece = data[part]
    times = draw.choice((2, 2, 3, 20, 300))
    return data[: part.start] + piece * max(2, min(times, _MOST_BYTES // (len(piece) + 1))) + data[part.stop :]


def _insert(draw: Draw, data: bytes) -> bytes:
    at = draw.randint(0, len(data))
    new = draw.choice((b"\0", b"\r\n\r\n", b"{}", b"[", b'"', b"NaN", bytes(5), draw.randbytes(draw.randint(1, 40))))
    return data[:at] + new + data[at:]


def _swap(draw: Draw, data: bytes) -> bytes:
    a, b, c, d = sorted(draw.randint(0, len(data)) for _ in range(4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def _other_number(draw: Draw, data: bytes) -> bytes:
    """Replaces a number that is written in decimal digits."""
    found = list(_ASCII_NUMBER.finditer(data))
    if not found:
        return _flip(draw, data)
    at = draw.choice(found)
    return data[: at.start()] + str(draw.number()).encode() + data[at.end() :]


def _other_integer(draw: Draw, data: bytes) -> bytes:
    """Overwrites four bytes with a binary number, as lengths are encoded."""
    at = draw.randrange(len(data))
    number = draw.choice((0, 1, 5, len(data), len(data) + 1, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1))
    return data[:at] + number.to_bytes(4, draw.choice(("little", "big"))) + data[at + 4 :]


_ON_BYTES: Sequence[Callable[[Draw, bytes], bytes]] = (
    *(_flip, _overwrite, _cut, _remove, _repeat, _insert, _swap, _other_number, _other_number, _other_integer),
)


def mutate_bytes(draw: Draw, data: bytes) -> tuple[bytes, str]:
    """Returns the bytes with one to four changes, and the names of the changes."""
    names = []
    for _ in range(draw.few()):
        change = draw.choice(_ON_BYTES) if data else _insert
        data = change(draw, data)
        names.append(change.__name__.strip("_"))
    return data, " ".join(names)


# JSON.


class _Place(NamedTuple):
    """A member of an object or an element of an array."""

    holder: Any
    key: Any

    @property
    def value(self) -> Any:
        return self.holder[self.key]

    def put(self, value: Any) -> None:
        self.holder[self.key] = value


def _places(document: Any) -> list[_Place]:
    """All members and elements, except those after the fourth of a long array."""
    found: list[_Place] = []
    holders = [document]
    while holders:
        holder = holders.pop()
        keys = list(holder) if isinstance(holder, dict) else list(range(min(4, len(holder))))
        for key in keys:
            found.append(_Place(holder, key))
            if isinstance(holder[key], (dict, list)):
                holders.append(holder[key])
    return found


def _nested(depth: int) -> Any:
    value: Any = [1]
    for _ in range(depth):
        value = [value]
    return value


def any_value(draw: Draw) -> Any:
    """A value of any type."""
    return draw.choice(
        (
            *(None, True, False, [], {}, [[]], [None], {"": 1}, [1] * 500, draw.number(), draw.number(), draw.word()),
            _nested(draw.choice((2, 98, 99, 100, 101, 200))),
            draw.word(),
            [draw.number() for _ in range(draw.randrange(5))],
            {draw.word(): draw.number()},
        )
    )


def _other_type(draw: Draw, place: _Place) -> None:
    place.put(any_value(draw))


def _other_value(draw: Draw, place: _Place) -> None:
    place.put(draw.number() if isinstance(place.value, (int, float)) else draw.word())


def _as_text(draw: Draw, place: _Place) -> None:
    place.put(str(place.value))


def _leave_out(draw: Draw, place: _Place) -> None:
    del place.holder[place.key]


def _rename(draw: Draw, place: _Place) -> None:
    if isinstance(place.holder, dict):
        place.holder[draw.word()] = place.holder.pop(place.key)
    else:
        place.put({draw.word(): place.value})


def _wrap(draw: Draw, place: _Place) -> None:
    place.put([place.value])


def _multiply(draw: Draw, place: _Place) -> None:
    if isinstance(place.value, list):
        most = _MOST_BYTES // len(str(place.value))
        # Deep copies: the next change would otherwise alter every occurrence of a shared value.
        copies = (copy.deepcopy(place.value) for _ in range(min(most, draw.choice((0, 2, 3, 1000)))))
        place.put([element for each in copies for element in each])
    else:
        place.put([place.value] * draw.choice((0, 2, 3)))


def _add(draw: Draw, place: _Place) -> None:
    if isinstance(place.holder, dict):
        place.holder[draw.word()] = any_value(draw)
    else:
        place.holder.insert(place.key, any_value(draw))


_ON_JSON: Sequence[Callable[[Draw, _Place], None]] = (
    *(_other_type, _other_type, _other_value, _other_value, _as_text, _leave_out, _rename, _wrap, _multiply, _add),
)


def mutate_json(draw: Draw, document: Any) -> tuple[bytes, str]:
    """Returns the text of a document with one to four changes, and the names of the changes."""
    whole = [copy.deepcopy(document)]
    names = []
    for _ in range(draw.few()):
        places = _places(whole)
        if not places:
            break
        change, place = draw.choice(_ON_JSON), draw.choice(places)
        if draw.chance(0.1):
            other = draw.choice(places)
            mine, its = copy.deepcopy(place.value), copy.deepcopy(other.value)
            place.put(its)
            other.put(mine)
            names.append(f"swap({place.key}, {other.key})")
        else:
            change(draw, place)
            names.append(f"{change.__name__.strip('_')}({place.key})")
    text = json.dumps(whole[0] if whole else None, indent=draw.choice((None, None, None, 1))).encode()
    if draw.chance(0.1) and text.startswith(b"{") and (keys := re.findall(rb'"\w+": ?', text)):
        text = b"{" + draw.choice(keys) + json.dumps(any_value(draw)).encode() + b"," + text[1:]
        names.append("same key twice")
    return text, " ".join(names)


# Protobuf.


class Field(NamedTuple):
    """A protobuf field: its number, its wire type, and its content without tag and length."""

    number: int
    wire: int
    content: bytes


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def fields(data: bytes) -> list[Field] | None:
    """The fields of a message. None if the bytes are not a message or contain groups."""
    found, at = [], 0
    try:
        while at < len(data):
            tag, at = _read_varint(data, at)
            start = at
            if tag & 7 == 0:
                at = _read_varint(data, at)[1]
            elif tag & 7 == 2:
                size, start = _read_varint(data, at)
                at = start + size
            else:
                at += {1: 8, 5: 4}[tag & 7]
            if at > len(data) or not tag >> 3:
                return None
            found.append(Field(tag >> 3, tag & 7, data[start:at]))
    except (IndexError, KeyError):
        return None
    return found


def join_fields(parts: Sequence[Field]) -> bytes:
    return b"".join(
        varint(number << 3 | wire) + (varint(len(content)) if wire == 2 else b"") + content
        for number, wire, content in parts
    )


def _other_content(draw: Draw, field: Field) -> list[Field]:
    content = field.content
    if field.wire == 0:
        content = varint(int(draw.choice([n for n in NUMBERS if isinstance(n, int)])))
    elif field.wire == 2 and draw.chance(0.3):
        content = draw.word().encode("utf-8", draw.choice(("replace", "replace", "surrogatepass")))
    else:
        content = mutate_bytes(draw, content)[0]
    return [field._replace(content=content)]


def _other_kind(draw: Draw, field: Field) -> list[Field]:
    if draw.chance(0.2):
        return [field._replace(wire=draw.randrange(8))]
    wire, content = draw.choice(((0, b"\1"), (1, bytes(8)), (2, b""), (2, b"\x08\1"), (5, bytes(4))))
    return [field._replace(wire=wire, content=content)]


def _other_field(draw: Draw, field: Field) -> list[Field]:
    return [field._replace(number=draw.choice((1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 1000, 2**29 - 1)))]


def _without(draw: Draw, field: Field) -> list[Field]:
    return []


def _several(draw: Draw, field: Field) -> list[Field]:
    return [field] * draw.choice((2, 2, 3, 100))


def _beside(draw: Draw, field: Field) -> list[Field]:
    return [field, Field(draw.randint(1, 9), draw.choice((0, 2)), draw.choice((b"\0", b"\1", b"", b"x")))]


_ON_FIELDS: Sequence[Callable[[Draw, Field], list[Field]]] = (
    *(_other_content, _other_content, _other_content, _other_kind, _other_field, _without, _several, _beside),
)


def mutate_message(draw: Draw, message: bytes) -> tuple[bytes, str]:
    """Returns a protobuf message with one to three changes at any depth, and the names of the changes."""
    names = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        message, name = _mutate_once(draw, message)
        names.append(name)
    return message, " ".join(names)


def _mutate_once(draw: Draw, message: bytes) -> tuple[bytes, str]:
    parts = fields(message)
    if not parts:
        changed, name = mutate_bytes(draw, message)
        return changed, f"bytes: {name}"
    at = draw.randrange(len(parts))
    field = parts[at]
    if field.wire == 2 and fields(field.content) and draw.chance(0.7):
        inner, name = _mutate_once(draw, field.content)
        parts[at] = field._replace(content=inner)
        return join_fields(parts), f"{field.number}.{name}"
    change = draw.choice(_ON_FIELDS)
    parts[at : at + 1] = change(draw, field)
    if draw.chance(0.1):
        draw.shuffle(parts)
    return join_fields(parts), f"{field.number} {change.__name__.strip('_')}"
