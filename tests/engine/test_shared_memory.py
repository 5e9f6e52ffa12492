"""The regions of clients' shared memory: registering, status, what a request makes of them, and when they go."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halimede.engine.shared_memory import SharedMemory
from halimede.engine_port import (
    CudaMemoryStatus,
    CudaRegion,
    Query,
    RegionKind,
    RegisterCudaMemory,
    RegisterSystemMemory,
    SystemMemoryStatus,
    SystemRegion,
    UnregisterMemory,
)
from halimede.errors import AlreadyExists, Error, Internal, Invalid, NotFound, Unavailable, Unsupported
from halimede.platform.cuda import CudaError, IpcMemory
from halimede.platform.segments import Segment
from halimede.requests import InferRequest
from halimede.tensors import UINT8, HostMemory, MemoryKind, RegionReference, Tensor

PAGE = 4096
MOST = 2**64 - 1
ALL_SYSTEM, ALL_CUDA = UnregisterMemory(RegionKind.SYSTEM), UnregisterMemory(RegionKind.CUDA)


class FakeMemory(IpcMemory):
    """Device memory that is a bytearray; `broken` is what the driver says to everything."""

    def __init__(self, byte_size: int) -> None:
        self.bytes = bytearray(byte_size)
        self.device_id = 3
        self.byte_size = byte_size
        self.broken = ""
        self.closed = False
        self.reads = 0

    def _check(self) -> None:
        assert not self.closed
        if self.broken:
            raise CudaError(self.broken)

    def read(self, start: int, stop: int) -> bytearray:
        self._check()
        self.reads += 1
        return self.bytes[start:stop]

    def write(self, start: int, source: memoryview) -> None:
        self._check()
        self.bytes[start : start + len(source)] = source

    def close(self) -> None:
        self._check()
        self.closed = True


class FakeDriver:
    """Opens every handle but an empty one."""

    def __init__(self) -> None:
        self.opened: list[FakeMemory] = []

    def open(self, handle: bytes, device_id: int) -> IpcMemory:
        if not handle:
            raise CudaError("CUDA_ERROR_INVALID_VALUE")
        self.opened.append(FakeMemory(100))
        return self.opened[-1]


class Rig:
    """Regions over a folder with the segment `s` of two pages."""

    def __init__(self, folder: Path, allowed: bool = True, gpus: bool = True, files: int = 1024) -> None:
        self.file = folder / "s"
        self.file.write_bytes(bytes(range(256)) * 32)
        self.driver = FakeDriver()
        load: Callable[[], FakeDriver] | None = (lambda: self.driver) if gpus else None
        self.regions = SharedMemory(allowed, load, lambda key: Segment(key, folder), files)

    def ask(self, query: Query[Any]) -> Any:
        return self.regions.answers[type(query)](query)

    def refused(self, query: Query[Any]) -> Error:
        with pytest.raises(Error) as caught:
            self.ask(query)
        return caught.value

    def register(self, name: str = "a", key: str = "/s", offset: int = 0, byte_size: int = 2 * PAGE) -> None:
        self.ask(RegisterSystemMemory(name, key, offset, byte_size))

    def names(self) -> list[str]:
        return [region.name for region in self.ask(SystemMemoryStatus())]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def request_with(*inputs: RegionReference, outputs: dict[str, RegionReference] | None = None) -> InferRequest:
    request = InferRequest("m")
    for i, reference in enumerate(inputs):
        request.inputs[f"IN{i}"] = Tensor(f"IN{i}", UINT8, (reference.byte_size,), reference)
    request.destinations = outputs
    request.in_regions = True
    return request


# Registering.


def test_region_is_registered_and_shown(rig: Rig) -> None:
    rig.register("b", "//s", PAGE, PAGE)
    rig.register("a")
    assert rig.ask(SystemMemoryStatus()) == [SystemRegion("a", "/s", 0, 2 * PAGE), SystemRegion("b", "//s", PAGE, PAGE)]
    assert rig.ask(SystemMemoryStatus("b")) == [SystemRegion("b", "//s", PAGE, PAGE)]
    assert rig.ask(CudaMemoryStatus()) == []


def test_number_of_regions_is_limited(tmp_path: Path) -> None:
    rig = Rig(tmp_path, files=24)
    for name in ("a", "b"):
        rig.register(name)
    rig.ask(RegisterCudaMemory("c", b"h", 0, 8))
    error = rig.refused(RegisterSystemMemory("d", "/s", 0, 8))
    assert isinstance(error, Unavailable)
    assert str(error) == (
        "cannot register shared memory region 'd': 3 regions are registered, which is the limit; unregister those that "
        "are not in use"
    )
    rig.ask(ALL_CUDA)
    rig.register("d")
    assert rig.names() == ["a", "b", "d"]


def test_one_segment_under_two_names(rig: Rig) -> None:
    rig.register("a")
    rig.register("b")
    assert rig.names() == ["a", "b"]


@pytest.mark.parametrize(
    ("query", "kind", "text"),
    [
        (RegisterSystemMemory("a", "/s", 0, 8), AlreadyExists, "shared memory region 'a' already in manager"),
        (RegisterSystemMemory("a", "/nope", 0, 8), AlreadyExists, "shared memory region 'a' already in manager"),
        (RegisterCudaMemory("a", b"h", 0, 8), AlreadyExists, "shared memory region 'a' already in manager"),
        (RegisterSystemMemory("b", "/nope", 0, 8), Internal, "Unable to open shared memory region: '/nope'"),
        (RegisterSystemMemory("b", "/../s", 0, 8), Internal, "Unable to open shared memory region: '/../s'"),
        (RegisterSystemMemory("b", "", 0, 8), Invalid, "cannot register shared memory region 'b' - invalid shm key ''"),
        (
            RegisterSystemMemory("a", "//", 0, 8),
            Invalid,
            "cannot register shared memory region 'a' - invalid shm key '//'",
        ),
        (
            RegisterSystemMemory("b", "//triton_python_backend_shm_region_1", 0, 8),
            Invalid,
            "cannot register shared memory region 'b' with key '//triton_python_backend_shm_region_1' as the key "
            "contains the reserved prefix 'triton_python_backend_shm_region_'",
        ),
        *(
            (
                RegisterSystemMemory("b", "/s", offset, size),
                Invalid,
                "failed to register shared memory region 'b': invalid args",
            )
            for offset, size in ((0, 2 * PAGE + 1), (PAGE, PAGE + 1), (2 * PAGE, 1), (0, MOST), (MOST - 7, 8))
        ),
        *(
            (
                RegisterSystemMemory("b", "/s", offset, size),
                Invalid,
                "failed to register shared memory region 'b': unable to process address spaceInvalid argument",
            )
            for offset, size in ((7, 8), (0, 0), (2 * PAGE, 0))
        ),
        (RegisterCudaMemory("b", b"", 0, 8), Invalid, "failed to register shared memory region: invalid args"),
        (RegisterCudaMemory("b", b"h", 0, 101), Invalid, "failed to register shared memory region 'b': invalid args"),
    ],
)
def test_registration_refused(rig: Rig, query: Query[Any], kind: type[Error], text: str) -> None:
    rig.register("a")
    error = rig.refused(query)
    assert (type(error), error.message) == (kind, text)
    assert rig.names() == ["a"]
    assert rig.ask(CudaMemoryStatus()) == []


def test_device_memory_that_is_too_small_is_closed_again(rig: Rig) -> None:
    rig.refused(RegisterCudaMemory("b", b"h", 0, 101))
    assert [memory.closed for memory in rig.driver.opened] == [True]


def test_device_memory_without_gpus(tmp_path: Path) -> None:
    error = Rig(tmp_path, gpus=False).refused(RegisterCudaMemory("c", b"h", 0, 8))
    assert (type(error), error.message) == (
        Invalid,
        "failed to register CUDA shared memory region: 'c', GPUs not supported",
    )


@pytest.mark.rows("H90")
def test_regions_are_not_allowed_by_default(tmp_path: Path) -> None:
    rig = Rig(tmp_path, allowed=False)
    for query in (RegisterSystemMemory("a", "/s", 0, 8), RegisterCudaMemory("a", b"h", 0, 8), ALL_SYSTEM, ALL_CUDA):
        error = rig.refused(query)
        assert (type(error), error.message) == (
            Unsupported,
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
        )
    assert rig.ask(SystemMemoryStatus()) == []
    assert rig.refused(CudaMemoryStatus("a")).message == "Unable to find cuda shared memory region: 'a'"


# Status and the end of a region.


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (SystemMemoryStatus("x"), "Unable to find system shared memory region: 'x'"),
        (CudaMemoryStatus("x"), "Unable to find cuda shared memory region: 'x'"),
        (
            SystemMemoryStatus("c"),
            "The region named 'c' is registered as CUDA shared memory, not system shared memory",
        ),
        (CudaMemoryStatus("a"), "The region named 'a' is registered as system shared memory, not CUDA shared memory"),
    ],
)
def test_status_of_another_region(rig: Rig, query: Query[Any], text: str) -> None:
    rig.register("a")
    rig.ask(RegisterCudaMemory("c", b"h", 3, 50))
    error = rig.refused(query)
    assert (type(error), error.message) == (NotFound, text)


def test_device_region_is_shown(rig: Rig) -> None:
    rig.ask(RegisterCudaMemory("c", b"h", 3, 50))
    assert rig.ask(CudaMemoryStatus()) == rig.ask(CudaMemoryStatus("c")) == [CudaRegion("c", 3, 50)]


@pytest.mark.rows("H94")
def test_input_on_a_gpu_is_readable_after_its_region_is_closed(rig: Rig) -> None:
    rig.ask(RegisterCudaMemory("c", b"h", 0, 8))
    (device,) = rig.driver.opened
    device.bytes[:4] = b"abcd"
    request = request_with(RegionReference("c", 0, 4))
    lease = rig.regions.resolve(request)
    (answer,) = request.inputs.values()  # as a model that returns its inputs, in an answer that another thread encodes
    rig.ask(ALL_CUDA)
    assert not device.closed
    rig.regions.end(lease)
    assert device.closed
    assert bytes(answer.memory.host()) == b"abcd"


def test_regions_are_unregistered_by_name_or_kind(rig: Rig) -> None:
    for name in ("a", "b"):
        rig.register(name)
    rig.ask(RegisterCudaMemory("c", b"h", 0, 8))
    rig.ask(UnregisterMemory(RegionKind.CUDA, "a"))
    rig.ask(UnregisterMemory(RegionKind.SYSTEM, "nope"))
    assert rig.names() == ["a", "b"]
    rig.ask(UnregisterMemory(RegionKind.SYSTEM, "a"))
    rig.ask(UnregisterMemory(RegionKind.SYSTEM, "a"))
    assert rig.names() == ["b"]
    rig.ask(ALL_SYSTEM)
    assert (rig.names(), len(rig.ask(CudaMemoryStatus()))) == ([], 1)
    rig.ask(ALL_CUDA)
    assert rig.ask(CudaMemoryStatus()) == []
    assert rig.driver.opened[0].closed


def test_regions_that_cannot_be_closed_are_named(rig: Rig) -> None:
    for name in ("c", "d", "e"):
        rig.ask(RegisterCudaMemory(name, b"h", 0, 8))
    rig.driver.opened[0].broken = rig.driver.opened[2].broken = "CUDA_ERROR_X"
    error = rig.refused(UnregisterMemory(RegionKind.CUDA, "c"))
    assert (type(error), error.message) == (Internal, "failed to close CUDA IPC handle: CUDA_ERROR_X")
    error = rig.refused(ALL_CUDA)
    assert error.message == "Failed to unregister the following cuda shared memory regions: c ,e ,"
    assert [region.name for region in rig.ask(CudaMemoryStatus())] == ["c", "e"]


def test_region_in_use_goes_with_its_last_user(rig: Rig) -> None:
    rig.register("a")
    leases = [rig.regions.resolve(request_with(RegionReference("a", 0, 8))) for _ in range(2)]
    rig.ask(ALL_SYSTEM)
    assert rig.names() == ["a"]
    assert rig.refused(RegisterSystemMemory("a", "/s", 0, 8)).message == "shared memory region 'a' already in manager"
    rig.regions.end(leases[0])
    assert rig.names() == ["a"]
    rig.regions.end(leases[1])
    assert rig.names() == []


def test_all_regions_go_with_the_server(rig: Rig) -> None:
    rig.register("a")
    rig.ask(RegisterCudaMemory("c", b"h", 0, 8))
    rig.regions.close()
    assert rig.names() == []
    assert rig.driver.opened[0].closed


# Requests.


def test_input_is_copied_once_and_when_it_is_read(rig: Rig) -> None:
    rig.register("a", offset=PAGE, byte_size=PAGE)
    request = request_with(RegionReference("a", 4, 3), RegionReference("a", 0, PAGE))
    request.inputs["HOST"] = Tensor("HOST", UINT8, (1,), HostMemory(b"x"))
    rig.regions.resolve(request)
    memory = request.inputs["IN0"].memory
    assert (memory.kind, memory.byte_size) == (MemoryKind.SHARED, 3)
    assert list(request.inputs) == ["IN0", "IN1", "HOST"]
    with rig.file.open("r+b") as file:
        file.seek(PAGE + 5)
        file.write(b"!")
    assert bytes(memory.host()) == b"\4!\6"
    os.truncate(rig.file, 0)
    assert bytes(memory.host()) == b"\4!\6"
    crossed = pickle.loads(pickle.dumps(memory))
    assert (type(crossed), bytes(crossed.host())) == (HostMemory, b"\4!\6")


def test_output_is_written_to_the_segment(rig: Rig) -> None:
    rig.register("a", offset=PAGE, byte_size=PAGE)
    lease = rig.regions.resolve(request_with(outputs={"OUT": RegionReference("a", 4, 3)}))
    destination = lease.destinations["OUT"]
    assert destination.byte_size == 3
    destination.write(HostMemory(b"ab"))
    assert rig.file.read_bytes()[PAGE + 3 : PAGE + 8] == b"\3ab\6\7"


def test_output_that_is_an_input_is_copied_between_the_segments(rig: Rig) -> None:
    rig.register("a", byte_size=PAGE)
    request = request_with(RegionReference("a", 4, 3), outputs={"OUT": RegionReference("a", 64, 3)})
    lease = rig.regions.resolve(request)
    lease.destinations["OUT"].write(request.inputs["IN0"].memory)
    assert rig.file.read_bytes()[63:68] == b"\x3f\4\5\6\x43"


@pytest.mark.parametrize(
    ("reference", "kind", "text"),
    [
        (RegionReference("nope", 0, 8), NotFound, "Unable to find shared memory region: 'nope'"),
        (RegionReference("", 0, 8), NotFound, "Unable to find shared memory region: ''"),
        (RegionReference("a", 2 * PAGE, 0), Invalid, "Invalid offset for shared memory region: 'a'"),
        (RegionReference("a", MOST, MOST), Invalid, "Invalid offset for shared memory region: 'a'"),
        (RegionReference("a", PAGE, PAGE + 1), Invalid, "Invalid offset + byte size for shared memory region: 'a'"),
        (RegionReference("a", 0, MOST), Invalid, "Invalid offset + byte size for shared memory region: 'a'"),
        (
            RegionReference("a", 4, MOST - 3),
            Invalid,
            f"Integer overflow detected: byte_size ({MOST - 3}) + offset (4) exceeds maximum value ({MOST}) "
            "for region 'a'",
        ),
    ],
)
def test_reference_that_leads_nowhere(rig: Rig, reference: RegionReference, kind: type[Error], text: str) -> None:
    rig.register("a")
    good = RegionReference("a", 0, 8)
    for request in (request_with(good, reference), request_with(good, outputs={"OUT": reference})):
        with pytest.raises(Error) as caught:
            rig.regions.resolve(request)
        assert (type(caught.value), caught.value.message) == (kind, text)
    rig.ask(ALL_SYSTEM)
    assert rig.names() == [], "a request that was refused holds a region"


@given(
    offset=st.integers(0, MOST) | st.integers(0, 2 * PAGE),
    size=st.integers(0, MOST) | st.integers(0, 2 * PAGE),
    begin=st.sampled_from([0, PAGE]),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_reference_never_leads_out_of_its_region(tmp_path: Path, offset: int, size: int, begin: int) -> None:
    rig = Rig(tmp_path)
    rig.register("a", offset=begin, byte_size=PAGE)
    request = request_with(RegionReference("a", offset, size))
    try:
        rig.regions.resolve(request)
    except (Invalid, NotFound):
        assert offset >= PAGE or offset + size > PAGE
    else:
        content = (bytes(range(256)) * 32)[begin : begin + PAGE][offset : offset + size]
        assert bytes(request.inputs["IN0"].memory.host()) == content
        assert len(content) == size


def test_segment_that_its_client_made_shorter(rig: Rig) -> None:
    rig.register("a")
    os.truncate(rig.file, PAGE)
    with pytest.raises(Invalid, match=r"Invalid offset \+ byte size for shared memory region: 'a'"):
        rig.regions.resolve(request_with(RegionReference("a", PAGE, 8)))
    lease = rig.regions.resolve(request_with(outputs={"OUT": RegionReference("a", PAGE, 8)}))
    with pytest.raises(Internal, match="failed to write to shared memory region 'a': the segment has become shorter"):
        lease.destinations["OUT"].write(HostMemory(b"ab"))


def test_segment_that_its_client_made_shorter_meanwhile(rig: Rig) -> None:
    rig.register("a")
    request = request_with(RegionReference("a", PAGE, 8), outputs={"OUT": RegionReference("a", 0, 8)})
    lease = rig.regions.resolve(request)
    memory, destination = request.inputs["IN0"].memory, lease.destinations["OUT"]
    os.truncate(rig.file, PAGE)
    with pytest.raises(Invalid, match=r"Invalid offset \+ byte size for shared memory region: 'a'"):
        memory.host()
    with pytest.raises(Internal, match="failed to write to shared memory region 'a': the segment has become shorter"):
        destination.write(memory)
    os.truncate(rig.file, 0)
    with pytest.raises(Internal, match="failed to write to shared memory region 'a': the segment has become shorter"):
        destination.write(HostMemory(b"ab"))


def test_device_memory_is_copied_once_and_by_request(rig: Rig) -> None:
    rig.ask(RegisterCudaMemory("c", b"h", 3, 50))
    [device] = rig.driver.opened
    device.bytes[10:13] = b"abc"
    request = request_with(RegionReference("c", 10, 3), outputs={"OUT": RegionReference("c", 20, 4)})
    lease = rig.regions.resolve(request)
    memory = request.inputs["IN0"].memory
    assert (memory.kind, memory.device_id, memory.byte_size, device.reads) == (MemoryKind.DEVICE, 3, 3, 0)
    assert bytes(memory.host()) == bytes(memory.host()) == b"abc"
    assert device.reads == 1
    assert bytes(pickle.loads(pickle.dumps(memory)).host()) == b"abc"
    lease.destinations["OUT"].write(HostMemory(b"xy"))
    assert bytes(device.bytes[20:23]) == b"xy\0"


def test_device_memory_that_fails(rig: Rig) -> None:
    rig.ask(RegisterCudaMemory("c", b"h", 3, 50))
    request = request_with(RegionReference("c", 0, 3), outputs={"OUT": RegionReference("c", 20, 4)})
    lease = rig.regions.resolve(request)
    rig.driver.opened[0].broken = "CUDA_ERROR_X"
    with pytest.raises(Internal, match="failed to read from shared memory region 'c': CUDA_ERROR_X"):
        request.inputs["IN0"].memory.host()
    with pytest.raises(Internal, match="failed to write to shared memory region 'c': CUDA_ERROR_X"):
        lease.destinations["OUT"].write(HostMemory(b"xy"))
