"""Contract 1.4, classification over HTTP (H80 to H85): values as text, order, labels, counts, and what is refused."""

import struct
from collections.abc import Sequence

from tests.conformance.case import (
    OUTPUT_TWICE,
    Because,
    HttpCase,
    Instead,
    Json,
    get,
    http,
    infer,
    infer_binary,
    one,
    refuses,
    says,
)

_NAN, _MINUS_NAN = b"\0\0\xc0\x7f", b"\0\0\xc0\xff"
_EXTREMES: dict[str, list[Json]] = {
    "INT8": [1, -128, 127],
    "UINT8": [1, 255, 7],
    "INT16": [1, -(2**15), 2**15 - 1],
    "UINT16": [1, 2**16 - 1, 7],
    "INT32": [1, -(2**31), 2**31 - 1],
    "UINT32": [1, 2**32 - 1, 7],
    "INT64": [1, -(2**63), 2**63 - 1],
    "UINT64": [1, 2**64 - 1, 7],
    "FP32": [0.1, -3, 1e30, 2.5, 3.4028235e38, 1e-45, -0.0, 123456.789],
    "FP64": [0.1, -1e-7, 1e300, 1.7976931348623157e308, 0.5, 0.0000005, 2.0000015],
}
_FIVE = [1, 5, 3, 2, 4]
_UNSUPPORTED = {"BOOL": b"\0\1\1", "FP16": b"\0\x3c" * 3, "BF16": b"\x80\x3f" * 3}
_NOT_COUNTS: tuple[Json, ...] = (-1, 2**64, 1.0, True, "1", None, [])
_TOO_LARGE = 1_000_001


def _output(classes: Json, name: str = "OUTPUT0", **more: Json) -> Json:
    return {"name": name, "parameters": {"classification": classes, **more}}


def _classified(
    name: str, rows: str, datatype: str, data: Sequence[Json], *outputs: Json, model: str = "", **more: Json
) -> HttpCase:
    """A classification of values of one dimension, without a batch."""
    asked = one(datatype, [len(data)], list(data), outputs=list(outputs))
    return http(f"classification, {name}", rows, infer(model or datatype.lower(), asked), **more)


def _binary(
    name: str, rows: str, datatype: str, shape: Sequence[int], data: bytes, *outputs: Json, **more: Json
) -> HttpCase:
    model = more.pop("model", datatype.lower())
    asked = one(datatype, shape, size=len(data), outputs=list(outputs))
    return http(f"classification, {name}", rows, infer_binary(model, asked, data), **more)


def _floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def _says_classes(datatype_model: str, *texts: str) -> str:
    output = {"name": "OUTPUT0", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)}
    return says(200, {"model_name": datatype_model, "model_version": "1", "outputs": [output]})


_GOOD_CASES = (
    *(
        _classified(f"{datatype} as text", "H80 H81", datatype, values, _output(len(values)))
        for datatype, values in _EXTREMES.items()
    ),
    _binary("infinities", "H81", "FP32", [4], _floats(1, float("-inf"), float("inf"), 2), _output(9)),
    _binary("nothing but NaN", "H81", "FP32", [2], _NAN + _MINUS_NAN, _output(9)),
    *(
        _classified(f"{classes} of five", "H80 H85", "FP32", _FIVE, _output(classes))
        for classes in (0, 1, 3, 5, 6, 2**32, 2**32 + 2, 2**64 - 1)
    ),
    _classified("binary", "H80", "FP32", _FIVE, _output(3, binary_data=True)),
    _classified("none, binary", "H85", "FP32", _FIVE, _output(0, binary_data=True)),
    _classified("sixteen equal ones", "H81", "INT32", [7] * 16, _output(16)),
    _classified("equal ones among sixteen", "H81", "INT32", [1, 2, 3, 2, 3, 1, 3, 2] * 2, _output(9)),
    _classified("of hundreds without equals", "H81", "INT32", [i * 37 % 500 for i in range(500)], _output(40)),
    _classified("labels", "H82", "FP32", [1, 3, 2], _output(3), model="classes_flat"),
    http(
        "classification, a batch with labels that are odd or missing",
        "H80 H82",
        infer("classes", one("FP32", [2, 5], [1, 2, 3, 4, 5, 5, 4, 3, 2, 1], outputs=[_output(4)])),
    ),
    _binary(
        *("a batch of one, binary", "H80 H82", "FP32", [1, 5], _floats(*_FIVE)),
        _output(9, binary_data=True),
        model="classes",
    ),
    _classified(
        *("one of two outputs", "H80", "INT32", [5, 9, 7]),
        _output(2, "OUTPUT1", binary_data=True),
        {"name": "OUTPUT0"},
        model="chosen",
    ),
)
_BAD_CASES = (
    _classified("named twice", "H48", "FP32", _FIVE, _output(1), _output(2), instead=OUTPUT_TWICE),
    *(
        _binary(f"{datatype} has no classes", "H83", datatype, [3], data, _output(1), masks="infer-error-type")
        for datatype, data in _UNSUPPORTED.items()
    ),
    *(
        _classified(f"a count that is {classes!r}", "H80 H85", "FP32", _FIVE, _output(classes))
        for classes in _NOT_COUNTS
    ),
    _classified("of an unknown output", "H42", "FP32", _FIVE, _output(1, "X")),
    _classified("of a model that raises", "H80", "INT32", [1], _output(1), model="raises", masks="infer-error-type"),
)
_OTHERWISE = (
    _classified(
        "BYTES have no classes",
        "H83",
        *("BYTES", ["a"], _output(1)),
        instead=Instead(
            Because.NEWER,
            "2.51 divides by the size of an element and ends",
            refuses(400, "class result not available for output due to unsupported type 'BYTES'"),
            asked=False,
        ),
    ),
    _classified(
        "of nothing",
        "H80",
        *("FP32", [], _output(2)),
        instead=Instead(Because.RIGHT, "2.51 ends where an output has no elements", _says_classes("fp32"), asked=False),
    ),
    _binary(
        "of a million, and one",
        "H83",
        *("FP32", [_TOO_LARGE], bytes(4 * _TOO_LARGE), _output(1)),
        instead=Instead(Because.NEWER, "2.51 has no limit", refuses(400, "classification output tensor too large")),
    ),
    _classified(
        "equal ones among seventeen",
        "H81",
        *("INT32", [7] * 17, _output(3)),
        instead=Instead(
            Because.PURPOSE,
            "std::sort leaves equal ones in no order beyond sixteen, ours puts the first first",
            _says_classes("int32", "7:0", "7:1", "7:2"),
        ),
    ),
    _binary(
        "NaN among numbers",
        "H81",
        *("FP32", [4], _floats(1) + _NAN + _floats(3, 2), _output(4)),
        instead=Instead(
            Because.PURPOSE,
            "std::sort leaves the numbers around a NaN unsorted, ours puts NaN with minus infinity",
            _says_classes("fp32", "3.000000:2", "2.000000:3", "1.000000:0", "nan:1"),
        ),
    ),
)

_REFUSED_COUNTED = infer_binary("counted_classes", one("FP16", [1], size=2, outputs=[_output(1)]), b"\0\x3c")
_STATISTICS = http(
    "classification, statistics of what has no classes",
    "H83",
    get("/v2/models/counted_classes/stats"),
    before=(_REFUSED_COUNTED,) * 2,
    masks="times last-inference length",
    until='"execution_count":2,.*"success":{"count":2',  # the real server counts executions last
)

CASES: tuple[HttpCase, ...] = (*_GOOD_CASES, *_BAD_CASES, *_OTHERWISE, _STATISTICS)
