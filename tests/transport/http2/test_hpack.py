"""The decoder of header blocks behind its memory: whatever a client sends, it says what plain `hpack` says; and the
encoder, as a plain `hpack` decoder understands it.
"""

from collections.abc import Iterable

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.transport.http2.frames import Code, ConnectionFault, header_frames
from halimede.transport.http2.headers import MAX_TABLE_UPDATES, HeaderDecoder, HeaderEncoder, RequestHead
from halimede.transport.http2.hpack_library import KNOWN_VERSIONS
from tests.transport.http2_wire import Type, frames

Field = tuple[bytes, bytes]
Sensitive = tuple[bytes, bytes, bool]

MAX_LIST = 1 << 16
TABLE = 4096


class Plain:
    """What the answer is: `hpack` with no memory."""

    def __init__(self) -> None:
        self.decoder = hpack.Decoder(MAX_LIST)

    def fields(self, block: bytes) -> list[Field]:
        return [(bytes(name), bytes(value)) for name, value in self.decoder.decode(block, raw=True)]


def ours() -> HeaderDecoder[RequestHead]:
    return HeaderDecoder(lambda head: head, lambda head: not head.malformed)


def seen(head: RequestHead) -> tuple[bytes, bytes, tuple[Field, ...]]:
    return head.method, head.path, head.fields


def expected(fields: Iterable[Field]) -> tuple[bytes, bytes, tuple[Field, ...]]:
    """What a head says of these fields; of a pseudo-header that comes twice the last counts, though it is malformed."""
    fields = list(fields)
    pseudo = {name: value for name, value in fields if name.startswith(b":")}
    ordinary = tuple(field for field in fields if not field[0].startswith(b":"))
    return pseudo.get(b":method", b""), pseudo.get(b":path", b""), ordinary


# Blocks by hand. Few names, values and indexes, so that blocks repeat and the table's entries move under them.

NAMES = [b"a", b"grpc-timeout", b"traceparent", b":path"]
VALUES = [b"", b"1", b"20S", b"x" * 60, b"y" * 1500]


def integer(value: int, prefix: int, top: int) -> bytes:
    most = (1 << prefix) - 1
    if value < most:
        return bytes([top | value])
    out, value = [top | most], value - most
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def literal(kind: int, name: bytes, value: bytes) -> bytes:
    return bytes([kind]) + integer(len(name), 7, 0) + name + integer(len(value), 7, 0) + value


indexed = st.sampled_from([2, 4, 8, 62, 62, 62, 63, 63, 64, 65]).map(lambda index: integer(index, 7, 0x80))
any_indexed = st.integers(1, 200).map(lambda index: integer(index, 7, 0x80))
literals = st.builds(literal, st.sampled_from([0x00, 0x10, 0x40]), st.sampled_from(NAMES), st.sampled_from(VALUES))
named_literals = st.builds(
    lambda kind, index, value: integer(index, *kind) + integer(len(value), 7, 0) + value,
    st.sampled_from([(4, 0x00), (4, 0x10), (6, 0x40)]),
    st.sampled_from([1, 4, 62, 63, 65]),
    st.sampled_from(VALUES),
)
table_sizes = st.sampled_from([0, 40, 100, 1600, TABLE]).map(lambda size: integer(size, 5, 0x20))

by_hand = st.builds(
    lambda sizes, fields: b"".join([*sizes, *fields]),
    st.lists(table_sizes, max_size=2),
    st.lists(indexed | indexed | literals | named_literals, max_size=6),
)
only_indexed = st.lists(indexed, max_size=6).map(b"".join)
run_and_literals = st.builds(
    lambda run, fields, cut: b"".join([*run, *fields])[: -cut or None],
    st.lists(indexed, max_size=4),
    st.lists(st.builds(literal, st.sampled_from([0x00, 0x10]), st.sampled_from(NAMES), st.sampled_from(VALUES))),
    st.sampled_from([0, 0, 0, 0, 1, 3]),
)
"""What a client makes of a call whose metadata are new: a run that repeats, and fields spelled out after it."""
spellings = st.builds(
    lambda kind, name, value: bytes([kind]) + name + value,
    st.sampled_from([0x00, 0x10, 0x40]),
    *[st.sampled_from([b"\x01a", b"\x81\x1f", b"\x82\x1f\xff", b"\x00", b"\x81\xff", b"\xff\x01" + b"\xfe" * 128])] * 2,
)
"""Names and values in Huffman code, sound or not, and lengths of more than one byte."""
long_integers = st.builds(
    lambda top, more: top + more,
    st.sampled_from([b"\xff", b"\x7f", b"\x0f", b"\x1f", b"\x3f"]),
    st.sampled_from([b"", b"\0", b"\x80\0", b"\x01", b"\x80" * 4 + b"\0", b"\x80" * 6, b"\xff" * 9 + b"\x01"]),
).map(lambda integer: integer + b"\x01v")
in_any_order = st.builds(
    lambda pieces, cut: b"".join(pieces)[: -cut or None],
    st.lists(indexed | any_indexed | literals | named_literals | table_sizes | spellings | long_integers, max_size=5),
    st.sampled_from([0, 0, 0, 1]),
)
"""Most of them are no blocks at all."""
by_encoder = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES), st.booleans()), max_size=6)
"""Those that are sensitive are never indexed."""
broken = st.lists(any_indexed, min_size=1, max_size=3).map(b"".join)
step = st.one_of(*[by_hand, only_indexed, run_and_literals, by_encoder, spellings, st.integers(0, 40)] * 3, broken)
"""A block, fields for the encoder, or which of the blocks before comes again."""


@settings(max_examples=120)
@given(st.lists(step, min_size=5, max_size=40))
def test_decoder_never_gives_a_stale_answer(steps: list[bytes | list[Sensitive] | int]) -> None:
    plain, decoder, encoder = Plain(), ours(), hpack.Encoder()
    sent: list[bytes] = []
    for n in range(4):  # so that most of the indexes are of something
        block = literal(0x40, b"a", b"%d" % n)
        assert seen(decoder.decode(block)) == expected(plain.fields(block))
    for each in steps:
        if isinstance(each, bytes):
            block = each
        elif isinstance(each, list):
            block = bytes(encoder.encode(each))
        elif sent:
            block = sent[each % len(sent)]
        else:
            continue
        sent.append(block)
        try:
            fields = plain.fields(block)
        except Exception:
            with pytest.raises(ConnectionFault) as caught:
                decoder.decode(block)
            assert caught.value.code in (Code.COMPRESSION_ERROR, Code.ENHANCE_YOUR_CALM)
            return
        assert seen(decoder.decode(block)) == expected(fields)


@settings(max_examples=60)
@given(st.data())
def test_decoder_of_an_encoder_that_changes_its_table(data: st.DataObject) -> None:
    """As a real client does it: one encoder, whose table shrinks and grows, and blocks that repeat."""
    plain, decoder, encoder = Plain(), ours(), hpack.Encoder()
    heads = data.draw(st.lists(by_encoder, min_size=1, max_size=4))
    for at in data.draw(st.lists(st.integers(-3, 7), max_size=60)):
        if at < 0:
            encoder.header_table_size = (0, 200, TABLE)[at]
        block = bytes(encoder.encode(heads[at % len(heads)], huffman=at % 2 == 0))
        assert seen(decoder.decode(block)) == expected(plain.fields(block))


def test_decoder_forgets_when_an_entry_is_pushed_down() -> None:
    plain, decoder = Plain(), ours()
    newest = b"\xbe"
    for n in range(5):
        for block in (literal(0x40, b"key", b"%d" % n), newest, newest, b"\xbe\xbe"):
            assert seen(decoder.decode(block)) == expected(plain.fields(block))
    assert decoder.decode(newest).fields == ((b"key", b"4"),)


def test_decoder_forgets_the_run_that_a_block_begins_with() -> None:
    """With fields spelled out after it."""
    plain, decoder = Plain(), ours()
    for n in range(4):
        for block in (
            literal(0x40, b"key", b"%d" % n),
            b"\xbe" + literal(0x00, b"trace", b"1"),
            b"\xbe" + literal(0x10, b"trace", b"2"),
            b"\xbe\x82" + literal(0x00, b"trace", b"3"),
        ):
            assert seen(decoder.decode(block)) == expected(plain.fields(block))
    decoder.fields(literal(0x40, b"key", b"of trailers"))
    assert decoder.decode(b"\xbe" + literal(0x00, b"trace", b"1")).fields[0] == (b"key", b"of trailers")


HEAD = b"".join(literal(0x00, name, b"x") for name in (b":method", b":path", b":scheme"))
"""A head that is well formed, spelled out."""


def counting() -> tuple[HeaderDecoder[RequestHead], list[RequestHead]]:
    """A decoder, and the heads that it has compiled."""
    compiled: list[RequestHead] = []

    def compiled_head(head: RequestHead) -> RequestHead:
        compiled.append(head)
        return head

    return HeaderDecoder(compiled_head, lambda head: not head.malformed), compiled


def test_block_that_is_spelled_out_is_remembered_when_it_comes_again() -> None:
    """As a key that grpcio sends with each call."""
    decoder, compiled = counting()
    for key in (b"1", b"2"):
        block = HEAD + literal(0x00, b"authorization", key)
        heads = [decoder.decode(block) for _ in range(10)]
        assert {head.fields for head in heads} == {((b"authorization", key),)}
    assert len(compiled) == 4


def test_blocks_that_never_come_again_take_no_room() -> None:
    """As a trace's id or a deadline in each call. Another block is remembered all the same."""
    decoder, compiled = counting()
    for number in range(5000):
        decoder.decode(HEAD + literal(0x00, b"traceparent", b"%d" % number))
    assert len(compiled) == 5000
    for _ in range(10):
        decoder.decode(HEAD)
    assert len(compiled) == 5002


def test_spelled_out_block_with_an_index_is_forgotten_with_the_table() -> None:
    decoder, _ = counting()
    for value in (b"old", b"new"):
        decoder.decode(literal(0x40, b"key", value))
        for _ in range(4):
            assert decoder.decode(HEAD + b"\xbe").fields == ((b"key", value),)


@pytest.mark.parametrize("letter", [b"a", b"\0"], ids=["letters", "zeros"])
def test_decoder_of_literals_of_every_length(letter: bytes) -> None:
    """Short and long ones, Huffman-coded or not, with others after them. Zeros, taken for more than a value, look like
    literals of nothing."""
    plain, decoder, encoder = Plain(), ours(), hpack.Encoder()
    packed = bytes(encoder.encode([(b"key", b"a" * 20, True)], huffman=True))
    for size in range(300):
        long = literal(0x10, b"k", letter * size)
        for block in (long, long * 2, packed + long, b"\x82" + literal(0x00, letter * size, b"v") + packed):
            assert seen(decoder.decode(block)) == expected(plain.fields(block))


def test_decoder_forgets_when_trailers_change_the_table() -> None:
    decoder = ours()
    decoder.decode(literal(0x40, b"key", b"old"))
    assert decoder.decode(b"\xbe").fields == ((b"key", b"old"),)
    decoder.fields(literal(0x40, b"key", b"new"))
    assert decoder.decode(b"\xbe").fields == ((b"key", b"new"),)


def test_decoder_forgets_when_the_table_is_emptied() -> None:
    decoder = ours()
    decoder.decode(literal(0x40, b"key", b"old"))
    decoder.decode(b"\xbe")
    decoder.decode(b"\x20")
    with pytest.raises(ConnectionFault) as caught:
        decoder.decode(b"\xbe")
    assert caught.value.code is Code.COMPRESSION_ERROR


@pytest.mark.parametrize("value", [b"", b"v" * 100], ids=len)
@pytest.mark.parametrize("run", [b"", b"\x82", b"\xbe" * 10], ids=len)
def test_decoder_of_a_long_list_of_literals(run: bytes, value: bytes) -> None:
    """Its limit counts all fields, however they are written."""
    one = 32 + 3 + len(value)
    for size in (MAX_LIST - 41_000, MAX_LIST + 1000):
        plain, decoder = Plain(), ours()
        for block in (literal(0x40, b"key", b"x" * 3900), run + literal(0x00, b"key", value) * (size // one)):
            try:
                fields = plain.fields(block)
            except hpack.HPACKError:
                with pytest.raises(ConnectionFault) as caught:
                    decoder.decode(block)
                assert caught.value.code is Code.ENHANCE_YOUR_CALM
                assert size > MAX_LIST
            else:
                assert seen(decoder.decode(block)) == expected(fields)


def test_decoder_remembers_no_literal() -> None:
    """A literal without indexing changes nothing, but the block's own first field may have."""
    decoder = ours()
    block = literal(0x40, b"key", b"1") + b"\xbe"
    assert decoder.decode(block).fields == ((b"key", b"1"),) * 2
    assert decoder.decode(literal(0x40, b"key", b"2")).fields == ((b"key", b"2"),)
    assert decoder.decode(block).fields == ((b"key", b"1"),) * 2
    assert decoder.decode(b"\xbf\xc0").fields == ((b"key", b"2"), (b"key", b"1"))


def test_decoder_remembers_little() -> None:
    """A few bytes may stand for a long list, again and again in another order: what is kept of it is bounded."""
    compiled: list[int] = []

    def note(head: RequestHead) -> RequestHead:
        compiled.append(head.byte_size)
        return head

    decoder = HeaderDecoder(note, lambda head: True)
    decoder.decode(literal(0x40, b"key", b"x" * 3900))
    decoder.decode(literal(0x40, b"small", b""))
    small, large = b"\xbe" * 2, b"\xbf" * 12
    for block in (small, large):
        compiled.clear()
        decoder.decode(block)
        decoder.decode(block)
        assert len(compiled) == (1 if block is small else 2)
    compiled.clear()
    many = [bytes([0x80 | n, 0x80 | m]) for n in range(1, 50) for m in range(1, 50)]
    for block in many + many:
        decoder.decode(block)
    assert len(compiled) > len(many), "not all of them are kept"


@settings(max_examples=400)
@given(st.one_of(in_any_order, st.binary(max_size=200)))
def test_decoder_of_any_bytes(block: bytes) -> None:
    plain, decoder = Plain(), ours()
    for n in range(70):  # so that indexes may take more than one byte
        entry = literal(0x40, b"a", b"%d" % n)
        assert seen(decoder.decode(entry)) == expected(plain.fields(entry))
    try:
        fields = plain.fields(block)
    except Exception:
        with pytest.raises(ConnectionFault):
            decoder.decode(block)
        return
    try:
        head = decoder.decode(block)
    except ConnectionFault:
        # The library takes any number of table size updates.
        assert sum(0x20 <= byte < 0x40 for byte in block) > MAX_TABLE_UPDATES
        return
    assert seen(head) == expected(fields)
    for index in range(62, 62 + 70):
        entry = integer(index, 7, 0x80)
        try:
            [field] = plain.fields(entry)
        except hpack.HPACKError:
            with pytest.raises(ConnectionFault):
                decoder.decode(entry)
            return
        assert decoder.fields(entry) == [field], "the table is another"


def test_decoder_of_heads_that_differ_in_one_field() -> None:
    """As gRPC's C++ core sends a deadline: inserted with its name, so that all entries move at each call, and the
    constant fields are inserted anew before they are evicted; and as `hpack` does, in Huffman code."""
    constant = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/s/M"), (b"te", b"trailers")]
    plain, decoder, encoder = Plain(), ours(), hpack.Encoder()
    inserted = 0
    for n in range(300):
        timeout = (b"grpc-timeout", b"%dm" % n)
        if n % 70 == 0:
            by_hand = b"".join(literal(0x40, *field) for field in [*constant, timeout])
            inserted = 0
        else:
            run = [integer(62 + inserted + 4 - at, 7, 0x80) for at in range(4)]
            by_hand = b"".join(run) + literal(0x40, *timeout) + literal(0x00, b"traceparent", b"%d" % n)
            inserted += 1
        assert seen(decoder.decode(by_hand)) == expected(plain.fields(by_hand))
        assert decoder.decode(integer(62, 7, 0x80)).fields == (timeout,)
        plain.fields(integer(62, 7, 0x80))
    decoder = ours()
    for n in range(300):
        block = bytes(encoder.encode([*constant, (b"grpc-timeout", b"%dm" % n)], huffman=n % 3 > 0))
        assert decoder.decode(block).fields == (constant[3], (b"grpc-timeout", b"%dm" % n))


def test_decoder_checks_fields_that_it_has_seen_malformed() -> None:
    """More fields than are remembered, some of them malformed, again and again."""
    decoder = ours()
    start = b"\x83\x86" + literal(0x00, b":path", b"/s/M")
    names = [b"n%d" % n for n in range(100)] + [b"Upper", b"te", b"connection", b"bl nk"]
    for _ in range(3):
        for name in names:
            malformed = decoder.decode(start + literal(0x00, name, b"value")).malformed
            assert malformed == (not name.startswith(b"n"))


def test_decoder_remembers_a_bounded_number_of_bytes() -> None:
    compiled: list[int] = []

    def note(head: RequestHead) -> RequestHead:
        compiled.append(head.byte_size)
        return head

    decoder = HeaderDecoder(note, lambda head: True)
    decoder.decode(literal(0x40, b"key", b"x" * 3900))
    blocks = [bytes([0xBE, 0x80 | n]) for n in range(1, 62)]
    for block in blocks:
        decoder.decode(block)
    compiled.clear()
    for block in blocks:
        decoder.decode(block)
    remembered = len(blocks) - len(compiled)
    assert 20 < remembered <= (1 << 17) // 3900
    decoder.decode(literal(0x40, b"key", b"y"))
    for block in blocks * 2:
        decoder.decode(block)
    assert len(compiled) == 2 * len(blocks) - remembered + 1, "the table has changed: there is room again"


def test_decoder_remembers_only_cacheable_heads() -> None:
    compiled: list[RequestHead] = []

    def note(head: RequestHead) -> RequestHead:
        compiled.append(head)
        return head

    decoder = HeaderDecoder(note, lambda head: not head.malformed)
    for block in (b"\x83\x86\x84", b"\x83\x86"):
        compiled.clear()
        for _ in range(3):
            decoder.decode(block)
        assert len(compiled) == (3 if compiled[0].malformed else 1)


# The encoder

heads = st.lists(
    st.tuples(st.sampled_from([b":status", b"grpc-status", b"content-type", b"key"]), st.sampled_from(VALUES)),
    min_size=1,
    max_size=4,
).map(tuple)


@settings(max_examples=60)
@given(st.lists(st.one_of(st.tuples(heads, heads), st.sampled_from([0, 100, 4095, TABLE, 1 << 20])), max_size=40))
def test_encoder_is_understood_by_a_strict_decoder(
    steps: list[int | tuple[tuple[Field, ...], tuple[Field, ...]]],
) -> None:
    """Many more heads than the table takes entries; table sizes between them that the decoder insists on."""
    encoder, decoder = HeaderEncoder(), hpack.Decoder()
    for each in steps:
        if isinstance(each, int):
            encoder.limit_table(each)
            decoder.max_allowed_table_size = each
            continue
        fields, once = each
        block = encoder.encode(fields, *once)
        assert tuple((bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)) == fields + once


def test_encoder_with_more_heads_than_its_table_has_room_for() -> None:
    encoder, decoder = HeaderEncoder(), hpack.Decoder()
    fields: list[tuple[Field, ...]] = [((b":status", b"200"), (b"key-%d" % n, b"v" * 100)) for n in range(60)]
    for each in fields + fields:
        got = decoder.decode(encoder.encode(each), raw=True)
        assert tuple((bytes(name), bytes(value)) for name, value in got) == each


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 199, 200, 201, 300])
def test_block_that_is_continued(size: int) -> None:
    block = bytes(n % 251 for n in range(size))
    found = list(frames(header_frames(0x1, 5, block, most=100)))
    assert b"".join(frame.payload for frame in found) == block
    assert [frame.type for frame in found] == [Type.HEADERS] + [Type.CONTINUATION] * (len(found) - 1)
    assert [frame.flags & 0x1 for frame in found] == [0x1] + [0] * (len(found) - 1)
    assert [frame.flags & 0x4 for frame in found] == [0] * (len(found) - 1) + [0x4]
    assert {frame.stream for frame in found} == {5}
    assert max(len(frame.payload) for frame in found) <= 100


def test_installed_hpack_is_a_version_whose_private_parts_are_known() -> None:
    """The decoder uses the library's table, its Huffman code and its integers, which may change in any release. Whoever
    installs another version reads its changes, runs these tests, and adds it to `KNOWN_VERSIONS`."""
    assert hpack.__version__ in KNOWN_VERSIONS
