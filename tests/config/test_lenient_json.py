"""Texts that protobuf's JSON reader takes and refuses, as observed on the real server (H113)."""

from typing import Any

import pytest

from halimede.config.lenient_json import MAX_VALUES, Members, parse


def _plain(value: Any) -> Any:
    if isinstance(value, Members):
        return {key: _plain(each) for key, each in value}
    return [_plain(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" \n\t\r\v\f{} \n", {}),
        ("{a:1,$a:2,_:3,a1:4}", {"a": 1, "$a": 2, "_": 3, "a1": 4}),
        ("{nullable:1,true_x:2}", {"nullable": 1, "true_x": 2}),
        ("""{'a':'x"y','b':'x\\'y'}""", {"a": 'x"y', "b": "x'y"}),
        ("{a:[1,],}", {"a": [1]}),
        ("{a\n:\n1}", {"a": 1}),
        ("[true,false,null]", [True, False, None]),
        ("[-0,3.,3e0,30e-1,-1.5]", [0, 3.0, 3.0, 3.0, -1.5]),
        ("[18446744073709551615,-9223372036854775808]", [2**64 - 1, -(2**63)]),
        ("18446744073709551616", 2.0**64),
        (r"""'\b\f\n\r\t\v\/\\\"\'\q\0\u0041\U'""", "\b\f\n\r\t\v/\\\"'q0AU"),
        (r"'\ud83d\ude00 \u0000'", "\U0001f600 \0"),
        ("'line\nbreak'", "line\nbreak"),
        ("{}\0anything", {}),
    ],
)
def test_text_beyond_json_is_read(text: str, value: Any) -> None:
    found = _plain(parse(text))
    assert found == value
    assert type(found) is type(value)


def test_key_given_twice_is_kept_twice() -> None:
    assert parse("{a:1,'a':2}").pairs == (("a", 1), ("a", 2))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Unexpected end of string. Expected a value."),
        ("x", "Unexpected token."),
        ("\ufeff{}", "Expected a value."),
        ("+3", "Expected a value."),
        (".5", "Expected a value."),
        ("{} x", "Parsing terminated before end of input."),
        ("{}{}", "Parsing terminated before end of input."),
        ("{,}", "Expected an object key or }."),
        ("{a:1,,}", "Expected an object key or }."),
        ("{1:2}", "Expected an object key or }."),
        ("{true:1}", "Expected an object key or }."),
        ("{\u00e9:1}", "Expected an object key or }."),
        ("{/* c */}", "Expected an object key or }."),
        ("{a-b:1}", "Expected : between key:value pair."),
        ("{a=1}", "Expected : between key:value pair."),
        ("{a:1 b:2}", "Expected , or } after key:value pair."),
        ("{a:trueish}", "Expected , or } after key:value pair."),
        ("{a:1 // c\n}", "Expected , or } after key:value pair."),
        ("{a:}", "Unexpected token."),
        ("{a:NaN}", "Unexpected token."),
        ("[,]", "Unexpected token."),
        ("[1 2]", "Expected , or ] after array value."),
        ("[", "Unexpected end of string. Expected a value or ] within an array."),
        ("'x", "Closing quote expected in string."),
        ("'x\\", "Closing quote expected in string."),
        ("'x\0'", "Closing quote expected in string."),
        (r"'\ud83dx'", "Missing low surrogate."),
        (r"'\ud83d\u0041'", "Invalid low surrogate."),
        (r"'\ude00'", "Invalid unicode code point."),
        (r"'\u12'", "Invalid escape sequence."),
        ("03", "Octal/hex numbers are not valid JSON values."),
        ("-03", "Octal/hex numbers are not valid JSON values."),
        ("0x3", "Octal/hex numbers are not valid JSON values."),
        ("1e999", "Number exceeds the range of double."),
        ("1-2", "Unable to parse number."),
        ("1e", "Unable to parse number."),
        ("-", "Unable to parse number."),
        ("[" * 100_000, "Message too deep."),
        ("{a:" * 200, "Message too deep."),
        ("'\udcff'", "surrogates not allowed"),
    ],
)
def test_text_that_is_no_value_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r".+") as raised:
        parse(text)
    assert problem in str(raised.value)


def test_refusal_names_the_place() -> None:
    with pytest.raises(ValueError, match=r"\(line 2 column 4\)"):
        parse("{\n a 1}")


def test_number_of_values_is_limited() -> None:
    assert len(parse(f"[{','.join(['1'] * (MAX_VALUES - 1))}]")) == MAX_VALUES - 1
    with pytest.raises(ValueError, match=f"more than {MAX_VALUES} values"):
        parse(f"[{','.join(['1'] * MAX_VALUES)}]")
