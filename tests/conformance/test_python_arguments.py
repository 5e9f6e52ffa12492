"""The calls of the Python interface with arguments of every type, in both servers (P20 to P31, P40 to P58): the result,
or the exception's type and text.

The model `tries` evaluates the calls. A call has `$` in the place of the argument.
"""

import re
from collections.abc import Iterator

import numpy as np
import pytest

from tests.conformance import servers
from tests.conformance.clients import over_http
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair
from tests.conformance.servers import Server

MODELS = servers.MODELS.parent / "argument_models"

VALUES = (
    *("None", "3", "-1", "2**31", "2**32", "2**63", "2**64", "1.5", "True", "'x'", "''", "b'x'", "b''"),
    *("bytearray(b'x')", "'\\ud800'", "'\\xe9'", "np.int32(3)", "np.float32(1.5)", "np.float64(1.5)"),
    *("np.str_('x')", "np.bytes_(b'x')", "[]", "()", "{}", "set()", "iter(())", "range(0)", "memoryview(b'')"),
    *("np.array(1)", "Odd()", "[None]", "['x']", "[b'x']", "('x',)", "{'a': 1}", "{'x'}", "T()", "[T()]", "request"),
)
CALLS: dict[str, tuple[str, ...]] = {
    "P40": (
        "pb_utils.Tensor($, np.array([1])).name()",
        "pb_utils.Tensor('T', $).shape()",
        "pb_utils.Tensor($)",
    ),
    "P42": ("pb_utils.Tensor.from_dlpack($, T()).name()", "pb_utils.Tensor.from_dlpack($)"),
    "P43": (
        "R(request_id=$).request_id()",
        "R(correlation_id=$).correlation_id()",
        "R(inputs=$).inputs()",
        "R(inputs=[$]).inputs()",
        "sorted(R(requested_output_names=$).requested_output_names())",
        "sorted(R(requested_output_names=[$]).requested_output_names())",
        "kind(R(model_name=$))",
        "kind(R(model_version=$))",
        "R(flags=$).flags()",
        "R(timeout=$).timeout()",
        "kind(R(preferred_memory=$))",
        "R(trace=$).trace().get_context()",
        "R(parameters=$).parameters()",
        "R(parameters={'a': $}).parameters()",
        "R(parameters={$: 1}).parameters()",
        "pb_utils.InferenceRequest($)",
        "pb_utils.InferenceRequest(model_name=$)",
        "pb_utils.InferenceRequest('i', nope=$)",
    ),
    "P44": (
        "[request.set_flags($), request.flags(), request.set_flags(0)]",
        "request.set_flags(flags=$)",
        "request.set_release_flags(0 and $)",
        "kind(R().exec($))",
        "asyncio.run(awaited(R(), $))",
    ),
    "P45": (
        "kind(pb_utils.InferenceResponse(output_tensors=$).output_tensors())",
        "pb_utils.InferenceResponse(output_tensors=[$])",
        "pb_utils.InferenceResponse(output_tensors=[], error=$).has_error()",
    ),
    "P46": (
        "pb_utils.TritonError($).message()",
        "pb_utils.TritonError(message=$).message()",
        "pb_utils.TritonError('x', $).code()",
        "pb_utils.TritonError(code=$)",
    ),
    "P48": ("request.get_response_sender().send($)", "request.get_response_sender().send(None, flags=$)"),
    "P54": (
        "kind(pb_utils.PreferredMemory($))",
        "kind(pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, $))",
    ),
    "P56": (
        *(f"pb_utils.Logger.log{kind}($)" for kind in ("", "_info", "_warn", "_error", "_verbose")),
        "pb_utils.Logger.log('x', $)",
        "pb_utils.Logger.log(level=$)",
        "pb_utils.Logger($)",
    ),
    "P57": (
        "kind(family(name=$, description='d', kind=family.COUNTER))",
        "kind(family('of_texts', $, family.COUNTER))",
        "kind(family('of_kinds', 'd', $))",
        "family($)",
        "kind(count.Metric($))",
        "kind(times.Metric(buckets=$))",
        "kind(times.Metric(buckets=[$]))",
    ),
    "P58": ("count.Metric().increment($)", "times.Metric(buckets=[1]).observe($)", "level.Metric().set($)"),
    "P28": (
        "pb_utils.load_model($)",
        "pb_utils.load_model('nope', config=$)",
        "pb_utils.load_model('nope', '', $)",
        "pb_utils.load_model('nope', files={'file:1/x': $})",
        "pb_utils.load_model('nope', files={$: b'x'})",
    ),
    "P29": ("pb_utils.unload_model($)", "pb_utils.unload_model('nope', $)"),
    "P30": ("pb_utils.is_model_ready($)",),
    "P20": (
        "pb_utils.get_input_tensor_by_name(request, $)",
        "pb_utils.get_input_tensor_by_name($, 'x')",
        "pb_utils.get_output_tensor_by_name(pb_utils.InferenceResponse([T()]), $)",
        "pb_utils.get_output_tensor_by_name($, 'x')",
    ),
    "P21": (
        "pb_utils.get_input_config_by_name($, 'x')",
        "pb_utils.get_output_config_by_name($, 'x')",
        "pb_utils.get_input_config_by_name({'input': [{'name': 'x'}]}, $)",
    ),
    "P22": ("pb_utils.triton_string_to_numpy($)",),
    "P23": ("kind(pb_utils.triton_to_numpy_type($))", "pb_utils.numpy_to_triton_type($)"),
    "P24": ("pb_utils.serialize_byte_tensor($)", "pb_utils.deserialize_bytes_tensor($)"),
    "P25": (
        "pb_utils.using_decoupled_model_transaction_policy($)",
        "pb_utils.using_decoupled_model_transaction_policy({'model_transaction_policy': $})",
        "pb_utils.using_decoupled_model_transaction_policy({'model_transaction_policy': {'decoupled': $}})",
    ),
    "P31": (
        "pb_utils.ModelConfig($).as_dict()",
        "added(lambda made: made.set_max_batch_size($))",
        "added(lambda made: made.add_input($))",
        "added(lambda made: made.add_output($))",
        "added(lambda made: made.set_model_transaction_policy($))",
    ),
    "P47": ("repr(pb_utils.TritonModelException($))",),
}

_TEXTS = ("'x'", "''", "b'x'", "b''", "bytearray(b'x')", "'\\xe9'", "np.str_('x')", "np.bytes_(b'x')")
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "kind(family(name=$, description='d', kind=family.COUNTER))": ("''", "b''", "'\\xe9'"),
    "pb_utils.numpy_to_triton_type($)": ("np.int32(3)", "np.float32(1.5)", "np.float64(1.5)"),
    "pb_utils.deserialize_bytes_tensor($)": ("np.str_('x')",),
    "kind(count.Metric($))": ("{'a': 1}",),
    "count.Metric().increment($)": ("-1",),
    "pb_utils.load_model($)": _TEXTS,
    "pb_utils.load_model('nope', config=$)": _TEXTS,
    "pb_utils.load_model('nope', '', $)": ("None", "{}", "{'a': 1}", ""),
    "pb_utils.load_model('nope', files={'file:1/x': $})": ("", "b'x'", "b''", "np.bytes_(b'x')"),
    "pb_utils.load_model('nope', files={$: b'x'})": (*_TEXTS, ""),
}
"""Arguments that end the real server, and those whose answer differs on purpose."""


@pytest.fixture(scope="module")
def pair(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("arguments")
    flags = ("--model-control-mode=explicit", "--load-model=tries")
    with pair_of(servers.copy_models(folder / "models", MODELS), folder, *flags) as both:
        yield both


def _asked(server: Server, sources: list[str]) -> list[str]:
    answer = over_http(server, "tries", {"SOURCES": np.array([source.encode() for source in sources], object)})
    assert isinstance(answer, dict), f"{server.name}: {answer}"
    return [_comparable(text.decode()) for text in answer["FOUND"][1]]


def _comparable(text: str) -> str:
    """A result without addresses, with plain names of compiled classes, and without the parameters of responses, which
    are newer than the real server."""
    text = re.sub(r"'c_python_backend_utils\.(\w+)\\?'", r"'\1'", re.sub(r"0x[0-9a-f]+", "0x", text))
    return text.replace("memoryview: ", "").replace("TritonError = None, parameters: object", "TritonError")


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(call, id=f"{row} {call}", marks=pytest.mark.rows(row))
        for row, calls in CALLS.items()
        for call in calls
    ],
)
def test_call_with_any_argument(pair: Pair, call: str) -> None:
    sources = [call.replace("$", value) for value in ("", *VALUES) if value not in LEFT_OUT.get(call, ())]
    pair.real.revive()
    ours, real = (dict(zip(sources, _asked(server, sources), strict=True)) for server in (pair.ours, pair.real))
    assert ours == real
