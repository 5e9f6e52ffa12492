"""Header blocks in and out (HPACK, RFC 7541) and what a request's head must be (RFC 9113, section 8.3).

Decoding walks over a block with the table, the Huffman code and the integers of the `hpack` library, behind a memory of
the blocks that consist of indexed fields alone: clients send the same few again and again. Encoding needs a handful of
fields only, which go into the peer's table once. No connection, no gRPC. One decoder and one encoder for each
connection, in the order of its frames.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from halimede.transport.http2.frames import Code, ConnectionFault
from halimede.transport.http2.hpack_library import (
    STATIC_TABLE,
    Decoder,
    HeaderTable,
    HPACKDecodingError,
    HPACKError,
    OversizedHeaderListError,
    decode_huffman,
    decode_integer,
)

Field = tuple[bytes, bytes]
Fields = tuple[Field, ...]

MAX_LIST_BYTES = 1 << 16
"""Of a decoded header list; beyond it the connection ends, since the table is no longer known."""
MAX_KNOWN_HEAD_BYTES, MAX_KNOWN_BYTES = 1 << 12, 1 << 17
"""Of a decoded list that is remembered, and of all of them: a few bytes of indexes may stand for long fields, in any
number of orders."""
MAX_CHECKED_FIELDS, MAX_CHECKED_FIELD_BYTES = 64, 128
"""How many fields are remembered as well formed, and how long each may be."""
_ENTRY_OVERHEAD_BYTES = 32
_MAX_INTEGER_BYTES = 16
"""More bytes than the library takes for an integer."""

_TOP_BITS_INDEXED = 0x80
_TOP_BITS_INSERTING = 0x40
_TOP_BITS_RESIZING = 0x20


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What the head of a request says. `fields` are those that are not pseudo-headers, in order, names in lower case;
    `malformed` when it breaks the rules of section 8.3, whatever the rest says. `byte_size` counts as section 6.5.2
    has it."""

    method: bytes
    path: bytes
    fields: Fields
    content_length: int | None
    byte_size: int
    malformed: bool


ReadBlock = tuple[list[Field], int, bool, bool]
"""The fields of a block, their size as section 6.5.2 counts, whether any is spelled out, and whether any enters the
table. A plain tuple, since one with names costs a call a hundredth of its time."""

H = TypeVar("H")


class HeaderDecoder(Generic[H]):
    """Header blocks of one connection, each turned by `compile` into what its receiver wants to know of it.

    What is remembered of a block holds until the dynamic table changes; what is remembered of a field always holds.
    `lasts` tells whether something compiled takes no more memory than its list, and is worth it.
    """

    __slots__ = ("_compile", "_decoder", "_is_cacheable", "_known", "_known_bytes", "_sound")

    def __init__(self, compile: Callable[[RequestHead], H], is_cacheable: Callable[[H], bool]) -> None:
        self._compile = compile
        self._is_cacheable = is_cacheable
        self._decoder = Decoder(MAX_LIST_BYTES)
        self._known: dict[bytes, H] = {}
        self._known_bytes = 0
        self._sound: dict[Field, None] = {}

    def decode(self, block: bytes) -> H:
        """Raises ConnectionFault: COMPRESSION_ERROR, or ENHANCE_YOUR_CALM for a list that is far too long."""
        known = self._known.get(block)
        return self._decode(block) if known is None else known

    def _decode(self, block: bytes) -> H:
        fields, byte_size, spelled, _ = self._read(block)
        compiled = self._compile(request_head(fields, byte_size, self._sound))
        if not spelled:
            self._remember(block, byte_size, compiled)
        return compiled

    def _remember(self, block: bytes, byte_size: int, compiled: H) -> None:
        room = min(MAX_KNOWN_HEAD_BYTES, MAX_KNOWN_BYTES - self._known_bytes)
        if byte_size <= room and self._is_cacheable(compiled):
            self._known_bytes += byte_size
            self._known[block] = compiled

    def fields(self, block: bytes) -> Sequence[Field]:
        """The fields of a block. Raises as `decode` does."""
        return self._read(block)[0]

    def _read(self, block: bytes) -> ReadBlock:
        """As `read_fields`, for any block."""
        try:
            if block and _TOP_BITS_RESIZING <= block[0] < _TOP_BITS_INSERTING:
                fields = [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
                read = fields, sum(map(entry_size, fields)), True, True
            else:
                read = read_fields(block, self._decoder.header_table)
        except OversizedHeaderListError:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "header list too large") from None
        except (HPACKError, IndexError, ValueError) as error:
            # Its text may repeat all that the client sent.
            raise ConnectionFault(Code.COMPRESSION_ERROR, f"header block: {type(error).__name__}") from None
        if read[3]:
            self._known.clear()
            self._known_bytes = 0
        return read


def read_fields(block: bytes, table: HeaderTable) -> ReadBlock:
    """Walks over a block (RFC 7541, 6.1, 6.2).

    A client whose heads differ in one field, such as a deadline, sends blocks of which every byte is new: what it
    inserts moves all entries. So nothing can be remembered, and the walk is kept short; what it needs besides is the
    library's. Raises HPACKError or IndexError; the table is then not what the client believes.
    """
    fields: list[Field] = []
    size, spelled, changed = 0, False, False
    entry = table.get_by_index
    at, end = 0, len(block)
    while at < end:
        byte = block[at]
        if _TOP_BITS_INDEXED < byte < 0xFF:
            field = entry(byte & 0x7F)
            at += 1
        elif byte >= _TOP_BITS_INDEXED:
            index, used = decode_integer(block[at : at + _MAX_INTEGER_BYTES], 7)
            field = entry(index)
            at += used
        else:
            spelled = True
            inserting = byte >= _TOP_BITS_INSERTING
            if not inserting and byte >= _TOP_BITS_RESIZING:
                raise HPACKDecodingError("the table's size changes after a field")
            name, at = _name(block, at, 6 if inserting else 4, table)
            value, at = _text(block, at)
            field = name, value
            if inserting:
                changed = True
                table.add(name, value)
        size += len(field[0]) + len(field[1]) + _ENTRY_OVERHEAD_BYTES  # `entry_size`, whose call would be felt here
        if size > MAX_LIST_BYTES:
            raise OversizedHeaderListError
        fields.append(field)
    return fields, size, spelled, changed


def _name(block: bytes, at: int, prefix: int, table: HeaderTable) -> tuple[bytes, int]:
    """The name of a literal field, an entry's or its own, and where its value begins."""
    if not block[at] & (1 << prefix) - 1:
        return _text(block, at + 1)
    index, used = decode_integer(block[at : at + _MAX_INTEGER_BYTES], prefix)
    return table.get_by_index(index)[0], at + used


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """A string of a block (5.2), and where it ends."""
    size = block[at] & 0x7F
    start = at + 1
    if size == 0x7F:
        size, used = decode_integer(block[at : at + _MAX_INTEGER_BYTES], 7)
        start = at + used
    end = start + size
    if end > len(block):
        raise HPACKDecodingError("a string that is cut off")
    text = block[start:end]
    return (decode_huffman(text) if block[at] & 0x80 else text), end


def entry_size(field: Field) -> int:
    """As section 6.5.2 counts."""
    return len(field[0]) + len(field[1]) + _ENTRY_OVERHEAD_BYTES


_CONNECTION_FIELDS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")  # 8.2.2
)
_PSEUDO = (b":method", b":scheme", b":path", b":authority")


def request_head(fields: Sequence[Field], byte_size: int, sound: dict[Field, None]) -> RequestHead:
    """The head of a request from all of its fields, checked. `sound` remembers those that are well formed."""
    pseudo: dict[bytes, bytes] = {}
    ordinary: list[Field] = []
    well_formed = True
    for field in fields:
        name, value = field
        if name[:1] == b":":
            well_formed = well_formed and not ordinary and name in _PSEUDO and name not in pseudo
            pseudo[name] = value
        else:
            if field not in sound:
                well_formed = _is_well_formed(name, value) and well_formed
                if well_formed and len(name) + len(value) <= MAX_CHECKED_FIELD_BYTES:
                    if len(sound) >= MAX_CHECKED_FIELDS:
                        sound.clear()
                    sound[field] = None
            ordinary.append(field)
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    if not method or not path or not pseudo.get(b":scheme"):
        well_formed = False
    lengths = {value for name, value in ordinary if name == b"content-length"}
    length = lengths.pop() if lengths else None
    if lengths or (length is not None and not length.isdigit()):
        length, well_formed = None, False
    expected = None if length is None else int(length[:20])
    return RequestHead(method, path, tuple(ordinary), expected, byte_size, not well_formed)


def are_trailers(fields: Sequence[Field]) -> bool:
    """Whether fields may stand after a body (8.1): no pseudo-header among them."""
    return all(_is_well_formed(name, value) for name, value in fields)


_NAME_BYTES = bytes(byte for byte in range(0x21, 0x7F) if byte != 0x3A and not 0x41 <= byte <= 0x5A)
"""Visible characters without capitals and colons."""


def _is_well_formed(name: bytes, value: bytes) -> bool:
    """Sections 8.2.1 and 8.2.2. Blanks at the ends of a value are let pass, against the former: clients of gRPC send
    them in metadata, and its servers take them.

    Without regular expressions, which take ten times as long for a field of some kilobytes: an index is enough to send
    one again."""
    if name in _CONNECTION_FIELDS or (name == b"te" and value != b"trailers"):
        return False
    if not name or name.translate(None, _NAME_BYTES):
        return False
    return b"\0" not in value and b"\n" not in value and b"\r" not in value


_STATIC = {field: index for index, field in enumerate(STATIC_TABLE, 1) if field[1]}
_STATIC_NAMES = {name: index for index, (name, _) in reversed(list(enumerate(STATIC_TABLE, 1)))}
_FIRST_DYNAMIC = len(STATIC_TABLE) + 1


class HeaderEncoder:
    """Header blocks for the peer. Fields that repeat are put into its table, up to `ENTRIES`, and indexed from then on.

    Blocks must be sent in the order in which they were made.
    """

    ENTRIES: ClassVar[int] = 24
    TABLE_BYTES: ClassVar[int] = 4096
    """The size that every peer begins with; the entries stay far below it, so none is ever evicted."""

    __slots__ = ("_announce", "_blocks", "_entries", "_room")

    def __init__(self) -> None:
        self._entries: dict[Field, int] = {}
        self._blocks: dict[Fields, bytes] = {}
        self._room = self.TABLE_BYTES
        self._announce = b""

    def limit_table(self, size: int) -> None:
        """The peer's SETTINGS_HEADER_TABLE_SIZE. Below the default the table is given up."""
        if size < self.TABLE_BYTES and self._room >= 0:
            self._entries.clear()
            self._blocks.clear()
            self._room = -1
            self._announce = bytes((_TOP_BITS_RESIZING,))  # to zero

    def encode(self, fields: Fields, *once: Field) -> bytes:
        """A block of `fields`, which are worth an entry of the table, and those that are not."""
        block = self._blocks.get(fields)
        if block is None:
            block = self._encode(fields)
        return block + b"".join(_literal(0, name, value) for name, value in once) if once else block

    def _encode(self, fields: Fields) -> bytes:
        """Indexes count from the newest entry: an insertion in the middle of a block moves those after it."""
        pieces, inserted = [self._announce], bool(self._announce)
        self._announce = b""
        for field in fields:
            if (index := _STATIC.get(field)) is not None:
                pieces.append(_integer(index, 7, _TOP_BITS_INDEXED))
            elif (position := self._entries.get(field)) is not None:
                pieces.append(_integer(_FIRST_DYNAMIC + len(self._entries) - 1 - position, 7, _TOP_BITS_INDEXED))
            elif self._insert(field):
                pieces.append(_literal(_TOP_BITS_INSERTING, *field))
                inserted = True
            else:
                pieces.append(_literal(0, *field))
        block = b"".join(pieces)
        if not inserted:
            self._blocks[fields] = block
        return block

    def _insert(self, field: Field) -> bool:
        size = entry_size(field)
        if len(self._entries) >= self.ENTRIES or size > self._room:
            return False
        self._room -= size
        self._entries[field] = len(self._entries)
        self._blocks.clear()
        return True


def _literal(kind: int, name: bytes, value: bytes) -> bytes:
    prefix = 6 if kind else 4
    index = _STATIC_NAMES.get(name)
    head = bytes((kind,)) + _string(name) if index is None else _integer(index, prefix, kind)
    return head + _string(value)


def _string(value: bytes) -> bytes:
    return _integer(len(value), 7, 0) + value


def _integer(value: int, prefix: int, top_bits: int) -> bytes:
    """Section 5.1."""
    most = (1 << prefix) - 1
    if value < most:
        return bytes((top_bits | value,))
    out = [top_bits | most]
    value -= most
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
