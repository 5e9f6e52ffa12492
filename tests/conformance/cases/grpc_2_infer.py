"""Contract 2, ModelInfer (G16 to G24): every form of data, and refusals with the texts of contract 1.3."""

from collections.abc import Sequence

from tests.conformance.case import GrpcCase, grpc

_ONE = "contents { int_contents: 1 }"


def _input(datatype: str = "INT32", shape: Sequence[int] = (1,), more: str = "", name: str = "INPUT0") -> str:
    return f'inputs {{ name: "{name}" datatype: "{datatype}" shape: {list(shape)} {more} }} '


def _infer(model: str, *parts: str) -> str:
    return f'model_name: "{model}" ' + " ".join(parts)


def _raw(*tensors: bytes) -> str:
    escaped = ("".join(f"\\{byte:03o}" for byte in tensor) for tensor in tensors)
    return " ".join(f'raw_input_contents: "{tensor}"' for tensor in escaped)


def _parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ {value} }} }} '


_INT1, _INT2, _FLOAT = b"\1\0\0\0", b"\1\0\0\0\2\0\0\0", b"\0\0\x80\x3f"
_RAW = _raw(_INT1)
_CONTENTS = {
    "BOOL": "bool_contents: [true, false]",
    "UINT8": "uint_contents: [300, 1]",
    "UINT16": "uint_contents: [70000, 1]",
    "UINT32": "uint_contents: [4294967295, 1]",
    "UINT64": "uint64_contents: [18446744073709551615, 1]",
    "INT8": "int_contents: [200, -1]",
    "INT16": "int_contents: [40000, 1]",
    "INT32": "int_contents: [2147483647, -1]",
    "INT64": "int64_contents: [-9223372036854775808, 1]",
    "FP32": "fp32_contents: [0.1, -inf]",
    "FP64": "fp64_contents: [0.1, nan]",
    "BYTES": r'bytes_contents: ["a\377", ""]',
}
_WRONG_CONTENTS = {
    "FP32 for INT32": ("int32", "INT32", "fp32_contents: 1"),
    "INT64 for INT32": ("int32", "INT32", "int64_contents: 1"),
    "BOOL for INT32": ("int32", "INT32", "bool_contents: true"),
    "INT32 for UINT8": ("uint8", "UINT8", "int_contents: 1"),
    "FP32 for FP16": ("fp16", "FP16", "fp32_contents: 1"),
    "FP32 for BF16": ("bf16", "BF16", "fp32_contents: 1"),
    "of two kinds": ("int32", "INT32", "int_contents: 1 fp32_contents: 1"),
    "too few": ("pair", "INT32", "int_contents: 1"),
    "too many": ("int32", "INT32", "int_contents: [1, 2]"),
    "of an unknown datatype": ("int32", "INT33", "int_contents: 1"),
}
_GOOD_PARAMETERS = {
    "sequence_id": 'string_param: "a"',
    "priority": "uint64_param: 1",
    "number": "double_param: 1.5",
    "triton_enable_empty_final_response": "bool_param: true",
    "binary_data_output": "bool_param: true",
}
_BAD_PARAMETERS = (
    ("sequence_id", "bool_param: true"),
    ("sequence_start", "int64_param: 1"),
    ("sequence_end", 'string_param: "x"'),
    ("priority", "int64_param: -1"),
    ("priority", 'string_param: "1"'),
    ("timeout", 'string_param: "1"'),
    ("timeout", "uint64_param: 1"),
    ("custom", "uint64_param: 1"),
    ("custom", ""),
    ("triton_x", "bool_param: true"),
    ("triton_enable_empty_final_response", 'string_param: "x"'),
)
_MANY = "".join(
    _parameter(name, value)
    for name, value in (
        ("text", 'string_param: "x"'),
        ("integer", "int64_param: 5"),
        ("flag", "bool_param: true"),
        ("sequence_id", "int64_param: 7"),
        ("sequence_start", "bool_param: true"),
        ("priority", "int64_param: 2"),
        ("timeout", "int64_param: 1000000"),
    )
)

_TWO_INPUTS = _input(shape=(1, 2)) + _input("FP32", (1, 1), name="INPUT1")
_NAMED_X = _parameter("x", "int64_param: 1")


def _case(name: str, rows: str, model: str, *parts: str) -> GrpcCase:
    return grpc(name, rows, "ModelInfer", _infer(model, *parts))


def _given(name: str, rows: str, model: str, datatype: str, shape: Sequence[int], contents: str) -> GrpcCase:
    return _case(name, rows, model, _input(datatype, shape, f"contents {{ {contents} }}"))


_GOOD_CASES = (
    _case("raw contents, with an id", "G22", "int32", 'id: "a"', _input(), _RAW),
    *(_given(f"contents of {kind}", "G21", kind.lower(), kind, (2,), text) for kind, text in _CONTENTS.items()),
    _case("raw FP16", "G21", "fp16", _input("FP16", (2,)), _raw(b"\0\x3c\0\0")),
    _case("raw BF16", "G21", "bf16", _input("BF16"), _raw(b"\x80\x3f")),
    _case("raw strings", "G22", "bytes", _input("BYTES", (2,)), _raw(b"\2\0\0\0ab\0\0\0\0")),
    _case("version asked for", "G22", "versions", 'model_version: "2"', _input(more=_ONE)),
    _case("version with letters behind", "H13", "versions", 'model_version: "2x"', _input(more=_ONE)),
    _case("nothing, raw", "G20", "int32", _input(shape=(0,)), _raw(b"")),
    _case("more raw contents than inputs", "G20", "int32", _input(), _RAW, _RAW),
    _case("two inputs", "G20 G22", "pair", _TWO_INPUTS, _raw(_INT2, _FLOAT)),
    _case("one output of two", "G22", "chosen", _input(more=_ONE), 'outputs { name: "OUTPUT1" }'),
    _case("all outputs by default", "G22 H74", "chosen", _input(more=_ONE)),
    _case("unknown parameter of an input", "G16", "int32", _input(more=_ONE + _NAMED_X)),
    _case(
        "unknown parameter of an output", "G16", "int32", _input(), _RAW, f'outputs {{ name: "OUTPUT0" {_NAMED_X} }}'
    ),
    _case("a tensor reshaped to a scalar", "H71", "reshape_scalar", _input("FP32", (1, 1)), _RAW),
    _case("parameters of a gRPC request", "G17", "parameters", _MANY, _input(more=_ONE)),
    *(
        _case(f"parameter {name}", "G17 G18 G19", "parameters", _parameter(name, value), _input(more=_ONE))
        for name, value in _GOOD_PARAMETERS.items()
    ),
)
_BAD_CASES = (
    _case("no data", "G20", "int32", _input()),
    _case("nothing, and no data", "G20", "int32", _input(shape=(0,))),
    _case("contents and raw contents", "G20", "int32", _input(more=_ONE), _RAW),
    _case("too few raw contents", "G20", "pair", _TWO_INPUTS, _raw(_INT2)),
    _case("raw contents too short", "H69", "int32", _input(shape=(2,)), _RAW),
    _case("raw contents too long", "H69", "int32", _input(), _raw(_INT2)),
    _case("a dimension of -1", "H68", "int32", _input(shape=(-1,)), _RAW),
    _case("rank too large", "H67", "int32", _input(shape=(1, 1)), _RAW),
    _case("wrong dimension, with an id", "H49 H67", "fixed", 'id: "q"', _input("FP32", (1, 1)), _RAW),
    _case("no shape", "H67", "int32", _input(shape=()), _RAW),
    _case("no shape, batching", "H63", "batched", _input(shape=()), _RAW),
    _case("batch too large", "H65", "batched", _input(shape=(5, 1)), _raw(_INT1 * 5)),
    _case("batch of nothing", "H69", "batched", _input(shape=(0, 1)), _raw(b"")),
    _case("wrong datatype", "H66", "int32", _input("FP32"), _RAW),
    _case("unknown datatype", "H66", "int32", _input("INT33"), _RAW),
    _case("no datatype", "H66", "int32", _input(""), _RAW),
    _case("unknown input", "H62", "int32", _input(name="X"), _RAW),
    _case("unknown output", "H42", "int32", _input(), _RAW, 'outputs { name: "X" }'),
    _case("duplicate input", "H48", "int32", _input(), _input(), _RAW, _RAW),
    _case("no inputs", "H60", "int32"),
    _case("one of two inputs", "H60", "pair", _input(shape=(1, 2)), _raw(_INT2)),
    _case("no input where one is optional", "H61", "optional"),
    _case("strings, cut in a length", "H70", "bytes", _input("BYTES"), _raw(b"\1\0")),
    _case("strings, too many", "H70", "bytes", _input("BYTES"), _raw(b"\0" * 8)),
    _case("decoupled model", "G24", "decoupled", _input(), _RAW),
    _case("unknown model", "G3 H14", "nope", _input(), _RAW),
    _case("no model", "G3 H14", ""),
    _case("unknown version", "G3 H14", "int32", 'model_version: "9"', _input(), _RAW),
    _case("version x", "H13", "int32", 'model_version: "x"', _input(), _RAW),
    _case("version -1", "H13", "int32", 'model_version: "-1"', _input(), _RAW),
    _case("model not loaded", "G3 H14", "unready", _input(), _RAW),
    _case("version not loaded", "G3 H14", "unready", 'model_version: "1"', _input(), _RAW),
    _case("a model that raises", "G3", "raises", _input(), _RAW),
    grpc(
        "batches of two sizes",
        "H64",
        "ModelInfer",
        _infer("pair", _TWO_INPUTS.replace("[1, 1]", "[2, 1]"), _raw(_INT2, _INT2)),
        masks="named-input",
    ),
    _case("a model that refuses each", "G3", "refuses", _input(shape=(1, 1)), _RAW),
    *(
        _given(f"contents {name}", "G21", model, kind, (1,), text)
        for name, (model, kind, text) in _WRONG_CONTENTS.items()
    ),
    *(
        _case(
            f"parameter {name} with {value or 'nothing'}", "G17 G18", "int32", _parameter(name, value), _input(), _RAW
        )
        for name, value in _BAD_PARAMETERS
    ),
    *(
        _given(f"error code {code} of a model", "G3", "coded", "INT32", (1,), f"int_contents: {code}")
        for code in range(8)
    ),
)

CASES: tuple[GrpcCase, ...] = (*_GOOD_CASES, *_BAD_CASES)
