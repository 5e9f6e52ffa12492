"""Values that the server gives to backends, base classes with their defaults, and the guard of asynchronous work."""

import asyncio
from dataclasses import replace

import pytest

from halimede.backends.api import (
    BackendContext,
    BaseBackend,
    BaseInstance,
    BaseModel,
    CpuShare,
    Placement,
    ProcessThreads,
    cpu_share,
    guarded,
)
from halimede.backends.traits import DeviceKind, Traits
from halimede.errors import Error, Internal, Invalid
from halimede.platform.hosts import available_cores
from halimede.scheduling.execution import Execution
from halimede.tensors import FP32
from tests.fakes import inference


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


def test_base_classes_have_the_defaults_of_a_simple_backend() -> None:
    loop = asyncio.new_event_loop()
    backend = BaseBackend(BackendContext(loop))
    loop.close()
    backend.traits = Traits("x")
    assert backend.usable_gpus((0, 1)) == ()
    backend.traits = replace(backend.traits, devices=frozenset({DeviceKind.GPU}))
    assert backend.usable_gpus((0, 1)) == (0, 1)
    model = BaseModel()
    assert (model.placement, model.inline_safe, model.in_flight, model.gathers) == (Placement.THREAD, False, 1, False)
    assert BaseInstance().healthy


@pytest.mark.parametrize(
    ("raised", "kind", "lines"), [(Invalid("not this"), Invalid, 0), (KeyError("nothing"), Internal, 1)]
)
def test_guarded_work_that_raises_fails_each_request_and_ends_the_batch(
    raised: Exception, kind: type[Error], lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    batch = Execution([inference(), inference()], 2, 0, {"x": FP32}, False, None)

    def work(i: int) -> None:
        batch.send(i, [])
        raise raised

    guarded(batch, work)(1)
    assert batch.done
    first, second = sorted(batch.single_answers(), key=lambda outcome: outcome.i)
    assert type(first.answer) is kind
    assert second.answer == []
    assert len(caplog.records) == lines  # an Error says what happened, and needs no traceback


def test_guarded_work_that_succeeds_ends_the_batch() -> None:
    batch = Execution([inference()], 1, 0, {"x": FP32}, False, None)
    guarded(batch, lambda: batch.send(0, []))()
    assert batch.done
    assert [outcome.answer for outcome in batch.single_answers()] == [[]]
