"""Contract 1.2, the inference request and its answer: JSON, binary tensors, raw requests (H30 to H50)."""

import struct

from tests.conformance.case import (
    OUTPUT_TWICE,
    Because,
    HttpCase,
    Instead,
    Json,
    http,
    infer,
    infer_binary,
    infer_raw,
    one,
    post,
    refuses,
)
from tests.conformance.case import tensor as t

_I3 = struct.pack("<3i", 1, 2, 3)
_BINARY: dict[str, Json] = {"parameters": {"binary_data_output": True}}
_LISTED: dict[str, Json] = {"outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}
_PAIR = {"inputs": [t("INT32", [1, 2], size=8), t("FP32", [1, 3], [0.5, 1, 2], "INPUT1")]}
_PAIR_OUTPUTS = [{"name": "OUTPUT1", "parameters": {"binary_data": True}}, {"name": "OUTPUT0"}]
_GOOD = t("INT32", [1], [1])
_EMPTY = {"name": "OUTPUT0", "parameters": {}}
_SCALAR = one("INT32", [1], [1])


def _strings(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


_CUT = _strings(b"ab") + b"\1\0"


def _with(**members: object) -> object:
    """The good input with some members changed. An Ellipsis removes one."""
    changed = {**_GOOD, **members}
    return {"inputs": [{name: value for name, value in changed.items() if value is not ...}]}


def _request(**members: object) -> object:
    return {"inputs": [_GOOD], **members}


def _parameter(name: str, value: object) -> object:
    return _request(parameters={name: value})


_GOOD_CASES = (
    http("JSON in and out", "H32 H44", infer("int32", one("INT32", [3], [1, 2, 3]))),
    http("with an id", "H44", infer("int32", one("INT32", [1], [1], id="a"))),
    http("with an empty id", "H44", infer("int32", one("INT32", [1], [1], id=""))),
    http("an id to be escaped", "H44", infer("int32", one("INT32", [1], [1], id='a"b/\x01\u00e9\\'))),
    http("nested data", "H37", infer("unbatched_fixed", one("FP32", [2, 2], [[1, 2], [3, 4.5]]))),
    http("oddly nested data", "H37", infer("unbatched_fixed", one("FP32", [2, 2], [1, [2, [3]], 4.5]))),
    http("flat data", "H37", infer("unbatched_fixed", one("FP32", [2, 2], [1, 2, 3, 4.5]))),
    http("unknown keys", "H32 H47", infer("int32", _with(parameters={"foo": 1}, extra={}))),
    http("version in the path", "H44", infer("versions/versions/2", one("INT32", [1], [7]))),
    http("the latest version", "H44", infer("versions", one("INT32", [1], [7]))),
    http("binary in, JSON out", "H33 H41", infer_binary("int32", one("INT32", [3], size=12), _I3)),
    http("binary in and out", "H41 H43", infer_binary("int32", one("INT32", [3], size=12, **_BINARY), _I3)),
    http("JSON in, binary out", "H43", infer("int32", one("INT32", [3], [1, 2, 3], **_BINARY))),
    http("binary output listed", "H42 H43", infer("int32", one("INT32", [3], [1, 2, 3], **_LISTED))),
    http(
        "listed outputs ignore binary_data_output",
        "H42",
        infer("int32", one("INT32", [1], [1], outputs=[{"name": "OUTPUT0"}], **_BINARY)),
    ),
    http("binary out of nothing", "H43", infer("int32", one("INT32", [0], [], **_BINARY))),
    http("binary and JSON, in and out", "H41 H43", infer_binary("pair", {**_PAIR, "outputs": _PAIR_OUTPUTS}, _I3[:8])),
    http("one output of two", "H42", infer("chosen", one("INT32", [3], [1, 2, 3], outputs=[{"name": "OUTPUT1"}]))),
    http("all outputs by default", "H42 H74", infer("chosen", one("INT32", [3], [1, 2, 3]))),
    http("an empty list of outputs", "H74", infer("chosen", one("INT32", [3], [1, 2, 3], outputs=[]))),
    http("nothing in JSON", "H40", infer("int32", one("INT32", [0], []))),
    http("nothing, and data all the same", "H40", infer("int32", one("INT32", [0], [1, 2]))),
    http(
        "empty parameters of an output",
        "H47",
        infer("int32", _request(outputs=[_EMPTY])),
    ),
    http("raw, one dimension", "H34", infer_raw("int32", _I3)),
    http("raw, batching", "H34", infer_raw("batched", _I3)),
    http("raw, fixed shape", "H34", infer_raw("fixed", struct.pack("<4f", 1, 2, 3, 4))),
    http("raw, deduced dimension", "H34", infer_raw("raw_deduced", struct.pack("<6h", *range(6)))),
    http("raw, one string", "H34", infer_raw("raw_bytes", b"hello")),
    http("an empty body is a raw request", "H34", post("/v2/models/int32/infer", b"")),
    http("an empty body is a raw request, batching", "H34", post("/v2/models/batched/infer", b"")),
    http("an empty body is an empty string", "H34", post("/v2/models/raw_bytes/infer", b"")),
    http(
        "parameters of the request",
        "H46",
        infer(
            "parameters",
            one(
                "INT32",
                [1],
                [1],
                id="q",
                parameters={
                    "text": "x",
                    "integer": 5,
                    "negative": -7,
                    "flag": True,
                    "number": 1.5,
                    "sequence_id": 7,
                    "sequence_start": True,
                    "sequence_end": True,
                    "priority": 2,
                    "timeout": 1_000_000,
                },
            ),
        ),
    ),
    http("a sequence id of text", "H46", infer("parameters", _parameter("sequence_id", "abc"))),
    http("the inference header given in full", "H33", infer_binary("int32", one("INT32", [1], [1]), b"")),
)

_WRONG_MEMBERS = {
    "inputs is an object": {"inputs": {}},
    "inputs is null": {"inputs": None},
    "an input is a number": {"inputs": [1]},
    "id is a number": _request(id=1),
    "id is null": _request(id=None),
    "parameters is an array": _request(parameters=[]),
    "outputs is an object": _request(outputs={}),
    "an output is a number": _request(outputs=[1]),
    "an output without a name": _request(outputs=[{}]),
    "an output's name is a number": _request(outputs=[{"name": 1}]),
    "binary_data is text": _request(outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": "x"}}]),
    "no name": _with(name=...),
    "name is a number": _with(name=1),
    "no shape": _with(shape=...),
    "shape is a number": _with(shape=1),
    "shape holds text": _with(shape=["1"]),
    "shape holds a negative": _with(shape=[-1]),
    "shape holds a float": _with(shape=[1.0]),
    "no datatype": _with(datatype=...),
    "datatype is a number": _with(datatype=3),
    "datatype is unknown": _with(datatype="INT33"),
    "datatype in small letters": _with(datatype="int32"),
    "no data": _with(data=...),
    "data is null": _with(data=None),
    "data is an object": _with(data={}),
    "data is a number": _with(data=1),
    "data and binary_data_size": _with(parameters={"binary_data_size": 4}),
    "binary_data_size is text": _with(data=..., parameters={"binary_data_size": "4"}),
    "binary_data_size is negative": _with(data=..., parameters={"binary_data_size": -4}),
    "binary_data_size is 0": _with(data=..., parameters={"binary_data_size": 0}),
    "binary_data_size without bytes": _with(data=..., parameters={"binary_data_size": 4}),
}
_WRONG_PARAMETERS: dict[str, Json] = {
    "triton_x": 1,
    "null": None,
    "array": [1],
    "object": {},
    "sequence_id": True,
    "sequence_start": 1,
    "sequence_end": "x",
    "priority": -1,
    "timeout": 1.5,
    "binary_data_output": 1,
}
_OVERFLOWS = {
    "element count": (
        [9223372036854775807, 2],
        "invalid shape for input 'INPUT0': shape [9223372036854775807,2] causes total element count to exceed maximum "
        "size of 9223372036854775807",
    ),
    "byte size": (
        [4611686018427387904],
        "byte size overflow for input 'INPUT0': element count (4611686018427387904) * data type size (4) exceeds "
        "maximum allowed size (9223372036854775807)",
    ),
    "dimension": (
        [9223372036854775808],
        "invalid shape for input 'INPUT0': shape [-9223372036854775808] contains one or more invalid dimensions",
    ),
}

_BAD_CASES = (
    *(http(f"wrong: {name}", "H35", infer("int32", body)) for name, body in _WRONG_MEMBERS.items()),
    *(
        http(f"wrong parameter {name}", "H46", infer("int32", _parameter(name, value)))
        for name, value in _WRONG_PARAMETERS.items()
    ),
    *(
        http(
            f"overflow of the {name}",
            "H40",
            infer("int32", one("INT32", shape, [1])),
            instead=Instead(Because.NEWER, "2.51 ends (H40)", refuses(400, text), asked=False),
        )
        for name, (shape, text) in _OVERFLOWS.items()
    ),
    http("decoupled model", "H31", infer("decoupled", _SCALAR), masks="infer-error-type"),
    http("unknown model", "H14", infer("nope", _SCALAR), masks="infer-error-type"),
    http("unknown version", "H14", infer("int32/versions/9", _SCALAR), masks="infer-error-type"),
    http("model not loaded", "H14", infer("unready", _SCALAR), masks="infer-error-type"),
    http("version not loaded", "H6 H14", infer("unready/versions/1", _SCALAR), masks="infer-error-type"),
    http(
        "version beyond int64",
        "H13",
        infer("int32/versions/99999999999999999999", one("INT32", [1], [1])),
        masks="infer-error-type",
    ),
    http("unknown output", "H42", infer("int32", _request(outputs=[{"name": "X"}]))),
    http("duplicate output", "H48", infer("int32", _request(outputs=[{"name": "OUTPUT0"}] * 2)), instead=OUTPUT_TWICE),
    http("duplicate input", "H48 H49", infer("int32", {"inputs": [_GOOD, _GOOD]})),
    http("duplicate input, with an id", "H48 H49", infer("int32", {"id": "q", "inputs": [_GOOD, _GOOD]})),
    http("too many elements", "H37", infer("int32", one("INT32", [1], [1, 2]))),
    http("too many elements, nested", "H37", infer("int32", one("INT32", [2], [[1, 2], [3]]))),
    http(
        "too few elements",
        "H37",
        infer("int32", one("INT32", [3], [1, 2])),
        instead=Instead(
            Because.NEWER,
            "2.51 uses the text for too many (H37)",
            refuses(500, "Failed to parse 'data' field: shape does not match true shape"),
        ),
    ),
    *(
        http(
            f"inference header of {length} bytes",
            "H33",
            infer_binary("int32", _SCALAR, b"", length),
            masks="infer-error-type",
        )
        for length in (-1, 100000)
    ),
    http("inference header too short", "H19 H33", infer_binary("int32", one("INT32", [1], [1]), b"", 1)),
    *(
        http(
            f"inference header {length!r}",
            "H33",
            infer_binary("int32", _SCALAR, b"", length),
            instead=Instead(Because.NEWER, "2.51 reads it with atoi (H33)", refuses(400, text.format(length))),
        )
        for length, text in (
            ("x", "Unable to parse Inference-Header-Content-Length, got: {}"),
            (
                "99999999999",
                "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], "
                "got: {}",
            ),
        )
    ),
    http("binary data too short", "H41", infer_binary("int32", one("INT32", [4], size=16), _I3)),
    http("binary data left over", "H41", infer_binary("int32", one("INT32", [2], size=8), _I3)),
    http("binary data beside JSON only", "H41", infer_binary("int32", one("INT32", [1], [1]), _I3)),
    http("binary size is not the shape's", "H69", infer_binary("int32", one("INT32", [2], size=12), _I3)),
    http("binary size is no multiple", "H69", infer_binary("int32", one("INT32", [3], size=13), _I3 + b"x")),
    http("raw, two inputs", "H34", infer_raw("pair", _I3)),
    http("raw, two variable dimensions", "H34", infer_raw("wild", _I3)),
    http("raw, several strings", "H34", infer_raw("bytes", b"abc")),
    http("raw, wrong size", "H34 H69", infer_raw("fixed", b"1234")),
    http("raw, no multiple of the element", "H34 H69", infer_raw("int32", b"12345")),
    http("an empty body, fixed shape", "H34", post("/v2/models/fixed/infer", b"")),
    http("strings, too few", "H70", infer_binary("bytes", one("BYTES", [2], size=6), _strings(b"ab"))),
    http("strings, too many", "H70", infer_binary("bytes", one("BYTES", [1], size=10), _strings(b"a", b"b"))),
    http("strings, cut in a length", "H70", infer_binary("bytes", one("BYTES", [2], size=8), _CUT)),
    http("strings, none", "H70", infer_binary("bytes", one("BYTES", [1], size=0), b"")),
    http("a model that raises", "H6", infer("raises", _SCALAR), masks="infer-error-type"),
    http(
        "a model that refuses each request",
        "H6",
        infer("refuses", one("INT32", [1, 1], [1], id="q")),
        masks="infer-error-type",
    ),
)
CASES: tuple[HttpCase, ...] = (*_GOOD_CASES, *_BAD_CASES)
