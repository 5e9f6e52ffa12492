"""Header blocks in and out (HPACK, RFC 7541), and the rules for a request's head (RFC 9113, section 8.3).

The decoder walks over a block with the table and the integers of the `hpack` library. It remembers blocks, because
clients send the same few again and again: those of indexed fields alone at once, others when they come again. The
encoder needs a handful of fields, which enter the peer's table once. A connection has one decoder and one encoder, and
calls them in the order of its frames. Knows no connection and no gRPC.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from halimede.transport.http2.frames import Code, ConnectionFault
from halimede.transport.http2.hpack_library import (
    STATIC_TABLE,
    HeaderTable,
    HPACKDecodingError,
    HPACKError,
    OversizedHeaderListError,
    decode_integer,
)
from halimede.transport.http2.huffman import decode as decode_huffman

Field = tuple[bytes, bytes]
Fields = tuple[Field, ...]

MAX_LIST_BYTES = 1 << 16
"""Size of a decoded header list. A larger one ends the connection, because the rest of the block is not read and the
table is then unknown."""
MAX_KNOWN_HEAD_BYTES = 1 << 12
"""Size of a decoded header list that is remembered."""
MAX_KNOWN_BYTES = 1 << 17
"""Total size of the decoded lists that are remembered. A few index bytes may stand for long fields, in any number of
orders."""
MAX_SEEN_BLOCKS = 64
"""Blocks with literal fields of which is known that they came before."""
MAX_CHECKED_FIELDS = 64
"""Number of fields that are remembered as well formed."""
MAX_CHECKED_FIELD_BYTES = 128
"""Size of a field that is remembered as well formed."""
MAX_FIELDS = 1024
"""Number of fields in a header list. More end the connection. A list of the announced size
(SETTINGS_MAX_HEADER_LIST_SIZE) has at most 496."""
MAX_TABLE_UPDATES = 2
"""Table size updates at the beginning of a block: the smallest size since the last block, and the present one."""
_ENTRY_OVERHEAD_BYTES = 32
"""What a field counts beyond its name and value (RFC 9113, section 6.5.2)."""
_MAX_INTEGER_BYTES = 16
"""More bytes than the library accepts for an integer."""

_TOP_BITS_INDEXED = 0x80
_TOP_BITS_INSERTING = 0x40
_TOP_BITS_RESIZING = 0x20


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What the head of a request says.

    `fields` are the fields other than pseudo-headers, in order, with lower-case names. `malformed` is true if the head
    breaks a rule of section 8.3; the other attributes are then unreliable. `byte_size` is counted as in section 6.5.2.
    """

    method: bytes
    path: bytes
    fields: Fields
    content_length: int | None
    byte_size: int
    malformed: bool


ReadBlock = tuple[list[Field], int, bool, bool]
"""The fields of a block, their size (section 6.5.2), whether any is a literal, and whether any enters the table. A
plain tuple, because a NamedTuple would cost a call 1 % of its time."""

H = TypeVar("H")


class HeaderDecoder(Generic[H]):
    """Decodes the header blocks of one connection.

    `compile` turns a head into what the receiver needs, and `is_cacheable` tells whether the result may be remembered:
    it must take no more memory than the list. A remembered block is valid until the dynamic table changes. A field that
    was found well formed stays so.
    """

    __slots__ = ("_checked", "_compile", "_is_cacheable", "_known", "_known_bytes", "_seen", "_table")

    def __init__(self, compile: Callable[[RequestHead], H], is_cacheable: Callable[[H], bool]) -> None:
        self._compile = compile
        self._is_cacheable = is_cacheable
        self._table = HeaderTable()
        self._known: dict[bytes, H] = {}
        self._known_bytes = 0
        self._seen: set[int] = set()
        """Hashes of blocks, because most of them are never seen again. Two blocks of one hash do no harm."""
        self._checked: dict[Field, None] = {}

    def decode(self, block: bytes) -> H:
        """Returns the compiled head. Raises ConnectionFault: COMPRESSION_ERROR for a malformed block, or
        ENHANCE_YOUR_CALM for a list that is too large."""
        known = self._known.get(block)
        return self._decode(block) if known is None else known

    def _decode(self, block: bytes) -> H:
        fields, byte_size, spelled, changed = self._read(block)
        compiled = self._compile(request_head(fields, byte_size, self._checked))
        # grpcio spells out each metadata value in each call. A key is the same again, and a trace's id is not.
        if not spelled:
            self._remember(block, byte_size, compiled)
        elif not changed and self._has_seen(block):
            self._remember(block, byte_size + len(block), compiled)
        return compiled

    def _has_seen(self, block: bytes) -> bool:
        """Whether a block came before. Notes that it came."""
        number = hash(block)
        if number in self._seen:
            return True
        if len(self._seen) >= MAX_SEEN_BLOCKS:
            self._seen.clear()
        self._seen.add(number)
        return False

    def _remember(self, block: bytes, byte_size: int, compiled: H) -> None:
        room = min(MAX_KNOWN_HEAD_BYTES, MAX_KNOWN_BYTES - self._known_bytes)
        if byte_size <= room and self._is_cacheable(compiled):
            self._known_bytes += byte_size
            self._known[block] = compiled

    def fields(self, block: bytes) -> Sequence[Field]:
        """Returns the fields of a block. Raises ConnectionFault."""
        return self._read(block)[0]

    def _read(self, block: bytes) -> ReadBlock:
        """Reads any block. Raises ConnectionFault."""
        try:
            if block and _TOP_BITS_RESIZING <= block[0] < _TOP_BITS_INSERTING:
                fields, size, _, _ = read_fields(block, self._table, _resize(block, self._table))
                # Such a block must not be remembered, because it changes the table each time.
                read = fields, size, True, True
            else:
                read = read_fields(block, self._table)
        except OversizedHeaderListError:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "header list too large") from None
        except (HPACKError, IndexError, ValueError) as error:
            # The library's text may repeat all that the client sent. It must not get into GOAWAY or the log.
            raise ConnectionFault(Code.COMPRESSION_ERROR, f"header block: {type(error).__name__}") from None
        # The table has changed, so indexes mean other fields now.
        if read[3]:
            self._known.clear()
            self._known_bytes = 0
        return read


def _resize(block: bytes, table: HeaderTable) -> int:
    """Applies the table size updates at the beginning of a block (RFC 7541, section 6.3). Returns where they end. The
    reader of the fields refuses those after `MAX_TABLE_UPDATES`."""
    at = 0
    for _ in range(MAX_TABLE_UPDATES):
        if at == len(block) or not _TOP_BITS_RESIZING <= block[at] < _TOP_BITS_INSERTING:
            break
        size, used = decode_integer(block[at : at + _MAX_INTEGER_BYTES], 5)
        # The server never allows more than the initial size.
        if size > HeaderTable.DEFAULT_SIZE:
            raise HPACKDecodingError("the table is larger than the server allows")
        table.maxsize = size
        at += used
    return at


def read_fields(block: bytes, table: HeaderTable, at: int = 0) -> ReadBlock:
    """Reads the fields of a block, from `at` on (RFC 7541, sections 6.1 and 6.2).

    A client whose heads differ in one field, such as a deadline, sends blocks in which every byte is new, because each
    insertion moves all entries. Nothing can be remembered then, so the walk is kept short. Raises HPACKError or
    IndexError; the table then differs from the client's.
    """
    fields: list[Field] = []
    size, spelled, changed = 0, False, False
    entry = table.get_by_index
    end = len(block)
    while at < end:
        byte = block[at]
        # One byte: a whole indexed field, by far the most frequent kind.
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
            # RFC 7541, section 4.2: an update of the size stands at the beginning of a block.
            if not inserting and byte >= _TOP_BITS_RESIZING:
                raise HPACKDecodingError("the table's size changes after a field")
            name, at = _name(block, at, 6 if inserting else 4, table)
            value, at = _text(block, at)
            field = name, value
            if inserting:
                changed = True
                table.add(name, value)
        # The sum of `entry_size`, written out because a call per field is measurable.
        size += len(field[0]) + len(field[1]) + _ENTRY_OVERHEAD_BYTES
        if size > MAX_LIST_BYTES or len(fields) == MAX_FIELDS:
            raise OversizedHeaderListError
        fields.append(field)
    return fields, size, spelled, changed


def _name(block: bytes, at: int, prefix: int, table: HeaderTable) -> tuple[bytes, int]:
    """Returns the name of a literal field, an entry's or its own, and where its value begins."""
    if not block[at] & (1 << prefix) - 1:
        return _text(block, at + 1)
    index, used = decode_integer(block[at : at + _MAX_INTEGER_BYTES], prefix)
    return table.get_by_index(index)[0], at + used


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """Returns a string of a block (RFC 7541, section 5.2), and where it ends."""
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
    """Returns the size of a field (RFC 9113, section 6.5.2)."""
    return len(field[0]) + len(field[1]) + _ENTRY_OVERHEAD_BYTES


_CONNECTION_FIELDS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")  # 8.2.2
)
_PSEUDO = (b":method", b":scheme", b":path", b":authority")


def request_head(fields: Sequence[Field], byte_size: int, checked: dict[Field, None]) -> RequestHead:
    """Returns the head of a request, with its fields checked. `checked` remembers fields that are well formed."""
    pseudo: dict[bytes, bytes] = {}
    ordinary: list[Field] = []
    well_formed = True
    for field in fields:
        name, value = field
        if name[:1] == b":":
            # Section 8.3: pseudo-headers come first, are known, and occur once.
            well_formed = well_formed and not ordinary and name in _PSEUDO and name not in pseudo
            pseudo[name] = value
        else:
            if field not in checked:
                well_formed = _is_well_formed(name, value) and well_formed
                if well_formed and len(name) + len(value) <= MAX_CHECKED_FIELD_BYTES:
                    if len(checked) >= MAX_CHECKED_FIELDS:
                        checked.clear()
                    checked[field] = None
            ordinary.append(field)
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    if not method or not path or not pseudo.get(b":scheme"):
        well_formed = False
    # Equal lengths may be repeated (RFC 9110, section 8.6). Different ones contradict each other.
    lengths = {value for name, value in ordinary if name == b"content-length"}
    length = lengths.pop() if lengths else None
    if lengths or (length is not None and not length.isdigit()):
        length, well_formed = None, False
    # Twenty digits are more than any body has, and `int` of very long text is slow.
    expected = None if length is None else int(length[:20])
    return RequestHead(method, path, tuple(ordinary), expected, byte_size, not well_formed)


def are_trailers(fields: Sequence[Field]) -> bool:
    """Whether fields may follow a body (section 8.1): they must be well formed, and no pseudo-header."""
    return all(_is_well_formed(name, value) for name, value in fields)


_NAME_BYTES = bytes(byte for byte in range(0x21, 0x7F) if byte != 0x3A and not 0x41 <= byte <= 0x5A)
"""Visible ASCII characters except capital letters and the colon."""


def _is_well_formed(name: bytes, value: bytes) -> bool:
    """Whether a field follows sections 8.2.1 and 8.2.2, with one exception: blanks at the ends of a value are accepted,
    because gRPC clients send them in metadata, and gRPC servers take them.

    No regular expressions: they take ten times as long for a field of some kilobytes, and a client can repeat such a
    field with one byte.
    """
    if name in _CONNECTION_FIELDS or (name == b"te" and value != b"trailers"):
        return False
    if not name or name.translate(None, _NAME_BYTES):
        return False
    return b"\0" not in value and b"\n" not in value and b"\r" not in value


_STATIC = {field: index for index, field in enumerate(STATIC_TABLE, 1) if field[1]}
_STATIC_NAMES = {name: index for index, (name, _) in reversed(list(enumerate(STATIC_TABLE, 1)))}
_FIRST_DYNAMIC = len(STATIC_TABLE) + 1


class HeaderEncoder:
    """Encodes header blocks for the peer. Repeated fields enter its table, at most `ENTRIES`, and are indexed from then
    on. Blocks must be sent in the order in which they were made."""

    ENTRIES: ClassVar[int] = 24
    """Entries that the server makes in the table of the peer."""
    TABLE_BYTES: ClassVar[int] = 4096
    """The size that every peer's table begins with. The entries stay far below it, so that none is evicted."""

    __slots__ = ("_announce", "_blocks", "_entries", "_room")

    def __init__(self) -> None:
        self._entries: dict[Field, int] = {}
        self._blocks: dict[Fields, bytes] = {}
        self._room = self.TABLE_BYTES
        self._announce = b""

    def limit_table(self, size: int) -> None:
        """Applies the peer's SETTINGS_HEADER_TABLE_SIZE. If it is below the default, the table is not used any more."""
        if size < self.TABLE_BYTES and self._room >= 0:
            self._entries.clear()
            self._blocks.clear()
            self._room = -1
            # RFC 7541, section 4.2: the next block must announce the new size, here zero.
            self._announce = bytes((_TOP_BITS_RESIZING,))

    def encode(self, fields: Fields, *once: Field) -> bytes:
        """Returns a block of `fields`, which may enter the table, and of `once`, which do not."""
        block = self._blocks.get(fields)
        if block is None:
            block = self._encode(fields)
        return block + b"".join(_literal(0, name, value) for name, value in once) if once else block

    def _encode(self, fields: Fields) -> bytes:
        """Encodes a block. Indexes count from the newest entry, so an insertion in the middle of a block moves the
        entries after it."""
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
        # A block that inserts is different the next time: its fields are indexed then.
        if not inserted:
            self._blocks[fields] = block
        return block

    def _insert(self, field: Field) -> bool:
        size = entry_size(field)
        if len(self._entries) >= self.ENTRIES or size > self._room:
            return False
        self._room -= size
        # Known blocks have indexes that the new entry moves.
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
    """Returns an integer with a prefix of `prefix` bits (RFC 7541, section 5.1)."""
    most = (1 << prefix) - 1
    if value < most:
        return bytes((top_bits | value,))
    out = [top_bits | most]
    value -= most
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
