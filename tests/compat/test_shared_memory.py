"""The official clients with shared memory: regions, tensors in them, and clients that change or remove their segments.

Each test runs over HTTP and gRPC, against the server and against one whose front ends talk to the engine in bytes only.
"""

import asyncio
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from tests.compat.serving import Serving, write_model, write_repository
from tests.compat.test_far_port import FarServing

PAGE = 4096
DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
DOUBLING = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [doubled(pb_utils.get_input_tensor_by_name(request, "INPUT0")) for request in requests]


def doubled(tensor):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy() * 2)])
"""


@pytest.fixture(scope="module", params=["near", "far"])
def serving(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("shm")
    repository = write_repository(folder / "models")
    (write_model(repository, "doubling", "INT32", backend="python") / "model.py").write_text(DOUBLING)
    kind = Serving if request.param == "near" else FarServing
    with kind(repository, folder / "server.log", "--allow-client-shm=true") as running:
        yield running.wait_until_live()
        assert running.stop() == 0, running.log_text()[-3000:]


@pytest.fixture(params=["http", "grpc"])
def spoken(request: pytest.FixtureRequest, serving: Serving) -> Iterator[tuple[Any, Any]]:
    """The module of a client, and a client, for each protocol. No region is left after the test."""
    module = httpclient if request.param == "http" else grpcclient
    with module.InferenceServerClient(serving.http_url if request.param == "http" else serving.grpc_url) as client:
        yield module, client
        client.unregister_system_shared_memory()
        assert not names_of(client.get_system_shared_memory_status())


def names_of(status: Any) -> list[str]:
    return sorted(region["name"] for region in status) if isinstance(status, list) else sorted(status.regions)


@contextmanager
def region_of(byte_size: int) -> Iterator[tuple[str, str, Any]]:
    """A segment, made as in the official examples: the name of the region, its key and the client's handle."""
    name = f"halimede_compat_{os.getpid()}_{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region(name, "/" + name, byte_size)
    try:
        yield name, "/" + name, handle
    finally:
        shm.destroy_shared_memory_region(handle)


def input_in(module: Any, region: str, shape: list[int], datatype: str, byte_size: int, offset: int = 0) -> Any:
    tensor = module.InferInput("INPUT0", shape, datatype)
    tensor.set_shared_memory(region, byte_size, offset)
    return tensor


def output_in(module: Any, region: str, byte_size: int, offset: int = 0) -> Any:
    wanted = module.InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory(region, byte_size, offset)
    return wanted


def is_empty(result: Any) -> bool:
    """Whether the answer only says where the output is."""
    response = result.get_response()
    if isinstance(response, dict):
        return set(response["outputs"][0]) == {"name", "datatype", "shape"}
    return list(response.raw_output_contents) == [b""]


@pytest.mark.rows("H91", "H93", "H97", "G10", "G23")
def test_numbers_in_regions(spoken: tuple[Any, Any]) -> None:
    module, client = spoken
    numbers = np.arange(150528, dtype=np.float32).reshape(1, -1)
    size = numbers.nbytes
    with region_of(size) as (given, given_key, source), region_of(size) as (wanted, wanted_key, sink):
        shm.set_shared_memory_region(source, [numbers])
        client.register_system_shared_memory(given, given_key, size)
        client.register_system_shared_memory(wanted, wanted_key, size)
        assert names_of(client.get_system_shared_memory_status()) == sorted([given, wanted])
        for _ in range(4):
            numbers = numbers + 1
            shm.set_shared_memory_region(source, [numbers])
            tensor = input_in(module, given, [1, 150528], "FP32", size)
            result = client.infer("identity_fp32", [tensor], outputs=[output_in(module, wanted, size)])
            assert is_empty(result)
            np.testing.assert_array_equal(shm.get_contents_as_numpy(sink, np.float32, [1, 150528]), numbers)
        client.unregister_system_shared_memory(given)
        assert names_of(client.get_system_shared_memory_status()) == [wanted]


def test_strings_in_regions(spoken: tuple[Any, Any]) -> None:
    module, client = spoken
    text = np.array([[b"a", b"\x00\xff", b""]], dtype=object)
    packed = serialize_byte_tensor(text)
    size = len(packed.item())
    with region_of(2 * PAGE) as (name, key, handle):
        shm.set_shared_memory_region(handle, [packed])
        client.register_system_shared_memory(name, key, 2 * PAGE)
        tensor = input_in(module, name, [1, 3], "BYTES", size)
        client.infer("identity_bytes", [tensor], outputs=[output_in(module, name, PAGE, PAGE)])
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.object_, [1, 3], PAGE), text)


def test_python_model_between_two_parts_of_a_segment(spoken: tuple[Any, Any]) -> None:
    module, client = spoken
    numbers = np.arange(5, dtype=np.int32)
    with region_of(2 * PAGE) as (name, key, handle):
        shm.set_shared_memory_region(handle, [numbers], 64)
        client.register_system_shared_memory(name, key, PAGE)
        client.register_system_shared_memory(name + "_2", key, PAGE, PAGE)
        tensor = input_in(module, name, [5], "INT32", 20, 64)
        client.infer("doubling", [tensor], outputs=[output_in(module, name + "_2", 20)])
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.int32, [5], PAGE), numbers * 2)


def test_only_the_input_or_only_the_output(spoken: tuple[Any, Any]) -> None:
    module, client = spoken
    numbers = np.arange(5, dtype=np.int32)
    with region_of(PAGE) as (name, key, handle):
        shm.set_shared_memory_region(handle, [numbers])
        client.register_system_shared_memory(name, key, PAGE)
        result = client.infer("flat_int32", [input_in(module, name, [5], "INT32", 20)])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), numbers)
        tensor = module.InferInput("INPUT0", [5], "INT32")
        tensor.set_data_from_numpy(numbers + 1)
        client.infer("flat_int32", [tensor], outputs=[output_in(module, name, 20)])
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.int32, [5]), numbers + 1)


@pytest.mark.rows("H92", "H94", "H97", "H98")
def test_refusals(spoken: tuple[Any, Any]) -> None:
    module, client = spoken

    def refused(words: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        with pytest.raises(InferenceServerException, match=words):
            call(*arguments, **named)

    with region_of(PAGE) as (name, key, _):
        register, infer = client.register_system_shared_memory, client.infer
        refused("Unable to open shared memory region: '/halimede_nobody'", register, "x", "/halimede_nobody", 8)
        refused(r"region 'x': invalid args", register, "x", key, PAGE + 1)
        refused(r"region 'x' - invalid shm key '/'", register, "x", "/", 8)
        register(name, key, PAGE)
        refused(f"shared memory region '{name}' already in manager", register, name, key, PAGE)
        refused("Unable to find system shared memory region: 'x'", client.get_system_shared_memory_status, "x")
        refused(
            "Unable to find shared memory region: 'x'", infer, "flat_int32", [input_in(module, "x", [1], "INT32", 4)]
        )
        beyond = input_in(module, name, [2], "INT32", 8, PAGE - 4)
        refused(r"Invalid offset \+ byte size for shared memory region", infer, "flat_int32", [beyond])
        for model in ("flat_int32", "doubling"):
            wanted = output_in(module, name, 3)
            given = input_in(module, name, [1], "INT32", 4)
            refused(r"\(3 bytes\) should be at least 4 bytes", infer, model, [given], outputs=[wanted])
        client.unregister_system_shared_memory(name)
        client.unregister_system_shared_memory(name)


@pytest.mark.rows("H95", "H96", "G10")
def test_cuda_region_without_a_gpu(spoken: tuple[Any, Any], serving: Serving) -> None:
    module, client = spoken
    handle = bytes(64)
    if module is httpclient:
        import base64

        handle = base64.b64encode(handle)
    with pytest.raises(InferenceServerException, match="CUDA shared memory region: 'c', GPUs not supported"):
        client.register_cuda_shared_memory("c", handle, 0, 8)
    assert not names_of(client.get_cuda_shared_memory_status())
    client.unregister_cuda_shared_memory()


def test_segment_that_its_client_removes_or_truncates(spoken: tuple[Any, Any]) -> None:
    module, client = spoken
    with region_of(PAGE) as (removed, key, handle):
        shm.set_shared_memory_region(handle, [np.array([7], np.int32)])
        client.register_system_shared_memory(removed, key, PAGE)
    given = input_in(module, removed, [1], "INT32", 4)
    assert client.infer("flat_int32", [given]).as_numpy("OUTPUT0").tolist() == [7]
    with region_of(2 * PAGE) as (short, key, _):
        client.register_system_shared_memory(short, key, 2 * PAGE)
        os.truncate(f"/dev/shm{key}", PAGE)
        with pytest.raises(InferenceServerException, match=r"Invalid offset \+ byte size for shared memory region"):
            client.infer("flat_int32", [input_in(module, short, [1], "INT32", 4, PAGE)])
        with pytest.raises(InferenceServerException, match="failed to write to shared memory region"):
            client.infer("flat_int32", [given], outputs=[output_in(module, short, 4, PAGE)])
        os.truncate(f"/dev/shm{key}", 2 * PAGE)
        client.infer("flat_int32", [given], outputs=[output_in(module, short, 4, PAGE)])
    assert client.is_server_live()


@contextmanager
def truncating(key: str, byte_size: int) -> Iterator[None]:
    """Fills a segment and makes it short again, all the time."""
    ended = threading.Event()

    def work() -> None:
        content = bytes(byte_size)
        with Path(f"/dev/shm{key}").open("r+b", 0) as segment:
            while not ended.is_set():
                for _ in range(20):  # it is whole most of the time, so that requests begin
                    os.pwrite(segment.fileno(), content, 0)
                os.truncate(segment.fileno(), PAGE)
        os.truncate(f"/dev/shm{key}", byte_size)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def refusal_of(client: Any, model: str, given: Any, outputs: Any) -> str:
    """The text of the error of an inference; empty if it succeeds."""
    try:
        client.infer(model, [given], outputs=outputs)
    except InferenceServerException as error:
        return str(error.message())
    return ""


def test_segment_that_its_client_truncates_all_the_time(spoken: tuple[Any, Any]) -> None:
    module, client = spoken
    size, rounds = 64 * PAGE, 60
    served = 0
    with region_of(size) as (name, key, _), region_of(size) as (other, other_key, _):
        client.register_system_shared_memory(name, key, size)
        client.register_system_shared_memory(other, other_key, size)
        host = module.InferInput("INPUT0", [size // 4], "INT32")
        host.set_data_from_numpy(np.ones(size // 4, np.int32))
        shared = input_in(module, name, [size // 4], "INT32", size)
        in_json = [httpclient.InferRequestedOutput("OUTPUT0", binary_data=False)] if module is httpclient else None
        ways = [
            *((model, shared, outputs) for model in ("flat_int32", "doubling") for outputs in (None, in_json)),
            *((model, host, [output_in(module, name, size)]) for model in ("flat_int32", "doubling")),
            ("flat_int32", shared, [output_in(module, other, size)]),
            ("flat_int32", shared, [output_in(module, name, size)]),
        ]
        with truncating(key, size), truncating(other_key, size):
            for model, given, outputs in ways * (rounds // len(ways)):
                failure = refusal_of(client, model, given, outputs)
                served += not failure
                assert failure.startswith(("Invalid offset + byte size", "failed to write to shared")) or not failure
        assert client.infer("flat_int32", [host]).as_numpy("OUTPUT0").sum() == size // 4
    assert served, "no request was served"


@pytest.mark.parametrize("module", [httpaio, grpcaio], ids=["http", "grpc"])
def test_asyncio_client(serving: Serving, module: Any) -> None:
    forms = httpclient if module is httpaio else grpcclient

    async def scenario() -> None:
        numbers = np.arange(6, dtype=np.int64).reshape(2, 3)
        async with module.InferenceServerClient(serving.http_url if module is httpaio else serving.grpc_url) as client:
            with region_of(2 * PAGE) as (name, key, handle):
                shm.set_shared_memory_region(handle, [numbers])
                await client.register_system_shared_memory(name, key, 2 * PAGE)
                assert name in names_of(await client.get_system_shared_memory_status())
                tensor = input_in(forms, name, [2, 3], "INT64", 48)
                await client.infer("identity_int64", [tensor], outputs=[output_in(forms, name, 48, PAGE)])
                np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.int64, [2, 3], PAGE), numbers)
                await client.unregister_system_shared_memory(name)

    asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.rows("H90", "C59")
def test_shared_memory_is_off_by_default(server: Serving) -> None:
    for client in (
        httpclient.InferenceServerClient(server.http_url),
        grpcclient.InferenceServerClient(server.grpc_url),
    ):
        with client:
            for call in (
                lambda client=client: client.register_system_shared_memory("a", "/a", 8),
                client.unregister_system_shared_memory,
                client.unregister_cuda_shared_memory,
            ):
                with pytest.raises(InferenceServerException) as caught:
                    call()
                assert caught.value.message() == DISABLED
                assert caught.value.status() in ("501", "StatusCode.UNIMPLEMENTED")
            assert not names_of(client.get_system_shared_memory_status())
            assert not names_of(client.get_cuda_shared_memory_status())
