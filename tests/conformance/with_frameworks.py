"""Tensors of the interface in torch and jax and back (P42), in models that are the same on both servers.

`make test` leaves this out, as it downloads a gigabyte. `make test-torch` puts the packages into the directory
HALIMEDE_FRAMEWORKS, for both servers.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import triton_to_np_dtype

from tests.conformance import rawhttp, servers, transcript
from tests.conformance.case import Json, infer, tensor
from tests.conformance.clients import over_grpc, over_http, same_of_both
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair
from tests.conformance.servers import Server

MODELS = Path(__file__).resolve().parent / "framework_models"
NOT_CONTIGUOUS = (
    "TritonModelException: DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order "
    "are supported."
)
IN_NUMPY = ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
IN_TORCH = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)
IN_JAX = ("bool_", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64")


@pytest.fixture(scope="module")
def pair(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("frameworks")
    packages = os.environ["HALIMEDE_FRAMEWORKS"]
    environment = {"PYTHONPATH": packages, "TRITON_ORACLE_PYTHONPATH": packages}
    with pair_of(servers.copy_models(folder / "models", MODELS), folder, environment=environment) as both:
        yield both


def ran(server: Server, framework: str, source: str) -> str:
    """The value of `found` after a source, or the server's refusal."""
    body = {"inputs": [tensor("BYTES", [1], [source], name="SOURCE")]}
    return transcript.of_http(rawhttp.converse(server.http, (infer(f"{framework}_interface", body),))).text


def found(pair: Pair, framework: str, source: str) -> Json:
    """The value of `found` after a source, which must be equal on both servers."""
    text = same_of_both(pair, lambda server: ran(server, framework, source))
    return json.loads(json.loads(text.splitlines()[-2])["outputs"][0]["data"][0])


@pytest.mark.rows("P42")
@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("code", IN_NUMPY)
def test_every_type_arrives(pair: Pair, framework: str, code: str) -> None:
    name, shape, values = found(pair, framework, f"found = given(np.array([[1], [0]], '{code}'))")
    assert (name.removeprefix("torch."), shape, values) == (np.dtype(code).name, [2, 1], [[1], [0]])


@pytest.mark.rows("P42")
@pytest.mark.parametrize(
    ("framework", "name"), [*(("torch", name) for name in IN_TORCH), *(("jax", name) for name in IN_JAX)]
)
def test_every_type_is_taken_and_goes_back(pair: Pair, framework: str, name: str) -> None:
    make = "torch.tensor" if framework == "torch" else "jnp.array"
    kind = "torch" if framework == "torch" else "jnp"
    answer = found(pair, framework, f"found = taken({make}([[1, 0]], dtype={kind}.{name}))")
    assert json.dumps(answer).count(f'{name.removesuffix("_")}", [1, 2], [[') == (2 if framework == "torch" else 1)
    in_numpy = "TritonModelException: Tensor dtype is BF16 and cannot be converted to NumPy."
    assert answer[-1].startswith(in_numpy if name == "bfloat16" else name.removesuffix("_"))


@pytest.mark.rows("P42")
@pytest.mark.parametrize(
    "source",
    [
        "found = given(np.zeros((0, 3), 'f4'))",
        "found = given(np.array(5, 'f4'))",
        "found = given(np.arange(6).reshape(2, 3).T)",
        "a = np.arange(2); a.flags.writeable = False; found = given(a)",
        "found = taken(torch.zeros(0, 3))",
        "found = taken(torch.zeros((0, 3), dtype=torch.bfloat16))",
        "found = taken(torch.tensor(2.5, dtype=torch.bfloat16))",
        "found = taken(torch.tensor(5.0))",
        "found = taken(torch.arange(6)[2:])",
        "found = taken(torch.arange(6).reshape(6, 1).T)",
        "found = taken(torch.arange(12).reshape(3, 4)[:1, :2])",
        "found = taken(torch.arange(6).reshape(2, 3).T)",
        "found = taken(torch.arange(6).bool().reshape(2, 3).T)",
        "found = taken(torch.arange(6).to(torch.bfloat16).reshape(2, 3).T)",
        "found = taken(torch.tensor([1], dtype=torch.complex64))",
        "found = pb_utils.Tensor.from_dlpack('T', torch.tensor([1.0], dtype=torch.float8_e4m3fn))",
        "found = pb_utils.Tensor.from_dlpack('T', torch.ones(2, requires_grad=True))",
        "found = pb_utils.Tensor.from_dlpack('T', torch.ones(2).to_sparse())",
        "t = torch.ones(2); p = pb_utils.Tensor.from_dlpack('T', t); t[0] = 7; found = p.as_numpy().tolist()",
        "t = torch.ones(2); p = pb_utils.Tensor.from_dlpack('T', t); del t; found = p.as_numpy().tolist()",
        "a = np.ones(2, 'f4'); t = from_dlpack(pb_utils.Tensor('T', a).to_dlpack()); a[0] = 7; found = t.tolist()",
        "t = from_dlpack(pb_utils.Tensor('T', np.ones(2, 'f4')).to_dlpack()); x = [np.zeros(2) for _ in range(99)]; "
        "found = t.tolist()",
    ],
)
def test_torch_and_the_interface(pair: Pair, source: str) -> None:
    assert found(pair, "torch", source)


@pytest.mark.rows("P42")
@pytest.mark.parametrize(
    "source",
    [
        "found = given(np.zeros((0, 3), 'f4'))",
        "found = given(np.array(5, 'f4'))",
        "found = taken(jnp.zeros((0, 3)))",
        "found = taken(jnp.float32(5))",
        "found = taken(jnp.arange(6).reshape(2, 3).T)",
        "found = taken(jnp.array([1], 'complex64'))",
        "found = taken(jax.jit(lambda x: x * 2)(jnp.arange(3)))",
    ],
)
def test_jax_and_the_interface(pair: Pair, source: str) -> None:
    assert found(pair, "jax", source)


@pytest.mark.rows("P42")
@pytest.mark.parametrize("made", ["torch.arange(6)[::2]", "torch.arange(3).expand(2, 3)", "torch.eye(3)[:, 1:2]"])
def test_tensor_with_gaps_is_refused(pair: Pair, made: str) -> None:
    """2.51 takes such a tensor as contiguous, and reads bytes that do not belong to it."""
    text = ran(pair.ours, "torch", f"found = taken({made})")
    assert json.loads(json.loads(text.splitlines()[-2])["outputs"][0]["data"][0]) == NOT_CONTIGUOUS


@pytest.mark.parametrize("ask", [over_http, over_grpc])
def test_torch_module_adds_and_subtracts(pair: Pair, ask: Any) -> None:
    arrays = {"LEFT": np.array([[1, 2, 3, 4]], np.float32), "RIGHT": np.array([[4, 3, 2, 1]], np.float32)}
    answer = same_of_both(pair, lambda server: ask(server, "torch_addsub", arrays))
    assert answer == {"SUM": ["float32", [[5, 5, 5, 5]]], "DIFFERENCE": ["float32", [[-3, -1, 1, 3]]]}


@pytest.mark.parametrize("ask", [over_http, over_grpc])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (300, 400)])
@pytest.mark.parametrize("name", ["BF16", "BOOL"])
def test_types_that_numpy_lacks_go_through_torch(pair: Pair, ask: Any, name: str, shape: tuple[int, int]) -> None:
    count = shape[0] * shape[1]
    values = np.arange(count) % 3 - 1 if name == "BF16" else np.arange(count) % 3 == 0
    array = values.reshape(shape).astype(triton_to_np_dtype(name) if name == "BF16" else np.bool_)
    answer = same_of_both(pair, lambda server: ask(server, f"torch_{name.lower()}", {"INPUT0": array}, datatype=name))
    assert answer["OUTPUT0"][1] == array[::-1, ::-1].tolist()
    assert answer["TYPE"][1] == [b"torch.bfloat16" if name == "BF16" else b"torch.bool"]
