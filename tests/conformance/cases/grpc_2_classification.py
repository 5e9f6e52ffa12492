"""Contract 1.4 over gRPC (H80 to H85): classes of an output of ModelInfer and of ModelStreamInfer."""

import struct
from collections.abc import Sequence

from tests.conformance.case import Because, GrpcCase, Instead, grpc

_STREAM = "ModelStreamInfer"


def _output(classes: int | str = 2, kind: str = "int64_param", name: str = "OUTPUT0") -> str:
    value = f"{kind}: {classes}" if kind else ""
    return f'outputs {{ name: "{name}" parameters {{ key: "classification" value {{ {value} }} }} }} '


def _infer(datatype: str, shape: Sequence[int], data: bytes, *outputs: str, model: str = "") -> str:
    raw = "".join(f"\\{byte:03o}" for byte in data)
    return (
        f'model_name: "{model or datatype.lower()}" id: "q" {"".join(outputs)}'
        f'inputs {{ name: "INPUT0" datatype: "{datatype}" shape: {list(shape)} }} raw_input_contents: "{raw}"'
    )


def _case(name: str, rows: str, *requests: str, rpc: str = "ModelInfer", instead: Instead | None = None) -> GrpcCase:
    return grpc(f"classification, {name}", rows, rpc, *requests, instead=instead)


def _five(*outputs: str, model: str = "", shape: Sequence[int] = (5,)) -> str:
    return _infer("FP32", shape, struct.pack("<5f", 1, 5, 3, 2, 4), *outputs, model=model)


_PLAIN = 'outputs { name: "OUTPUT0" } '
_ONE = b"\1\0\0\0"
_UNSUPPORTED = {
    "BOOL": _infer("BOOL", [1], b"\1", _output()),
    "FP16": _infer("FP16", [1], b"\0\x3c", _output()),
    "BF16": _infer("BF16", [1], b"\x80\x3f", _output()),
}
_KINDS = (("2", "uint64_param"), ('"2"', "string_param"), ("true", "bool_param"), ("2", "double_param"), ("", ""))

CASES: tuple[GrpcCase, ...] = (
    *(
        _case(f"{classes} of five", "H80 H85", _five(_output(classes)))
        for classes in (1, 2, 5, 6, 2**32 + 2, 2**63 - 1)
    ),
    _case("none by overflow", "H85", _five(_output(2**32))),
    *(_case(f"{classes} of five", "H85", _five(_output(classes))) for classes in (0, -1)),
    *(_case(f"a count of {kind or 'nothing'}", "H85", _five(_output(classes, kind))) for classes, kind in _KINDS),
    _case("a batch with labels", "H80 H82", _five(_output(3), model="classes", shape=(1, 5))),
    _case("one of two outputs", "H80", _infer("INT32", [1], _ONE, _output(1, name="OUTPUT1"), _PLAIN, model="chosen")),
    *(_case(f"{datatype} has no classes", "H83", request) for datatype, request in _UNSUPPORTED.items()),
    _case("of an unknown output", "H42", _five(_output(1, name="X"))),
    _case("of an unknown model", "H14", _infer("INT32", [1], _ONE, _output(), model="nope")),
    _case("no class of a decoupled model", "G24", _infer("INT32", [1], _ONE, _output(0), model="decoupled")),
    _case("on a stream", "H80 G30", _five(_output()), _five(_PLAIN), rpc=_STREAM),
    _case("no class, on a stream", "H85 G28", _five(_output(0)), _five(_output()), rpc=_STREAM),
    *(
        _case(f"{datatype} has no classes, on a stream", "H83 G28", request, _five(_PLAIN), rpc=_STREAM)
        for datatype, request in _UNSUPPORTED.items()
    ),
    _case(
        "of each response of a decoupled model",
        "H80 G27",
        _infer("INT32", [3], struct.pack("<3i", 3, -4, 5), _output(), model="decoupled"),
        rpc=_STREAM,
    ),
    _case(
        "BYTES have no classes",
        "H83",
        _infer("BYTES", [1], b"\1\0\0\0a", _output()),
        instead=Instead(
            Because.NEWER,
            "2.51 divides by the size of an element and ends",
            "status INVALID_ARGUMENT: class result not available for output due to unsupported type 'BYTES'",
            asked=False,
        ),
    ),
)
