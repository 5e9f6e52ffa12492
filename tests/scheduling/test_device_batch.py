"""Batches on a device: where parts are put together, where outputs are split, and which copies that takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from halimede.backends.testing.devices import FakeArray, FakeDevice
from halimede.devices import HOST, DeviceMemory, Place, as_error, place_of
from halimede.errors import Error, Internal, Invalid
from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import Inference
from halimede.tensors import FP32, HostMemory, MemoryKind, Tensor, array_of, tensor_of
from tests.fakes import UnreachableMemory, inference


def on_host(*values: float) -> Tensor:
    return tensor_of("x", FP32, np.array([values], np.float32).reshape(-1, 1))


def on_device(device: FakeDevice, *values: float) -> Tensor:
    array = FakeArray(np.array([values], np.float32).reshape(-1, 1), device.place.device_id)
    return Tensor("x", FP32, (len(values), 1), DeviceMemory(array, 4 * len(values), device))


def asking(*tensors: Tensor, takes_device: bool = False) -> list[Inference]:
    requests = [inference(batch_size=tensor.shape[0], inputs=[tensor], outputs=["y"]) for tensor in tensors]
    for one in requests:
        one.request.on_device = takes_device
    return requests


def execution(requests: Sequence[Inference]) -> tuple[Execution, list[Execution]]:
    told: list[Execution] = []
    return Execution(requests, 1, 0, {"y": FP32, "z": FP32}, False, told.append), told


def output(device: FakeDevice, *values: float) -> FakeArray:
    return FakeArray(np.array(values, np.float32).reshape(-1, 1), device.place.device_id)


def answers(batch: Execution) -> list[Any]:
    """The values of each answer, by the order of requests; an error as it is."""
    said = sorted(batch.single_answers(), key=lambda outcome: outcome.i)
    found: list[Any] = []
    for outcome in said:
        if isinstance(outcome.answer, Error) or outcome.answer is None:
            found.append(outcome.answer)
        else:
            found.append([array_of(tensor).reshape(-1).tolist() for tensor in outcome.answer])
    return found


def test_parts_on_the_host_are_gathered_into_an_array_of_the_backend() -> None:
    batch, _ = execution(asking(on_host(1), on_host(2, 3)))
    into = np.empty(batch.shape("x"), np.float32)
    batch.gather("x", into)
    assert into.reshape(-1).tolist() == [1, 2, 3]
    assert batch.input_end


def test_parts_are_gathered_on_the_device_they_are_on() -> None:
    device = FakeDevice()
    batch, _ = execution(asking(on_device(device, 1), on_host(2), on_device(device, 3)))
    into = device.empty(batch.shape("x"), FP32)
    batch.gather("x", into, device)
    device.run()
    assert into.elements.reshape(-1).tolist() == [1, 2, 3]
    assert device.begun == ["device to device", "host to device", "device to device"]
    assert device.copies.value == 0


def test_part_of_another_device_comes_by_the_host_and_is_counted_there() -> None:
    here, there = FakeDevice(0), FakeDevice(1, eager=True)
    batch, _ = execution(asking(on_device(there, 5)))
    into = here.empty(batch.shape("x"), FP32)
    batch.gather("x", into, here)
    here.run()
    assert into.elements.reshape(-1).tolist() == [5]
    assert (here.copies.value, there.copies.value) == (0, 1)


def test_part_on_a_device_is_copied_once_for_a_backend_of_the_host() -> None:
    device = FakeDevice(eager=True)
    batch, _ = execution(asking(on_device(device, 1, 2)))
    assert batch.arrays()["x"].reshape(-1).tolist() == [1, 2]
    assert batch.arrays()["x"].reshape(-1).tolist() == [1, 2]
    assert device.copies.value == 1


def test_parts_are_shown_and_not_copied() -> None:
    memory = UnreachableMemory(4)
    [tensor] = execution(asking(Tensor("x", FP32, (1, 1), memory)))[0].parts("x")
    assert tensor.memory is memory


@pytest.mark.parametrize("shape", [(2, 1), (3,), (3, 2)])
def test_array_of_the_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    batch, _ = execution(asking(on_host(1), on_host(2, 3)))
    with pytest.raises(Invalid):
        batch.gather("x", np.empty(shape, np.float32))


def test_array_on_a_device_needs_its_device() -> None:
    batch, _ = execution(asking(on_host(1)))
    with pytest.raises(Internal):
        batch.gather("x", output(FakeDevice(), 0))


def test_output_for_the_host_is_copied_once_for_all_requests() -> None:
    device = FakeDevice()
    batch, told = execution(asking(on_host(1), on_host(2, 3)))
    batch.scatter({"y": output(device, 10, 20, 30)}, device)
    batch.finished()
    assert (told, answers(batch)) == ([batch], [])  # the instance is free, and the answers are on their way
    device.run()
    assert len(told) == 3
    assert answers(batch) == [[[10]], [[20, 30]]]
    assert (device.begun, device.copies.value) == (["device to host"], 1)


def test_output_for_a_reader_on_the_device_is_not_copied() -> None:
    device = FakeDevice(eager=True)
    batch, _ = execution(asking(on_host(1), on_host(2, 3), takes_device=True))
    batch.scatter({"y": output(device, 10, 20, 30)}, device)
    batch.finished()
    assert device.begun == []
    first, second = sorted(batch.single_answers(), key=lambda outcome: outcome.i)
    assert isinstance(second.answer, list)
    memory = second.answer[0].memory
    assert isinstance(memory, DeviceMemory)
    assert (memory.kind, memory.device_id, memory.byte_size, second.answer[0].shape) == (
        *(MemoryKind.DEVICE, 0, 8),
        (2, 1),
    )
    assert memory.host().tobytes() == np.array([20, 30], np.float32).tobytes()
    assert device.copies.value == 1
    assert isinstance(memory.__reduce__()[1][0], bytes)
    assert first.final


def test_outputs_of_the_host_and_of_the_device_may_come_together() -> None:
    device = FakeDevice(eager=True)
    requests = asking(on_host(1), takes_device=True)
    requests[0].outputs = ["z", "y"]
    batch, _ = execution(requests)
    batch.scatter({"y": output(device, 4), "z": np.array([[5]], np.float32)}, device)
    batch.finished()
    [outcome] = batch.single_answers()
    assert isinstance(outcome.answer, list)
    assert [type(tensor.memory) for tensor in outcome.answer] == [HostMemory, DeviceMemory]


def test_output_that_was_not_requested_is_not_copied() -> None:
    device = FakeDevice(eager=True)
    batch, _ = execution(asking(on_host(1)))
    batch.scatter({"y": output(device, 4), "z": output(device, 5)}, device)
    assert device.copies.value == 1


def test_output_without_the_rows_of_the_batch_fails_before_any_copy() -> None:
    device = FakeDevice()
    batch, _ = execution(asking(on_host(1), on_host(2)))
    with pytest.raises(Internal, match="for a batch of 2"):
        batch.scatter({"y": output(device, 1)}, device)
    assert device.begun == []


def test_failure_of_the_device_fails_the_requests(caplog: pytest.LogCaptureFixture) -> None:
    device = FakeDevice()
    batch, _ = execution(asking(on_host(1), on_host(2)))
    batch.scatter({"y": output(device, 1, 2)}, device)
    batch.finished()
    device.failure = RuntimeError("an illegal memory access was encountered")
    device.run()
    assert [str(error) for error in answers(batch)] == ["RuntimeError: an illegal memory access was encountered"] * 2
    assert len(caplog.records) == 1


def test_memory_of_a_device_that_fails_raises() -> None:
    device = FakeDevice(eager=True)
    device.failure = OSError("gone")
    with pytest.raises(Internal, match="OSError: gone"):
        on_device(device, 1).memory.host()


def test_place_of_an_array_is_what_it_says_of_itself() -> None:
    assert place_of(np.zeros(1)) == HOST
    assert place_of(output(FakeDevice(3))) == Place(MemoryKind.DEVICE, 3)


def test_failure_that_is_an_error_keeps_its_kind() -> None:
    error = Invalid("x")
    assert as_error(error) is error


def test_output_that_the_configuration_does_not_have_is_refused_before_anything_is_copied() -> None:
    device = FakeDevice(eager=True)
    batch, _ = execution(asking(on_host(1)))
    with pytest.raises(Internal, match="returned output 'w', but the configuration has: 'y', 'z'"):
        batch.scatter({"w": output(device, 1)}, device)
    assert not device.begun


def test_output_on_the_host_of_another_dtype_fails_its_requests() -> None:
    device = FakeDevice(eager=True)
    batch, _ = execution(asking(on_host(1), on_host(2)))
    batch.scatter({"y": np.zeros((2, 1), np.int32)}, device)
    batch.finished()
    text = "tensor 'y' of type FP32 needs an array of float32, got int32"
    assert [str(error) for error in answers(batch)] == [text, text]
