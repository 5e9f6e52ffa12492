"""Values that the server gives to backends: shares of cores, and threads of the process."""

import pytest

from halimede.backends.api import CpuShare, ProcessThreads, cpu_share
from halimede.platform.hosts import available_cores


@pytest.mark.parametrize(("cores", "instances", "threads"), [(8, 1, 8), (8, 2, 4), (8, 3, 2), (2, 8, 1), (4, 0, 4)])
def test_share_of_an_instance_is_its_part_of_the_cores(cores: int, instances: int, threads: int) -> None:
    assert CpuShare(frozenset(range(cores)), instances).threads == threads


def test_share_is_of_the_cores_that_the_thread_may_use() -> None:
    assert cpu_share(0) == CpuShare(available_cores(), 1)


def test_threads_of_a_process_are_fixed_by_the_first_model(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    threads = ProcessThreads("torch")
    assert threads.fix("first", 4) == (4, True)
    assert threads.fix("same", 4) == (4, False)
    assert threads.fix("other", 2) == (4, False)
    assert [record.getMessage() for record in caplog.records] == [
        "backend 'torch' has 4 threads for the whole process, as model 'first' wants",
        "model 'other' wants 2 threads of backend 'torch', which has 4 for the whole process since model 'first' was "
        "loaded; set the same number for all models of this backend",
    ]
