"""Message framing, compression, timeouts and status texts: pure functions, byte by byte."""

import gzip
import random
import zlib
from collections.abc import Sequence
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.tensors import Buffer
from halimede.transport.grpc.messages import (
    ENCODINGS,
    IDENTITY,
    LARGE_MESSAGE_BYTES,
    PAGE_BYTES,
    MessageFault,
    MessageReader,
    answer_encoding,
    deflate,
    inflate,
    percent_encoded,
    timeout_seconds,
)
from tests.transport.http2_wire import message

LIMIT = 1 << 24
COMPRESSIONS = [name for name in ENCODINGS if name != IDENTITY]


def read(parts: Sequence[bytes], limit: int = LIMIT) -> list[tuple[int, bytes]]:
    """What a reader makes of a body that comes in parts; it must be between messages at the end."""
    reader = MessageReader(limit)
    for part in parts:
        assert reader.feed(memoryview(part), LIMIT) == len(part)
    assert reader.is_between
    return [(flag, bytes(found)) for flag, found in reader.messages]


def fault(parts: Sequence[bytes], limit: int = LIMIT) -> tuple[int, str]:
    with pytest.raises(MessageFault) as caught:
        read(parts, limit)
    return caught.value.code, caught.value.text


# Framing

BODY = message(b"abc") + message(b"") + message(b"de" * 20, compressed=1) + message(b"f")
MESSAGES = [(0, b"abc"), (0, b""), (1, b"de" * 20), (0, b"f")]


def test_reader_of_a_body_in_one_part() -> None:
    assert read([BODY]) == MESSAGES


def test_reader_of_a_body_cut_at_every_byte() -> None:
    for at in range(len(BODY) + 1):
        assert read([BODY[:at], BODY[at:]]) == MESSAGES


def test_reader_of_a_body_byte_by_byte() -> None:
    assert read([BODY[at : at + 1] for at in range(len(BODY))]) == MESSAGES


@given(st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=40)), max_size=6), st.randoms(use_true_random=False))
def test_reader_of_any_messages_in_any_parts(sent: list[tuple[int, bytes]], random: random.Random) -> None:
    body = b"".join(message(payload, compressed=flag) for flag, payload in sent)
    cuts = sorted(random.randrange(len(body) + 1) for _ in range(random.randrange(8)))
    assert read([body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]) == sent


@pytest.mark.parametrize("at", range(1, 5 + 3))
def test_reader_within_a_message(at: int) -> None:
    reader = MessageReader(LIMIT)
    assert reader.is_between
    reader.feed(memoryview(message(b"abc")[:at]), 1)
    assert (reader.is_between, reader.messages) == (False, [])


def test_reader_is_filled_in_place() -> None:
    """The rest of a message is received into its buffer, without a copy."""
    payload = random.Random(1).randbytes(100_000)
    reader = MessageReader(LIMIT)
    assert reader.room() is None
    reader.feed(memoryview(message(payload)[: 5 + 10]), 1)
    at = 10
    while (room := reader.room()) is not None:
        step = min(len(room), 30_000)
        assert len(room) == len(payload) - at
        room[:step] = payload[at : at + step]
        reader.filled(step)
        at += step
    assert [bytes(found) for _, found in reader.messages] == [payload]


@pytest.mark.parametrize("size", [0, 1, LARGE_MESSAGE_BYTES - 1, LARGE_MESSAGE_BYTES, LARGE_MESSAGE_BYTES + 1, 1 << 20])
def test_reader_asks_only_for_large_messages_where_they_shall_lie(size: int) -> None:
    asked: list[bytes] = []

    def first_tensor(start: Buffer) -> int:
        asked.append(bytes(start))
        return 0

    payload = random.Random(size).randbytes(size)
    reader = MessageReader(LIMIT, first_tensor)
    body = memoryview(message(payload))
    for at in range(0, len(body), 50_000):
        reader.feed(body[at : at + 50_000], 1)
    assert [bytes(found) for _, found in reader.messages] == [payload]
    assert asked == ([payload[: 50_000 - 5]] if size >= LARGE_MESSAGE_BYTES else [])


def test_small_messages_count_while_they_arrive_and_wait() -> None:
    reader = MessageReader(LIMIT)
    sent = message(bytes(100)) + message(bytes(50))
    reader.feed(memoryview(sent)[:40], 9)
    assert reader.small_bytes == 100, "the memory of the one that arrives"
    reader.feed(memoryview(sent)[40:], 9)
    assert reader.small_bytes == 150
    reader.messages.clear()
    assert reader.small_bytes == 0


def test_announced_bytes_of_a_small_message_do_not_count() -> None:
    reader = MessageReader(LIMIT)
    reader.feed(memoryview(message(bytes(LARGE_MESSAGE_BYTES - 1)))[:105], 9)
    assert reader.small_bytes == 100 + PAGE_BYTES


def test_reader_of_a_message_that_is_too_large() -> None:
    assert read([message(bytes(10))], limit=10) == [(0, bytes(10))]
    text = "Received message larger than max (11 vs. 10)"
    assert fault([message(b"", size=11)], limit=10) == (8, text)
    assert fault([message(b"", size=11)[:3], message(b"", size=11)[3:]], limit=10) == (8, text)


def test_reader_touches_no_memory_for_a_message_that_is_never_sent() -> None:
    reader = MessageReader(2**31 - 1)
    reader.feed(memoryview(message(b"x", size=2**31 - 1)), 1)
    room = reader.room()
    assert room is not None
    assert len(room) == 2**31 - 2


@pytest.mark.parametrize("flag", [2, 3, 128, 255])
def test_reader_of_an_unknown_flag(flag: int) -> None:
    assert fault([message(b"x", compressed=flag)])[0] == 13


# Compression


def inflated(packed: bytes, encoding: str, limit: int = LIMIT) -> tuple[int, str] | Buffer:
    try:
        return inflate(packed, encoding, limit)
    except MessageFault as found:
        return found.code, found.text


@pytest.mark.parametrize("encoding", COMPRESSIONS)
@given(parts=st.lists(st.binary(max_size=300), max_size=4))
def test_deflate_and_inflate_are_inverse(encoding: str, parts: list[bytes]) -> None:
    flag, packed = deflate(parts, encoding)
    whole = b"".join(packed)
    assert (inflate(whole, encoding, LIMIT) if flag else whole) == b"".join(parts)
    assert len(whole) <= sum(map(len, parts))


def test_deflate_is_what_others_read() -> None:
    text: list[Buffer] = [b"a" * 1000, memoryview(b"b" * 1000)]
    (_, zipped), (_, deflated) = deflate(text, "gzip"), deflate(text, "deflate")
    assert gzip.decompress(zipped[0]) == zlib.decompress(deflated[0]) == b"a" * 1000 + b"b" * 1000


PACKED = {"gzip": gzip.compress(b"x" * 1000), "deflate": zlib.compress(b"x" * 1000)}


@pytest.mark.parametrize("encoding", COMPRESSIONS)
def test_inflate_up_to_the_limit(encoding: str) -> None:
    assert inflated(PACKED[encoding], encoding, 1000) == b"x" * 1000
    assert inflated(PACKED[encoding], encoding, 999) == (8, "Decompressed message larger than max (999)")


@pytest.mark.parametrize("encoding", COMPRESSIONS)
def test_inflate_of_what_is_cut_or_followed_by_more(encoding: str) -> None:
    """gRPC's library requires one stream, complete, with no bytes after it."""
    packed = PACKED[encoding]
    refused = (13, f"Unexpected error decompressing data for algorithm {encoding}")
    for at in range(len(packed)):
        assert inflated(packed[:at], encoding) == refused
    for more in (b"\0", packed):
        assert inflated(packed + more, encoding) == refused


@pytest.mark.parametrize("encoding", COMPRESSIONS)
@given(packed=st.binary(max_size=100))
def test_inflate_of_garbage_is_a_fault(encoding: str, packed: bytes) -> None:
    found = inflated(packed, encoding)
    assert isinstance(found, bytes) or found == (13, f"Unexpected error decompressing data for algorithm {encoding}")


def test_inflate_of_the_other_format() -> None:
    for one, other in (("gzip", "deflate"), ("deflate", "gzip")):
        assert inflated(PACKED[one], other) == (13, f"Unexpected error decompressing data for algorithm {other}")
    raw = zlib.compress(b"x" * 1000, wbits=-15)
    assert isinstance(inflated(raw, "deflate"), tuple)


def test_answer_encoding_of_an_unusual_client() -> None:
    assert [answer_encoding(level, [""]) for level in ("none", "low", "medium", "high")] == [IDENTITY] * 4
    assert answer_encoding("high", ["br", "gzip", "gzip"]) == "gzip"


# Timeouts


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"0n", 0), (b"1n", 1e-9), (b"1u", 1e-6), (b"1m", 1e-3), (b"1S", 1), (b"1M", 60), (b"1H", 3600),
        (b"99999999n", 0.099999999), (b"99999999H", 99999999 * 3600.0), (b"00000042S", 42),
    ],
)  # fmt: skip
def test_timeout(text: bytes, seconds: float) -> None:
    assert timeout_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [b"", b"S", b"1", b"1s", b"1h", b"-1S", b"+1S", b"1.0S", b"1 S", b" 1S", b"1S ", b"1_0S", b"123456789S", b"1SS",
     b"\xb2S", "٣S".encode(), b"S1", b"0x1S"],
)  # fmt: skip
def test_timeout_malformed(text: bytes) -> None:
    assert timeout_seconds(text) is None


# Texts


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("", b""),
        ("plain ~!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}", b"plain ~!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}"),
        ("100%", b"100%25"),
        ("a\nb\r\t\0", b"a%0Ab%0D%09%00"),
        ("é", b"%C3%A9"),
        ("\x7f\u20ac", b"%7F%E2%82%AC"),
        ("\ud800", b"?"),
    ],
)
def test_percent_encoding(text: str, encoded: bytes) -> None:
    assert percent_encoded(text) == encoded


@given(st.text())
def test_percent_encoding_is_undone_by_others(text: str) -> None:
    encoded = percent_encoded(text)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert unquote(encoded.decode(), errors="strict") == text
