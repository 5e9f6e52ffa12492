"""Contract 2, shared memory over gRPC (G10, G20, G22, G23): regions, and tensors in them.

Each case begins without any region, except `data` if it needs one.
"""

from collections.abc import Sequence

from tests.conformance.case import Because, GrpcCase, Instead, grpc
from tests.conformance.rawgrpc import Call
from tests.conformance.segments import DATA, DATA_BYTES, RESULTS_AT, STRINGS, STRINGS_AT

_REGISTER, _STATUS, _UNREGISTER = (f"SystemSharedMemory{word}" for word in ("Register", "Status", "Unregister"))
_CLEAN = Call(_UNREGISTER, ("",))
_READY = (_CLEAN, Call(_REGISTER, (f'name: "data" key: "{DATA}" byte_size: {DATA_BYTES}',)))
_MOST = 2**64 - 1
_HANDLE = 'raw_handle: "' + "a" * 64 + '"'

_REGION, _SIZE, _OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"


def _parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ {value} }} }} '


def _lies(size: int | None = None, offset: int | None = None, region: str | None = "data") -> str:
    """The parameters of a tensor in shared memory."""
    text = "" if region is None else _parameter(_REGION, f'string_param: "{region}"')
    text += "" if size is None else _parameter(_SIZE, f"int64_param: {size}")
    return text + ("" if offset is None else _parameter(_OFFSET, f"int64_param: {offset}"))


def _input(more: str, shape: Sequence[int] = (2,), datatype: str = "INT32", name: str = "INPUT0") -> str:
    return f'inputs {{ name: "{name}" datatype: "{datatype}" shape: {list(shape)} {more} }} '


def _output(more: str = "", name: str = "OUTPUT0") -> str:
    return f'outputs {{ name: "{name}" {more} }} '


def _infer(*parts: str, model: str = "int32") -> str:
    return f'model_name: "{model}" ' + " ".join(parts)


def _case(
    name: str, rows: str, *parts: str, model: str = "int32", after: tuple[str, ...] = (), why: str = "", text: str = ""
) -> GrpcCase:
    """An inference after other requests of the same case. `text` is what ours answers, with the reason `why`."""
    because = Because.RIGHT if "ends with it" in why or "wrong" in why else Because.NEWER
    instead = Instead(because, why, text, "ends with it" not in why) if why else None
    before = (*_READY, *(Call("ModelInfer", (request,)) for request in after))
    return grpc(
        f"shared memory, {name}", rows, "ModelInfer", _infer(*parts, model=model), before=before, instead=instead
    )


def _ask(name: str, rows: str, rpc: str, message: str, before: tuple[Call, ...] = _READY, text: str = "") -> GrpcCase:
    """A query about regions. `text` is the answer of 2.73."""
    instead = Instead(Because.NEWER, "2.51 tries to open it", text) if text else None
    return grpc(f"shared memory, {rpc}, {name}", rows, rpc, message, before=before, instead=instead)


_GOOD, _RESULT = _lies(8), _lies(8, RESULTS_AT)
_RAW_FLOAT = r'raw_input_contents: "\000\000\200\077"'
_PAIR = _input(_GOOD, (1, 2)) + _input("", (1, 1), "FP32", "INPUT1")
_NINES = "contents { int_contents: [9, 9] }"

_GOOD_CASES = (
    _ask("nothing", "G10", _STATUS, "", (_CLEAN,)),
    _ask("all", "G10", _STATUS, ""),
    _ask("one", "G10", _STATUS, 'name: "data"'),
    _ask("a part", "G10", _REGISTER, f'name: "new" key: "{DATA}" offset: 4096 byte_size: 4096', (_CLEAN,)),
    _ask("no name", "G10", _REGISTER, f'key: "{DATA}" byte_size: 64', (_CLEAN,)),
    _ask("one", "G10", _UNREGISTER, 'name: "data"'),
    _ask("unknown", "G10", _UNREGISTER, 'name: "nope"'),
    _ask("all", "G10", _UNREGISTER, ""),
    _ask("what is left", "G10", _STATUS, "", (*_READY, Call(_UNREGISTER, ('name: "data"',)))),
    _ask("of a system region", "G10", "CudaSharedMemoryUnregister", 'name: "data"'),
    _ask("after another kind went", "G10", _STATUS, "", (*_READY, Call("CudaSharedMemoryUnregister", ("",)))),
    _ask("nothing", "G10", "CudaSharedMemoryStatus", ""),
    _case("input", "G20 G23", _input(_GOOD)),
    _case("input at an offset, with an id", "G23", 'id: "q"', _input(_lies(8, 4))),
    _case("input of strings", "G23", _input(_lies(len(STRINGS), STRINGS_AT), datatype="BYTES"), model="bytes"),
    _case("input and raw contents that are too much", "G20", _input(_GOOD), _RAW_FLOAT),
    _case("one of two inputs", "G20", _PAIR, _RAW_FLOAT, model="pair"),
    _case("output", "G22", _input(_GOOD), _output(_RESULT)),
    _case("output larger than the tensor", "G22", _input(_GOOD), _output(_lies(80, RESULTS_AT))),
    _case(
        "what was written",
        "G22 G23",
        _input(_RESULT),
        after=(_infer(_input(_NINES), _output(_RESULT)), _infer(_input(_lies(8, 4)), _output(_RESULT))),
    ),
    _case("what was written first", "G22 G23", _input(_RESULT), after=(_infer(_input(_NINES), _output(_RESULT)),)),
    _case(
        "what a Python model wrote",
        "G22",
        _input(_RESULT),
        after=(_infer(_input(_NINES), _output(_lies(8, RESULTS_AT)), model="chosen"),),
    ),
    _case("one of two outputs", "G22", _PAIR, _RAW_FLOAT, _output(_RESULT), _output(name="OUTPUT1"), model="pair"),
    _case(
        "one of two outputs, the later",
        "G22",
        _PAIR,
        _RAW_FLOAT,
        _output(name="OUTPUT1"),
        _output(_RESULT),
        model="pair",
    ),
    _case(
        "output and an unknown parameter", "G23", _input(_GOOD), _output(_RESULT + _parameter("x", "bool_param: true"))
    ),
    grpc(
        "shared memory, a stream",
        "G22 G23 G28",
        "ModelStreamInfer",
        _infer(_input(_GOOD), _output(_RESULT)),
        _infer(_input(_lies(8, region="nope"))),
        _infer(_input(_RESULT)),
        before=_READY,
    ),
    grpc(
        "shared memory, a stream of a decoupled model",
        "G22 G23",
        "ModelStreamInfer",
        _infer(_input(_lies(8, 4)), _output(_lies(4, RESULTS_AT)), model="decoupled"),
        before=_READY,
    ),
)

_BAD_PARTS = {
    "no key": 'name: "new"',
    "no such key": f'name: "new" key: "{DATA}x" byte_size: 8',
    "no size": f'name: "new" key: "{DATA}"',
    "too much": f'name: "new" key: "{DATA}" byte_size: {DATA_BYTES + 1}',
    "an offset within a page": f'name: "new" key: "{DATA}" offset: 64 byte_size: 64',
    "the most there can be": f'name: "new" key: "{DATA}" byte_size: {_MOST}',
    "a key with a slash within": f'name: "new" key: "{DATA}/x" byte_size: 8',
}
_KINDS = ("int64_param: 8", "bool_param: true", "", "uint64_param: 8", 'string_param: "8"', "double_param: 8")
_WRONG = {
    "region": (_REGION, "string_param", _parameter(_SIZE, "int64_param: 8")),
    "size": (_SIZE, "int64_param", _parameter(_REGION, 'string_param: "data"')),
    "offset": (_OFFSET, "int64_param", _lies(8)),
}
_BAD_PLACES = {
    "unknown region": _lies(8, region="nope"),
    "empty name": _lies(8, region=""),
    "no size": _lies(),
    "no size, an offset": _lies(offset=8),
    "size without a region": _lies(8, region=None),
    "offset without a region": _lies(offset=8, region=None),
    "size and offset without a region": _lies(8, 8, None),
    "size below zero": _lies(-8),
    "offset below zero": _lies(8, -1),
    "offset at the end": _lies(8, DATA_BYTES),
    "end behind the end": _lies(8, DATA_BYTES - 4),
    "more than the region": _lies(DATA_BYTES + 8),
    "wrong region and size": _parameter(_REGION, "int64_param: 5") + _parameter(_SIZE, "bool_param: true"),
    "wrong region alone": _parameter(_REGION, "int64_param: 5"),
    "wrong size alone": _parameter(_SIZE, "bool_param: true"),
}
_CLASSES = {"1": "int64_param: 1", "0": "int64_param: 0", "true": "bool_param: true"}
_MISMATCH = (
    "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'int32'. Expected 8, got 0"
)
_OVERFLOW = (
    f"Integer overflow detected: byte_size ({_MOST - 7}) + offset (8) exceeds maximum value ({_MOST}) for region 'data'"
)
_TOO_SMALL = (
    "shared memory size specified with the request for output 'OUTPUT0' (7 bytes) should be at least 8 bytes to hold "
    "the results"
)
_BAD_CASES = (
    *(_ask(name, "G10", _REGISTER, message, (_CLEAN,)) for name, message in list(_BAD_PARTS.items())[1:]),
    _ask(
        "no key",
        "G10",
        _REGISTER,
        _BAD_PARTS["no key"],
        (_CLEAN,),
        "status INVALID_ARGUMENT: cannot register shared memory region 'new' - invalid shm key ''",
    ),
    _ask("a name twice", "G10", _REGISTER, f'name: "data" key: "{DATA}" byte_size: 8'),
    _ask("unknown", "G10", _STATUS, 'name: "nope"'),
    _ask("unknown", "G10", "CudaSharedMemoryStatus", 'name: "nope"'),
    _ask("of a system region", "G10", "CudaSharedMemoryStatus", 'name: "data"'),
    _ask("a name twice", "G10", "CudaSharedMemoryRegister", f'name: "data" {_HANDLE} byte_size: 4'),
    grpc(
        "shared memory, CudaSharedMemoryRegister without a GPU",
        "G10",
        "CudaSharedMemoryRegister",
        f'name: "c" {_HANDLE} byte_size: 4',
        before=_READY,
        instead=Instead(
            Because.PURPOSE,
            "the package is built for GPUs; ours answers as a build without them where there is none",
            "status INVALID_ARGUMENT: failed to register CUDA shared memory region: 'c', GPUs not supported",
        ),
    ),
    *(_case(f"input, {name}", "G23", _input(place)) for name, place in _BAD_PLACES.items()),
    *(_case(f"output, {name}", "G23", _input(_GOOD), _output(place)) for name, place in _BAD_PLACES.items()),
    *(
        _case(f"input, {what} with {kind or 'nothing'}", "G23", _input(rest + _parameter(key, kind)))
        for what, (key, right, rest) in _WRONG.items()
        for kind in _KINDS
        if not kind.startswith(right)
    ),
    *(
        _case(f"output, {what} with {kind or 'nothing'}", "G23", _input(_GOOD), _output(rest + _parameter(key, kind)))
        for what, (key, right, rest) in _WRONG.items()
        for kind in _KINDS
        if not kind.startswith(right)
    ),
    *(
        _case(
            f"output and classification {name}",
            "H84 H85",
            _input(_GOOD),
            _output(_GOOD + _parameter("classification", k)),
        )
        for name, k in _CLASSES.items()
    ),
    _case("input and contents", "G20", _input(_GOOD + _NINES)),
    _case("input of an unknown region and contents", "G20", _input(_lies(8, region="nope") + _NINES)),
    _case("input too short", "H69", _input(_lies(4))),
    _case("one of two inputs and no raw contents", "G20", _PAIR, model="pair"),
    _case(
        "input, size 0",
        "G23",
        _input(_lies(0)),
        why="2.51 takes one from zero",
        text=f"status INVALID_ARGUMENT: {_MISMATCH}",
    ),
    _case(
        "input, overflow",
        "G23",
        _input(_lies(-8, 8)),
        why="2.51 overflows",
        text=f"status INVALID_ARGUMENT: {_OVERFLOW}",
    ),
    _case("output too small", "H98", _input(_GOOD), _output(_lies(7, RESULTS_AT)), model="chosen"),
    _case(
        "output too small, identity",
        "H98",
        _input(_GOOD),
        _output(_lies(7, RESULTS_AT)),
        why="the identity backend of the real server says all is well, or ends with it",
        text=f"status INTERNAL: {_TOO_SMALL}",
    ),
    _case("wrong shape and an unknown region", "G23", _input(_GOOD, (3,)), _output(_lies(8, region="nope"))),
    _case("unknown model and region", "G23", _input(_lies(8, region="nope")), model="nope"),
    _case("decoupled model and an unknown region", "G23 G24", _input(_lies(8, region="nope")), model="decoupled"),
)

CASES: tuple[GrpcCase, ...] = (*_GOOD_CASES, *_BAD_CASES)
