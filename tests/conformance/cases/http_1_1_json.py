"""Contract 1.1, malformed JSON and JSON of the wrong type (H18 to H20): the texts and offsets of rapidjson."""

from tests.conformance.case import Because, HttpCase, Instead, http, infer, one, refuses, says

_GOOD = '{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"INT32","data":[1]}]}'
_MALFORMED = {
    "nothing but an opening brace": "{",
    "white space only": "   ",
    "no JSON at all": "hello",
    "wrong bracket": "{]",
    "no colon": '{"a"}',
    "no value": '{"a":}',
    "comma at the end of an object": '{"a":1,}',
    "comma at the end of an array": "[1,]",
    "no comma": '{"a":1 "b":2}',
    "single quotes": "{'a':1}",
    "something after the document": _GOOD + "x",
    "two documents": _GOOD + _GOOD,
    "cut off after the last but one brace": _GOOD[:-1],
    "cut off in an array": _GOOD[:-4],
    "cut off in a string": '{"id":"abc',
    "leading zero": _GOOD.replace("[1]}", "[01]}"),
    "no digit before the point": _GOOD.replace("[1]}", "[.5]}"),
    "no digit after the point": _GOOD.replace("[1]}", "[1.]}"),
    "no exponent": _GOOD.replace("[1]}", "[1e]}"),
    "plus sign": _GOOD.replace("[1]}", "[+1]}"),
    "minus sign alone": _GOOD.replace("[1]}", "[-]}"),
    "half a literal": _GOOD.replace("[1]}", "[tru]}"),
    "nan in small letters": _GOOD.replace("[1]}", "[nan]}"),
    "unknown escape": '{"id":"\\x"}',
    "bad hexadecimal escape": '{"id":"\\u12"}',
    "bad surrogate pair": '{"id":"\\ud800\\u0041"}',
    "control character in a string": '{"id":"a\nb"}',
    "comment": "/*c*/{}",
    "number beyond a double": '{"a":1e400}',
    "NUL": "\0",
}
_ACCEPTED = {
    "white space around": f" \n\t{_GOOD}\r\n ",
    "byte order mark": "\ufeff" + _GOOD,
    "unknown keys": '{"x":{"y":[]},' + _GOOD[1:],
}
_NOT_FINITE = '{"inputs":[{"name":"INPUT0","shape":[5],"datatype":"FP32","data":[NaN,Inf,-Inf,Infinity,-Infinity]}]}'
_ECHO_B = (
    '{"id":"b","model_name":"int32","model_version":"1",'
    '"outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[1],"data":[1]}]}'
)
_NO_REQUEST = {"array": "[]", "number": "1", "string": '"x"', "null": "null", "object": "{}"}
_DEEP = _GOOD.replace("[1]}", "[" * 101 + "1" + "]" * 101 + "}")

CASES: tuple[HttpCase, ...] = (
    *(http(f"malformed JSON: {name}", "H19", infer("int32", text)) for name, text in _MALFORMED.items()),
    *(http(f"JSON accepted: {name}", "H19 H32", infer("int32", text)) for name, text in _ACCEPTED.items()),
    http(
        "JSON with a key given twice",
        "H32",
        infer("int32", '{"id":"a","id":"b",' + _GOOD[1:]),
        instead=Instead(
            Because.PURPOSE,
            "the real server takes the first of equal keys, ours the last, as fast JSON readers do",
            says(200, _ECHO_B),
        ),
    ),
    *(http(f"JSON that is no request: {name}", "H19", infer("int32", text)) for name, text in _NO_REQUEST.items()),
    http(
        "JSON nested too deep",
        "H18",
        infer("int32", _DEEP),
        instead=Instead(
            Because.NEWER,
            "2.51 has no limit of depth (H18)",
            refuses(400, "Unable to parse 'data': JSON nesting depth exceeds maximum allowed limit (100)"),
        ),
    ),
    http(
        "NaN and Infinity",
        "H20",
        infer(
            "fp32",
            '{"inputs":[{"name":"INPUT0","shape":[5],"datatype":"FP32","data":[NaN,Inf,-Inf,Infinity,-Infinity]}]}',
        ),
    ),
    http("the JSON of an unknown model is not read", "H30", infer("nope", "{"), masks="infer-error-type"),
    http("the JSON for a decoupled model is not read", "H30 H31", infer("decoupled", "{"), masks="infer-error-type"),
    http("the first fault is reported", "H30", infer("int32", {**one("INT32", [1], [1]), "id": 1, "inputs": {}})),
)
