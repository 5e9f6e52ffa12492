"""Contract 1.5, shared memory over HTTP (H84, H91 to H99): regions, and tensors in them.

The real server cannot register one key under two names (a case shows it), so each case begins without any region.
"""

from tests.conformance.case import Because, HttpCase, Instead, Json, encoded, get, http, infer, post, refuses, says
from tests.conformance.rawhttp import READ, Step
from tests.conformance.segments import DATA, DATA_BYTES, RESULTS_AT, STRINGS, STRINGS_AT

_SYSTEM, _CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
_MOST = 2**64 - 1
_HANDLE = {"b64": "A" * 86 + "=="}


def _part(offset: Json = 0, byte_size: Json = DATA_BYTES) -> Json:
    return {"key": DATA, "offset": offset, "byte_size": byte_size}


def _register(region: str, body: Json, path: str = _SYSTEM) -> bytes:
    return post(f"{path}/region/{region}/register", body if isinstance(body, bytes) else encoded(body))


def _unregister(region: str, path: str = _SYSTEM) -> bytes:
    return post(f"{path}/region/{region}/unregister", b"")


_CLEAN = post(f"{_SYSTEM}/unregister", b"")
_STATUS = get(f"{_SYSTEM}/status")
_READY = (_CLEAN, _register("data", _part()))


def _case(name: str, rows: str, *requests: bytes, before: tuple[bytes, ...] = _READY, **more: Json) -> HttpCase:
    """Requests on one connection. Each is sent after the answer to the one before."""
    steps: list[Step] = [step for request in requests[:-1] for step in (request, READ)]
    return http(f"shared memory, {name}", rows, *steps, requests[-1], before=before, **more)


def _registering(name: str, rows: str, body: Json, instead: str | None = None, why: str = "") -> HttpCase:
    """A registration, and the regions afterwards. `instead` is the text of our status 400, with the reason `why`."""
    text = None if instead is None else refuses(400, instead).removesuffix("connection open") + says(200, "[]")
    because = Because.RIGHT if "overflows" in why else Because.NEWER
    expected = None if text is None else Instead(because, why, text)
    return _case(f"registering {name}", rows, _register("new", body), _STATUS, before=(_CLEAN,), instead=expected)


def _lies(byte_size: Json = None, offset: Json = None, region: Json = "data", **more: Json) -> Json:
    """The parameters of a tensor in shared memory."""
    sizes = {"shared_memory_byte_size": byte_size, "shared_memory_offset": offset}
    return {"shared_memory_region": region, **{k: v for k, v in sizes.items() if v is not None}, **more}


def _ask(
    given: Json = None,
    wanted: Json = None,
    *,
    data: Json = None,
    shape: Json = (2,),
    model: str = "int32",
    **more: Json,
) -> bytes:
    """An inference whose input has the parameters `given`, or `data`, and whose output has those of `wanted`."""
    tensor = {"name": "INPUT0", "shape": list(shape), "datatype": more.pop("datatype", "INT32")}
    tensor |= {} if given is None else {"parameters": given}
    tensor |= {} if data is None else {"data": data}
    outputs = {} if wanted is None else {"outputs": [{"name": "OUTPUT0", "parameters": wanted}]}
    return infer(model, {"inputs": [tensor], **outputs, **more})


_GOOD = _lies(8)
_RESULT = _lies(8, RESULTS_AT)
_READ_RESULT = _ask(_RESULT)
_TWO_OUTPUTS = [{"name": "OUTPUT0", "parameters": _RESULT}, {"name": "OUTPUT1", "parameters": {"binary_data": True}}]
_GOOD_CASES = (
    _case("status of nothing", "H93 H96", _STATUS, get(f"{_CUDA}/status"), before=(_CLEAN,)),
    _registering("a segment", "H91 H93", _part()),
    _registering("without an offset", "H91", {"key": DATA, "byte_size": 64}),
    _registering("the second page", "H91", _part(4096, 4096)),
    _registering("a key without a slash", "H91", {"key": DATA[1:], "byte_size": 64}),
    _registering("a key with two slashes", "H91", {"key": "/" + DATA, "byte_size": 64}),
    _case("status of one region", "H93", get(f"{_SYSTEM}/region/data/status")),
    _case("a name is taken as it is written", "H93", _register("a%20b", _part()), _STATUS, before=(_CLEAN,)),
    _case("unregistering, twice", "H94", _unregister("data"), _unregister("data"), _STATUS),
    _case("unregistering what is not there", "H94", _unregister("nope"), _STATUS),
    _case("unregistering as another kind", "H94", _unregister("data", _CUDA), _STATUS),
    _case("unregistering all, twice", "H94", _CLEAN, _STATUS, _CLEAN),
    _case("unregistering all of another kind", "H94", post(f"{_CUDA}/unregister", b""), _STATUS),
    _case("unregistering with a body", "H94", post(f"{_SYSTEM}/unregister", b"{x"), _STATUS),
    _case("input", "H97", _ask(_GOOD)),
    _case("input at an offset", "H97", _ask(_lies(8, 4)), _ask(_lies(8, 5))),
    _case(
        "input in a part",
        "H97",
        _ask(_lies(16, 4), shape=[4]),
        before=(_CLEAN, _register("data", _part(0, 4096))),
    ),
    _case("input of strings", "H97", _ask(_lies(len(STRINGS), STRINGS_AT), model="bytes", datatype="BYTES")),
    _case(
        "output",
        "H97",
        _ask(None, _RESULT, data=[9, 9]),
        _READ_RESULT,
        _ask(_GOOD, _RESULT),
        _READ_RESULT,
        _ask(_lies(8, 4), _RESULT, id="q"),
        _READ_RESULT,
    ),
    _case("output smaller than its place", "H97", _ask(None, _lies(80, RESULTS_AT), data=[8, 8]), _READ_RESULT),
    _case(
        "output of strings",
        "H97",
        _ask(None, _RESULT, data=[9, 9]),
        _ask(None, _lies(80, RESULTS_AT), data=["ab", ""], model="bytes", datatype="BYTES"),
        _ask(_lies(12, RESULTS_AT), shape=[3]),
    ),
    _case("output of a Python model", "H97", _ask(None, _RESULT, data=[7, 7], model="chosen"), _READ_RESULT),
    _case(
        "output beside a binary one",
        "H97",
        infer(
            "chosen",
            {
                "inputs": [{"name": "INPUT0", "shape": [2], "datatype": "INT32", "parameters": _GOOD}],
                "outputs": _TWO_OUTPUTS,
            },
        ),
    ),
    _case("output, and binary by default", "H97", _ask(_GOOD, _RESULT, parameters={"binary_data_output": True})),
    _case("output that is not binary", "H99", _ask(_GOOD, _lies(8, RESULTS_AT, binary_data=False))),
    _case("an offset and a size without a region", "H97", _ask(None, {"shared_memory_offset": 8}, data=[1, 2])),
    _case("a size without a region beside data", "H35", _ask({"shared_memory_byte_size": 8}, data=[1, 2])),
)

_BROKEN_BODIES: dict[str, Json] = {
    "nothing": b"",
    "no JSON": "{",
    "bytes that are no text": b"\xff",
    "a list": [],
    "a number": 5,
    "null": "null",
    "an empty object": {},
    "no key": {"byte_size": 64},
    "a number for the key": {"key": 5},
    "null for the key": {"key": None, "byte_size": 64},
    "no size": {"key": DATA},
    "no size and a wrong offset": {"key": DATA, "offset": "x"},
    "text for the size": {"key": DATA, "byte_size": "64"},
    "a size below zero": {"key": DATA, "byte_size": -1},
    "half a byte": {"key": DATA, "byte_size": 1.5},
    "a size beyond 64 bits": f'{{"key":"{DATA}","byte_size":18446744073709551616}}',
    "null for the size": {"key": DATA, "byte_size": None},
    "text for the offset": _part(offset="0"),
    "an offset below zero": _part(offset=-1),
    "null for the offset": _part(offset=None),
}
_BROKEN_PARTS = {
    "more than there is": _part(byte_size=DATA_BYTES + 1),
    "more than there is behind an offset": _part(4096, 4097),
    "what is behind the end": _part(DATA_BYTES, 1),
    "the most there can be": _part(byte_size=_MOST),
    "an offset within a page": _part(64, 64),
    "no bytes": _part(byte_size=0),
    "no bytes at the end": _part(DATA_BYTES, 0),
    "a key that nobody has": {"key": DATA + "x", "byte_size": 8},
    "a key with a slash within": {"key": DATA + "/x", "byte_size": 8},
    "a key that leaves the folder": {"key": f"/../shm{DATA}", "byte_size": 8},
    "a key of dots": {"key": "/..", "byte_size": 8},
    "a key that is too long": {"key": "/" + "x" * 256, "byte_size": 8},
}
_BROKEN_HANDLES: dict[str, Json] = {
    "nothing": b"",
    "no JSON": "{",
    "no handle": {},
    "a number for the handle": {"raw_handle": 5},
    "no text in the handle": {"raw_handle": {}},
    "a number in the handle": {"raw_handle": {"b64": 5}},
    "a handle that is not base64": {"raw_handle": {"b64": "!!"}, "device_id": 0, "byte_size": 4},
    "a handle that is too short": {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 4},
    "a handle, no device": {"raw_handle": _HANDLE, "byte_size": 4},
    "a handle, no size": {"raw_handle": _HANDLE, "device_id": 0},
    "a handle, text for the device": {"raw_handle": _HANDLE, "device_id": "0", "byte_size": 4},
}
_PREFIX = "triton_python_backend_shm_region_"
_REGISTERING_CASES = (
    *(_registering(name, "H19 H91", body) for name, body in _BROKEN_BODIES.items()),
    *(_registering(name, "H92", body) for name, body in _BROKEN_PARTS.items()),
    *(
        _registering(
            f"the key '{key}'",
            "H92",
            {"key": key, "byte_size": 8},
            f"cannot register shared memory region 'new' - invalid shm key '{key}'",
            "2.51 tries to open it",
        )
        for key in ("", "/", "///")
    ),
    *(
        _registering(
            f"a key of a Python model, {len(slashes)} slashes",
            "H92",
            {"key": f"{slashes}{_PREFIX}x", "byte_size": 8},
            f"cannot register shared memory region 'new' with key '{slashes}{_PREFIX}x' as the key contains the "
            f"reserved prefix '{_PREFIX}'",
            "2.51 opens it",
        )
        for slashes in ("", "/", "//")
    ),
    *(
        _registering(
            f"{size} bytes at {offset}",
            "H92",
            _part(offset, size),
            "failed to register shared memory region 'new': invalid args",
            "there the sum overflows and it is the system that refuses",
        )
        for offset, size in ((_MOST - 63, 64), (_MOST - 4095, 4096))
    ),
    _case("registering without a name", "H91", post(f"{_SYSTEM}/register", encoded(_part()))),
    _case("registering without a name or a body", "H91", post(f"{_SYSTEM}/register", b"")),
    _case("registering a name twice", "H92", _register("data", _part()), _STATUS),
    _case("registering a name twice, no such key", "H92", _register("data", {"key": "/nope", "byte_size": 8})),
    _case("registering a name twice, no key", "H91", _register("data", {})),
    _case(
        "registering a segment twice",
        "H92",
        _register("more", _part(0, 64)),
        instead=Instead(Because.RIGHT, "there a closed descriptor is used again", says(200, "")),
    ),
    _case("registering with GET", "H5", get(f"{_SYSTEM}/region/data/register")),
    _case("status with POST", "H5", post(f"{_SYSTEM}/region/data/status", b"")),
    _case("status of a region without a name", "H3", get(f"{_SYSTEM}/region//status")),
    _case("status of an unknown region", "H93", get(f"{_SYSTEM}/region/nope/status")),
    _case("CUDA status of an unknown region", "H96", get(f"{_CUDA}/region/nope/status")),
    _case("CUDA status of a system region", "H93", get(f"{_CUDA}/region/data/status")),
    *(_case(f"CUDA, registering {name}", "H95", _register("c", body, _CUDA)) for name, body in _BROKEN_HANDLES.items()),
    _case("CUDA, registering without a name", "H95", post(f"{_CUDA}/register", b"{}")),
    _case(
        "CUDA, registering without a GPU",
        "H95",
        _register("c", {"raw_handle": _HANDLE, "device_id": 0, "byte_size": 4}, _CUDA),
        instead=Instead(
            Because.PURPOSE,
            "the package is built for GPUs; ours answers as a build without them where there is none",
            refuses(400, "failed to register CUDA shared memory region: 'c', GPUs not supported"),
        ),
    ),
)

_BAD_PLACES = {
    "unknown region": _lies(8, region="nope"),
    "empty name": _lies(8, region=""),
    "a number for the name": _lies(8, region=5),
    "null for the name": _lies(8, region=None),
    "text for the size": _lies("8"),
    "a size below zero": _lies(-8),
    "text for the offset": _lies(8, "0"),
    "an offset below zero": _lies(8, -1),
    "wrong size and offset": _lies("x", "y"),
    "wrong name, size and offset": _lies("x", "y", 5),
    "offset at the end": _lies(8, DATA_BYTES),
    "offset behind the end": _lies(8, DATA_BYTES + 1),
    "offset near the most": _lies(8, _MOST - 7),
    "end behind the end": _lies(8, DATA_BYTES - 4),
    "more than the region": _lies(DATA_BYTES + 8),
    "the most there can be": _lies(_MOST),
}
_OVERFLOW = (
    f"Integer overflow detected: byte_size ({_MOST}) + offset (4) exceeds maximum value ({_MOST}) for region 'data'"
)
_NO_BYTES = "2.51 takes one from zero"
_MISMATCH = (
    "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'int32'. Expected 8, got 0"
)
_EMPTY = {
    "model_name": "int32",
    "model_version": "1",
    "outputs": [{"name": "OUTPUT0", "datatype": "INT32", "shape": [0], "data": []}],
}


def _instead(
    name: str, rows: str, request: bytes, why: str, text: str, because: Because = Because.NEWER, asked: bool = True
) -> HttpCase:
    return _case(name, rows, request, instead=Instead(because, why, text, asked))


_TOO_SMALL = (
    "shared memory size specified with the request for output 'OUTPUT0' ({} bytes) should be at least 8 bytes to hold "
    "the results"
)
_BAD_CASES = (
    *(_case(f"input, {name}", "H97", _ask(place)) for name, place in _BAD_PLACES.items()),
    *(_case(f"output, {name}", "H97", _ask(_GOOD, place)) for name, place in _BAD_PLACES.items()),
    _instead("input, overflow", "H97", _ask(_lies(_MOST, 4)), "2.51 overflows", refuses(400, _OVERFLOW)),
    _instead(
        "output, overflow", "H97", _ask(_GOOD, _lies(_MOST, 4)), "2.51 overflows", refuses(400, _OVERFLOW), asked=False
    ),
    _instead("input, no size", "H97", _ask(_lies()), _NO_BYTES, refuses(400, _MISMATCH)),
    _case("input, no size at an offset", "H97", _ask(_lies(offset=4))),
    _instead("input, size 0", "H97", _ask(_lies(0)), _NO_BYTES, refuses(400, _MISMATCH)),
    _instead("input of nothing", "H97", _ask(_lies(0), shape=[0]), _NO_BYTES, says(200, _EMPTY)),
    _case("input of nothing at the end", "H97", _ask(_lies(0, DATA_BYTES), shape=[0])),
    _case("input too short", "H69", _ask(_lies(4))),
    _case("input too long", "H69", _ask(_lies(12))),
    _case("input of strings, too many", "H70", _ask(_lies(64, STRINGS_AT), model="bytes", datatype="BYTES")),
    _case("input in two ways", "H35", _ask(_GOOD, data=[1, 2])),
    _case("input in shared memory and behind the JSON", "H35", _ask(_lies(8, binary_data_size=8))),
    _case("input, a size without a region", "H35", _ask({"shared_memory_byte_size": 8})),
    _case("output and binary", "H99", _ask(_GOOD, _lies(8, binary_data=True))),
    _case("output and a number for binary", "H99", _ask(_GOOD, _lies(8, binary_data=5))),
    _case("output and binary, unknown region", "H99", _ask(_GOOD, _lies(8, region="nope", binary_data=True))),
    _case("output and classification", "H84", _ask(_GOOD, _lies(8, classification=1))),
    _case("output and no classification", "H84", _ask(_GOOD, _lies(8, classification=0))),
    _case(
        "output, classification and binary", "H84", _ask(_GOOD, _lies(8, region=5, classification="x", binary_data=5))
    ),
    _case("output too small", "H98", _ask(_GOOD, _lies(7, RESULTS_AT), model="chosen"), masks="infer-error-type"),
    _instead(
        "output too small, identity",
        "H98",
        _ask(_GOOD, _lies(7, RESULTS_AT)),
        "the identity backend of the real server ends with it",
        refuses(500, _TOO_SMALL.format(7)),
        Because.RIGHT,
        asked=False,
    ),
    _instead(
        "output without a size",
        "H98",
        _ask(_GOOD, _lies(offset=RESULTS_AT)),
        "the identity backend of the real server ends with it",
        refuses(500, _TOO_SMALL.format(0)),
        Because.RIGHT,
        asked=False,
    ),
    _case("wrong shape and an unknown region", "H97", _ask(_GOOD, _lies(8, region="nope"), shape=[3])),
    _case("unknown datatype and region", "H97", _ask(_lies(8, region="nope"), datatype="INT33")),
    _case("unknown model and region", "H14 H97", _ask(_lies(8, region="nope"), model="nope"), masks="infer-error-type"),
    _case(
        "decoupled model and an unknown region",
        "H31 H97",
        _ask(_lies(8, region="nope"), model="decoupled"),
        masks="infer-error-type",
    ),
    _case("two unknown regions", "H97", _ask(_lies(8, region="nope"), _lies(8, region="nope2"))),
    _case(
        "output that is not the model's",
        "H42",
        infer(
            "int32",
            {
                "inputs": [{"name": "INPUT0", "shape": [2], "datatype": "INT32", "parameters": _GOOD}],
                "outputs": [{"name": "X", "parameters": _RESULT}],
            },
        ),
    ),
    _case(
        "output of a model that raises",
        "H97",
        _ask(_lies(4), _lies(4, RESULTS_AT), shape=[1], model="raises"),
        masks="infer-error-type",
    ),
    _case("a region that was unregistered", "H97", _unregister("data"), _ask(_GOOD)),
)

CASES: tuple[HttpCase, ...] = (*_GOOD_CASES, *_REGISTERING_CASES, *_BAD_CASES)
