"""What a backend needs to be run alone: batches, a receiver of responses, configurations and model folders."""

import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.json_format import ParseDict
from tritonclient.grpc.model_config_pb2 import ModelConfig as ModelConfigMessage

from halimede.backends.api import Arrays, BackendContext, InstancePlace, ModelFolder
from halimede.config import Incomplete, read_override
from halimede.config.model_config import InstanceGroup, InstanceKind, ModelConfig, TensorSpec
from halimede.devices import Device
from halimede.errors import Error
from halimede.platform.hosts import ANYWHERE, HostPolicy
from halimede.requests import InferRequest, Parameters
from halimede.tensors import DATATYPES, Shape, Tensor, array_of, tensor_of

Array = npt.NDArray[Any]


class FakeRequest:
    """One request of a batch: its tensors, its rows, the outputs it wants."""

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[str], batch_size: int = 1) -> None:
        self.request = InferRequest("m")
        self.request.inputs = {tensor.name: tensor for tensor in inputs}
        self.outputs = tuple(outputs)
        self.batch_size = batch_size
        self.cancelled = False

    def when_cancelled(self, tell: Callable[[], None]) -> None:
        """Nobody cancels it."""


class FakeBatch:
    """Requests gathered as the scheduler gathers them: views for one request, concatenated rows for several."""

    def __init__(self, *requests: FakeRequest) -> None:
        self.requests = requests

    def arrays(self) -> Arrays:
        parts = [{name: array_of(t) for name, t in one.request.inputs.items()} for one in self.requests]
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def parts(self, name: str) -> list[Tensor]:
        return [one.request.inputs[name] for one in self.requests]

    def shape(self, name: str) -> Shape:
        return self.arrays()[name].shape

    def gather(self, name: str, into: Any, device: Device | None = None) -> None:
        assert device is None
        np.copyto(into, self.arrays()[name])

    def arrays_of(self, i: int) -> Arrays:
        return FakeBatch(self.requests[i]).arrays()


class FakeResponses:
    """Keeps what it is sent: `sent`, `scattered_to` and `failed` by request, `scattered` for the whole batch."""

    def __init__(self) -> None:
        self.sent: dict[int, list[Tensor]] = {}
        self.failed: dict[int, Error] = {}
        self.scattered: dict[str, Array] = {}
        self.scattered_to: dict[int, dict[str, Array]] = {}

    def send(
        self, i: int, outputs: Sequence[Tensor] | None, final: bool = True, parameters: Parameters | None = None
    ) -> None:
        assert i not in self.sent
        assert final
        self.sent[i] = list(outputs or ())

    def fail(self, i: int, error: Error, final: bool = True) -> None:
        self.failed[i] = error

    def on_writable(self, i: int, resume: Callable[[], None]) -> None:
        raise AssertionError("no backend under test answers more than once")

    def fail_all(self, error: Exception) -> None:
        raise AssertionError("no backend under test fails a whole batch")

    def again(self, i: int) -> None:
        raise AssertionError("no backend under test reschedules")

    def scatter(self, outputs: Mapping[str, Any], device: Device | None = None) -> None:
        assert device is None
        assert not self.scattered
        self.scattered = dict(outputs)

    def scatter_to(self, i: int, outputs: Mapping[str, Array]) -> None:
        assert i not in self.scattered_to
        self.scattered_to[i] = dict(outputs)

    def compute_times(self, input_end: int, output_start: int) -> None:
        raise AssertionError("the marks of arrays() and scatter() are right for backends in this process")

    def promise(self, later: Collection[int]) -> None:
        raise AssertionError("no backend of arrays answers later")

    def finished(self, later: Collection[int] = ()) -> None:
        raise AssertionError("only a backend placed on the loop may call this")


def spec(
    name: str, datatype: str, dims: Sequence[int], reshape: Sequence[int] | None = None, optional: bool = False
) -> TensorSpec:
    shape: Shape | None = None if reshape is None else tuple(reshape)
    return TensorSpec(name, DATATYPES[datatype], tuple(dims), shape, optional)


def model_config(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    max_batch_size: int = 0,
    *,
    count: int = 1,
    kind: InstanceKind = InstanceKind.CPU,
    gpus: tuple[int, ...] = (),
    backend: str = "onnxruntime",
    parameters: Mapping[str, str] = MappingProxyType({}),
    level: int | None = None,
) -> ModelConfig:
    return ModelConfig(
        name="m",
        backend=backend,
        platform="",
        max_batch_size=max_batch_size,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        model_filename="model.onnx",
        instance_groups=(InstanceGroup("m_0", kind, count, gpus),),
        message=message_of({} if level is None else {"optimization": {"graph": {"level": level}}}),
        parameters=parameters,
    )


def asked(count: int = 2, **fields: Any) -> Incomplete:
    """What a backend is asked to complete: a configuration with these fields, and `count` instances of a group that
    does not say."""
    return read_override(json.dumps({"name": "m", "backend": "any", **fields}), Path("m")).incomplete(
        default_instance_count=count
    )


def message_of(values: dict[str, Any]) -> bytes:
    """A configuration with these fields, as its protobuf message."""
    message: bytes = ParseDict(values, ModelConfigMessage()).SerializeToString()
    return message


def place(
    index: int = 0,
    total: int = 1,
    kind: InstanceKind = InstanceKind.CPU,
    device_id: int = 0,
    host: HostPolicy = ANYWHERE,
) -> InstancePlace:
    return InstancePlace(f"m_0_{index}", kind, device_id, index, total, host=host)


def folder(root: Path, model: bytes | None = None) -> ModelFolder:
    """A version directory of model `m` under `root`, with `model` as its model.onnx."""
    version = root / "m" / "1"
    version.mkdir(parents=True, exist_ok=True)
    if model is not None:
        (version / "model.onnx").write_bytes(model)
    return ModelFolder(root / "m", version, 1)


def request(arrays: Mapping[str, tuple[str, Array]], outputs: Sequence[str], batch_size: int = 1) -> FakeRequest:
    """A request of arrays by name, each with its datatype."""
    tensors = [tensor_of(name, DATATYPES[datatype], array) for name, (datatype, array) in arrays.items()]
    return FakeRequest(tensors, outputs, batch_size)


def context(loop: asyncio.AbstractEventLoop, settings: Mapping[str, str] | None = None) -> BackendContext:
    """What a backend gets that is created for a test."""
    return BackendContext(loop, settings or {})


@contextmanager
def idle_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop for a constructor that wants one and does not run it."""
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.close()
