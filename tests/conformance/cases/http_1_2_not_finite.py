"""Numbers that are not finite, or that do not exist, wherever JSON can have one (H20)."""

import struct

from tests.conformance.case import HttpCase, http, infer, infer_binary, one

_WORDS = (
    "NaN",
    "-NaN",
    "Inf",
    "-Inf",
    "+Inf",
    "Infinity",
    "-Infinity",
    "nan",
    "inf",
    "infinity",
    "INF",
    "null",
    '"NaN"',
)
_FLOATS = ("FP32", "FP64", "FP16", "BF16")
_OTHERS = ("INT32", "UINT8", "INT64", "UINT64", "BOOL", "BYTES")
_HUGE = ("3.5e38", "-3.5e38", "3.4028235677973366e38", "1e-46", "1.7976931348623157e308", "5e-324", "2e-324", "1e308")
_INFINITIES = struct.pack("<4d", float("inf"), float("-inf"), float("nan"), -0.0)
_SINGLE = struct.pack("<3I", 0x7F800001, 0xFFC00000, 0x7F800000)
_GOOD = '"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]'


def _data(datatype: str, text: str) -> bytes:
    tensor = f'{{"name":"INPUT0","datatype":"{datatype}","shape":[1],"data":[{text}]}}'
    return infer(datatype.lower(), f'{{"inputs":[{tensor}]}}')


def _shape(text: str) -> bytes:
    tensor = f'{{"name":"INPUT0","datatype":"INT32","shape":[{text}],"data":[1]}}'
    return infer("int32", f'{{"inputs":[{tensor}]}}')


def _parameter(name: str, text: str) -> bytes:
    return infer("parameters", f'{{"parameters":{{"{name}":{text}}},{_GOOD}}}')


def _setting(name: str, text: str) -> bytes:
    """JSON for the parameters of an output."""
    return infer("int32", f'{{"outputs":[{{"name":"OUTPUT0","parameters":{{"{name}":{text}}}}}],{_GOOD}}}')


CASES: tuple[HttpCase, ...] = (
    *(
        http(f"not finite, {datatype} from {word}", "H20 H38", _data(datatype, word))
        for datatype in (*_FLOATS, *_OTHERS)
        for word in _WORDS
    ),
    *(
        http(f"not finite, {datatype} from {text}", "H20 H38", _data(datatype, text), masks="last-digit length")
        for datatype in ("FP32", "FP64")
        for text in _HUGE
    ),
    *(http(f"not finite, a shape of {word}", "H20 H35", _shape(word)) for word in _WORDS),
    *(http(f"not finite, a parameter of {word}", "H20 H46", _parameter("p", word)) for word in _WORDS),
    *(
        http(f"not finite, {name} of {word}", "H20 H46", _parameter(name, word))
        for name in ("sequence_id", "sequence_start", "priority", "timeout", "binary_data_output")
        for word in ("NaN", "Infinity")
    ),
    *(
        http(f"not finite, {name} of {word}", "H20", _setting(name, word))
        for name in ("binary_data", "classification", "shared_memory_region")
        for word in ("NaN", "Infinity")
    ),
    *(
        http(f"not finite, {name} of the request", "H20", infer("int32", f'{{"{name}":NaN,{_GOOD}}}'))
        for name in ("id", "parameters", "outputs", "unknown")
    ),
    http("not finite, FP64 to JSON", "H20", infer_binary("fp64", one("FP64", [4], size=32), _INFINITIES)),
    http("not finite, odd bits of FP32 to JSON", "H20", infer_binary("fp32", one("FP32", [3], size=12), _SINGLE)),
    http(
        "not finite, odd bits of FP32 kept",
        "H20",
        infer_binary("fp32", one("FP32", [3], size=12, parameters={"binary_data_output": True}), _SINGLE),
    ),
)
