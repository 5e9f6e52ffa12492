"""The kinds of the official example clients, and which test of ours covers each; the models that they ask; and one
object for all four clients.

The examples' code is not here: each kind was written anew. `test_kinds_all` checks that the table is complete.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio

from tests.compat.serving import Serving

LIMIT = 60.0
FLAGS = (
    "--allow-client-shm=true",
    "--http-header-forward-pattern=^(authorization|x-)",
    "--grpc-header-forward-pattern=^(authorization|x-)",
)
_ALL, _HTTP, _GRPC, _AIO = "test_kinds_all", "test_kinds_http", "test_kinds_grpc", "test_kinds_grpc_aio"
_SHARED, _CONTROL, _TRANSPORT = "test_shared_memory", "test_control_clients", "test_grpc_transport"
_SEQUENCES = "test_kinds_sequences"

KINDS: Mapping[str, tuple[str, ...]] = {
    "simple_http_infer_client, simple_grpc_infer_client": (f"{_ALL}.test_sum_and_difference",),
    "simple_http_aio_infer_client, simple_grpc_aio_infer_client": (f"{_ALL}.test_sum_and_difference",),
    "simple_http_async_infer_client": (
        "test_http_clients.test_requests_of_the_clients_pool_each_get_their_own_answer",
        f"{_HTTP}.test_pending_answer",
    ),
    "simple_grpc_async_infer_client": ("test_grpc_clients.test_async_infer", f"{_GRPC}.test_pending_call_is_cancelled"),
    "simple_http_string_infer_client, simple_grpc_string_infer_client": (f"{_ALL}.test_numbers_as_text",),
    "simple_http_shm_client, simple_grpc_shm_client": (f"{_SHARED}.test_numbers_in_regions",),
    "simple_http_shm_string_client, simple_grpc_shm_string_client": (f"{_SHARED}.test_strings_in_regions",),
    "simple_http_cudashm_client, simple_grpc_cudashm_client": (f"{_SHARED}.test_cuda_region_without_a_gpu",),
    "simple_http_model_control, simple_grpc_model_control": (
        f"{_CONTROL}.test_model_is_loaded_listed_and_unloaded",
        f"{_CONTROL}.test_model_comes_with_its_configuration_and_files",
    ),
    "simple_http_health_metadata, simple_grpc_health_metadata": (f"{_ALL}.test_health_metadata_and_statistics",),
    "simple_grpc_keepalive_client": (f"{_TRANSPORT}.test_keep_alive_of_the_client", f"{_GRPC}.test_keep_alive_options"),
    "simple_grpc_custom_args_client": (f"{_GRPC}.test_channel_arguments",),
    "simple_grpc_custom_repeat": (f"{_GRPC}.test_repeated_answers", f"{_AIO}.test_repeated_answers"),
    "grpc_client": (f"{_GRPC}.test_stub_calls_every_rpc",),
    "grpc_explicit_int_content_client": ("test_grpc_clients.test_infer_typed_contents",),
    "grpc_explicit_int8_content_client": ("test_grpc_clients.test_infer_typed_contents",),
    "grpc_explicit_byte_content_client": ("test_grpc_clients.test_infer_typed_contents",),
    "image_client, grpc_image_client": (
        "test_classification.test_http_client_reads_classes",
        "test_classification.test_grpc_client_reads_classes",
        "test_classification.test_asyncio_clients_read_classes",
    ),
    "ensemble_image_client": ("test_classification.test_files_go_in_and_classes_of_the_last_model_come_out",),
    "simple_http_sequence_sync_infer_client, simple_grpc_sequence_sync_infer_client": (
        f"{_SEQUENCES}.test_one_request_at_a_time",
    ),
    "simple_grpc_sequence_stream_infer_client": (f"{_SEQUENCES}.test_all_at_once_in_a_stream",),
    "simple_grpc_aio_sequence_stream_infer_client": (
        f"{_SEQUENCES}.test_all_at_once_in_a_stream_of_the_asyncio_client",
    ),
    "reuse_infer_objects_client": (f"{_ALL}.test_objects_are_reused",),
    "memory_growth_test": (f"{_ALL}.test_memory_does_not_grow",),
    "client plugins, BasicAuth": (f"{_ALL}.test_basic_authentication",),
    "TLS": (f"{_HTTP}.test_tls_with_a_proxy", f"{_TRANSPORT}.test_tls", f"{_TRANSPORT}.test_mutual_tls"),
    "timeouts": (
        f"{_HTTP}.test_client_with_a_timeout",
        f"{_GRPC}.test_call_with_a_timeout",
        f"{_GRPC}.test_stream_with_a_timeout",
        f"{_AIO}.test_call_with_a_timeout",
        f"{_AIO}.test_stream_with_a_timeout",
    ),
    "cancellation": (
        f"{_GRPC}.test_pending_call_is_cancelled",
        f"{_GRPC}.test_stream_is_cancelled",
        f"{_AIO}.test_call_is_cancelled",
        f"{_AIO}.test_stream_is_cancelled",
    ),
    "log and trace settings": (f"{_CONTROL}.test_log_settings_act", f"{_CONTROL}.test_trace_settings_are_kept"),
}


@dataclass(frozen=True, slots=True)
class Spoken:
    """One of the four clients. Each `ask` opens a client of its own."""

    name: str
    serving: Serving

    @property
    def module(self) -> Any:
        return {"http": httpclient, "grpc": grpcclient, "http.aio": httpaio, "grpc.aio": grpcaio}[self.name]

    @property
    def is_grpc(self) -> bool:
        return self.name.startswith("grpc")

    def ask(self, ask: Callable[[Callable[..., Awaitable[Any]]], Awaitable[Any]], plugin: Any = None) -> Any:
        """Runs `ask(call)`. `await call(method, ...)` calls a method of the client, also of a blocking client."""
        url = self.serving.grpc_url if self.is_grpc else self.serving.http_url

        async def asynchronous() -> Any:
            async with self.module.InferenceServerClient(url) as client:
                if plugin is not None:
                    client.register_plugin(plugin)
                return await ask(lambda method, *given, **named: getattr(client, method)(*given, **named))

        async def blocking() -> Any:
            with self.module.InferenceServerClient(url) as client:
                if plugin is not None:
                    client.register_plugin(plugin)

                async def call(method: str, *given: Any, **named: Any) -> Any:
                    return getattr(client, method)(*given, **named)

                return await ask(call)

        return asyncio.run(asyncio.wait_for(asynchronous() if self.name.endswith("aio") else blocking(), LIMIT))

    def tensor(self, name: str, array: npt.NDArray[Any], datatype: str) -> Any:
        tensor = self.module.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        return tensor

    def wanted(self, *names: str) -> list[Any]:
        return [self.module.InferRequestedOutput(name) for name in names]


_SIMPLE = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    one, other = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
    is_text = one.dtype == np.object_
    if is_text:
        one, other = one.astype(np.int64), other.astype(np.int64)
    results = {"OUTPUT0": one + other, "OUTPUT1": one - other}
    wanted = [name for name in results if name in request.requested_output_names()]
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor(name, text(results[name]) if is_text else results[name]) for name in wanted]
    )


def text(numbers):
    return numbers.astype(np.bytes_).astype(np.object_)
"""
_ECHO = """import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    said = dict(json.loads(request.parameters()), timeout=request.timeout())
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([json.dumps(said)], dtype=object))])
"""
_REPEAT = """import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            tensors = (pb_utils.get_input_tensor_by_name(request, name) for name in ("IN", "DELAY", "WAIT"))
            given = {tensor.name(): tensor.as_numpy() for tensor in tensors}
            sender = request.get_response_sender()
            for index, (value, delay) in enumerate(zip(given["IN"], given["DELAY"])):
                time.sleep(delay / 1000)
                sender.send(pb_utils.InferenceResponse([
                    pb_utils.Tensor("OUT", np.array([value], np.int32)),
                    pb_utils.Tensor("IDX", np.array([index], np.uint32)),
                ]))
            time.sleep(given["WAIT"][0] / 1000)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_STALLS = f"""import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = Path(args["model_repository"])

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        Path(self.folder, f"begun-{{request.request_id()}}").touch()
        limit = time.monotonic() + {LIMIT}
        go = Path(self.folder, f"go-{{request.request_id()}}")
        while not request.is_cancelled() and not go.exists() and time.monotonic() < limit:
            time.sleep(0.005)
        if request.is_cancelled():
            Path(self.folder, f"cancelled-{{request.request_id()}}").touch()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.zeros(1, np.int32))])
"""

Tensors = Mapping[str, tuple[str, tuple[int, ...]]]


def _write(folder: Path, name: str, source: str, inputs: Tensors, outputs: Tensors, more: str = "") -> None:
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.py").write_text(source)
    lists = "".join(
        f'{word} {{ name: "{tensor}" data_type: TYPE_{kind} dims: {list(dims)} }}\n'
        for word, tensors in (("input", inputs), ("output", outputs))
        for tensor, (kind, dims) in tensors.items()
    )
    (folder / name / "config.pbtxt").write_text(
        f'backend: "python"\n{lists}instance_group {{ kind: KIND_CPU }}\n{more}'
    )


def write_kinds(folder: Path) -> Path:
    """Writes the models: `simple`, `simple_int8` and `simple_string` (sum and difference of 16 numbers), `echo` (the
    request's parameters and headers as JSON), `repeat` (decoupled), and `stalls` (waits until a file releases it or it
    is cancelled, and reports that by a file)."""
    for name, kind in {"simple": "INT32", "simple_int8": "INT8", "simple_string": "STRING"}.items():
        inputs, outputs = ({f"{word}{n}": (kind, (16,)) for n in (0, 1)} for word in ("INPUT", "OUTPUT"))
        _write(folder, name, _SIMPLE, inputs, outputs, "max_batch_size: 8\n")
    _write(folder, "echo", _ECHO, {"INPUT0": ("INT32", (-1,))}, {"OUTPUT0": ("STRING", (1,))})
    given = {"IN": ("INT32", (-1,)), "DELAY": ("UINT32", (-1,)), "WAIT": ("UINT32", (1,))}
    answered = {"OUT": ("INT32", (1,)), "IDX": ("UINT32", (1,))}
    _write(folder, "repeat", _REPEAT, given, answered, "model_transaction_policy { decoupled: true }\n")
    _write(folder, "stalls", _STALLS, {"INPUT0": ("INT32", (-1,))}, {"OUTPUT0": ("INT32", (1,))})
    return folder


@dataclass(frozen=True, slots=True)
class Kinds:
    """The running server of the kinds, and the reports of its model `stalls`."""

    serving: Serving
    repository: Path

    def began(self, request: str) -> bool:
        """Whether the model began the request. On a stalled machine, a client may give up before it has sent it."""
        return self._said(f"begun-{request}")

    def until_stalled(self, request: str) -> None:
        self.serving.until(lambda: self._said(f"begun-{request}"), f"did not begin {request}")

    def until_cancelled(self, request: str) -> None:
        self.serving.until(lambda: self._said(f"cancelled-{request}"), f"did not cancel {request}")

    def release(self, request: str) -> None:
        (self.repository / "stalls" / f"go-{request}").touch()

    def _said(self, name: str) -> bool:
        return (self.repository / "stalls" / name).exists()


TIMES = (0.3, 3.0, 30.0)
"""Seconds that a client waits for an answer that does not come. The next is tried if the model did not begin in time.
"""
SIXTEEN = np.arange(16, dtype=np.int32).reshape(1, 16)
ONES = np.ones((1, 16), np.int32)
ONE = np.ones(1, np.int32)
