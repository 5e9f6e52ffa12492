"""Contract 7, what execute returns and raises, and its outputs (P4, P5, P45, P49, P75 to P77, P79). The model `returns`
runs a source as the body of execute."""

from collections.abc import Iterable, Sequence

from tests.conformance.case import Because, HttpCase, Instead, Json, http, infer, refuses, says, tensor

_NUMBER = "numbers(np.int32([1]))"
_NEVER = "the real server never answers"
_COUNTED_LATER = "the real server looks at the list that the model had, and ends"
_PARAMETERS = "2.51 has no parameters of responses; since 2.73 it has"


def _run(source: str, outputs: Sequence[str] = ()) -> bytes:
    named: Json = {"outputs": [{"name": name} for name in outputs]} if outputs else {}
    return infer("returns", {"inputs": [tensor("BYTES", [1], [source], name="SOURCE")], **named})


def _with(*outputs: str) -> str:
    return f"returned = [InferenceResponse([{', '.join(outputs)}])]"


_RAISES = {
    "an exception": "raise ValueError('bad')",
    "one without a text": "raise ValueError",
    "two arguments": "raise ValueError('a', 'b')",
    "text beyond ASCII": "raise ValueError('é \\u2603')",
    "text of several lines": "raise ValueError('a\\n\\tb')",
    "what ends programs": "raise SystemExit(3)",
    "what stops programs": "raise KeyboardInterrupt",
    "the end of a generator": "raise GeneratorExit",
    "the end of an iterator": "raise StopIteration(3)",
    "no memory": "raise MemoryError('no room')",
    "too deep, by itself": "raise RecursionError('deep')",
    "no Exception": "class Odd(BaseException): pass\nraise Odd('x')",
    "no exception": "raise 3",
    "an error of the system": "raise OSError(2, 'nothing there')",
    "an error of a codec": "raise UnicodeDecodeError('utf-8', b'x', 0, 1, 'odd')",
    "one that another caused": "try:\n  raise KeyError('a')\nexcept KeyError as e:\n  raise ValueError('b') from e",
    "one further down": "def f(n):\n  if n: f(n - 1)\n  raise ValueError('deep')\nf(3)",
    "one whose text raises": "class Odd(Exception):\n  def __str__(self): raise ValueError('no text')\nraise Odd",
    "one whose text is none": "class Odd(Exception):\n  def __str__(self): return 3\nraise Odd",
    "one whose class raises": "class Odd(Exception):\n  @property\n  def __class__(self): raise "
    "ValueError\nraise Odd('x')",
    "the interface's own": "raise pb_utils.TritonModelException('mine')",
    "one whose class was made in C": "import csv\nraise csv.Error('bad')",
    "one whose class was made in C, without a module in its name": "import struct\nraise struct.error('bad')",
}

_RETURNS = {
    "too few": "returned = []",
    "too many": "returned = [InferenceResponse([])] * 2",
    "Nones, too many": "returned = [None, None]",
    "a number": "returned = 3",
    "false": "returned = False",
    "a text": "returned = 'x'",
    "an empty tuple": "returned = ()",
    "a tuple": "returned = (InferenceResponse([]),)",
    "a dictionary": "returned = {}",
    "an array": "returned = np.array([1])",
    "an iterator": "returned = iter([InferenceResponse([])])",
    "a function": "returned = lambda: 3",
    "a response, not a list": "returned = InferenceResponse([])",
    "numbers": "returned = [3]",
    "texts": "returned = ['x']",
    "the requests": "returned = requests",
    "a tensor": "returned = [numbers([1])]",
    "an error": "returned = [pb_utils.TritonError('x')]",
    "a list in the list": "returned = [[InferenceResponse([])]]",
    "a list of its own kind": "class L(list): pass\nreturned = L([InferenceResponse([])])",
    "a coroutine": "async def f(): return [InferenceResponse([])]\nreturned = f()",
    "what was sent, None": f"requests[0].get_response_sender().send(InferenceResponse([{_NUMBER}]), 1); "
    "returned = [None]",
    "what was sent, nothing": f"requests[0].get_response_sender().send(InferenceResponse([{_NUMBER}]), 1)",
    "what was sent, again": f"requests[0].get_response_sender().send(InferenceResponse([{_NUMBER}]), 1); "
    "returned = [InferenceResponse([])]",
    "an error response": "returned = [InferenceResponse(error=pb_utils.TritonError('bad'))]",
    "an error without a text": "returned = [InferenceResponse(error=pb_utils.TritonError(''))]",
    "an error and outputs": f"returned = [InferenceResponse([{_NUMBER}], pb_utils.TritonError('bad'))]",
    "requests to be released": "requests[0].set_release_flags(1); returned = [InferenceResponse([])]",
    "requests with no release flags": "requests[0].set_release_flags(0); returned = [InferenceResponse([])]",
}

_OUTPUTS = {
    "none": _with(),
    "one of two": _with("numbers(np.int32([1, 2]))"),
    "both": _with("numbers(np.int32([1, 2]))", "texts('a')"),
    "both, the other way round": _with("texts('a')", "numbers(np.int32([1, 2]))"),
    "another type": _with("numbers([1.5])"),
    "bool": _with("numbers([True, False])"),
    "another rank": _with("numbers(np.int32([[1], [2]]))"),
    "another name": _with("numbers(np.int32([1]), 'OTHER')"),
    "the same name twice": _with("numbers(np.int32([1]))", "numbers(np.int32([2]))"),
    "the same tensor twice": "t = numbers(np.int32([1]))\n" + _with("t", "t"),
    "transposed": _with("numbers(np.arange(6, dtype=np.int32).reshape(2, 3).T)"),
    "Fortran order": _with("numbers(np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)))"),
    "backwards": _with("numbers(np.arange(6, dtype=np.int32)[::-2])"),
    "the other byte order": _with("pb_utils.Tensor('NUMBERS', np.array([1], '>i4'))"),
    "a structure": _with("pb_utils.Tensor('NUMBERS', np.zeros(2, [('a', 'i4')]))"),
    "no elements": _with("numbers(np.zeros((0,), np.int32))"),
    "no elements in three dimensions": _with("numbers(np.zeros((2, 0, 3), np.int32))"),
    "no texts": _with("texts()"),
    "no dimensions": _with("numbers(np.int32(5))"),
    "a text without dimensions": _with("pb_utils.Tensor('TEXTS', np.array('x', object))"),
    "32 dimensions": _with("numbers(np.zeros((1,) * 32, np.int32))"),
    "read-only": "a = np.arange(2, dtype=np.int32); a.flags.writeable = False\n" + _with("numbers(a)"),
    "one element repeated": _with("numbers(np.broadcast_to(np.int32(3), (2, 2)))"),
    "texts and bytes": _with("texts('a', b'b', '', b'', 'é')"),
    "elements of other types": _with("texts(3, None, 1.5, True, [1], {'a': 1}, bytearray(b'ba'), np.str_('s'))"),
    "an element that says what it is": "class Odd:\n  def __str__(self): return 'odd'\n" + _with("texts(Odd())"),
    "bytes of one length": _with("pb_utils.Tensor('TEXTS', np.array([b'a', b'bc']))"),
    "bytes beyond ASCII": _with("texts(b'\\xc3\\xa9')"),
    "an array that changes later": "a = np.int32([1, 2]); t = numbers(a); a[0] = 7\n" + _with("t"),
    "texts that change later": "a = np.array(['x'], object); t = pb_utils.Tensor('TEXTS', a); a[0] = 'y'\n"
    + _with("t"),
    "what came in": _with("pb_utils.Tensor('TEXTS', requests[0].inputs()[0].as_numpy())"),
    "a tensor of the request": _with("requests[0].inputs()[0]"),
}

_GIVEN: dict[str, Json] = {
    "none": None,
    "no entries": {},
    "every type": {"a": True, "b": "x", "c": -3},
    "a large number": {"a": 2**40},
    "texts beyond ASCII": {"é": "é"},
}

_REFUSED = {
    "a float": ("{'a': 1.5}", "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
    "nothing": ("{'a': None}", "Expect parameters values to have type bool/int/str, found type <class 'NoneType'>"),
    "a name that is a number": ("{1: 1}", "Expect parameters keys to have type str, found type <class 'int'>"),
}


_NO_LIST = (
    "Failed to process the request(s) for model 'returns_0_0', message: Expected a list in the execute return, found "
    "type '<class 'generator'>'."
)
_BETTER = {
    "a NUL in an exception": ("raise ValueError('a\\0b')", "ValueError: a\0b", "2.51 cuts the text there"),
    "half a character in an exception": ("raise ValueError('a\\ud800')", "ValueError: a?", "the model's process ends"),
}


def _failed(message: str) -> str:
    """The answer after an exception of the source's first line."""
    text = f"Failed to process the request(s) for model 'returns_0_0', message: {message}"
    place = "\n\nAt:\n  <string>(1): <module>\n  <models>/returns/1/model.py(19): execute\n"
    return says(500, {"error": text + place}, **{"content-length": "<n>"})


def _with_parameters(given: Json) -> str:
    body = {"model_name": "returns", "model_version": "1"}
    if given:
        body["parameters"] = given
    return says(200, {**body, "outputs": [{"name": "NUMBERS", "datatype": "INT32", "shape": [1], "data": [1]}]})


def _cases() -> Iterable[HttpCase]:
    for what, rows, sources in (("raises", "P5", _RAISES), ("returns", "P4", _RETURNS), ("puts out", "P77", _OUTPUTS)):
        for name, source in sources.items():
            yield http(f"model {what}: {name}", rows, _run(source), masks="infer-error-type")
    for name, outputs in (("one of two", ["TEXTS"]), ("the order of the request", ["TEXTS", "NUMBERS"])):
        source = _with("numbers(np.int32([1]))", "texts('a')")
        yield http(f"model puts out: {name} is asked for", "P45 P75", _run(source, outputs))
    yield http("model puts out: not what is asked for", "P76", _run(_with("texts('a')"), ["NUMBERS"]))
    for name, source in (("None", "returned = [None]"), ("nothing", "returned = None")):
        instead = Instead(Because.RIGHT, _NEVER, refuses(500, "expected a single response, got 0"), asked=False)
        yield http(f"model returns: {name}", "P4", _run(source), instead=instead)
    for name, (source, text, reason) in _BETTER.items():
        instead = Instead(Because.RIGHT, reason, _failed(text), asked="ends" not in reason)
        yield http(f"model raises: {name}", "P5", _run(source), masks="place length", instead=instead)
    instead = Instead(Because.RIGHT, _COUNTED_LATER, _with_parameters(None), asked=False)
    emptied = f"requests.clear(); returned = [InferenceResponse([{_NUMBER}])]"
    yield http("model returns: after it emptied the list of requests", "P4", _run(emptied), instead=instead)
    batch = {"inputs": [tensor("INT32", [3, 1], [[1]] * 3)]}
    yield http("model refuses: a batch too large for it", "P12", infer("bls_seen", batch), masks="infer-error-type")
    generator = says(500, {"error": _NO_LIST}, **{"content-length": "<n>"})
    yield http(
        "model returns: a generator",
        "P4",
        _run("returned = (InferenceResponse([]) for _ in requests)"),
        masks="length",
        instead=Instead(Because.RIGHT, "2.51 takes it for a coroutine", generator),
    )
    for name, given in _GIVEN.items():
        source = f"returned = [InferenceResponse([{_NUMBER}], parameters={given!r})]"
        instead = Instead(Because.NEWER, _PARAMETERS, _with_parameters(given))
        yield http(f"model's response parameters: {name}", "P79", _run(source), instead=instead)
    for name, (written, text) in _REFUSED.items():
        source = f"returned = [InferenceResponse([{_NUMBER}], parameters={written})]"
        instead = Instead(Because.NEWER, _PARAMETERS, _failed(f"TritonModelException: {text}"))
        masks = "place length"
        yield http(f"model's response parameters: {name}", "P79", _run(source), masks=masks, instead=instead)


CASES: tuple[HttpCase, ...] = tuple(_cases())
