"""Contract 2, ModelStreamInfer (G26 to G33): order, errors that leave the stream open, decoupled models."""

from typing import Any

from tests.conformance.case import GrpcCase, grpc

_RAW = r'raw_input_contents: "\001\000\000\000"'
_STRICT = (("triton_grpc_error", "true"),)
_EMPTY_FINAL = 'parameters { key: "triton_enable_empty_final_response" value { bool_param: true } } '


def _infer(model: str, name: str, shape: str = "1", data: str = _RAW, more: str = "") -> str:
    tensor = f'inputs {{ name: "INPUT0" datatype: "INT32" shape: [{shape}] }} {data}'
    return f'model_name: "{model}" id: "{name}" {more} {tensor}'


def _stream(name: str, rows: str, *requests: str, **more: Any) -> GrpcCase:
    return grpc(name, rows, "ModelStreamInfer", *requests, **more)


_GOOD = _infer("int32", "good")
_NOTHING = 'raw_input_contents: ""'
_THREE = r'raw_input_contents: "\005\000\000\000\006\000\000\000\007\000\000\000"'
_FAULTS = {
    "wrong size": _infer("int32", "bad", "2"),
    "unknown model": _infer("nope", "bad"),
    "model not loaded": _infer("unready", "bad", more='model_version: "1"'),
    "no data": _infer("int32", "bad", data=""),
    "wrong parameter": _infer("int32", "bad", more='parameters { key: "timeout" value { string_param: "x" } }'),
    "no inputs": 'model_name: "int32" id: "bad"',
    "a model that raises": _infer("raises", "bad"),
    "a model that refuses": _infer("refuses", "bad", "1, 1"),
    "a model's own code": _infer("coded", "bad"),
    "decoupled, wrong shape": _infer("decoupled", "bad", "1, 1"),
}
_BEFORE_THE_MODEL = ("wrong size", "unknown model", "no data")
_IN_THE_MODEL = ("a model that refuses", "a model's own code")

CASES: tuple[GrpcCase, ...] = (
    _stream("stream of nothing", "G33"),
    _stream("stream of one request", "G30 G33", _GOOD),
    _stream("stream of three requests", "G26 G30", *(_infer("int32", f"{i}") for i in range(3))),
    _stream("stream, a slow model first", "G26", _infer("slow", "slow"), _GOOD),
    _stream("stream, the same id twice", "G42", _GOOD, _GOOD),
    *(_stream(f"stream, {name}, then a good request", "G28", bad, _GOOD) for name, bad in _FAULTS.items()),
    *(
        _stream(
            f"strict stream, {name}, then a good request",
            "G29",
            _FAULTS[name],
            _GOOD,
            metadata=_STRICT,
        )
        for name in _BEFORE_THE_MODEL
    ),
    *(_stream(f"strict stream, {name}", "G29", _FAULTS[name], metadata=_STRICT) for name in _IN_THE_MODEL),
    _stream("strict stream, a good request", "G29", _GOOD, metadata=_STRICT),
    _stream("stream, decoupled", "G27 G30 G31", _infer("decoupled", "many", "3", _THREE)),
    _stream(
        "stream, decoupled, the empty final response asked for",
        "G31",
        _infer("decoupled", "many", "3", _THREE, _EMPTY_FINAL),
    ),
    _stream(
        "stream, decoupled, no response",
        "G31",
        _infer("decoupled", "none", "0", _NOTHING),
    ),
    _stream(
        "stream, decoupled, only the empty final response",
        "G31",
        _infer("decoupled", "none", "0", _NOTHING, _EMPTY_FINAL),
    ),
    _stream(
        "stream, not decoupled, the empty final response asked for",
        "G31",
        _infer("int32", "a", more=_EMPTY_FINAL),
    ),
)
