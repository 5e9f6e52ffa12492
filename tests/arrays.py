"""Random arrays of every datatype for `hypothesis`: all bit patterns, the odd ones more often, and shapes with zeros.

`same` compares what went through a codec with what went in. Knows no codec.
"""

import struct
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from halimede.tensors import DATATYPES, DataType

Array = npt.NDArray[Any]

MOST_ELEMENTS = 48
MANY = 200
"""So many times the elements, now and then: much is read and written otherwise than little."""
MANTISSA_BITS = {"FP16": 10, "BF16": 7, "FP32": 23, "FP64": 52}
EXACT_ONLY = frozenset({"FP16", "BF16"})
"""Datatypes that neither JSON nor typed contents carry (contract H39, G21)."""

TEXT_DATATYPES = st.sampled_from([datatype for name, datatype in DATATYPES.items() if name not in EXACT_ONLY])
ALL_DATATYPES = st.sampled_from(list(DATATYPES.values()))
SHAPES = st.lists(st.sampled_from([1, 0, 2, 3, 1, 5]), max_size=6).filter(lambda shape: prod(shape) <= MOST_ELEMENTS)

_ODD_BYTES = (
    b"",
    b"\0",
    b"a\0b",
    b'"',
    b"\\",
    b"\n\x1f\x7f",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    "é€😀\u2028".encode(),
    b"x" * 3000,
)
_TEXTS = st.one_of(
    st.sampled_from([each for each in _ODD_BYTES if each[:1] < b"\xed" or len(each) > 5]),
    st.text(max_size=9).map(str.encode),
)
_BYTES = st.one_of(st.sampled_from(_ODD_BYTES), st.binary(max_size=9))


def _odd_bits(datatype: DataType) -> list[int]:
    """Nothing, all, the ends of the range; for floats minus zero, infinities, numbers that are none, and tiny ones."""
    width = 8 * datatype.size
    sign, most = 1 << width - 1, (1 << width) - 1
    odd = [0, 1, sign, sign - 1, most]
    if datatype.name in MANTISSA_BITS:
        mantissa = MANTISSA_BITS[datatype.name]
        infinity = (sign - 1) >> mantissa << mantissa
        odd += [infinity, infinity | sign, infinity | 1, infinity | 1 << mantissa - 1, infinity - 1, 1 << mantissa]
    return odd


@st.composite
def arrays(
    draw: st.DrawFn, datatype: DataType, shapes: st.SearchStrategy[list[int]] = SHAPES, text: bool = False
) -> Array:
    """An array of `datatype.numpy`. BYTES are any, or with `text` UTF-8."""
    shape = draw(shapes)
    count = prod(shape)
    if datatype.name == "BYTES":
        elements = draw(st.lists(_TEXTS if text else _BYTES, min_size=count, max_size=count))
        made = np.empty(count, object)
        made[:] = elements
    elif datatype.name == "BOOL":
        made = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    else:
        bits = st.one_of(st.sampled_from(_odd_bits(datatype)), st.integers(0, (1 << 8 * datatype.size) - 1))
        patterns = draw(st.lists(bits, min_size=count, max_size=count))
        made = np.array(patterns, f"<u{datatype.size}").view(datatype.numpy)
    made = made.reshape(shape)
    if shape and count and draw(st.integers(0, 9)) == 9:
        made = np.concatenate([made] * MANY)
    return made


def same(came: Array, given: Array, exactly: bool) -> bool:
    """Whether it is the same array: bit by bit, or where not `exactly`, with one NaN as good as another."""
    if came.shape != given.shape or came.dtype != given.dtype:
        return False
    if given.dtype == np.object_:
        return bool(came.tolist() == given.tolist())
    if exactly or given.dtype.kind != "f":
        return came.tobytes() == given.tobytes()
    numbers = ~np.isnan(given)
    return bool((np.isnan(came) == ~numbers).all()) and came[numbers].tobytes() == given[numbers].tobytes()


def as_floats(bits: Array) -> npt.NDArray[np.float32]:
    """BF16 as clients have it: the upper halves of FP32."""
    return (bits.astype("<u4") << 16).view("<f4")


def frame(elements: list[bytes]) -> bytes:
    """BYTES as the protocol frames them, told once more so that our own code is not compared with itself."""
    return b"".join(struct.pack("<I", len(each)) + each for each in elements)


def raw(array: Array) -> bytes:
    """The bytes of an array on the wire."""
    return frame(array.reshape(-1).tolist()) if array.dtype == np.object_ else array.tobytes()
