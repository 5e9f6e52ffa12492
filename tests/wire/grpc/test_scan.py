import pytest

from halimede.wire.grpc.scan import raw_offset
from tests.wire.grpc.test_infer import message, tensor


@pytest.mark.parametrize("size", [8, 200, 100_000])
def test_raw_offset_is_where_the_first_raw_contents_begin(size: int) -> None:
    first, second = b"\xaa" * size, b"\xbb" * size
    data = message(tensor("A"), tensor("B"), raws=(first, second), outputs=("OUT",), id="x")
    at = raw_offset(data[:100])
    assert data[at : at + size] == first
    assert data[at - 1] != first[0]


@pytest.mark.parametrize(
    "start", [b"", b"\x0a", b"\x0a\x01m", message(tensor()), b"\x0a\x7f", b"\x08\x05\x3a\x01a", b"\x0a" + b"\xff" * 90]
)
def test_raw_offset_where_none_is_seen(start: bytes) -> None:
    assert raw_offset(start) == 0
