"""Model configurations and requests for these tests."""

from collections.abc import Sequence
from math import prod

from halimede.config import DynamicBatching, InstanceGroup, InstanceKind, ModelConfig, TensorSpec
from halimede.requests import InferRequest
from halimede.tensors import DATATYPES, HostMemory, Shape, Tensor, join_bytes


def spec(
    name: str,
    datatype: str,
    dims: Sequence[int],
    reshape: Sequence[int] | None = None,
    *,
    optional: bool = False,
    ragged: bool = False,
) -> TensorSpec:
    shape: Shape | None = None if reshape is None else tuple(reshape)
    return TensorSpec(name, DATATYPES[datatype], tuple(dims), shape, optional, ragged)


def config_of(
    *inputs: TensorSpec,
    outputs: Sequence[TensorSpec] = (spec("OUTPUT0", "INT32", [1]),),
    max_batch_size: int = 0,
    batching: DynamicBatching | None = None,
    groups: Sequence[InstanceGroup] = (InstanceGroup("m_0", InstanceKind.CPU),),
    name: str = "m",
) -> ModelConfig:
    return ModelConfig(
        name=name,
        backend="identity",
        platform="",
        max_batch_size=max_batch_size,
        inputs=inputs,
        outputs=tuple(outputs),
        model_filename="",
        instance_groups=tuple(groups),
        message=b"",
        dynamic_batching=batching,
    )


def given(name: str, datatype: str, shape: Sequence[int], body: bytes | None = None) -> Tensor:
    """An input; without a body it has as many bytes, or strings, as its shape asks for."""
    kind = DATATYPES[datatype]
    elements = max(prod(shape), 0)
    if body is None:
        body = join_bytes([b"s"] * elements) if datatype == "BYTES" else bytes(elements * kind.size)
    return Tensor(name, kind, tuple(shape), HostMemory(body))


def asking(*inputs: Tensor, outputs: Sequence[str] = (), id: str = "q") -> InferRequest:
    request = InferRequest("m")
    request.id = id
    request.inputs = {tensor.name: tensor for tensor in inputs}
    request.outputs = tuple(outputs)
    return request


def asking_raw(body: bytes) -> InferRequest:
    request = asking()
    request.raw = HostMemory(body)
    return request
