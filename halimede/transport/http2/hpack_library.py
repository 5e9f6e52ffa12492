"""The parts of the `hpack` library that the server uses, some of which the library does not document.

The server walks over header blocks itself, with the library's table, integers and constants of the Huffman code. These
are private to the library and may change in any release. So they are imported here only, and a test compares the
installed version with `KNOWN_VERSIONS`.
"""

from typing import Final

from hpack.exceptions import HPACKDecodingError, HPACKError, OversizedHeaderListError
from hpack.hpack import decode_integer
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable

KNOWN_VERSIONS: Final = ("4.2.0",)
"""Versions whose private parts were read and tested. Read the library's changes before you add one."""

STATIC_TABLE: Final = HeaderTable.STATIC_TABLE
"""The 61 entries of RFC 7541, appendix A, the first of which has index 1."""

__all__ = [
    "KNOWN_VERSIONS",
    "REQUEST_CODES",
    "REQUEST_CODES_LENGTH",
    "STATIC_TABLE",
    "HPACKDecodingError",
    "HPACKError",
    "HeaderTable",
    "OversizedHeaderListError",
    "decode_integer",
]
