"""Large documents in slices: the same elements, errors and offsets as in one piece, and the limits."""

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.errors import Error, Internal, Invalid
from halimede.tensors import BYTES, INT32
from halimede.wire.http import head, json_slices
from halimede.wire.http.generate import decode_generate
from halimede.wire.http.head import read_head
from halimede.wire.http.json_data import pack_data
from halimede.wire.http.json_slices import MAX_ELEMENTS, JsonArray, outline, read_small

TEXTS = st.sampled_from(["", "x", 'a"b', "\\", '\\"', "[,{", "]}", "é", "\x01", "\\\\"])
LISTS = st.recursive(
    st.one_of(st.lists(st.integers(-9, 9)), st.lists(TEXTS)), lambda inner: st.lists(inner, max_size=9), max_leaves=30
)


@pytest.fixture(autouse=True)
def _short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_slices, "WHOLE_BYTES", 0)
    monkeypatch.setattr(json_slices, "_has_few_elements", lambda text: False)
    monkeypatch.setattr(head, "WHOLE_BYTES", 0)
    monkeypatch.setattr(json_slices, "_SLICE_BYTES", 16)
    monkeypatch.setattr(json_slices, "_BLOCK_BYTES", 41)


def flat(value: Any) -> list[Any]:
    return [element for item in value for element in (flat(item) if type(item) is list else [item])]


def elements(document: Any, arrays: dict[str, JsonArray]) -> list[list[Any]]:
    """The elements of `data` of all inputs."""
    found = []
    for item in document["inputs"]:
        data = item["data"]
        found.append([e for part in arrays[data].slices() for e in flat(part)] if type(data) is str else flat(data))
    return found


@given(data=st.lists(LISTS, min_size=1, max_size=4), indent=st.booleans())
def test_elements_are_those_of_the_whole_document(data: list[Any], indent: bool) -> None:
    document = {"id": '"', "inputs": [{"name": "[", "data": each, "x": {"y": [1]}} for each in data], "outputs": []}
    cut = outline(orjson.dumps(document, option=orjson.OPT_INDENT_2 if indent else 0), 4)
    assert elements(cut.read(), cut.arrays) == [flat(each) for each in data]
    lengths = {len(each) for each in data}
    assert {array.length for array in cut.arrays.values()} <= lengths


def test_long_arrays_are_cut_out() -> None:
    text = orjson.dumps({"inputs": [{"data": [12345] * 100}, {"data": [1, 2]}]})
    cut = outline(text, 4)
    assert len(cut.arrays) == 1
    assert len(bytes(cut.skeleton)) < 100
    (array,) = cut.arrays.values()
    assert array.length == 100
    assert all(len(part) < 6 for part in array.slices())


@pytest.mark.parametrize(
    "data",
    [
        b"[1,2,3,4,5,6,7,8,9,,1,2,3,4,5,6,7,8,9]",
        b"[1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,]",
        b"[,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9]",
        b"[1,2,3,4,5,6,7,8,9,1,2,3,4 5,6,7,8,9,1,2]",
        b"[1,2,3,4,5,6,7,8,9,1,2,3,4,x,6,7,8,9,1,2]",
        b"[[1,2,3,4,5,6,7,8,[,1,2,3,4,5,6,7,8,9,1]]]",
        b"[[1,2,3,4,5,6,7,],[1,2,3,4,5,6,7,8,9,1]]",
        b"[         ,            ,             ,1]",
        b'["a","b","c","d","e","f" "g","h","i","j"]',
    ],
)
def test_malformed_array_is_refused(data: bytes) -> None:
    datatype = b"BYTES" if b'"' in data else b"INT32"
    text = b'{"inputs":[{"name":"A","shape":[99],"datatype":"%b","data":%b}]}' % (datatype, data)
    with pytest.raises(Internal, match="failed to parse the request JSON buffer: "):
        read_head(text, "m", 0)


@pytest.mark.parametrize("place", range(4))
def test_offset_of_an_error_is_that_in_the_document(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = ",".join(["1"] * 50)
    start = '{"name":"A","shape":[50],"datatype":"INT32","data":['
    pieces = ['{"inputs":[' + start, numbers, "]}," + start.replace("A", "B"), numbers]
    pieces[place] += "?"
    text = "".join((*pieces, "]}]}")).encode()

    def error() -> str:
        with pytest.raises(Internal) as caught:
            read_head(text, "m", 0)
        return caught.value.message

    in_slices = error()
    monkeypatch.setattr(head, "WHOLE_BYTES", 1 << 16)
    assert in_slices == error()


def data_of(text: bytes) -> Any:
    cut = outline(b'{"inputs":[{"data":%b}]}' % text, 4)
    data = cut.read()["inputs"][0]["data"]
    return cut.arrays[data]


def packed(text: bytes, datatype: Any, count: int, limit: int = 1 << 40) -> bytes | str:
    try:
        return pack_data("A", datatype, (count,), data_of(text), limit)
    except Error as error:
        return error.message


def test_slices_are_packed_as_the_whole_list() -> None:
    numbers = list(range(100))
    assert packed(orjson.dumps(numbers), INT32, 100) == np.arange(100, dtype="<i4").tobytes()
    assert packed(orjson.dumps([[n] for n in numbers]), INT32, 100) == np.arange(100, dtype="<i4").tobytes()
    assert packed(orjson.dumps([*numbers, [1, [2]]]), INT32, 102) == np.array([*numbers, 1, 2], "<i4").tobytes()
    # A number that does not fit loses its high bits.
    assert packed(orjson.dumps([*numbers, 2**40 + 5]), INT32, 101) == np.array([*numbers, 5], "<i4").tobytes()
    assert packed(orjson.dumps(["ab"] * 50), BYTES, 50) == b"\2\0\0\0ab" * 50


@pytest.mark.parametrize(
    ("data", "count", "text"),
    [
        ([1] * 100, 99, "Unable to parse 'data': Shape does not match true shape of 'data' field"),
        ([1] * 100, 101, "Failed to parse 'data' field: shape does not match true shape"),
        ([*[1] * 99, "x"], 100, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        ([*[1] * 99, "x"], 99, "Unable to parse 'data': Shape does not match true shape of 'data' field"),
    ],
)
def test_wrong_elements_have_the_texts_of_the_whole_list(data: list[Any], count: int, text: str) -> None:
    with pytest.raises(Error) as caught:
        pack_data("A", INT32, (count,), data)
    assert caught.value.message == text
    assert packed(orjson.dumps(data), INT32, count) == text


def test_strings_beyond_the_shape_are_not_read() -> None:
    result = packed(orjson.dumps(["ab"] * 1000), BYTES, 5)
    assert isinstance(result, bytes)
    # What the core needs to refuse them.
    assert 6 * 6 <= len(result) < 6 * 20


def test_strings_beyond_the_limit_are_counted_and_not_kept() -> None:
    text = (
        "JSON input 'A' has a byte_size (600 bytes) that exceeds the maximum allowed value of 599 bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    assert packed(orjson.dumps(["ab"] * 100), BYTES, 100, 600) == b"\2\0\0\0ab" * 100
    assert packed(orjson.dumps(["ab"] * 100), BYTES, 100, 599) == text


def test_elements_besides_data_are_limited() -> None:
    # The brackets of the document and of `inputs` count too.
    text = b'{"inputs":[%b]}'
    most = MAX_ELEMENTS - 2
    assert len(read_small(text % b",".join([b"1"] * (most + 1)))["inputs"]) == most + 1
    words = f"the request JSON has more than {MAX_ELEMENTS} elements besides the data of its tensors"
    with pytest.raises(Invalid, match=words):
        read_small(text % b",".join([b"1"] * (most + 2)))
    with pytest.raises(Invalid, match=words):
        read_head(text % b",".join([b"{}"] * (most + 2)), "m", 0)


def test_bytes_besides_data_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b'{"inputs":[{"name":"A","shape":[50],"datatype":"INT32","data":[%b]}]}' % b",".join([b"1"] * 50)
    cut = outline(text, 4)
    size = len(bytes(cut.skeleton))
    assert outline(text, 4, size).arrays
    with pytest.raises(Invalid, match=f"the request JSON has {size} bytes besides its data; the largest number is"):
        outline(text, 4, size - 1)


def test_large_document_with_few_elements_is_parsed_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for count, is_whole in ((90_000, True), (110_000, False)):
        text = b'{"inputs":[{"data":[%b]}]}' % b",".join([b"1.5"] * count)
        assert (not outline(text, 4).arrays) == is_whole


def test_long_array_elsewhere_is_refused() -> None:
    # Long for the compiled form too, whose constants cannot be changed.
    dims = b",".join([b"1"] * (MAX_ELEMENTS + 1))
    text = b'{"inputs":[{"name":"A","data":[1],"datatype":"INT32","shape":[%b]}]}' % dims
    with pytest.raises(Invalid, match="the request JSON has a long array that is not the 'data' of an input"):
        read_head(text, "m", 0)


def test_string_of_a_client_is_no_array() -> None:
    text = b'{"inputs":[{"name":"A","shape":[1],"datatype":"BYTES","data":"0123456789abcdef:0"}]}'
    with pytest.raises(Internal, match="attempt to access JSON non-array as array"):
        read_head(text, "m", 0)


def test_generate_takes_long_lists() -> None:
    from halimede.engine_port import TensorInfo

    text = b'{"text":[%b],"id":"7","n":3}' % b",".join([b'"ab"'] * 50)
    request = decode_generate("m", 1, [TensorInfo("text", BYTES, (-1,))], text, 1 << 20)
    assert request.inputs["text"].shape == (50,)
    assert bytes(request.inputs["text"].memory.host()) == b"\2\0\0\0ab" * 50
    assert request.id == "7"
