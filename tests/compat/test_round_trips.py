"""Tensors of any datatype and shape pass through a running server unchanged: with the official clients, and with HTTP
written by hand."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import triton_to_np_dtype

from halimede.tensors import DATATYPES, DataType
from tests.arrays import ALL_DATATYPES, SHAPES, TEXT_DATATYPES, Array, arrays, as_floats, raw, same
from tests.compat.serving import Serving
from tests.wire.test_round_trips import CONTENTS

MOST_DIMS = 6
LIMIT = 30.0
EXAMPLES = settings(max_examples=60, deadline=None)

Given = tuple[DataType, Array]
with_dims = SHAPES.filter(bool)
any_tensor = ALL_DATATYPES.flatmap(lambda kind: st.tuples(st.just(kind), arrays(kind, with_dims)))
text_tensor = TEXT_DATATYPES.flatmap(lambda kind: st.tuples(st.just(kind), arrays(kind, with_dims, text=True)))
a_pair = with_dims.flatmap(
    lambda shape: st.tuples(*(arrays(DATATYPES[name], st.just(shape)) for name in ("FP32", "INT64")))
)


def write_identities(folder: Path) -> Path:
    """Writes `<datatype>_<n>` with n dimensions of any size, and `pair_<n>` with an FP32 and an INT64."""
    for dims in range(1, MOST_DIMS + 1):
        for datatype in DATATYPES.values():
            write_identity(folder / f"{datatype.name}_{dims}", dims, datatype.config_name)
        write_identity(folder / f"pair_{dims}", dims, "TYPE_FP32", "TYPE_INT64")
    return folder


def write_identity(folder: Path, dims: int, *kinds: str) -> None:
    (folder / "1").mkdir(parents=True)
    tensors = "".join(
        f'{way} {{ name: "{way.upper()}{at}" data_type: {kind} dims: {[-1] * dims} }}\n'
        for way in ("input", "output")
        for at, kind in enumerate(kinds)
    )
    (folder / "config.pbtxt").write_text(f'backend: "identity"\n{tensors}instance_group {{ kind: KIND_CPU }}\n')


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("round_trips")
    with Serving(write_identities(folder / "models"), folder / "server.log") as serving:
        yield serving.wait_until_live()
        assert serving.stop() == 0, serving.log_text()[-3000:]


@pytest.fixture(scope="module")
def http_client(identities: Serving) -> Iterator[Any]:
    with httpclient.InferenceServerClient(identities.http_url, network_timeout=LIMIT) as client:
        yield client


@pytest.fixture(scope="module")
def grpc_client(identities: Serving) -> Iterator[Any]:
    with grpcclient.InferenceServerClient(identities.grpc_url) as client:
        yield client


def model_of(tensor: Given) -> str:
    datatype, array = tensor
    return f"{datatype.name}_{array.ndim}"


def as_client_has_it(tensor: Given) -> Array:
    """Older clients accept float32 for BF16, newer ones the bfloat16 of ml_dtypes."""
    datatype, array = tensor
    if datatype.name != "BF16":
        return array
    wanted = np.dtype(triton_to_np_dtype("BF16"))
    return as_floats(array) if wanted == np.float32 else array.view(wanted)


def of_client(module: Any, tensor: Given, **how: bool) -> Any:
    datatype, array = tensor
    made = module.InferInput("INPUT0", list(array.shape), datatype.name)
    made.set_data_from_numpy(as_client_has_it(tensor), **how)
    return made


def check(tensor: Given, came: Array, exactly: bool) -> None:
    given = as_client_has_it(tensor)
    if tensor[0].name == "BF16":
        came, given = (each.view(np.uint8) if each.ndim else each for each in (came, given))
    assert same(came, given, exactly), (came, tensor)


@EXAMPLES
@given(tensor=any_tensor)
def test_http_client_binary(http_client: Any, tensor: Given) -> None:
    result = http_client.infer(model_of(tensor), [of_client(httpclient, tensor)])
    check(tensor, result.as_numpy("OUTPUT0"), exactly=True)


@EXAMPLES
@given(tensor=text_tensor, ways=st.tuples(st.booleans(), st.booleans()))
def test_http_client_json(http_client: Any, tensor: Given, ways: tuple[bool, bool]) -> None:
    """Input and output as JSON, or one of them binary."""
    given_binary, wanted_binary = ways
    wanted = httpclient.InferRequestedOutput("OUTPUT0", binary_data=wanted_binary)
    asked = [of_client(httpclient, tensor, binary_data=given_binary)]
    came = http_client.infer(model_of(tensor), asked, outputs=[wanted]).as_numpy("OUTPUT0")
    if tensor[0].name == "BYTES" and not wanted_binary:
        came = np.array([each.encode() for each in came.reshape(-1)], object).reshape(came.shape)
    check(tensor, came, exactly=False)


@EXAMPLES
@given(tensor=any_tensor)
def test_grpc_client_raw(grpc_client: Any, tensor: Given) -> None:
    result = grpc_client.infer(model_of(tensor), [of_client(grpcclient, tensor)], client_timeout=LIMIT)
    check(tensor, result.as_numpy("OUTPUT0"), exactly=True)


@EXAMPLES
@given(tensor=text_tensor)
def test_grpc_typed(grpc_client: Any, tensor: Given) -> None:
    """Inputs as typed contents. Outputs are always raw (G22)."""
    datatype, array = tensor
    message = pb.ModelInferRequest(model_name=model_of(tensor))
    item = message.inputs.add(name="INPUT0", datatype=datatype.name, shape=array.shape)
    item.contents.SetInParent()
    getattr(item.contents, CONTENTS[datatype.name]).extend(array.reshape(-1).tolist())
    answer = grpc_client._client_stub.ModelInfer(message, timeout=LIMIT)
    (output,) = answer.outputs
    assert (tuple(output.shape), output.datatype) == (array.shape, datatype.name)
    (contents,) = answer.raw_output_contents
    if array.dtype == np.object_:
        assert contents == raw(array)
    else:
        assert same(np.frombuffer(contents, array.dtype).reshape(array.shape), array, exactly=False)


@EXAMPLES
@given(pair=a_pair)
def test_plain_http_mixed(identities: Serving, pair: tuple[Array, Array]) -> None:
    """One input as JSON and one as bytes. Each output has the form of the other input."""
    floats, integers = pair
    head = json.dumps(
        {
            "inputs": [
                {"name": "INPUT0", "datatype": "FP32", "shape": floats.shape, "data": floats.tolist()},
                binary_item("INPUT1", "INT64", integers),
            ],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}, {"name": "OUTPUT1"}],
        }
    ).encode()
    facts, contents = post(identities, f"pair_{floats.ndim}", head, raw(integers))
    first, second = facts["outputs"]
    assert same(np.frombuffer(contents, "<f4").reshape(first["shape"]), floats, exactly=False)
    assert np.array_equal(np.array(second["data"], "<i8").reshape(second["shape"]), integers)


@EXAMPLES
@given(tensor=any_tensor)
def test_plain_http_binary(identities: Serving, tensor: Given) -> None:
    datatype, array = tensor
    asked = {"inputs": [binary_item("INPUT0", datatype.name, array)], "parameters": {"binary_data_output": True}}
    facts, contents = post(identities, model_of(tensor), json.dumps(asked).encode(), raw(array))
    (output,) = facts["outputs"]
    assert (output["shape"], output["datatype"]) == (list(array.shape), datatype.name)
    assert contents == raw(array)


def binary_item(name: str, datatype: str, array: Array) -> dict[str, Any]:
    parameters = {"binary_data_size": len(raw(array))}
    return {"name": name, "datatype": datatype, "shape": array.shape, "parameters": parameters}


def post(serving: Serving, model: str, head: bytes, contents: bytes) -> tuple[Any, bytes]:
    """The JSON of the answer, and the bytes after it."""
    connection = http.client.HTTPConnection(serving.http_url, timeout=LIMIT)
    try:
        length = {"Inference-Header-Content-Length": str(len(head))}
        connection.request("POST", f"/v2/models/{model}/infer", head + contents, length)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        size = int(answer.getheader("Inference-Header-Content-Length") or len(body))
        return json.loads(body[:size]), body[size:]
    finally:
        connection.close()
