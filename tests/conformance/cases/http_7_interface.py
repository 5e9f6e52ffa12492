"""Contract 7, the objects of the Python interface (P40 to P47, P54, P78 to P82). The model `interface` runs a source
that uses them, and answers with the value of `found`."""

from collections.abc import Iterable

from tests.conformance.case import Because, HttpCase, Instead, Json, http, infer, tensor
from tests.conformance.cases.http_7_bls import found

_TEXTS = "P40 counts texts among BYTES; 2.51 refuses them"
_CAPSULES = "2.51 breaks numpy's capsules (it calls a used one `used_dlpack`), and the model's process ends"
_ONE = "pb_utils.Tensor.from_dlpack('T', {})"
_Q = (
    "Q = lambda **f: pb_utils.InferenceRequest(**{**dict(model_name='m', requested_output_names=[], inputs=[]), **f})\n"
)


def _run(source: str, **more: Json) -> bytes:
    return infer("interface", {"inputs": [tensor("BYTES", [1], [source], name="SOURCE")], **more})


_TENSORS = {
    "every number type": "found = [shown(tensor(np.array([1, 0], d))) for d in "
    "('?', 'u1', 'u2', 'u4', 'u8', 'i1', 'i2', 'i4', 'i8', 'f2', 'f4', 'f8')]",
    "bytes of one length": "found = shown(tensor(np.array([b'a', b'bc'])))",
    "objects of many types": "found = shown(tensor(np.array(['a', b'bc', 3, None, 1.5], object)))",
    "objects in two dimensions": "found = shown(tensor(np.array([[b'a'], [b'']], object)))",
    "a transposed array": "found = shown(tensor(np.arange(6, dtype=np.int32).reshape(2, 3).T))",
    "Fortran order": "found = shown(tensor(np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3))))",
    "every other element": "found = shown(tensor(np.arange(10, dtype=np.int32)[::2]))",
    "backwards": "found = shown(tensor(np.arange(4, dtype=np.int32)[::-1]))",
    "one element repeated": "found = shown(tensor(np.broadcast_to(np.int32(3), (2, 2))))",
    "no elements": "found = [shown(tensor(np.zeros((0, 3), t))) for t in (np.int32, object)]",
    "no dimensions": "found = [shown(tensor(np.array(5, np.int32))), shown(tensor(np.array('text', object)))]",
    "many dimensions": "found = shown(tensor(np.zeros((1,) * 30, np.int32)))[:2]",
    "read-only": "a = np.arange(2); a.flags.writeable = False; found = shown(tensor(a))",
    "a matrix": "found = shown(tensor(np.matrix([[1, 2]], dtype=np.int32)))",
    "types that there are not": "found = [tried(tensor, np.zeros(2, t)) for t in "
    "('>i4', '>f8', 'c8', 'M8[s]', 'V4', [('a', 'i4')], 'g')]",
    "no name": "found = tried(tensor, np.array([1]), '')",
    "what is no array": "found = [kind(tensor, x) for x in ([1, 2], 3, np.int32(3), None, 'x')]",
    "what is no name": "found = [kind(tensor, np.array([1]), name) for name in (None, 3)]",
    "a name of bytes": "found = tensor(np.array([1]), b'T').name()",
    "the array itself": "a = np.array([1, 2]); t = tensor(a); a[0] = 7; found = [plain(t.as_numpy()), "
    "t.as_numpy() is a]",
    "a copy of what is not contiguous": "a = np.arange(9)[::2]; t = tensor(a); a[0] = 7; found = plain(t.as_numpy())",
    "an element that has no text": "class Odd:\n  def __str__(self): raise ValueError('no text')\n"
    "found = tried(tensor, np.array([Odd()], object))",
    "an element that is no UTF-8": "found = tried(tensor, np.array(['\\ud800'], object))",
    "weak references": "import weakref\nt, r = tensor(np.array([1])), pb_utils.InferenceResponse([])\n"
    "found = [weakref.ref(x)() is x for x in (t, r, request)]",
    "where it is": "t = tensor(np.array([1])); found = [t.is_cpu(), t.shape(), repr(type(t.shape())), repr(type(t))]",
}

_DLPACK = {
    "what it hands over": "t = tensor(np.array([1, 2])); found = [repr(t.to_dlpack()).split(' at ')[0], "
    "[int(x) for x in t.__dlpack_device__()], plain(np.from_dlpack(t))]",
    "every number type handed over": "found = [plain(np.from_dlpack(tensor(np.array([1, 0], d)))) for d in "
    "('u1', 'u2', 'u4', 'u8', 'i1', 'i2', 'i4', 'i8', 'f2', 'f4', 'f8')]",
    "bool handed over": "a = np.from_dlpack(tensor(np.array([True, False]))); found = [str(a.dtype), plain(a)]",
    "on a stream": "t = tensor(np.array([1])); found = [repr(t.__dlpack__(stream=s)).split(' at ')[0] for s in "
    "(None, 1)]",
    "from a tensor": "found = shown(pb_utils.Tensor.from_dlpack('U', tensor(np.array([1, 2], np.int32))))",
    "from a tensor's capsule": "found = shown(pb_utils.Tensor.from_dlpack('U', tensor(np.array([1, 2])).to_dlpack()))",
    "strings": "t = tensor(np.array(['a'], object)); found = [tried(t.to_dlpack), tried(t.__dlpack__), "
    "[int(x) for x in t.__dlpack_device__()], tried(pb_utils.Tensor.from_dlpack, 'T', t)]",
    "not contiguous": f"found = {_ONE.format('np.arange(6, dtype=np.int32).reshape(2, 3).T')}",
    "what is no tensor": "found = [tried(pb_utils.Tensor.from_dlpack, 'T', x) for x in ([1, 2], None, 3)]",
    "half a protocol": "class D:\n  def __dlpack__(self, stream=None): return 3\n" + f"found = {_ONE.format('D()')}",
    "no name": "found = tried(pb_utils.Tensor.from_dlpack, '', np.array([1]))",
    "an array of objects": f"found = {_ONE.format('np.array([1], object)')}",
    "an array of the other byte order": f"found = {_ONE.format(repr('>i4').join(('np.array([1], ', ')')))}",
}

_NUMPY: dict[str, tuple[str, Json]] = {
    "an array, copied": (
        "a = np.arange(6, dtype=np.float32).reshape(2, 3); t = pb_utils.Tensor.from_dlpack('T', a); a[0, 0] = 9; "
        "found = shown(t)",
        ["T", [2, 3], "float32", [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]],
    ),
    "a capsule": (f"found = shown({_ONE.format('np.array([1, 2]).__dlpack__()')})", ["T", [2], "int64", [1, 2]]),
    "bool": (f"found = shown({_ONE.format('np.array([True, False])')})", ["T", [2], "bool", [True, False]]),
    "no elements": (f"found = shown({_ONE.format('np.zeros((0, 3), np.int32)')})", ["T", [0, 3], "int32", []]),
    "no dimensions": (f"found = shown({_ONE.format('np.array(5)')})", ["T", [], "int64", 5]),
    "from the third element on": (
        f"found = shown({_ONE.format('np.arange(4)[2:]')})",
        ["T", [2], "int64", [2, 3]],
    ),
    "every other element": (
        f"found = {_ONE.format('np.arange(6)[::2]')}",
        "TritonModelException: DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in "
        "C-Order are supported.",
    ),
    "complex numbers": (
        f"found = {_ONE.format(repr('c8').join(('np.array([1], ', ')')))}",
        "TritonModelException: Dtype is invalid.",
    ),
    "the same capsule twice": (
        "c = tensor(np.array([1])).to_dlpack(); pb_utils.Tensor.from_dlpack('T', c); "
        "found = pb_utils.Tensor.from_dlpack('T', c)",
        "TritonModelException: The DLPack capsule is none, or was used before.",
    ),
    "an object whose capsule is none": (
        "class D:\n  def __dlpack__(self, stream=None): return 3\n  def __dlpack_device__(self): return (1, 0)\n"
        f"found = {_ONE.format('D()')}",
        "TritonModelException: The DLPack capsule is none, or was used before.",
    ),
}

_REQUESTS = {
    "of a client": "found = [request.request_id(), request.correlation_id(), request.flags(), request.timeout(), "
    "request.parameters(), sorted(request.requested_output_names()), [t.name() for t in request.inputs()], "
    "request.is_cancelled()]",
    "types": "found = [repr(type(v)) for v in (request.request_id(), request.correlation_id(), request.flags(), "
    "request.timeout(), request.parameters(), request.requested_output_names(), request.inputs(), "
    "request.is_cancelled(), request.get_response_sender(), request.trace())]",
    "flags": "found = []\nfor flags in (3, 0, 1 << 20):\n  request.set_flags(flags); found.append(request.flags())",
    "flags that are none": "found = [kind(request.set_flags, x) for x in (-1, 'x', None)]",
    "release flags": "found = [tried(request.set_release_flags, x) for x in (0, "
    "pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)]",
    "one sender": "s = request.get_response_sender(); found = [s is request.get_response_sender(), s.is_cancelled()]",
    "no trace": "found = request.trace().get_context()",
    "inputs that are missing": "found = pb_utils.get_input_tensor_by_name(request, 'NOPE')",
    "made of little": f"{_Q}r = Q(); found = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), "
    "r.parameters(), "
    "sorted(r.requested_output_names()), r.inputs()]",
    "made of everything": f"{_Q}r = Q(request_id='i', correlation_id=7, flags=3, timeout=5, parameters={{'a': "
    "1, 'b': 'x'}}, "
    "requested_output_names=['B', 'A', 'B'], inputs=(tensor(np.array([1])),), model_version=2)\n"
    "found = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(), "
    "sorted(r.requested_output_names()), [shown(t) for t in r.inputs()]]",
    "parameters": f"{_Q}found = [tried(lambda: Q(parameters=p).parameters()) for p in (None, {{}}, {{'a': 1.5}}, "
    "{'a': None}, {'a': []}, {1: 1}, {'a': 2**40, 'b': -1}, {'a': np.int64(3)}, {'a': b'x'}, {'': ''}, {'a': 'é\"'})]",
    "correlation ids": f"{_Q}found = [tried(lambda: Q(correlation_id=i).correlation_id()) for i in (0, 'x', '', "
    "2**63, 1.5)]",
    "times": f"{_Q}found = [kind(lambda: Q(timeout=i).timeout()) for i in (0, 1, -1, 'x', 2**40, 1.5)]",
    "wrong types": f"{_Q}found = [kind(lambda: Q(**f) and 'made') for f in ({{'request_id': 3}}, {{'model_name': 3}}, "
    "{'inputs': [3]}, {'inputs': 3}, {'requested_output_names': [3]}, {'requested_output_names': 'abc'}, "
    "{'flags': -1}, "
    "{'model_version': 'x'}, {'preferred_memory': 3}, {'trace': 3}, {'nope': 3}, {'requested_output_names': ('a',)})]",
    "nothing": "found = kind(pb_utils.InferenceRequest)",
}

_RESPONSES = {
    "empty": "found = [[r.has_error(), repr(r.error()), r.output_tensors()] for r in "
    "(pb_utils.InferenceResponse(), pb_utils.InferenceResponse([]), pb_utils.InferenceResponse(()))]",
    "with tensors": "r = pb_utils.InferenceResponse([tensor(np.array([1]), 'A'), tensor(np.array([2]), 'B')])\n"
    "found = [r.has_error(), [shown(t) for t in r.output_tensors()], pb_utils.get_output_tensor_by_name(r, "
    "'B').name(), "
    "pb_utils.get_output_tensor_by_name(r, 'C')]",
    "with an error": "r = pb_utils.InferenceResponse([tensor(np.array([1]))], pb_utils.TritonError('bad'))\n"
    "found = [r.has_error(), r.error().message(), len(r.output_tensors())]",
    "with None": "found = [tried(pb_utils.InferenceResponse, [None]), tried(pb_utils.InferenceResponse, "
    "[tensor(np.array([1])), None])]",
    "wrong types": "found = [kind(lambda: pb_utils.InferenceResponse(x) and 'made') for x in (3, [3], 'x')]",
    "wrong errors": "found = [kind(lambda: pb_utils.InferenceResponse(error=x)) for x in (3, 'x', ValueError('x'))]",
    "the same tensor twice": "t = tensor(np.array([1])); found = len(pb_utils.InferenceResponse([t, "
    "t]).output_tensors())",
}

_ERRORS = {
    "without a code": "e = pb_utils.TritonError('x'); found = [e.message(), e.code() == pb_utils.TritonError.INTERNAL]",
    "with each code": "found = [int(pb_utils.TritonError('x', c).code()) for c in (pb_utils.TritonError.UNKNOWN, "
    "pb_utils.TritonError.INTERNAL, pb_utils.TritonError.NOT_FOUND, pb_utils.TritonError.INVALID_ARG, "
    "pb_utils.TritonError.UNAVAILABLE, pb_utils.TritonError.UNSUPPORTED, pb_utils.TritonError.ALREADY_EXISTS, "
    "pb_utils.TritonError.CANCELLED)]",
    "wrong types": "found = [kind(lambda: pb_utils.TritonError(*x)) for x in ((), (3,), (None,), ('x', 3), "
    "('x', None))]",
}

_EXCEPTIONS = {
    "what it is": "e = pb_utils.TritonModelException('x')\n"
    "found = [isinstance(e, Exception), str(e), repr(e), repr(type(e)), [c.__name__ for c in type(e).__mro__]]",
    "raised by the interface": "try:\n  tensor(np.array([1]), '')\nexcept pb_utils.TritonModelException as e:\n"
    "  found = [str(e), list(e.args), e.__cause__]",
    "raised by the model": "raise pb_utils.TritonModelException('mine')",
}

_STRINGS = {
    "elements are bytes": "a = request.inputs()[0].as_numpy(); found = [str(a.dtype), list(a.shape), repr(type(a[0]))]",
    "the array is the model's": "t = request.inputs()[0]; a = t.as_numpy(); found = [a.flags.writeable, "
    "a.flags.c_contiguous, t.as_numpy() is a]",
}

_PROCESS = {
    "threads": "import threading\nfound = [[t.name for t in threading.enumerate()], threading.active_count()]",
    "its thread": "import threading\nfound = threading.current_thread() is threading.main_thread()",
    "its event loop": "import asyncio\nloop = asyncio.get_event_loop()\nasync def f(): return 3\n"
    "found = loop.run_until_complete(f())",
    "names": "import inspect\nfound = [__name__, __package__, TritonPythonModel.__module__, "
    "len(inspect.getsource(TritonPythonModel))]",
    "constants": "found = [str(c) for c in (pb_utils.Logger.INFO, pb_utils.Logger.LogLevel.ERROR, "
    "pb_utils.MetricFamily.GAUGE, pb_utils.TRITONSERVER_MEMORY_CPU)]",
    "constants in texts": "found = [f'{c}|{c!r}|{int(c)}' for c in (pb_utils.Logger.INFO, "
    "pb_utils.MetricFamily.GAUGE)]",
    "folders": "import os\nfound = [os.path.basename(os.path.dirname(__file__)), "
    "os.path.dirname(__file__) == pb_utils.get_model_dir(), os.path.isabs(__file__)]",
}

_PARAMETERS: dict[str, Json] = {
    "none": {},
    "every type": {"a": True, "b": "x", "c": -5, "d": 1.5},
    "their order": {"b": 1, "a": 2},
    "texts": {"a": 'é"\\/', "b": "", "": "c"},
    "large numbers": {"a": 2**40, "b": -(2**63)},
    "a timeout": {"timeout": 5, "a": 1},
    "a priority": {"priority": 1, "a": 1},
    "a sequence": {"sequence_id": 5, "sequence_start": True, "sequence_end": True, "a": 1},
    "a sequence by name": {"sequence_id": "s", "a": 1},
    "the form of the outputs": {"binary_data_output": False, "a": 1},
}
_SEEN = (
    "found = [request.request_id(), request.correlation_id(), request.flags(), request.timeout(), request.parameters()]"
)


def _cases() -> Iterable[HttpCase]:
    for what, rows, sources in (
        ("tensor", "P40", _TENSORS),
        ("DLPack", "P42", _DLPACK),
        ("request", "P44", _REQUESTS),
        ("response", "P45", _RESPONSES),
        ("error", "P46", _ERRORS),
        ("exception", "P47", _EXCEPTIONS),
        ("strings", "P78", _STRINGS),
        ("process", "P13 P26", _PROCESS),
    ):
        for name, source in sources.items():
            yield http(f"model's {what}: {name}", rows, _run(source))
    for name, (source, answer) in _NUMPY.items():
        instead = Instead(Because.RIGHT, _CAPSULES, found("interface", answer), asked=False)
        yield http(f"model's DLPack: from numpy, {name}", "P42", _run(source), instead=instead)
    for name, parameters in _PARAMETERS.items():
        rows = "P80 P81" if "timeout" in parameters else "P80"
        yield http(f"model's request parameters: {name}", rows, _run(_SEEN, parameters=parameters))
    yield http(
        "model's tensor: texts",
        "P40",
        _run("found = shown(tensor(np.array(['a', 'bc'])))"),
        instead=Instead(Because.PURPOSE, _TEXTS, found("interface", ["T", [2], "<U2", ["a", "bc"]])),
    )


CASES: tuple[HttpCase, ...] = tuple(_cases())
