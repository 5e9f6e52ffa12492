"""Compressed bodies and the headers that ask for them; what odd values mean was asked of Triton 2.51."""

import gzip
import random
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.errors import Invalid
from halimede.wire.http.compression import (
    UnsupportedCoding,
    accepted_coding,
    check_coding,
    compress,
    decompress,
    inflate,
)

DATA = b'{"inputs":[]}' * 50
STREAMS = {"gzip": gzip.compress(DATA), "deflate": zlib.compress(DATA)}
INCONSISTENT = "encountered inconsistent stream state during decompression"


# Headers.


@pytest.mark.parametrize("name", [b"gzip", b"deflate", b"identity"])
def test_known_coding_is_taken(name: bytes) -> None:
    check_coding(name)


@pytest.mark.parametrize("name", [b"br", b"GZIP", b"Identity", b"x-gzip", b"", b"gzip, deflate", b"gzip;q=1"])
def test_unknown_coding_is_refused(name: bytes) -> None:
    with pytest.raises(UnsupportedCoding, match=r"^Unsupported compression type$"):
        check_coding(name)


@pytest.mark.parametrize(
    ("value", "coding"),
    [
        (b"gzip", b"gzip"),
        (b"deflate", b"deflate"),
        (b"identity", None),
        (b"", None),
        (b",", None),
        (b"*", None),
        (b"br", None),
        (b"GZIP", None),
        (b"gzip, deflate", b"gzip"),
        (b"deflate, gzip", b"deflate"),
        (b"br, gzip", b"gzip"),
        (b"  ,gzip", b"gzip"),
        (b"identity, gzip", None),
        (b"identity;q=0.5, gzip;q=0.8", b"gzip"),
        (b"gzip;q=0.5, deflate;q=1", b"deflate"),
        (b"deflate;q=0.3,gzip;q=0.3", b"deflate"),
        (b"gzip;q=.5,deflate;q=.7", b"deflate"),
        (b"gzip;q=1e1,deflate;q=5", b"gzip"),
        (b"gzip;q=2, deflate;q=1.5", b"gzip"),
        (b"gzip;q=0", None),
        (b"gzip;q=-1, deflate;q=-0.5", None),
        (b"gzip;q=0.0001", b"gzip"),
        (b"gzip;q=abc, deflate;q=0.5", b"deflate"),
        (b"gzip;q=", None),
        (b"gzip;q= 0.5", b"gzip"),
        (b"gzip;q=0.5;x, deflate;q=0.4", b"gzip"),
        (b"gzip;q=0.5,deflate;q=0.6x", b"deflate"),
        (b"gzip; q=0.5, deflate; q=0.7", None),
        (b"gzip ,deflate", b"deflate"),
        (b"gzip;level=1;q=0.2", None),
        (b"gzip;q=1e999, deflate", b"gzip"),
    ],
)
def test_coding_of_highest_weight_is_taken(value: bytes, coding: bytes | None) -> None:
    assert accepted_coding(value) == coding


# Bodies.


@given(st.lists(st.binary(max_size=300), max_size=5), st.sampled_from([b"gzip", b"deflate"]))
def test_parts_are_compressed_as_one_stream(parts: list[bytes], coding: bytes) -> None:
    made = compress(parts, coding)
    whole = b"".join(parts)
    assert (gzip.decompress(made) if coding == b"gzip" else zlib.decompress(made)) == whole
    assert decompress(made, len(whole)) == whole


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_either_stream_is_read(stream: bytes, kind: type) -> None:
    assert decompress(kind(stream), 1000) == DATA


def test_empty_body_is_refused() -> None:
    with pytest.raises(Invalid, match=r"^nothing to be decompressed$"):
        decompress(b"", 1000)


def test_empty_compressed_stream_is_empty() -> None:
    assert decompress(gzip.compress(b""), 1000) == b""


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_every_cut_and_a_wrong_checksum_are_refused(stream: bytes) -> None:
    broken = [stream[:end] for end in range(1, len(stream))]
    for body in (*broken, stream[:-8] + bytes(8)):
        with pytest.raises(Invalid, match=f"^{INCONSISTENT}$"):
            decompress(body, 1000)


@pytest.mark.parametrize("body", [DATA, b"\x1f\x8b\x08", zlib.compress(DATA, wbits=-15)], ids=["plain", "head", "raw"])
def test_malformed_stream_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid, match=f"^{INCONSISTENT}$"):
        decompress(body, 1000)


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_bytes_after_the_stream_are_ignored(stream: bytes) -> None:
    assert decompress(stream + b"more", 1000) == DATA


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_limit_is_the_size_after_inflating(stream: bytes) -> None:
    size = len(DATA)
    assert inflate(stream, size) == DATA
    assert inflate(stream, size - 1) is None
    text = (
        rf"^Decompressed data size exceeds the maximum allowed value of {size - 1} bytes\. "
        r"Use --http-max-input-size to increase the limit\.$"
    )
    with pytest.raises(Invalid, match=text):
        decompress(stream, size - 1)


def empty_blocks(count: int) -> bytes:
    """A stream that yields nothing: it is flushed again and again, each time as an empty stored block."""
    return zlib.compressobj().flush(zlib.Z_SYNC_FLUSH) + b"\x00\x00\x00\xff\xff" * count


def test_stream_of_many_empty_blocks_is_read_to_its_end() -> None:
    whole = empty_blocks(100_000) + b"\x03\x00" + (1).to_bytes(4, "big")
    assert decompress(whole, 10) == b""
    with pytest.raises(Invalid, match=f"^{INCONSISTENT}$"):
        decompress(whole[:-1], 10)


def test_stream_longer_than_a_slice_is_whole() -> None:
    data = random.Random(1).randbytes(1_000_000)
    for stream in (gzip.compress(data), zlib.compress(data, 0)):
        assert decompress(stream, len(data)) == data
        assert inflate(stream, len(data) - 1) is None


@pytest.mark.parametrize(("limit", "read"), [(100, False), (1000, True)], ids=["too large", "whole"])
def test_bytes_after_the_end_or_the_limit_are_not_copied(limit: int, read: bool) -> None:
    body = STREAMS["gzip"] + bytes(32 << 20)
    tracemalloc.start()
    try:
        assert (inflate(body, limit) is not None) is read
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_compression_bomb_takes_bounded_memory() -> None:
    limit = 1 << 20
    bomb = zlib.compress(bytes(200 << 20), 1)
    tracemalloc.start()
    try:
        with pytest.raises(Invalid, match="exceeds the maximum"):
            decompress(bomb, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * limit + 2 * len(bomb)  # what came out, joined once, and the input that is left
