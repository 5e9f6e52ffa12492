"""JSON read and written with rapidjson's words, offsets, escapes and notation (what Triton answers)."""

import math
import re
from decimal import Decimal

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from halimede.errors import Internal, Invalid
from halimede.wire.http import json

INPUT = b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"INT32","data":%b'

REFUSED = [
    (b"{", "Missing a name for object member. at 1"),
    (b"   ", "The document is empty. at 3"),
    (b"", "The document is empty. at 0"),
    (b"\0", "The document is empty. at 0"),
    (b"x", "Invalid value. at 0"),
    (b"{]", "Missing a name for object member. at 1"),
    (b'{"a"}', "Missing a colon after a name of object member. at 4"),
    (b'{"a":}', "Invalid value. at 5"),
    (b'{"a":1,}', "Missing a name for object member. at 7"),
    (b'{"a":1 "b":2}', "Missing a comma or '}' after an object member. at 7"),
    (b'{"a":1\0}', "Missing a comma or '}' after an object member. at 6"),
    (b"[1,]", "Invalid value. at 3"),
    (b"{'a':1}", "Missing a name for object member. at 1"),
    (INPUT % b"[1]}]}x", "The document root must not be followed by other values. at 72"),
    (INPUT % b"[1]}]", "Missing a comma or '}' after an object member. at 71"),
    (INPUT % b"[1]}", "Missing a comma or ']' after an array element. at 70"),
    (INPUT % b"[01]}]}", "Missing a comma or ']' after an array element. at 68"),
    (INPUT % b"[.5]}]}", "Invalid value. at 67"),
    (INPUT % b"[1.]}]}", "Miss fraction part in number. at 69"),
    (INPUT % b"[1e]}]}", "Miss exponent in number. at 69"),
    (INPUT % b"[+1]}]}", "Invalid value. at 67"),
    (INPUT % b"[-]}]}", "Invalid value. at 68"),
    (INPUT % b"[tru]}]}", "Invalid value. at 70"),
    (INPUT % b"[nan]}]}", "Invalid value. at 68"),
    (INPUT.replace(b"INT32", b"FP32") % b"[-Inf,]}]}", "Invalid value. at 71"),
    (INPUT.replace(b"INT32", b"FP32") % b"[Infinit]}]}", "Invalid value. at 73"),
    (INPUT.replace(b"INT32", b"FP32") % b"[NaNa]}]}", "Missing a comma or ']' after an array element. at 69"),
    (b'{"id":"\\x"}', "Invalid escape character in string. at 7"),
    (b'{"id":"\\u12"}', "Incorrect hex digit after \\u escape in string. at 7"),
    (b'{"id":"\\ud800\\u0041"}', "The surrogate pair in string is invalid. at 7"),
    (b'{"id":"abc', "Missing a closing quotation mark in string. at 10"),
    (b'{"id":"a\0b"}', "Missing a closing quotation mark in string. at 8"),
    (b'{"id":"a\nb"}', "Invalid escape character in string. at 8"),
    (b"/*c*/{}", "Invalid value. at 0"),
    (b'{"a":1e400}', "Number too big to be stored in double. at 5"),
    (b"[" * 200, "Invalid value. at 200"),
    (b"\xef\xbb\xbf{", "Missing a name for object member. at 4"),
    (b"\xef\xbb{", "Missing a name for object member. at 3"),
    (b"\xef\xbb\xbe{}", "Invalid value. at 2"),
    (b'"\xff', "Missing a closing quotation mark in string. at 2"),
    (b'{"id":\xff}', "Invalid value. at 6"),
    (b'{"id":"\x7f\xc3"} x', "The document root must not be followed by other values. at 12"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_document_refused(text: bytes, words: str) -> None:
    with pytest.raises(Internal) as caught:
        json.read(memoryview(text))
    assert caught.value.message == f"failed to parse the request JSON buffer: {words}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b' \n\t{"a":1} ', {"a": 1}),
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
        (b'\xef{"a":1}', {"a": 1}),
        (b'{"a":1}\0anything', {"a": 1}),
        (b"[Inf,Infinity,-Inf,-Infinity]", [math.inf, math.inf, -math.inf, -math.inf]),
        (b"[18446744073709551615,-9223372036854775808]", [2**64 - 1, -(2**63)]),
        (b"[18446744073709551616,-9223372036854775809]", [2.0**64, -(2.0**63)]),
        (b"[-0,1E2]", [0, 100.0]),
        (b'["\xff\\u00e9\xc3\xa9",NaN,18446744073709551616]', ["\udcffé\u00e9", None, 2.0**64]),
        (b'{"a":18446744073709551616,"\xff":0}', {"a": 2.0**64, "\udcff": 0}),
        (b"[NaN,7.49243691e-308,18446744073709551615]", [None, 7.49243691e-308, 2**64 - 1]),
    ],
)
def test_document_accepted(text: bytes, value: object) -> None:
    found = json.read(text)
    if isinstance(found, list):
        found = [None if item != item else item for item in found]
    assert found == value
    assert repr(found) == repr(value)


@pytest.mark.parametrize("text", [b"[NaN]", b"[-NaN]"])
def test_not_a_number_read(text: bytes) -> None:
    (value,) = json.read(text)
    assert math.isnan(value)


def test_document_nested_past_the_reader() -> None:
    deep = b"[" * 100_000
    with pytest.raises(Invalid, match="JSON nesting depth exceeds maximum allowed limit"):
        json.read(deep)


@given(st.binary(max_size=40))
@example(b'{"a":"\xed\xa0\x80"}')
@example(b'"\xf4\x90\x80\x80"')
def test_bytes_of_any_kind_are_read_or_refused(text: bytes) -> None:
    words = ""
    try:
        json.read(text)
    except Internal as error:
        words = error.message
    assert not words or words.startswith("failed to parse the request JSON buffer: ")


@given(st.binary(max_size=30))
def test_string_bytes_survive_reading_and_encoding(raw: bytes) -> None:
    plain = re.sub(rb'[\x00-\x1f"\\]', b" ", raw)
    assert json.encode(json.read(b'"%b"' % plain)) == plain


# Numbers.

DOUBLES = [
    (0.10000000149011612, b"0.10000000149011612"),
    (1.0000000116860974e-7, b"1.0000000116860974e-7"),
    (9.999999747378752e-06, b"0.000009999999747378752"),
    (1.0000000272564224e16, b"10000000272564224.0"),
    (1.0000000200408773e20, b"100000002004087730000.0"),
    (1e22, b"1e22"),
    (1.401298464324817e-45, b"1.401298464324817e-45"),
    (1e16, b"10000000000000000.0"),
    (1.2345678901234568e17, b"123456789012345680.0"),
    (1e20, b"100000000000000000000.0"),
    (1e21, b"1e21"),
    (1.5e300, b"1.5e300"),
    (1e-5, b"0.00001"),
    (1e-6, b"0.000001"),
    (9.5e-07, b"9.5e-7"),
    (-1.5e-9, b"-1.5e-9"),
    (-1.5e-6, b"-0.0000015"),
    (-3e17, b"-300000000000000000.0"),
    (5e-324, b"5e-324"),
    (-0.0, b"-0.0"),
    (3.0, b"3.0"),
    (math.nan, b"NaN"),
    (math.inf, b"Infinity"),
    (-math.inf, b"-Infinity"),
]


def test_doubles_in_an_array() -> None:
    values = [value for value, _ in DOUBLES]
    assert json.write_doubles(values) == b"[" + b",".join(text for _, text in DOUBLES) + b"]"


@pytest.mark.parametrize(("value", "text"), DOUBLES)
def test_double_alone(value: float, text: bytes) -> None:
    assert json.write(value) == text.decode()


def test_doubles_as_older_versions_of_orjson_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the plus sign, as 3.10 does."""
    write = orjson.dumps
    monkeypatch.setattr(orjson, "dumps", lambda values, option: write(values, option=option).replace(b"e+", b"e"))
    test_doubles_in_an_array()


def test_doubles_none() -> None:
    assert json.write_doubles([]) == b"[]"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_double_notation(value: float) -> None:
    text = json.write(value)
    assert float(text) == value
    assert len(text.lstrip("-0.").removesuffix(".0").replace(".", "").partition("e")[0]) <= 21
    decimal = value == 0 or 1e-6 <= abs(value) < 1e21
    assert ("e" in text) != decimal
    assert ("." in text) == (decimal or Decimal(repr(value)).as_tuple().digits[1:] != ())


@given(st.lists(st.floats() | st.sampled_from([value for value, _ in DOUBLES])))
def test_doubles_in_an_array_are_written_as_alone(values: list[float]) -> None:
    text = b"[%b]" % b",".join(json.write(value).encode() for value in values)
    assert json.write_doubles(values) == text
    assert json.write_doubles(np.array(values, np.float64)) == text


# Strings.


def test_quote_escapes() -> None:
    everything = "".join(map(chr, range(0x80))) + "é€😀\u2028/"
    assert json.quote(everything) == (
        '"\\u0000\\u0001\\u0002\\u0003\\u0004\\u0005\\u0006\\u0007\\b\\t\\n\\u000B\\f\\r\\u000E\\u000F\\u0010\\u0011'
        "\\u0012\\u0013\\u0014\\u0015\\u0016\\u0017\\u0018\\u0019\\u001A\\u001B\\u001C\\u001D\\u001E\\u001F"
        " !\\\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\\\]^_`abcdefghijklmnopqrstuvwxyz{|}~\x7f"
        'é€😀\u2028/"'
    )


@given(st.text(st.characters(codec="utf-8")))
def test_quote_reads_back(text: str) -> None:
    assert orjson.loads(json.quote(text)) == text


@pytest.mark.parametrize(
    ("elements", "text"),
    [
        ([], b"[]"),
        ([b""], b'[""]'),
        ([b"a", b"", b"b/c"], b'["a","","b/c"]'),
        ([b'","', b"\\"], b'["\\",\\"","\\\\"]'),
        ([b"\x1f\xff\xfe\xc3", b"\n"], b'["\\u001F\xff\xfe\xc3","\\n"]'),
    ],
)
def test_strings_in_an_array(elements: list[bytes], text: bytes) -> None:
    assert json.write_strings(elements) == text


@given(st.lists(st.text(st.characters(codec="utf-8"))))
def test_strings_read_back(texts: list[str]) -> None:
    assert orjson.loads(json.write_strings([text.encode() for text in texts])) == texts


def test_encode_surrogates_that_stand_for_no_byte() -> None:
    assert json.encode("a\ud83db\udcffc\udfffd") == b"a?b\xffc?d"


def test_write_nested() -> None:
    value = {"a": [1, True, False, "x", 1.5], "b": {}, "c": (), "d": {"e": -1}}
    assert json.write(value) == '{"a":[1,true,false,"x",1.5],"b":{},"c":[],"d":{"e":-1}}'
