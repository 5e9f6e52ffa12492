"""Contract 7, calls of Python models to other models (P28 to P30, P43, P50 to P54). The model `bls` runs a source that
makes calls, and answers with the value of `found`."""

import json
from collections.abc import Iterable

from tests.conformance.case import Because, HttpCase, Instead, http, infer, says, tensor

_KIND = "2.51 gives every error of a model that is called the code INTERNAL; since 2.73 it keeps its own"
_ENDS = "the real server often ends with this refusal; it is what it said when it did not"
_FAILED = "Failed to process the request for model 'bls_0_0', message:"
_NO_CONTROL = f"{_FAILED} explicit model load / unload is not allowed if polling is enabled"


def _run(source: str) -> bytes:
    return infer("bls", {"inputs": [tensor("BYTES", [1], [source], name="SOURCE")]})


def found(model: str, answer: object) -> str:
    """The answer of the model to a source."""
    output = {"name": "FOUND", "datatype": "BYTES", "shape": [1], "data": [json.dumps(answer, sort_keys=True)]}
    return says(200, {"model_name": model, "model_version": "1", "outputs": [output]})


def _case(name: str, rows: str, source: str, instead: Instead | None = None) -> HttpCase:
    return http(f"BLS, {name}", rows, _run(source), instead=instead)


_CALLS = {
    "a model in the server": "call('int32', [1, 2])",
    "a Python model": "call('bls_seen', [[1, 2]])",
    "outputs not named": "call('bls_seen', [[1]], outputs=())",
    "one output of two": "call('bls_seen', [[1]], outputs=['SEEN'])",
    "everything that a request has": "call('bls_seen', [[1]], outputs=['SEEN'], request_id='r', correlation_id=77, "
    "flags=3, timeout=123456, parameters={'a': 1, 'b': True, 'c': 'x'}, model_version=1)",
    "a text as correlation id": "call('bls_seen', [[1]], outputs=['SEEN'], correlation_id='abc')",
    "preferred memory": "call('int32', [1], preferred_memory=pb_utils.PreferredMemory("
    "pb_utils.TRITONSERVER_MEMORY_CPU, 0))",
    "the trace of the request": "call('int32', [1], trace=request.trace())",
}

_REFUSED = {
    "an unknown model": "call('nope', [1])",
    "no name": "call('', [1])",
    "an unknown version": "call('int32', [1], model_version=9)",
    "a model that was not loaded": "call('unready', [1])",
    "a decoupled model": "call('decoupled', [1])",
    "an unknown input": "call('int32', [1], name='NOPE')",
    "an unknown output": "call('int32', [1], outputs=['NOPE'])",
    "no input": "call('int32')",
    "no input, with an id": "call('int32', request_id='r')",
    "the same input twice": "call('int32', [1], [2])",
    "another datatype": "call('fp32', [1])",
    "another rank": "call('int32', [[1]])",
    "too large a batch": "call('bls_seen', [[1]] * 3)",
    "a model that raises": "call('raises', [1])",
}

_STREAMS = {
    "responses and the flag alone": "[told(r) for r in stream(1, 2)]",
    "no response": "[told(r) for r in stream()]",
    "read again": "(lambda s: [[told(r) for r in s], [told(r) for r in s]])(stream(1, 2))",
    "begun by hand": "(lambda s: [told(next(s)), [told(r) for r in s], [told(r) for r in s]])(stream(1, 2))",
    "of a model with one response": "[told(r) for r in stream(1, model='int32')]",
    "of a model that raises": "[told(r) for r in stream(1, model='raises')]",
    "of an unknown model": "[told(r) for r in stream(1, model='nope')]",
    "wrong input": "[told(r) for r in stream(1, name='NOPE')]",
    "after the end": "(lambda s: [len(list(s)), next(s)])(stream(1))",
    "the iterator is itself": "(lambda s: [iter(s) is s, len(list(s))])(stream(1))",
}

_ASYNC = {
    "several at once": "gathered(*(call('bls_seen', [[i]]) for i in range(4)))",
    "an error among them": "gathered(call('int32', [1]), call('nope', [1]))",
    "without a loop": "call('int32', [1]).async_exec()",
}

_ALARM = """
import signal
def ring(*_): raise TimeoutError('over')
signal.signal(signal.SIGALRM, ring)
found = []
for seconds in (0.05, 0):  # the alarm rings between the call and its answer, after 0.1 s
  signal.setitimer(signal.ITIMER_REAL, seconds)
  try: found.append(told(call('slow', [1]).exec()))
  except TimeoutError as e: found.append(str(e))
"""

_MODELS = {
    "ready or not": "[pb_utils.is_model_ready(name) for name in ('int32', 'nope', 'unready', '')]",
    "ready in a version": "[pb_utils.is_model_ready('int32', version) for version in ('', '1', '3')]",
}

_FATAL = {
    "ready, a version below 0": (
        "pb_utils.is_model_ready('int32', '-5')",
        f"Failed to check model readiness: {_FAILED} failed to get model version from specified version string '-5', "
        "version should be an integral value > 0",
    ),
    "an unknown model is loaded": ("pb_utils.load_model('nope')", f"Failed to load model: {_NO_CONTROL}"),
    "an unknown model is unloaded": ("pb_utils.unload_model('nope')", f"Failed to unload model: {_NO_CONTROL}"),
}

_MADE = {
    "files that are no dictionary": "pb_utils.load_model('int32', '{}', ['x'])",
    "a request without a tensor": "pb_utils.InferenceRequest(model_name='int32', requested_output_names=[], "
    "inputs=[None], request_id='r')",
    "a request for an output without a name": "call('int32', [1], outputs=['OUTPUT0', ''], request_id='r')",
    "a correlation id that is too long": "told(call('int32', [1], correlation_id='x' * 129).exec())",
    "a parameter that is a float": "call('int32', [1], parameters={'a': 1.5})",
    "a correlation id that is a float": "call('int32', [1], correlation_id=1.5)",
}


def _cases() -> Iterable[HttpCase]:
    for name, request in _CALLS.items():
        yield _case(name, "P43 P53", f"found = told({request}.exec())")
    for name, request in _REFUSED.items():
        yield _case(f"refused: {name}", "P51", f"r = {request}.exec(); found = [told(r), code(r)]")
    for name, made in _STREAMS.items():
        yield _case(f"stream: {name}", "P50", f"found = {made}")
    for name, made in _ASYNC.items():
        yield _case(f"async: {name}", "P52", f"found = {made}")
    yield _case("broken off by an alarm, and again", "P51", _ALARM)
    for name, asked in _MODELS.items():
        yield _case(name, "P30", f"found = {asked}")
    for name, (asked, text) in _FATAL.items():
        wanted = Instead(Because.RIGHT, _ENDS, found("bls", f"TritonModelException: {text}"), asked=False)
        yield _case(name, "P28 P29 P30", f"found = {asked}", wanted)
    for name, made in _MADE.items():
        yield _case(name, "P28 P43", f"found = {made}")
    yield _case(
        "refused: a model that answers with an error",
        "P51",
        "r = call('coded', [3]).exec(); found = [told(r), code(r)]",
        Instead(Because.NEWER, _KIND, found("bls", ["the code is INVALID_ARG", "INVALID_ARG"])),
    )


CASES: tuple[HttpCase, ...] = tuple(_cases())
