"""The contract suite: situations that a backend must handle, run against the server's own runner. It covers what the
server relies on. What only one runtime has (its file format, its parameters, its texts) needs tests of its own.

A test module of the backend gives an `Adapter` and runs each of `SITUATIONS` with it:

    @pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name)
    def test_contract(situation: Situation, tmp_path: Path) -> None:
        situation.check(MyAdapter(), tmp_path)

Needs no test framework. The backend need not be installed: the suite takes its traits from the backend that the adapter
makes, and never looks into the registry. `testing.child` runs the suite in child processes, `testing.devices` has a
device without hardware, and `testing.bench` has what situations of your own need.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

from halimede.backends.testing.bench import (
    PATIENCE,
    RELOADS,
    Adapter,
    Array,
    Bench,
    NotApplicable,
    SlowReader,
    bench_of,
    resources,
)
from halimede.backends.traits import Completes
from halimede.devices import DeviceMemory
from halimede.errors import Cancelled, Cause, Internal, Invalid
from halimede.tensors import BYTES, FP32, Tensor, tensor_of

__all__ = ["PATIENCE", "RELOADS", "SITUATIONS", "Adapter", "Bench", "NotApplicable", "Situation"]

_MS_TO_WAIT = 10_000


@dataclass(frozen=True)
class Situation:
    """A situation, and the role of the model in it. `check` raises AssertionError if the backend does not do what the
    contract says, NotApplicable if it cannot be in this situation."""

    name: str
    run: Callable[[Bench], None]
    role: str = "echo"

    def check(self, adapter: Adapter, folder: Path) -> None:
        with bench_of(adapter, folder) as bench:
            self.run(bench)


_WIDE = 512
"""Numbers in a row, so that a tensor is not so small that the server copies it anyway."""


def _wide(i: int) -> Array:
    """Two rows that differ from those of other numbers."""
    return np.arange(2 * _WIDE, dtype=np.float32).reshape(2, _WIDE) + i


def _until(reached: Callable[[], bool], failure: str, seconds: float) -> None:
    deadline = monotonic() + seconds
    while not reached():
        assert monotonic() < deadline, failure
        sleep(0.01)


_GATHERING: Mapping[str, Any] = {
    "dynamic_batching": {"preferred_batch_size": [6], "max_queue_delay_microseconds": 1000 * _MS_TO_WAIT}
}
"""A batch begins when there are six rows."""


def _batch_of_one(bench: Bench) -> None:
    serving = bench.load()
    serving.echoes([1, 2])
    serving.echoes([1, 2], [3, 4], [5, 6])
    assert serving.observer.rows == [1, 3]


def _batch_of_many(bench: Bench) -> None:
    serving = bench.load(**_GATHERING)
    rows: list[list[list[float]]] = [[[1, 2]], [[3, 4], [5, 6]], [[7, 8], [9, 10], [11, 12]]]
    replies = [serving.send(*each) for each in rows]
    for reply, each in zip(replies, rows, strict=True):
        serving.check(reply, each)
    assert serving.observer.rows == [6]


def _large_batch(bench: Bench) -> None:
    """Beyond the size up to which tensors are copied anyway."""
    serving = bench.load(width=4096, **_GATHERING)
    rows = [np.random.default_rng(i).random((2, 4096), np.float32) for i in range(3)]
    replies = [serving.ask(serving.input(each))[0] for each in rows]
    for reply, each in zip(replies, rows, strict=True):
        serving.check(reply, each)


def _without_batching(bench: Bench) -> None:
    serving = bench.load(max_batch_size=0)
    adapter, rows = bench.adapter, np.array([[1, 2]], np.float32)
    reply, _ = serving.ask(tensor_of(adapter.input, adapter.input_type, adapter.encode(rows)[0]))
    assert reply.outputs[0].tolist() == adapter.expected(rows)[0].tolist()


def _kept_answers(bench: Bench) -> None:
    """A client may read its answer late. The memory of an answer is not used again before."""
    serving = bench.load(width=_WIDE)
    replies = []
    for i in range(5):
        replies.append(serving.ask(serving.input(_wide(i)))[0])
        replies[-1].wait()
    for i, reply in enumerate(replies):
        serving.check(reply, _wide(i))


def _empty_tensor(bench: Bench) -> None:
    serving = bench.load(width=-1)
    rows = np.zeros((2, 0), np.float32)
    serving.check(serving.ask(serving.input(rows))[0], rows)


def _bytes(bench: Bench) -> None:
    adapter = bench.adapter
    sides = {"data_type": BYTES.config_name, "dims": [2]}
    serving = bench.load("bytes", input=[{"name": adapter.input, **sides}], output=[{"name": adapter.output, **sides}])
    elements = np.array([[b"", b"a"], ["\u00e9".encode(), b"x" * 5000]], object)
    reply, _ = serving.ask(tensor_of(adapter.input, BYTES, elements))
    assert reply.outputs[0].tolist() == elements.tolist()


def _ragged(bench: Bench) -> None:
    inputs = [bench.tensor("input", -1, allow_ragged_batch=True)]
    serving = bench.load("ragged", width=-1, input=inputs, **_GATHERING)
    sent = [np.full((1, 1 + i), i, np.float32) for i in range(6)]
    replies = [serving.ask(serving.input(each))[0] for each in sent]
    for reply, each in zip(replies, sent, strict=True):
        assert reply.outputs[0].reshape(-1)[: each.size].tolist() == each.reshape(-1).tolist()
    assert serving.observer.rows == [6]


def _optional_input_absent(bench: Bench) -> None:
    adapter = bench.adapter
    second = {"name": "INPUT1", "data_type": "TYPE_FP32", "dims": [2], "optional": True}
    serving = bench.load("optional", max_batch_size=0, input=[bench.tensor("input", 2), second])
    rows = np.array([[1, 2]], np.float32)
    tensor = tensor_of(adapter.input, adapter.input_type, adapter.encode(rows)[0])
    other = tensor_of("INPUT1", FP32, np.array([3, 4], np.float32))
    expected = adapter.expected(rows)[0].tolist()
    assert serving.ask(tensor)[0].outputs[0].tolist() == expected
    assert serving.ask(tensor, other)[0].outputs[0].tolist() == expected


def _null_rows(bench: Bench) -> None:
    """A sequence's slot without a request is a row that nobody reads."""
    ready = {"kind": "CONTROL_SEQUENCE_READY", "fp32_false_true": [0, 1]}
    sequences = {
        "direct": {"minimum_slot_utilization": 0},
        "control_input": [{"name": bench.adapter.ready, "control": [ready]}],
        "max_sequence_idle_microseconds": 1_000_000 * int(PATIENCE),
    }
    serving = bench.load("sequence", sequence_batching=sequences)
    for number in (1, 2):
        marks = {"correlation_id": number, "sequence_start": True}
        serving.check(serving.send([number, number], **marks), [[number, number]])
    serving.check(serving.send([5, 6], correlation_id=2), [[5, 6]])
    assert serving.observer.rows[-1] == 2, "the first slot has no request, and its row is missing"
    for number in (1, 2):
        serving.send([0, 0], correlation_id=number, sequence_end=True).wait()


def _cancelled_before(bench: Bench) -> None:
    serving = bench.load(**_GATHERING)
    reply, inference = serving.ask(serving.input([[1, 2]]))
    serving.cancel(inference)
    assert isinstance(reply.error, Cancelled)
    serving.echoes(*[[1, 2]] * 6)
    assert serving.observer.rows == [6]


def _cancelled_during(bench: Bench) -> None:
    serving = bench.load("slow")
    reply, inference = serving.ask(serving.input([[1, 2]]))
    serving.cancel(inference)
    bench.adapter.release()
    assert len(reply.wait()) == 1
    serving.echoes([3, 4])


def _noticed_cancellation(bench: Bench) -> None:
    """A long answer ends early if its client goes."""
    serving = bench.load("watching")
    reply, inference = serving.ask(serving.input([[1, 2]]))
    serving.cancel(inference)
    assert len(reply.wait(bench.adapter.patience)) == 1
    bench.adapter.release()
    serving.echoes([3, 4])


def _completion(bench: Bench) -> None:
    """`describe` gives a configuration without inputs and outputs those of the file."""
    if bench.backend.traits.completes is Completes.NEVER:
        raise NotApplicable("its configurations must be complete")
    serving = bench.load("complete", input=[], output=[])
    adapter, config = bench.adapter, serving.loaded.config
    assert [(spec.name, spec.datatype) for spec in config.inputs] == [(adapter.input, adapter.input_type)]
    assert [(spec.name, spec.datatype) for spec in config.outputs] == [(adapter.output, adapter.output_type)]
    serving.echoes([1, 2])


def _exception(bench: Bench) -> None:
    serving = bench.load("failing")
    error = serving.send([-1, 0]).error
    assert "negative" in str(error)
    serving.echoes([1, 0])
    serving.echoes([2, 0])


def _broken_file(bench: Bench) -> None:
    error = bench.failure("broken")
    assert error.cause is Cause.FILE, f"{error!r} does not blame the file: raise an Error with .blaming(Cause.FILE)"


def _wrong_output(role: str, bench: Bench) -> None:
    """Each request of the batch fails, and the model goes on."""
    serving = bench.load(role)
    for _ in range(2):
        error = serving.send([1, 2], [3, 4]).error
        assert isinstance(error, Internal | Invalid), error


def _rescheduled(bench: Bench) -> None:
    serving = bench.load("again", sequence_batching={"iterative_sequence": True})
    serving.echoes([1, 2])
    assert serving.observer.rows == [1, 1]


def _rescheduled_outside_of_an_iterative_sequence(bench: Bench) -> None:
    """Refused (S72), and not lost: the model closes. The END gives the sequence's slot to the next one."""
    cases: Sequence[tuple[dict[str, Any], dict[str, Any]]] = (
        ({}, {}),
        ({"sequence_batching": {"direct": {}}}, {"correlation_id": 1, "sequence_start": True, "sequence_end": True}),
    )
    for batching, marks in cases:
        serving = bench.load("again", **batching)
        error = serving.send([1, 2], **marks).error
        assert isinstance(error, Invalid), error
        assert "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE" in str(error), error
        bench.close(serving)


def _decoupled(bench: Bench) -> None:
    serving = bench.load("decoupled", model_transaction_policy={"decoupled": True})
    for number in (0, 1, 5):
        expected = bench.adapter.expected(np.array([[number, 7]], np.float32)).tolist()
        assert [each.tolist() for each in serving.send([number, 7]).outputs] == [expected] * number


_MANY = 3000
_AHEAD = 1024
"""Small responses that a producer may be ahead of a reader that takes nothing. A window holds 256 of them; a model in a
child process has a second window on its way."""


def _slow_reader(bench: Bench) -> None:
    """A client that does not read stops its model. It gets everything when it reads again."""
    serving = bench.load("decoupled", model_transaction_policy={"decoupled": True})
    reader = SlowReader(bench.adapter.output)
    serving.ask(serving.input([[_MANY, 7]]), reply=reader)
    reader.wait_until_still(_AHEAD)
    serving.read(reader)
    expected = bench.adapter.expected(np.array([[_MANY, 7]], np.float32)).tolist()
    outputs = reader.outputs
    assert len(outputs) == _MANY
    assert all(each.tolist() == expected for each in outputs)


def _close_while_running(bench: Bench) -> None:
    serving = bench.load("slow")
    reply = serving.send([1, 2])
    serving.retire()
    assert not reply.finals
    bench.adapter.release()
    serving.check(reply, [[1, 2]])
    bench.forget(serving)
    serving.close()


def _close_after_the_last_answer(bench: Bench) -> None:
    """A batch may run on after its last answer: its instance is closed when the batch has finished, not before."""
    serving = bench.load("lingering", model_transaction_policy={"decoupled": True})
    serving.check(serving.send([1, 2]), [[1, 2]])
    serving.retire()
    ended = serving.begin_close()
    assert not ended.done(), "the batch is said to have finished, but it still runs"
    bench.adapter.release()
    ended.result(PATIENCE)
    bench.forget(serving)
    serving.loaded.close()


def _reload(bench: Bench) -> None:
    """Loads and closes a model again and again. Nothing stays behind."""
    reloads, before = bench.adapter.reloads, dict[str, int]()
    for i in range(reloads):
        serving = bench.load()
        serving.echoes([i, i])
        bench.close(serving)
        if i == 1:  # what a process needs once is there now
            before = resources()
    # What is released late, such as the thread of an instance, is not counted as left: half of the reloads may.
    most = (reloads - 2) // 2
    for kind in before:
        text = f"after {reloads} reloads there are more {kind} than before: {before}, now {resources()}"
        _until(partial(_grew_little, kind, before[kind] + most), text, min(10.0, bench.adapter.patience))


def _grew_little(kind: str, most: int) -> bool:
    return resources()[kind] <= most


def _two_instances(bench: Bench) -> None:
    serving = bench.load(instance_group=[{"kind": "KIND_CPU", "count": 2}])
    assert len(serving.instances) == 2
    replies = [serving.send([i, i]) for i in range(20)]
    for i, reply in enumerate(replies):
        serving.check(reply, [[i, i]])


def _two_devices(bench: Bench) -> None:
    if list(bench.backend.usable_gpus((0, 1))) != [0, 1]:
        raise NotApplicable("the runtime as it is installed uses no GPU")
    serving = bench.load(instance_group=[{"kind": "KIND_GPU", "gpus": [0, 1]}])
    assert [place.device_id for place in serving.loaded.places] == [0, 1]
    replies = [serving.send([i, i]) for i in range(20)]
    for i, reply in enumerate(replies):
        serving.check(reply, [[i, i]])


def _several_in_flight(bench: Bench) -> None:
    """`execute` starts a batch and returns, until the instance has `in_flight` batches. All of them wait for `release`.
    Each has its own memory. Each output on a device is copied to the host once."""
    serving = bench.load("slow", width=_WIDE)
    most, [instance] = serving.loaded.model.in_flight, serving.counted
    if most < 2:
        raise NotApplicable("an instance has one batch at a time")
    rows = [_wide(i) for i in range(1, most + 2)]
    replies = [serving.ask(serving.input(each))[0] for each in rows]
    failure = f"`execute` did not return {most} times before a batch had ended"
    _until(lambda: instance.returned >= most, failure, bench.adapter.patience)
    assert instance.begun == most
    assert not any(reply.finals for reply in replies)
    bench.adapter.release()
    for reply, each in zip(replies, rows, strict=True):
        serving.check(reply, each)
    assert serving.copies in (None, len(replies))


def _tensors_on_a_device(bench: Bench) -> None:
    """Outputs stay on the device for a reader there, and are inputs of the next batch without a copy to the host."""
    gpus = list(bench.backend.usable_gpus((0, 1)))
    group = {"kind": "KIND_GPU", "gpus": gpus[:1]} if gpus else {"kind": "KIND_CPU"}
    serving = bench.load(instance_group=[{**group, "count": 1}], **_GATHERING)
    adapter = bench.adapter
    if serving.copies is None or not adapter.echoes_tensors:
        raise NotApplicable("it has no device" if serving.copies is None else "its outputs cannot be its inputs")
    rows = [[[1, 2]], [[3, 4], [5, 6]], [[7, 8], [9, 10], [11, 12]]]
    tensors = [serving.input(each) for each in rows]
    for _ in range(2):
        replies = [serving.ask(tensor, on_device=True)[0] for tensor in tensors]
        outputs = [reply.tensors[0] for reply in replies]
        assert all(isinstance(each.memory, DeviceMemory) for each in outputs), "an output is not on the device"
        tensors = [Tensor(adapter.input, each.datatype, each.shape, each.memory) for each in outputs]
    assert serving.copies == 0
    replies = [serving.ask(tensor)[0] for tensor in tensors]
    for reply, each in zip(replies, rows, strict=True):
        serving.check(reply, each)
    assert serving.copies == 1
    assert serving.observer.rows == [6, 6, 6]


def _killed_child(bench: Bench) -> None:
    serving = bench.load("slow")
    [instance] = serving.instances
    reply = serving.send([1, 2])
    bench.adapter.kill(instance)
    assert isinstance(reply.error, Internal)
    bench.adapter.release()
    serving.wait_until_healthy()
    serving.echoes([3, 4])


SITUATIONS = (
    Situation("batch of one", _batch_of_one),
    Situation("batch of many", _batch_of_many),
    Situation("large batch", _large_batch),
    Situation("without batching", _without_batching),
    Situation("kept answers", _kept_answers),
    Situation("empty tensor", _empty_tensor),
    Situation("bytes", _bytes, "bytes"),
    Situation("ragged", _ragged, "ragged"),
    Situation("optional input absent", _optional_input_absent, "optional"),
    Situation("null rows", _null_rows, "sequence"),
    Situation("cancelled before", _cancelled_before),
    Situation("cancelled during", _cancelled_during, "slow"),
    Situation("noticed cancellation", _noticed_cancellation, "watching"),
    Situation("completion", _completion, "complete"),
    Situation("exception", _exception, "failing"),
    Situation("broken file", _broken_file, "broken"),
    Situation("wrong output shape", partial(_wrong_output, "wrong shape"), "wrong shape"),
    Situation("wrong output datatype", partial(_wrong_output, "wrong datatype"), "wrong datatype"),
    Situation("unknown output", partial(_wrong_output, "unknown output"), "unknown output"),
    Situation("rescheduled", _rescheduled, "again"),
    Situation("rescheduled outside of an iterative sequence", _rescheduled_outside_of_an_iterative_sequence, "again"),
    Situation("decoupled", _decoupled, "decoupled"),
    Situation("slow reader", _slow_reader, "decoupled"),
    Situation("close while running", _close_while_running, "slow"),
    Situation("close after the last answer", _close_after_the_last_answer, "lingering"),
    Situation("reload", _reload),
    Situation("two instances", _two_instances),
    Situation("two devices", _two_devices),
    Situation("several batches in flight", _several_in_flight, "slow"),
    Situation("tensors on a device", _tensors_on_a_device),
    Situation("killed child", _killed_child, "slow"),
)
