"""Gather and scatter on a device: gathers the inputs of a batch into memory of the backend, and splits outputs on the
device where they are.

An output is copied to the host at most once, as a whole, and only if a request of the batch needs its bytes there. The
copy starts before anything waits for it. Called by the thread that runs the batch; a thread of the device answers.
"""

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np

from halimede.devices import Device, DeviceArray, DeviceMemory, HostArray, as_error, begin_copy, is_host
from halimede.errors import Error, Internal, Invalid
from halimede.scheduling.assembly import unexpected_output
from halimede.scheduling.backend_failures import log_exception
from halimede.scheduling.inference import Inference
from halimede.tensors import DataType, MemoryKind, Shape, Tensor, array_of, tensor_of


def gathered_shape(requests: Sequence[Inference], name: str) -> Shape:
    """The shape of an input of the whole batch. Raises KeyError if the requests do not have it."""
    first = requests[0].request.inputs[name].shape
    if len(requests) == 1:
        return first
    return (sum(one.request.inputs[name].shape[0] for one in requests), *first[1:])


def gather_into(requests: Sequence[Inference], name: str, into: HostArray | DeviceArray, device: Device | None) -> None:
    """Writes an input of all requests into an array of the backend, one after another. Each element is copied once.

    A part that is on this device is copied there; any other comes by the host. Raises Invalid if it does not fit."""
    if tuple(into.shape) != gathered_shape(requests, name):
        raise Invalid(f"input '{name}' has shape {list(gathered_shape(requests, name))}, not {list(into.shape)}")
    if len(requests) == 1:  # its input may have no dimension of rows: the model may not batch
        _put(requests[0].request.inputs[name], into, device)
        return
    start = 0
    for one in requests:
        tensor = one.request.inputs[name]
        stop = start + tensor.shape[0]
        rows: Any = into[start:stop] if isinstance(into, np.ndarray) else _device(device).rows(into, start, stop)
        _put(tensor, rows, device)
        start = stop


def _put(tensor: Tensor, target: HostArray | DeviceArray, device: Device | None) -> None:
    memory = tensor.memory
    if device is not None and isinstance(memory, DeviceMemory) and memory.device.place == device.place:
        device.copy(target, memory.array)
        return
    if device is not None and memory.kind is MemoryKind.DEVICE and not isinstance(memory, DeviceMemory):
        device.copies.add()  # a client's memory on a device, which counts for the model that reads it
    source = array_of(tensor)
    if isinstance(target, np.ndarray):
        np.copyto(target, source)
    else:
        _device(device).copy(target, source)


def _device(device: Device | None) -> Device:
    if device is None:
        raise Internal("an array that is not in host memory needs its device")
    return device


class BatchAnswers(Protocol):
    """Where the answers of a batch go."""

    @property
    def requests(self) -> Sequence[Inference]: ...
    @property
    def later(self) -> Collection[int]:
        """The requests that answer after the batch."""
        ...

    def promise(self, later: Collection[int]) -> None: ...
    def send(self, i: int, outputs: Sequence[Tensor] | None) -> None: ...
    def fail(self, i: int, error: Error) -> None: ...


def scatter_from(
    execution: BatchAnswers,
    outputs: Mapping[str, HostArray | DeviceArray],
    device: Device,
    types: Mapping[str, DataType],
) -> None:
    """Answers every request of the batch when the device has computed the outputs. Raises Internal if an output lacks
    rows, or if the model has no output of that name."""
    requests = execution.requests
    rows = sum(one.batch_size for one in requests)
    host: dict[str, HostArray] = {}
    for name, array in outputs.items():
        if name not in types:
            raise unexpected_output(name, None, types)
        if rows and (not array.shape or array.shape[0] != rows):
            raise Internal(f"output '{name}' has shape {list(array.shape)} for a batch of {rows}")
        if isinstance(array, np.ndarray):
            host[name] = array
        elif any(name in one.outputs and not one.request.on_device for one in requests):
            # One copy for all: several small copies take longer than a large one.
            copied = begin_copy(array, _bytes(array, types[name]), device)
            host[name] = copied.view(types[name].numpy).reshape(tuple(array.shape))

    def answer(failure: Exception | None) -> None:
        if failure is not None and not isinstance(failure, Error):
            log_exception(requests, failure)
        start = 0
        for i, one in enumerate(requests):
            stop = start + one.batch_size
            try:
                if failure is not None:
                    raise failure
                execution.send(i, _part(one, outputs, host, (start, stop) if rows else None, device, types))
            except Exception as error:  # whatever breaks here fails this request, and no other
                execution.fail(i, as_error(error))
            start = stop

    # Before the device is asked: it may call `answer` at once, on another thread.
    execution.promise({*execution.later, *range(len(requests))})
    device.ready(answer)


def _part(
    one: Inference,
    outputs: Mapping[str, HostArray | DeviceArray],
    host: Mapping[str, HostArray],
    rows: tuple[int, int] | None,
    device: Device,
    types: Mapping[str, DataType],
) -> list[Tensor]:
    """The outputs of one request: rows of the host's copy, or of the array on the device."""
    part = []
    for name in one.outputs:
        array = outputs.get(name)
        if array is None:
            continue
        if one.request.on_device and not is_host(array):
            own = array if rows is None else device.rows(array, *rows)
            memory = DeviceMemory(own, _bytes(own, types[name]), device)
            part.append(Tensor(name, types[name], tuple(own.shape), memory))
        else:
            mine = host[name] if rows is None else host[name][rows[0] : rows[1]]
            part.append(tensor_of(name, types[name], mine))
    return part


def _bytes(array: DeviceArray, datatype: DataType) -> int:
    return prod(array.shape) * datatype.size
