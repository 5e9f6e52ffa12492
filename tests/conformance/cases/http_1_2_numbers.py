"""Contract 1.2, values as JSON text and back (H36, H38, H39, H20): every datatype, extremes, and what is refused."""

import struct

from tests.conformance.case import Because, HttpCase, Instead, http, infer, infer_binary, one, says

_FP32 = (
    "0.1,1e-7,1e-5,0.0001,1e16,1e20,-0.0,NaN,Infinity,-Infinity,1e-45,1.17549421e-38,3.0,3,"
    "0.3333333333,123456789,-1.5e-9"
)
_LONG = "3.4028235e38,1e-6,1e21,1e22,0.0221503463,0.1925,-0.46289534,0.000022899985,1e-38,2.2e10"
_FP64 = (
    "0.1,1e-7,1e-6,0.00001,1e16,1e20,1e21,1e22,-0.0,NaN,Infinity,5e-324,2.2250738585072014e-308,3,1.7976931348623157e308,"
    "0.3333333333333333,123456789012345680,9007199254740993,1e100,1e-100,1.5e300,-123.456e-9"
)
_LISTS = {
    "FP32": _FP32,
    "FP64": _FP64,
    "INT64": "9223372036854775807,-9223372036854775808,0,-0",
    "UINT64": "18446744073709551615,0",
    "INT32": "2147483647,-2147483648,2147483648,4294967297",
    "UINT32": "4294967295,4294967296",
    "INT16": "32767,40000,-32769",
    "UINT16": "65535,65536",
    "INT8": "127,200,-129",
    "UINT8": "255,300,18446744073709551615",
    "BOOL": "true,false",
    "BYTES": '"","a/b","\\u0000\\u001f\\u007f","\\u00e9","\\ud83d\\ude00","\\"\\\\\\b\\f\\n\\r\\t"',
}
_REFUSED = (
    ("INT32", "1.0"),
    ("INT32", "1e2"),
    ("INT32", "true"),
    ("INT32", '"1"'),
    ("INT32", "null"),
    ("INT64", "9223372036854775808"),
    ("UINT8", "-1"),
    ("UINT32", "2.5"),
    ("UINT64", "18446744073709551616"),
    ("BOOL", "1"),
    ("BOOL", '"true"'),
    ("FP32", "true"),
    ("FP32", '"1"'),
    ("FP64", "null"),
    ("FP64", "{}"),
    ("BYTES", "1"),
    ("BYTES", "null"),
)
_RAW = bytes(range(0x30)) + b"\x7f" + "\u00e9\u20ac\U0001f600\u2028".encode() + b"\xff\xfe\xc3"
_BINARY = {"parameters": {"binary_data_output": True}}


def _listed(datatype: str, values: str) -> bytes:
    shape = values.count(",") + 1
    tensor = f'{{"name":"INPUT0","datatype":"{datatype}","shape":[{shape}],"data":[{values}]}}'
    return infer(datatype.lower(), f'{{"inputs":[{tensor}]}}')


def _bytes(datatype: str, data: bytes, count: int, **more: object) -> bytes:
    return infer_binary(datatype.lower(), one(datatype, [count], size=len(data), **more), data)


CASES: tuple[HttpCase, ...] = (
    *(http(f"{datatype} as JSON", "H36 H38", _listed(datatype, values)) for datatype, values in _LISTS.items()),
    *(http(f"{datatype} from {value}", "H19 H38", _listed(datatype, value)) for datatype, value in _REFUSED),
    *(
        http(f"{datatype} of many digits", "H38", _listed(datatype, _LONG), masks="last-digit length")
        for datatype in ("FP32", "FP64")
    ),
    http(
        "FP64 between two that are close",
        "H38",
        _listed("FP64", "2.2250738585072011e-308"),
        instead=Instead(
            Because.RIGHT,
            "the nearest double is the largest subnormal; read there as the one after it, the smallest normal",
            says(
                200,
                '{"model_name":"fp64","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"FP64","shape":[1],'
                '"data":[2.225073858507201e-308]}]}',
            ),
        ),
    ),
    http("FP32 beyond its range", "H38", _listed("FP32", "1e39")),
    http("FP64 beyond its range", "H19", _listed("FP64", "1e309")),
    http(
        "BYTES output with control characters and no UTF-8",
        "H36",
        _bytes("BYTES", struct.pack("<I", len(_RAW)) + _RAW, 1),
    ),
    *(
        http(f"{datatype} as bytes", "H36 H41", _bytes(datatype, b"\x80\x3f\x01\xff" * 4, 16 // size, **_BINARY))
        for datatype, size in (("FP16", 2), ("BF16", 2), ("UINT16", 2), ("INT8", 1), ("FP64", 8), ("INT64", 8))
    ),
    http("BOOL as bytes", "H36 H41", _bytes("BOOL", b"\0\1\1", 3, **_BINARY)),
    *(
        http(f"{datatype} from JSON", "H39", infer(datatype.lower(), one(datatype, [1], [1.0])))
        for datatype in ("FP16", "BF16")
    ),
    *(
        http(f"{datatype} to JSON", "H39", _bytes(datatype, b"\0\x3c", 1), masks="infer-error-type")
        for datatype in ("FP16", "BF16")
    ),
)
