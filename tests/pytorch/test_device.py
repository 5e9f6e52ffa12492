"""`TorchDevice` and its instances without a GPU: torch's CPU tensors, streams and events that a test controls."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from halimede.backends.api import Backend, BackendContext
from halimede.backends.pytorch import models as torch_models
from halimede.backends.pytorch.backend import PyTorchBackend
from halimede.backends.pytorch.device import TorchDevice
from halimede.backends.testing import SITUATIONS, Situation
from halimede.backends.testing.bench import bench_of
from halimede.devices import CopyCounter
from halimede.tensors import BF16, FP32, MemoryKind
from tests.backends.contract.checking import check
from tests.pytorch.test_contract import ScriptAdapter


class FakeStream:
    def __init__(self, device: Any) -> None:
        self.device = device

    def query(self) -> bool:
        return True


class FakeEvent:
    """Has happened when the gate of its `FakeCuda` is open."""

    def __init__(self, cuda: "FakeCuda") -> None:
        self._cuda = cuda

    def record(self, stream: FakeStream) -> None:
        """The stream has nothing to do."""

    def synchronize(self) -> None:
        assert self._cuda.gate.wait(60)
        if self._cuda.failure is not None:
            raise self._cuda.failure


class FakeCuda:
    """What `TorchDevice` uses of `torch.cuda`."""

    Stream = FakeStream

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.gate = Event()

    def Event(self, blocking: bool) -> FakeEvent:  # noqa: N802 - its name in torch
        assert blocking, "a thread that waits would take a core"
        return FakeEvent(self)

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        yield


class OnCpu(TorchDevice):
    """A device whose memory is the host's, which cannot be pinned without a GPU."""

    def __init__(self, number: int, copies: CopyCounter, cuda: Any = None) -> None:
        if cuda is None:
            cuda = FakeCuda()
            cuda.gate.set()
        super().__init__(number, copies, cuda, "cpu")

    def _pinned(self, byte_size: int) -> Any:
        return torch.full((byte_size,), 0xEE, dtype=torch.uint8)


@pytest.fixture
def device() -> Iterator[OnCpu]:
    made = OnCpu(3, CopyCounter())
    yield made
    made.close()


def test_copies_are_of_bytes(device: OnCpu) -> None:
    """One of the two may be the bytes of the other."""
    there: Any = device.empty((2, 3), FP32)
    device.copy(there, np.arange(6, dtype=np.float32).reshape(2, 3))
    back = device.pinned(24)
    device.copy(back, there)
    assert back.view(np.float32).tolist() == [0, 1, 2, 3, 4, 5]
    rows: Any = device.rows(there, 1, 2)
    assert rows.tolist() == [[3, 4, 5]]
    half: Any = device.empty((2,), BF16)
    device.copy(half, np.array([0x3F80, 0x4000], np.uint16))
    assert half.tolist() == [1, 2]
    assert device.place == (MemoryKind.DEVICE, 3)


def test_arrays_of_another_runtime_come_by_dlpack(device: OnCpu) -> None:
    class Other:
        shape = (2,)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, **options: Any) -> Any:
            return torch.tensor([5.0, 6.0]).__dlpack__()

    into: Any = device.empty((2,), FP32)
    device.copy(into, Other())
    assert into.tolist() == [5, 6]


class Told:
    """What `ready` was told."""

    def __init__(self) -> None:
        self.happened = Event()
        self.failure: Exception | None = None

    def __call__(self, failure: Exception | None) -> None:
        self.failure = failure
        self.happened.set()


def test_ready_waits_for_the_event_on_a_thread_of_the_device() -> None:
    cuda, told = FakeCuda(), Told()
    device = OnCpu(0, CopyCounter(), cuda)
    device.ready(told)
    assert not told.happened.is_set()
    cuda.gate.set()
    assert told.happened.wait(60)
    assert told.failure is None
    device.close()


def test_failure_of_the_device_reaches_the_reader() -> None:
    cuda, told = FakeCuda(RuntimeError("CUDA error: an illegal memory access was encountered")), Told()
    cuda.gate.set()
    device = OnCpu(0, CopyCounter(), cuda)
    device.ready(told)
    assert told.happened.wait(60)
    words = "the GPU has failed, and this process cannot use it any more"
    assert str(told.failure) == f"{words}: CUDA error: an illegal memory access was encountered"
    assert device.broken
    device.close()


def test_gpu_that_fails_while_a_batch_starts_is_broken_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA repeats such an error, so the stream knows of it. Any other error of the model breaks nothing."""
    monkeypatch.setattr(torch_models, "TorchDevice", OnCpu)
    monkeypatch.setattr(torch_models, "_device_of", lambda kind, number: torch.device("cpu"))

    def fails(stream: FakeStream) -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA.")

    words = "the GPU has failed, and this process cannot use it any more"
    with bench_of(FakeGpuAdapter(), tmp_path) as bench:
        serving = bench.load("failing")
        assert "negative" in str(serving.send([-1, 0]).error)
        assert serving.instances[0].healthy
        serving.echoes([1, 2])
        monkeypatch.setattr(FakeStream, "query", fails)
        assert str(serving.send([-1, 0]).error) == f"{words}: CUDA error: device-side assert triggered"
        assert not serving.instances[0].healthy
        assert str(serving.send([1, 2]).error) == words


class OnFakeGpu(PyTorchBackend):
    """The backend with one GPU, whose memory is the host's."""

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self._gpus = 1


class FakeGpuAdapter(ScriptAdapter):
    cannot: Mapping[str, str] = {
        name: reason for name, reason in ScriptAdapter.cannot.items() if name != "tensors on a device"
    }

    def create(self, context: BackendContext) -> Backend:
        return OnFakeGpu(context)

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        return {"instance_group": [{"kind": "KIND_GPU", "gpus": [0]}], **super().write(role, version, shape)}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_instances_on_a_device_keep_the_contract(
    situation: Situation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_models, "TorchDevice", OnCpu)
    monkeypatch.setattr(torch_models, "_device_of", lambda kind, number: torch.device("cpu"))
    check(situation, FakeGpuAdapter(), tmp_path)
