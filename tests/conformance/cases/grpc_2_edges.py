"""Contract 2, edge cases: versions as text, unknown fields, parameters at their limits, order."""

from tests.conformance.case import OUTPUT_TWICE_GRPC, GrpcCase, grpc
from tests.conformance.rawgrpc import Call

_INPUT = 'inputs { name: "INPUT0" datatype: "INT32" shape: [1] contents { int_contents: 1 } } '
_BARE = 'inputs { name: "INPUT0" datatype: "INT32" shape: [1] } '
_RAW = r'raw_input_contents: "\001\000\000\000" '
_PAIR = (
    'model_name: "pair" inputs { name: "INPUT0" datatype: "INT32" shape: [1, 2] contents { int_contents: [1, 2] } } '
    'inputs { name: "INPUT1" datatype: "FP32" shape: [1, 1] } '
)
_OUTPUT0 = 'outputs { name: "OUTPUT0" } '
_OUTPUTS = 'outputs { name: "OUTPUT1" } ' + _OUTPUT0
_BAD_PARAMETER = 'parameters { key: "timeout" value { string_param: "x" } } '
_X = 'outputs { name: "X" } '
_VERSIONS = ("99999999999999999999", "9223372036854775807", "0", "-2", " 1", "1 ", "+1", "01", "1.0", "", "0x1")
_UNKNOWN_FIELD = b"\x9a\x06\x02hi"  # field 99, two bytes
_NAMED = ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics")


def _parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ {value} }} }} '


_PARAMETERS = (
    *(("sequence_id", value) for value in ("int64_param: 0", "int64_param: -1", 'string_param: ""', "")),
    *(("priority", value) for value in ("int64_param: 0", f"uint64_param: {2**64 - 1}", "bool_param: true", "")),
    ("sequence_id", "uint64_param: 1"),
    *(("timeout", value) for value in ("int64_param: -1", "int64_param: 9000000000", "bool_param: true", "")),
    *(("sequence_start", value) for value in ("bool_param: false", 'string_param: "true"', "")),
    *(("x", value) for value in ("int64_param: -9223372036854775808", 'string_param: ""', "double_param: nan")),
    *(("x", value) for value in ("double_param: -0.0", "double_param: 1e300", 'string_param: "\\303\\251"')),
    *((name, "int64_param: 1") for name in ("", "triton_", "Triton_x", "headers", "binary_data_output")),
    ("triton_enable_empty_final_response", "bool_param: false"),
    ("triton_enable_empty_final_response", "int64_param: 1"),
)


def _infer(name: str, rows: str, message: str) -> GrpcCase:
    return grpc(name, rows, "ModelInfer", message)


_INT32 = 'model_name: "int32" '
_SEEN = f'model_name: "parameters" {_INPUT}'
_DECOUPLED = 'model_name: "decoupled" id: "a" '
CASES: tuple[GrpcCase, ...] = (
    *(
        _infer(f"version {version!r} of an inference", "H13 H14 G3", f'{_INT32} model_version: "{version}" {_INPUT}')
        for version in _VERSIONS
    ),
    *(
        grpc(f"{rpc}, version {version!r}", "H13 H14 G3", rpc, f'name: "dynamic" version: "{version}"')
        for rpc in _NAMED
        for version in ("99999999999999999999", "-2", "1x", "01")
    ),
    grpc("a field that nobody knows", "G16", "ModelInfer", b"\n\5int32" + _UNKNOWN_FIELD + b"\x1a\1q"),
    grpc("a field that nobody knows, ModelMetadata", "G16", "ModelMetadata", b"\n\5int32" + _UNKNOWN_FIELD),
    _infer("outputs in another order", "G22", f'model_name: "chosen" {_INPUT} {_OUTPUTS}'),
    grpc("an output twice", "H48 G22", "ModelInfer", _INT32 + _INPUT + _OUTPUT0 + _OUTPUT0, instead=OUTPUT_TWICE_GRPC),
    grpc(
        "an output twice, and an input without data",
        "H48 G20",
        "ModelInfer",
        _INT32 + _BARE + _OUTPUT0 + _OUTPUT0,
        instead=OUTPUT_TWICE_GRPC,
    ),
    _infer("contents for one input, raw for the other", "G20", _PAIR + r'raw_input_contents: "\000\000\200\077"'),
    _infer("contents for one input, nothing for the other", "G20", _PAIR),
    *(
        _infer(f"{name} with {value or 'nothing'}, as the model sees it", "G17 G18", _SEEN + _parameter(name, value))
        for name, value in _PARAMETERS
    ),
    _infer("the same parameter twice", "G17",
           _SEEN + _parameter("x", "int64_param: 1") + _parameter("x", "bool_param: true")),
    _infer("order, parameter and no data", "G17 G20", _INT32 + _BAD_PARAMETER + _BARE),
    _infer("order, parameter and unknown output", "G17", _INT32 + _BAD_PARAMETER + _INPUT + _X),
    _infer("order, no data and unknown output", "G20", _INT32 + _BARE + _X),
    _infer("order, unknown input and unknown output", "H62", _INT32 + _INPUT.replace("INPUT0", "Y") + _X),
    _infer("order, wrong datatype and unknown output", "H66", _INT32 + _BARE.replace("INT32", "FP32") + _RAW + _X),
    _infer("order, decoupled and parameter", "G24", f'model_name: "decoupled" {_BAD_PARAMETER} {_INPUT}'),
    _infer("order, decoupled and unknown version", "G24 H14", f'model_name: "decoupled" model_version: "9" {_INPUT}'),
    grpc("the same id twice", "G42", "ModelInfer", f'{_INT32} id: "a" {_INPUT}',
         before=(Call("ModelInfer", (f'{_INT32} id: "a" {_INPUT}',)),)),
    grpc("strict stream, decoupled, wrong shape", "G29", "ModelStreamInfer",
         _DECOUPLED + _INPUT.replace("[1]", "[1, 1]"), metadata=(("triton_grpc_error", "true"),)),
    grpc("stream, decoupled, the empty final response refused", "G31", "ModelStreamInfer",
         _DECOUPLED + _INPUT + _parameter("triton_enable_empty_final_response", "bool_param: false")),
    grpc("stream of a message that is none", "G28", "ModelStreamInfer", b"\xff"),
)  # fmt: skip
