"""The official clients with CUDA shared memory, over HTTP and gRPC."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from tests.compat.serving import Serving, write_model, write_repository
from tests.compat.test_shared_memory import DOUBLING, input_in, is_empty, names_of, output_in


def cudashm() -> Any:
    """The official module, which cannot be imported without CUDA's own packages."""
    return import_module("tritonclient.utils.cuda_shared_memory")


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("cuda")
    repository = write_repository(folder / "models")
    (write_model(repository, "doubling", "INT32", backend="python") / "model.py").write_text(DOUBLING)
    with Serving(repository, folder / "server.log", "--allow-client-shm=true") as running:
        yield running.wait_until_live()
        assert running.stop() == 0, running.log_text()[-3000:]


@pytest.fixture(params=["http", "grpc"])
def spoken(request: pytest.FixtureRequest, serving: Serving) -> Iterator[tuple[Any, Any]]:
    """The module of a client, and a client, for each protocol. No region is left after the test."""
    module = httpclient if request.param == "http" else grpcclient
    with module.InferenceServerClient(serving.http_url if request.param == "http" else serving.grpc_url) as client:
        yield module, client
        client.unregister_cuda_shared_memory()
        assert not names_of(client.get_cuda_shared_memory_status())


@contextmanager
def region_of(client: Any, byte_size: int) -> Iterator[tuple[str, Any]]:
    """A registered region on GPU 0: its name and the client's handle."""
    name = f"halimede_{os.getpid()}_{uuid.uuid4().hex}"
    handle = cudashm().create_shared_memory_region(name, byte_size, 0)
    try:
        client.register_cuda_shared_memory(name, cudashm().get_raw_handle(handle), 0, byte_size)
        yield name, handle
        client.unregister_cuda_shared_memory(name)
    finally:
        cudashm().destroy_shared_memory_region(handle)


@pytest.mark.rows("H95", "H96")
@pytest.mark.parametrize("count", [1, 16, 150528, 4_000_000])
def test_numbers_in_regions(spoken: tuple[Any, Any], count: int) -> None:
    module, client = spoken
    numbers = np.arange(count, dtype=np.float32).reshape(1, -1)
    size = numbers.nbytes
    with region_of(client, size) as (given, source), region_of(client, size) as (wanted, sink):
        assert names_of(client.get_cuda_shared_memory_status()) == sorted([given, wanted])
        for _ in range(3):
            numbers = numbers + 1
            cudashm().set_shared_memory_region(source, [numbers])
            tensor = input_in(module, given, [1, count], "FP32", size)
            result = client.infer("identity_fp32", [tensor], outputs=[output_in(module, wanted, size)])
            assert is_empty(result)
            np.testing.assert_array_equal(cudashm().get_contents_as_numpy(sink, np.float32, [1, count]), numbers)


def test_python_model_between_two_parts_of_a_region(spoken: tuple[Any, Any]) -> None:
    module, client = spoken
    numbers = np.arange(1000, dtype=np.int32)
    with region_of(client, 8192) as (name, handle):
        cudashm().set_shared_memory_region(handle, [numbers])
        tensor = input_in(module, name, [1000], "INT32", 4000)
        client.infer("doubling", [tensor], outputs=[output_in(module, name, 4000, 4096)])
        after = cudashm().get_contents_as_numpy(handle, np.int32, [2048])
        np.testing.assert_array_equal(after[1024:2024], numbers * 2)


def test_strings_in_a_region(spoken: tuple[Any, Any]) -> None:
    module, client = spoken
    text = np.array([[b"a", b"\x00\xff", b""]], dtype=object)
    packed = serialize_byte_tensor(text)
    size = len(packed.item())
    with region_of(client, size) as (name, handle):
        cudashm().set_shared_memory_region(handle, [packed])
        result = client.infer("identity_bytes", [input_in(module, name, [1, 3], "BYTES", size)])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), text)


def test_only_the_output_is_in_a_region(spoken: tuple[Any, Any]) -> None:
    module, client = spoken
    numbers = np.arange(8, dtype=np.float32).reshape(1, 8)
    tensor = module.InferInput("INPUT0", [1, 8], "FP32")
    tensor.set_data_from_numpy(numbers)
    with region_of(client, 64) as (name, handle):
        client.infer("identity_fp32", [tensor], outputs=[output_in(module, name, 32, 32)])
        after = cudashm().get_contents_as_numpy(handle, np.float32, [16])
        np.testing.assert_array_equal(after[8:], numbers[0])


def test_refusals(spoken: tuple[Any, Any]) -> None:
    module, client = spoken
    with region_of(client, 64) as (name, handle):
        with pytest.raises(InferenceServerException, match="already in manager"):
            client.register_cuda_shared_memory(name, cudashm().get_raw_handle(handle), 0, 64)
        tensor = input_in(module, name, [1, 32], "FP32", 128)
        with pytest.raises(InferenceServerException, match="Invalid offset"):
            client.infer("identity_fp32", [tensor])
    with pytest.raises(InferenceServerException):
        client.infer("identity_fp32", [tensor])  # the region is gone


FREEING = """
import sys, numpy as np
import tritonclient.{protocol} as module
import tritonclient.utils.cuda_shared_memory as cudashm
handle = cudashm.create_shared_memory_region("gone", 64, 0)
with module.InferenceServerClient(sys.argv[1]) as client:
    client.register_cuda_shared_memory("gone", cudashm.get_raw_handle(handle), 0, 64)
import os; os._exit(0)
"""


def test_region_whose_client_has_ended_does_not_end_the_server(spoken: tuple[Any, Any], serving: Serving) -> None:
    module, client = spoken
    protocol, url = ("http", serving.http_url) if module is httpclient else ("grpc", serving.grpc_url)
    subprocess.run([sys.executable, "-c", FREEING.format(protocol=protocol), url], check=True, timeout=120)
    tensor = input_in(module, "gone", [1, 16], "FP32", 64)
    with suppress(InferenceServerException):  # whether the driver keeps the memory is its own affair
        client.infer("identity_fp32", [tensor])
    client.unregister_cuda_shared_memory("gone")
    numbers = module.InferInput("INPUT0", [1, 1], "FP32")
    numbers.set_data_from_numpy(np.ones((1, 1), np.float32))
    assert client.infer("identity_fp32", [numbers]).as_numpy("OUTPUT0").tolist() == [[1.0]]
