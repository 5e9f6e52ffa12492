"""Contract 1.1, malformed JSON in every way that rapidjson has a text for (H19). Text and offset are rapidjson's own.

In most bodies a good request surrounds the fault, so that its offset differs from the beginning and the end.
"""

from tests.conformance.case import HttpCase, http, post

_BEFORE = b'{"inputs":[{"name":"INPUT0","shape":[2],"datatype":"INT32","data":['
_AFTER = b"]}]}"


def _data(value: bytes) -> bytes:
    return _BEFORE + value + _AFTER


def _id(value: bytes) -> bytes:
    return b'{"id":' + value + b"," + _data(b"1,2")[1:]


_GOOD = _data(b"1,2")
_STRUCTURE = {
    "an opening bracket": b"[",
    "a closing brace": b"}",
    "a closing bracket": b"]",
    "a comma": b",",
    "a colon": b":",
    "a quote": b'"',
    "a comma before the first member": b"{," + _GOOD[1:],
    "two commas between members": _GOOD.replace(b",", b",,", 1),
    "a comma after the document": _GOOD + b",",
    "a closing brace too many": _GOOD + b"}",
    "a value after the document": _GOOD + b" 1",
    "an object closed by a bracket": b'{"a":1]',
    "an array closed by a brace": b'{"a":[1}',
    "a member without a value": b'{"a":1,"b"}',
    "a name that is a number": b'{"a":1,2:3}',
    "a name that is an object": b"{{}:1}",
    "a name without quotes": b"{inputs:[]}",
    "an equals sign": b'{"a"=1}',
    "a semicolon between members": b'{"a":1;"b":2}',
    "cut off after a name": b'{"inputs"',
    "cut off after a colon": b'{"inputs":',
    "cut off after a comma": b'{"a":1,',
    "cut off after a value": b'{"a":1',
    "an array without a comma": _data(b"1 2"),
    "an array with two commas": _data(b"1,,2"),
    "an array that begins with a comma": _data(b",1"),
    "an array that ends with a comma": _data(b"1,2,"),
    "an array that is cut off": _BEFORE + b"1,",
    "a colon in an array": _data(b"1:2"),
}
_VALUES = {
    "True": b"True",
    "TRUE": b"TRUE",
    "tru": b"tru",
    "truely": b"truely",
    "fals": b"fals",
    "False": b"False",
    "nul": b"nul",
    "None": b"None",
    "nullx": b"nullx",
    "N": b"N",
    "Na": b"Na",
    "NaNa": b"NaNa",
    "NAN": b"NAN",
    "nan": b"nan",
    "-NaN": b"-NaN",
    "I": b"I",
    "In": b"In",
    "Infi": b"Infi",
    "Infinite": b"Infinite",
    "inf": b"inf",
    "infinity": b"infinity",
    "INF": b"INF",
    "-inf": b"-inf",
    "-I": b"-I",
    "+Inf": b"+Inf",
    "+1": b"+1",
    "--1": b"--1",
    "- 1": b"- 1",
    "-": b"-",
    "-a": b"-a",
    ".5": b".5",
    "-.5": b"-.5",
    "1.": b"1.",
    "1.e5": b"1.e5",
    "1.a": b"1.a",
    "1e": b"1e",
    "1e+": b"1e+",
    "1e-": b"1e-",
    "1ea": b"1ea",
    "1e1.5": b"1e1.5",
    "1.2.3": b"1.2.3",
    "01": b"01",
    "-01": b"-01",
    "00": b"00",
    "0x10": b"0x10",
    "1_000": b"1_000",
    "1f": b"1f",
    "1e309": b"1e309",
    "-1e309": b"-1e309",
    "1e9999999999": b"1e9999999999",
    "10 to the 400, in digits": b"1" + b"0" * 400,
    "a word": b"one",
    "a word in quotes of one kind": b"'1'",
    "a word in back quotes": b"`1`",
    "undefined": b"undefined",
    "a control character": b"\x01",
    "a delete character": b"\x7f",
    "a form feed": b"1,\x0c2",
    "a vertical tab": b"1,\x0b2",
    "NUL": b"1,\x002",
    "a blank that is no break": b"1,\xc2\xa02",
    "a byte order mark": b"1,\xef\xbb\xbf2",
    "a letter that is not ASCII": "é".encode(),
    "a byte that is no UTF-8": b"\xff",
    "a comment of a line": b"1, // two\n2",
    "a comment between": b"1, /* two */ 2",
    "a hash comment": b"1, # two\n2",
}
_STRINGS = {
    "escape of an x": rb'"\x41"',
    "escape of a quote of one kind": rb'"\'"',
    "escape of a digit": rb'"\0"',
    "escape of a U": rb'"\U0041"',
    "escape of an end of line": b'"a\\\nb"',
    "escape of a byte that is no UTF-8": b'"\\\xff"',
    "three hexadecimal digits": rb'"\u123"',
    "a letter among hexadecimal digits": rb'"\u12g4"',
    "no hexadecimal digit": rb'"\u"',
    "a first surrogate alone": rb'"\ud800"',
    "a first surrogate and text": rb'"\ud800abc"',
    "a first surrogate and another escape": rb'"\ud800\n"',
    "two first surrogates": rb'"\ud800\ud800"',
    "a first surrogate and no surrogate": rb'"\ud83d\u0041"',
    "a second surrogate cut off": rb'"\ud83d\ude0"',
    "a tabulator": b'"a\tb"',
    "an end of line": b'"a\nb"',
    "a carriage return": b'"a\rb"',
    "a NUL": b'"a\0b"',
    "an escape character": b'"a\x1bb"',
    "no end": b'"abc',
    "no end after an escape": rb'"abc\"',
    "quotes around nothing, then a word": b'""abc',
}
_CUT_OFF = {
    "in a literal": _BEFORE + b"tru",
    "in NaN": _BEFORE + b"Na",
    "in Infinity": _BEFORE + b"Infin",
    "after a minus": _BEFORE + b"-",
    "after a point": _BEFORE + b"1.",
    "in an exponent": _BEFORE + b"1e",
    "in an escape": b'{"id":"\\',
    "in a hexadecimal escape": b'{"id":"\\u12',
    "in a surrogate pair": b'{"id":"\\ud800\\',
    "in a comment": b"/*",
    "in a byte order mark": b"\xef\xbb",
    "after a byte order mark": b"\xef\xbb\xbf",
    "after half a character": b'{"id":"\xc3',
}
_ELSEWHERE = {
    "half a byte order mark before a fault": b"\xef\xbb" + _data(b"1,+2"),
    "a byte order mark that ends otherwise": b"\xef\xbb\xbe" + _GOOD,
    "a byte order mark after a blank": b" \xef\xbb\xbf" + _GOOD,
    "two byte order marks": b"\xef\xbb\xbf" * 2 + _GOOD,
    "a fault after a byte order mark": b"\xef\xbb\xbf" + _data(b"1,+2"),
    "a fault after letters that are not ASCII": _id('"zwölf €"'.encode()).replace(b"1,2", b"1,+2"),
    "a fault after bytes that are no UTF-8": _id(b'"\xff\xfe\xc3"').replace(b"1,2", b"1,+2"),
    "UTF-16": "\ufeff{}".encode("utf-16-le"),
    "an end of line before the fault": b"\n\n" + _data(b"1,\r\n+2"),
    "a GIF": b"GIF89a\x01\x00\x01\x00",
    "a form": b"inputs=1&outputs=2",
    "XML": b"<?xml version='1.0'?>",
    "blanks and a NUL": b"  \0",
    "a document and a NUL": _GOOD + b"\0",
    "the first of two faults": _data(b"+1,+2") + b"x",
}


def _case(name: str, body: bytes) -> HttpCase:
    return http(f"malformed JSON, {name}", "H19", post("/v2/models/int32/infer", body))


CASES: tuple[HttpCase, ...] = (
    *(_case(name, body) for name, body in _STRUCTURE.items()),
    *(_case(f"data of {name}", _data(value)) for name, value in _VALUES.items()),
    *(_case(f"string with {name}", _id(value)) for name, value in _STRINGS.items()),
    *(_case(f"cut off {name}", body) for name, body in _CUT_OFF.items()),
    *(_case(name, body) for name, body in _ELSEWHERE.items()),
    *(
        http(f"JSON accepted: {name} byte order mark", "H19", post("/v2/models/int32/infer", mark + _GOOD))
        for name, mark in {"a third of a": b"\xef", "half a": b"\xef\xbb", "a": b"\xef\xbb\xbf"}.items()
    ),
)
