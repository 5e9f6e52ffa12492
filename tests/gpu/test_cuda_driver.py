"""The calls of CUDA's driver that the tensorrt backend makes, without TensorRT."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import numpy as np
import numpy.typing as npt
import pytest

from halimede.backends.tensorrt.cuda import Driver
from halimede.errors import Internal
from halimede.platform.gpus import compute_capability, visible_gpus
from tests.gpu.kernels import Kernels, importing

MIB = 1 << 20
LONG = 0.4
"""Seconds for which a stream is busy, so that work behind it is seen to wait."""


@contextmanager
def streams(driver: Driver, *priorities: int) -> Iterator[list[int]]:
    made = [driver.stream(priority) for priority in priorities]
    try:
        yield made
    finally:
        for each in made:
            driver.wait(each)
            driver.end_stream(each)


@contextmanager
def buffers(driver: Driver, size: int, host: int = 1, device: int = 1) -> Iterator[tuple[list[int], list[int]]]:
    """Pinned memory and memory of the GPU, of `size` bytes each."""
    pinned = [driver.allocate_pinned(size) for _ in range(host)]
    there = [driver.allocate(size) for _ in range(device)]
    try:
        yield pinned, there
    finally:
        for pointer in pinned:
            driver.free_pinned(pointer)
        for pointer in there:
            driver.free(pointer)


def numbers(pointer: int, count: int) -> npt.NDArray[np.float32]:
    """Memory of the host as an array."""
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(pointer))


@pytest.fixture
def current(driver: Driver) -> Iterator[None]:
    with driver.current():
        yield


@pytest.mark.usefixtures("current")
@pytest.mark.parametrize("count", [1, 1000, 16 * MIB])
def test_copies_between_host_and_device(driver: Driver, count: int) -> None:
    round_trip(driver, count)


def round_trip(driver: Driver, count: int) -> None:
    """Numbers go to the device, to another place there, and back."""
    size = 4 * count
    with buffers(driver, size, host=2, device=2) as ((given, found), (first, second)), streams(driver, 0) as [stream]:
        numbers(given, count)[...] = np.arange(count)
        numbers(found, count)[...] = -1
        driver.copy(first, given, size, stream)
        driver.copy(second, first, size, stream)
        driver.copy(found, second, size, stream)
        driver.wait(stream)
        np.testing.assert_array_equal(numbers(found, count), np.arange(count, dtype=np.float32))


@pytest.mark.usefixtures("current")
def test_copies_of_memory_that_is_not_pinned(driver: Driver) -> None:
    given, found = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    with buffers(driver, 4000, host=0) as (_, [there]), streams(driver, 0) as [stream]:
        driver.copy(there, given.ctypes.data, 4000, stream)
        driver.copy(found.ctypes.data, there, 4000, stream)
        driver.wait(stream)
    np.testing.assert_array_equal(found, given)


@pytest.mark.usefixtures("current")
def test_nothing_can_be_allocated_and_copied(driver: Driver) -> None:
    """As for a tensor without elements."""
    with buffers(driver, 0) as ([host], [there]), streams(driver, 0) as [stream]:
        assert host
        assert there
        driver.copy(there, host, 0, stream)
        driver.copy(host, there, 0, stream)
        driver.wait(stream)


@pytest.mark.usefixtures("current")
def test_copy_waits_for_its_stream_and_the_caller_does_not(driver: Driver, kernels: Kernels) -> None:
    with buffers(driver, 4096, host=2) as ((given, found), [there]), streams(driver, 0) as [stream]:
        numbers(given, 1024)[...] = 7
        numbers(found, 1024)[...] = 0
        began = time.monotonic()
        kernels.busy(LONG, stream)
        driver.copy(there, given, 4096, stream)
        driver.copy(found, there, 4096, stream)
        assert time.monotonic() - began < LONG / 2
        assert not numbers(found, 1024).any()
        driver.wait(stream)
        assert time.monotonic() - began >= LONG * 0.9
        assert (numbers(found, 1024) == 7).all()


@pytest.mark.usefixtures("current")
def test_streams_do_not_wait_for_each_other(driver: Driver, kernels: Kernels) -> None:
    """Nor does a stream wait for the default stream of the process, which other libraries use."""
    with buffers(driver, 4096, host=2) as ((given, found), [there]), streams(driver, 0, 0) as (busy, free):
        numbers(given, 1024)[...] = 5
        began = time.monotonic()
        for stream in (0, busy):
            kernels.busy(LONG, stream)
        driver.copy(there, given, 4096, free)
        driver.copy(found, there, 4096, free)
        driver.wait(free)
        assert time.monotonic() - began < LONG / 2
        assert (numbers(found, 1024) == 5).all()
        driver.wait(busy)
        driver.wait(0)
        assert LONG * 0.9 <= time.monotonic() - began < 2 * LONG


@pytest.mark.usefixtures("current")
def test_wait_lets_other_threads_run(driver: Driver, kernels: Kernels) -> None:
    with streams(driver, 0) as [stream], ThreadPoolExecutor(1) as pool:
        kernels.busy(LONG, stream)

        def waits() -> float:
            with driver.current():
                driver.wait(stream)
            return time.monotonic()

        waiting = pool.submit(waits)
        count = 0
        while not waiting.done():
            count += 1
            time.sleep(0.001)
        assert count > 50


@pytest.mark.usefixtures("current")
def test_priorities_are_limited_to_those_of_the_gpu(driver: Driver, kernels: Kernels) -> None:
    least, greatest, found = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    kernels.call("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    assert greatest.value < least.value
    with streams(driver, -(2**31), 0, 2**31 - 1) as made:
        seen = []
        for stream in made:
            kernels.call("cuStreamGetPriority", ctypes.c_void_p(stream), ctypes.byref(found))
            seen.append(found.value)
    assert seen == [greatest.value, 0, least.value]


@pytest.mark.usefixtures("current")
def test_graph_repeats_what_was_recorded(driver: Driver, kernels: Kernels) -> None:
    count = 1000
    with (
        buffers(driver, 4 * count, host=2, device=2) as ((given, found), (first, second)),
        streams(driver, 0, 0) as (stream, other),
    ):

        def work(on: int) -> None:
            driver.copy(first, given, 4 * count, on)
            kernels.twice(second, first, count, on)
            driver.copy(found, second, 4 * count, on)

        numbers(given, count)[...] = 1
        work(stream)
        driver.wait(stream)
        assert (numbers(found, count) == 2).all()
        numbers(given, count)[...] = 3
        with driver.record(stream) as made:
            work(stream)
        [graph] = made
        driver.wait(stream)
        assert (numbers(found, count) == 2).all(), "what is recorded does not run"
        for value, on in ((3, stream), (4, stream), (5, other)):
            numbers(given, count)[...] = value
            driver.launch(graph, on)
            driver.wait(on)
            assert (numbers(found, count) == 2 * value).all()
        driver.end_graph(graph)


@pytest.mark.usefixtures("current")
def test_stream_works_after_a_recording_that_failed(driver: Driver, kernels: Kernels) -> None:
    with buffers(driver, 4) as ([host], [there]), streams(driver, 0) as [stream]:
        with suppress(ZeroDivisionError), driver.record(stream):
            driver.copy(there, host, 4, stream)
            raise ZeroDivisionError
        # To wait for a stream that records is not permitted, and ends the recording.
        with pytest.raises(Internal, match=r"CUDA: cuStream.*: CUDA_ERROR_STREAM_CAPTURE_"), driver.record(stream):
            driver.wait(stream)
        numbers(host, 1)[...] = 4
        driver.copy(there, host, 4, stream)
        kernels.twice(there, there, 1, stream)
        driver.copy(host, there, 4, stream)
        driver.wait(stream)
        assert numbers(host, 1)[0] == 8


@pytest.mark.usefixtures("current")
def test_refusals_have_the_driver_s_words_and_change_nothing(driver: Driver) -> None:
    with pytest.raises(Internal, match=r"^CUDA: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY$"):
        driver.allocate(1 << 50)
    with pytest.raises(Internal, match=r"^CUDA: cuMemFree_v2: CUDA_ERROR_INVALID_VALUE$"):
        driver.free(4096)
    with pytest.raises(Internal, match=r"^CUDA: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE$"):
        Driver(99)
    round_trip(driver, 10)


def test_thread_without_the_gpu_is_refused(driver: Driver) -> None:
    def allocates() -> int:
        return driver.allocate(4)

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(Internal, match=r"^CUDA: cuMemAlloc_v2: CUDA_ERROR_INVALID_CONTEXT$"):
            pool.submit(allocates).result(60)

        def nested() -> None:
            with driver.current():
                with driver.current():
                    driver.free(driver.allocate(4))
                driver.free(driver.allocate(4))

        pool.submit(nested).result(60)
        with pytest.raises(Internal, match="CUDA_ERROR_INVALID_CONTEXT"):
            pool.submit(allocates).result(60)


def test_several_threads_use_the_gpu_at_once(driver: Driver, kernels: Kernels) -> None:
    count, together = 100_000, threading.Barrier(8)

    def serves(seed: int) -> None:
        with driver.current(), buffers(driver, 4 * count) as ([host], [there]), streams(driver, 0) as [stream]:
            together.wait(60)
            for turn in range(20):
                numbers(host, count)[...] = seed + turn
                driver.copy(there, host, 4 * count, stream)
                kernels.twice(there, there, count, stream)
                driver.copy(host, there, 4 * count, stream)
                driver.wait(stream)
                assert (numbers(host, count) == 2 * (seed + turn)).all()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(serves, 100 * seed) for seed in range(8)]:
            done.result(120)


@pytest.mark.usefixtures("current")
def test_memory_is_given_back(driver: Driver, kernels: Kernels) -> None:
    def free() -> int:
        left, whole = ctypes.c_size_t(), ctypes.c_size_t()
        kernels.call("cuMemGetInfo_v2", ctypes.byref(left), ctypes.byref(whole))
        return left.value

    driver.free(driver.allocate(256 * MIB))
    before = free()
    pointer = driver.allocate(256 * MIB)
    assert before - free() >= 256 * MIB
    driver.free(pointer)
    for _ in range(20):
        with buffers(driver, 256 * MIB, host=0):
            pass
    assert before - free() < 64 * MIB


@pytest.mark.usefixtures("current")
def test_context_is_that_of_torch(driver: Driver) -> None:
    """Both use the primary context, so memory of one is memory of the other."""
    torch = pytest.importorskip("torch")
    there = torch.arange(1000, dtype=torch.float32, device="cuda:0")
    torch.cuda.synchronize()
    with buffers(driver, 4000, device=0) as ([host], _), streams(driver, 0) as [stream]:
        driver.copy(host, there.data_ptr(), 4000, stream)
        driver.wait(stream)
        np.testing.assert_array_equal(numbers(host, 1000), np.arange(1000, dtype=np.float32))


def test_capability_is_that_of_nvidia_smi(gpus: list[dict[str, str]]) -> None:
    """It chooses the file of a model by `cc_model_filenames`."""
    assert visible_gpus(os.environ) == tuple(range(len(gpus)))
    assert [compute_capability(number) for number in range(len(gpus))] == [each["compute_cap"] for each in gpus]
    assert compute_capability(99) is None


BREAKING = """
from halimede.backends.tensorrt.cuda import Driver
from halimede.errors import Internal
from tests.gpu.kernels import Kernels

driver = Driver(0)
with driver.current():
    stream = driver.stream(0)
    Kernels().fail(stream)
    for work in (lambda: driver.wait(stream), lambda: driver.wait(stream), lambda: driver.allocate(4)):
        try:
            work()
            print("no error")
        except Internal as error:
            print(error)
"""


def test_failure_of_a_kernel_is_told_and_stays() -> None:
    """In a process of its own: nothing on the GPU works there afterwards."""
    command = [sys.executable, "-c", BREAKING]
    done = subprocess.run(command, env=importing(), capture_output=True, text=True, timeout=120, check=False)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout + done.stderr
    for line, name in zip(lines, ("cuStreamSynchronize", "cuStreamSynchronize", "cuMemAlloc_v2"), strict=True):
        assert line.startswith(f"CUDA: {name}: CUDA_ERROR_"), lines
