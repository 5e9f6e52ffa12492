"""The Huffman code of header strings, against the library's own decoder."""

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.transport.http2.huffman import decode

ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def outcome(decoder: object, data: bytes) -> bytes | None:
    """The text, or None if the string is malformed."""
    try:
        return bytes(decoder(data))  # type: ignore[operator]  # either of the two functions
    except HPACKDecodingError:
        return None


@settings(max_examples=500)
@given(st.binary(max_size=200))
def test_text_is_what_was_encoded(text: bytes) -> None:
    assert decode(ENCODER.encode(text)) == text


@settings(max_examples=1000)
@given(st.binary(max_size=12) | st.builds(lambda text, end: ENCODER.encode(text) + end, st.binary(), st.binary()))
def test_any_bytes_mean_what_they_mean_to_the_library(data: bytes) -> None:
    assert outcome(decode, data) == outcome(decode_huffman, data)


@pytest.mark.parametrize("data", [b"\xff", b"\xff\xff\xff\xff", b"\x07\xff", b"\x1f\xff\xff\xff\xff"])
def test_padding_of_eight_bits_and_eos_are_malformed(data: bytes) -> None:
    with pytest.raises(HPACKDecodingError):
        decode(data)
