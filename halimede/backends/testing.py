"""The contract suite: situations that a backend must handle, run against the server's own runner. A backend is done
when its adapter passes.

A test module of the backend gives an `Adapter` and runs each of `SITUATIONS` with it:

    @pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name)
    def test_contract(situation: Situation, tmp_path: Path) -> None:
        situation.check(MyAdapter(), tmp_path)

Needs no test framework. Loads models as the server does, and runs them on an event loop on a thread of its own.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Condition
from time import monotonic, monotonic_ns, sleep
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from halimede.backends.api import Backend, BackendContext
from halimede.errors import Cancelled, Error, Internal, Invalid
from halimede.models.backend_pool import BackendPool
from halimede.models.loader import LoadedVersion, LoadOptions, load
from halimede.models.repository import FoundModel
from halimede.models.version import ModelVersion
from halimede.platform.wakeable_thread import WakeableThread
from halimede.requests import Answer, InferRequest, InferResponse, Resume
from halimede.scheduling.inference import Inference
from halimede.scheduling.inline import TurnBudget
from halimede.scheduling.runner_config import Reason
from halimede.tensors import FP32, Tensor, array_of, tensor_of

A = TypeVar("A")
Array = npt.NDArray[Any]

PATIENCE = 60.0
"""Seconds after which an answer is missing."""
RELOADS = 50
"""How often a model is loaded and closed again."""
INPUT = {"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [2]}
OUTPUT = {"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [2]}
_MS_TO_WAIT = 10_000


class Unsupported(Exception):
    """This situation cannot occur with the backend. The text says why."""


class Adapter(Protocol):
    """Tiny models of one backend. `name` is what its configurations say."""

    @property
    def name(self) -> str: ...
    @property
    def reloads(self) -> int:
        """How often a model is loaded and closed again: `RELOADS`, unless each takes a process."""
        ...

    def create(self, context: BackendContext) -> Backend: ...
    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        """Writes the files of a model into a version directory. `shape` is that of INPUT0 and OUTPUT0, -1 where any
        size goes: with the batch dimension, if the model batches. Returns fields of its configuration besides those
        that the situation gives, such as parameters. Raises Unsupported.

        Roles, all with INPUT0 and OUTPUT0 of type FP32: "echo" answers with what it is given; "ragged" does so with
        ragged inputs, "optional" with an optional INPUT1 that changes nothing, and "sequence" with the control input
        READY; "failing" raises an exception with the text "negative" for a negative first element; "wrong shape"
        answers with a row less than it is given; "slow" answers after `release`; "again" is run twice for each request;
        "decoupled" answers as often as the first element says; "lingering" is decoupled, answers once, and ends its
        batch after `release`.
        """
        ...

    def release(self) -> None:
        """Lets "slow" and "lingering" models go on."""
        ...

    def kill(self, instance: object) -> None:
        """Kills the process of an instance. Raises Unsupported if it has none."""
        ...

    def copies(self, instance: object) -> int | None:
        """How many tensors were copied from the device of an instance to the host; None if it has no device."""
        ...


@dataclass(frozen=True)
class Situation:
    """`check` raises AssertionError if the backend does not do what the contract says, Unsupported if it cannot be in
    this situation."""

    name: str
    run: "Callable[[_Bench], None]"

    def check(self, adapter: Adapter, folder: Path) -> None:
        with _bench(adapter, folder) as bench:
            self.run(bench)


class _Reply:
    """Keeps the answers of one request. Filled on the event loop, read by the thread of the test."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.finals = 0
        self._changed = Condition()

    def send(self, answer: Answer, final: bool) -> bool:
        with self._changed:
            if answer is not None:
                self.answers.append(answer)
            self.finals += final
            self._changed.notify_all()
        return True

    def on_writable(self, resume: Resume) -> None:
        resume()

    def wait(self) -> list[Answer]:
        """All answers, once the final one is there."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.finals > 0, PATIENCE), "no final answer came"
            assert self.finals == 1, f"{self.finals} final answers"
            return list(self.answers)

    @property
    def outputs(self) -> list[Array]:
        """OUTPUT0 of each response."""
        found = []
        for answer in self.wait():
            assert isinstance(answer, InferResponse), f"{answer!r} is no response"
            found += [array_of(tensor) for tensor in answer.outputs if tensor.name == "OUTPUT0"]
        return found

    @property
    def error(self) -> Error:
        """The one answer, which must be an error."""
        answers = self.wait()
        assert len(answers) == 1, answers
        assert isinstance(answers[0], Error), answers
        return answers[0]


class _Observer:
    """Counts the rows of each batch."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def executed(self, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        assert min(input_ns, infer_ns, output_ns) >= 0, "times that go back"
        self.rows.append(rows)

    def served(self, inference: Inference, rows: int, now: int) -> None:
        self.rows.append(rows)

    def succeeded(self, inference: Inference, now: int) -> None:
        """Not counted."""

    def ran(self, inference: Inference) -> None:
        """Not counted."""

    def failed(self, inference: Inference, now: int, reason: Reason) -> None:
        """Not counted."""

    def responded(self, index: int, answer: Answer, ns: int, age: int) -> None:
        """Not counted."""


class _Loop:
    """An event loop on a thread, as runners see it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.budget = TurnBudget(self.loop.call_soon)
        self.call_soon: Callable[[Callable[[], None]], object] = self.loop.call_soon
        self.call_soon_threadsafe: Callable[..., object] = self.loop.call_soon_threadsafe
        self._thread = WakeableThread("contract suite")
        self._thread.submit(self.loop.run_forever)

    def call_at(self, when: int, callback: Callable[[], None]) -> None:
        self.loop.call_later(max(0.0, (when - monotonic_ns()) / 1e9), callback)

    def do(self, work: Callable[[], A]) -> A:
        """Calls `work` on the loop and returns what it returns."""
        result: Future[A] = Future()

        def run() -> None:
            try:
                result.set_result(work())
            except BaseException as error:  # the thread of the test has to hear of it
                result.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return result.result(PATIENCE)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.call(self.loop.close).result(PATIENCE)
        self._thread.stop()


class _Serving:
    """A model that was loaded and serves."""

    def __init__(self, loaded: LoadedVersion, loop: _Loop, decoupled: bool) -> None:
        self.loaded = loaded
        self.observer = _Observer()
        self._loop = loop
        self._decoupled = decoupled
        self._keys = count(1)
        self._idle: Future[None] = Future()
        self.version = loop.do(lambda: ModelVersion(loaded, loop, self.observer, lambda inference: None, 0, True))

    @property
    def instances(self) -> list[Any]:
        return list(self.loaded.instances)

    def ask(self, *tensors: Tensor, **fields: Any) -> tuple[_Reply, Inference]:
        """Begins an inference with these inputs."""
        request = InferRequest("m")
        request.inputs = {tensor.name: tensor for tensor in tensors}
        request.decoupled_ok = self._decoupled
        for field, value in fields.items():
            setattr(request, field, value)
        reply = _Reply()

        def begin() -> Inference:
            inference = self.version.infer(next(self._keys), request, reply, monotonic_ns())
            self.version.submit(inference)
            return inference

        return reply, self._loop.do(begin)

    def send(self, *rows: Sequence[float], **fields: Any) -> _Reply:
        """Begins an inference with these rows of INPUT0."""
        return self.ask(tensor_of("INPUT0", FP32, np.array(rows, np.float32)), **fields)[0]

    def echoes(self, *rows: Sequence[float]) -> None:
        """Asks once, and expects the same back."""
        assert np.array_equal(self.send(*rows).outputs[0], np.array(rows, np.float32))

    def cancel(self, inference: Inference) -> None:
        self._loop.do(lambda: self.version.cancel(inference))

    def wait_until_healthy(self) -> None:
        """Until an instance that broke is back. Requests are refused before that if it is not expected back soon."""
        deadline = monotonic() + PATIENCE
        while not self._loop.do(lambda: self.version.healthy):
            assert monotonic() < deadline, "the instance did not come back"
            sleep(0.01)

    def retire(self) -> None:
        """Takes nothing more."""
        self._loop.do(lambda: self.version.retire(lambda: self._idle.set_result(None)))

    def begin_close(self) -> Future[None]:
        """Ends the runner. The result is there when the instances may be closed."""
        self._idle.result(PATIENCE)
        ended: Future[None] = Future()
        self._loop.do(self.version.close)
        self._loop.do(lambda: self.version.when_batches_end(lambda: ended.set_result(None)))
        return ended

    def close(self) -> None:
        """After everything that was begun is over."""
        self.begin_close().result(PATIENCE)
        self.loaded.close()


class _Bench:
    """What a situation works with."""

    def __init__(self, adapter: Adapter, folder: Path, loop: _Loop, backend: Backend) -> None:
        self.adapter = adapter
        self._folder = folder
        self._loop = loop
        self.backend = backend
        self._pool = BackendPool(lambda name: backend, {adapter.name})
        self._open: list[_Serving] = []

    def load(self, role: str = "echo", **config: Any) -> _Serving:
        """A model of this role. Fields of `config` take precedence over those that the adapter gives."""
        version = self._folder / "m" / "1"
        version.mkdir(parents=True, exist_ok=True)
        lead = [-1] if config.get("max_batch_size", 8) else []
        shape = [*lead, *config.get("output", [OUTPUT])[0]["dims"]]
        given = self.adapter.write(role, version, shape)
        usual: dict[str, Any] = {
            "name": "m",
            "backend": self.adapter.name,
            "max_batch_size": 8,
            "input": [INPUT],
            "output": [OUTPUT],
        }
        usual["instance_group"] = [{"kind": "KIND_CPU", "count": 1}]
        fields: dict[str, Any] = {**usual, **given, **config}
        options = LoadOptions(on_loop=self._loop.loop.call_soon_threadsafe, gpus=(0, 1))
        found = FoundModel("m", self._folder / "m", json.dumps(fields))
        loaded = load(found, [1], self._pool, options).versions[1]
        if isinstance(loaded, Error):
            raise loaded
        decoupled = bool(fields.get("model_transaction_policy", {}).get("decoupled"))
        serving = _Serving(loaded, self._loop, decoupled)
        self._open.append(serving)
        return serving

    def close(self, serving: _Serving) -> None:
        self._open.remove(serving)
        serving.retire()
        serving.close()

    def close_all(self) -> None:
        for serving in list(self._open):
            self.close(serving)


@contextmanager
def _bench(adapter: Adapter, folder: Path) -> Iterator[_Bench]:
    loop = _Loop()
    try:
        backend = adapter.create(BackendContext(loop.loop))
        bench = _Bench(adapter, folder, loop, backend)
        try:
            yield bench
            bench.close_all()
        finally:
            adapter.release()
            backend.close()
            loop.do(lambda: None)  # what the close left to the loop
    finally:
        loop.close()


_GATHERING: Mapping[str, Any] = {
    "dynamic_batching": {"preferred_batch_size": [6], "max_queue_delay_microseconds": 1000 * _MS_TO_WAIT}
}
"""A batch begins when there are six rows."""


def _batch_of_one(bench: _Bench) -> None:
    serving = bench.load()
    serving.echoes([1, 2])
    serving.echoes([1, 2], [3, 4], [5, 6])
    assert serving.observer.rows == [1, 3]


def _batch_of_many(bench: _Bench) -> None:
    serving = bench.load(**_GATHERING)
    rows: list[list[list[float]]] = [[[1, 2]], [[3, 4], [5, 6]], [[7, 8], [9, 10], [11, 12]]]
    replies = [serving.send(*each) for each in rows]
    for reply, each in zip(replies, rows, strict=True):
        assert np.array_equal(reply.outputs[0], np.array(each, np.float32))
    assert serving.observer.rows == [6]


def _large_batch(bench: _Bench) -> None:
    """Beyond the size up to which tensors are copied anyway."""
    dims = [4096]
    serving = bench.load(input=[{**INPUT, "dims": dims}], output=[{**OUTPUT, "dims": dims}], **_GATHERING)
    rows = [np.random.default_rng(i).random((2, 4096), np.float32) for i in range(3)]
    replies = [serving.ask(tensor_of("INPUT0", FP32, each))[0] for each in rows]
    for reply, each in zip(replies, rows, strict=True):
        assert np.array_equal(reply.outputs[0], each)


def _without_batching(bench: _Bench) -> None:
    serving = bench.load(max_batch_size=0)
    tensor = tensor_of("INPUT0", FP32, np.array([1, 2], np.float32))
    assert serving.ask(tensor)[0].outputs[0].tolist() == [1, 2]


def _ragged(bench: _Bench) -> None:
    inputs = [{**INPUT, "dims": [-1], "allow_ragged_batch": True}]
    serving = bench.load("ragged", input=inputs, output=[{**OUTPUT, "dims": [-1]}], **_GATHERING)
    assert bench.backend.traits.ragged, "the traits say that it has no ragged inputs"
    sent = [np.full((1, 1 + i), i, np.float32) for i in range(6)]
    replies = [serving.ask(tensor_of("INPUT0", FP32, each))[0] for each in sent]
    for reply, each in zip(replies, sent, strict=True):
        assert reply.outputs[0].reshape(-1)[: each.size].tolist() == each.reshape(-1).tolist()
    assert serving.observer.rows == [6]


def _optional_input_absent(bench: _Bench) -> None:
    second = {"name": "INPUT1", "data_type": "TYPE_FP32", "dims": [2], "optional": True}
    serving = bench.load("optional", max_batch_size=0, input=[INPUT, second])
    assert bench.backend.traits.optional_inputs, "the traits say that it has no optional inputs"
    tensor = tensor_of("INPUT0", FP32, np.array([1, 2], np.float32))
    other = tensor_of("INPUT1", FP32, np.array([3, 4], np.float32))
    assert serving.ask(tensor)[0].outputs[0].tolist() == [1, 2]
    assert serving.ask(tensor, other)[0].outputs[0].tolist() == [1, 2]


def _null_rows(bench: _Bench) -> None:
    """A sequence's slot without a request is a row that nobody reads."""
    ready = {"kind": "CONTROL_SEQUENCE_READY", "fp32_false_true": [0, 1]}
    sequences = {
        "direct": {"minimum_slot_utilization": 0},
        "control_input": [{"name": "READY", "control": [ready]}],
        "max_sequence_idle_microseconds": 1_000_000 * int(PATIENCE),
    }
    serving = bench.load("sequence", sequence_batching=sequences)
    for number in (1, 2):
        marks = {"correlation_id": number, "sequence_start": True}
        assert serving.send([number, number], **marks).outputs[0].tolist() == [[number, number]]
    assert serving.send([5, 6], correlation_id=2).outputs[0].tolist() == [[5, 6]]
    assert serving.observer.rows[-1] == 2, "the first slot has no request, and its row is missing"
    for number in (1, 2):
        serving.send([0, 0], correlation_id=number, sequence_end=True).wait()


def _cancelled_before(bench: _Bench) -> None:
    serving = bench.load(**_GATHERING)
    tensor = tensor_of("INPUT0", FP32, np.array([[1, 2]], np.float32))
    reply, inference = serving.ask(tensor)
    serving.cancel(inference)
    assert isinstance(reply.error, Cancelled)
    serving.echoes(*[[1, 2]] * 6)
    assert serving.observer.rows == [6]


def _cancelled_during(bench: _Bench) -> None:
    serving = bench.load("slow")
    reply, inference = serving.ask(tensor_of("INPUT0", FP32, np.array([[1, 2]], np.float32)))
    serving.cancel(inference)
    bench.adapter.release()
    assert len(reply.wait()) == 1
    serving.echoes([3, 4])


def _exception(bench: _Bench) -> None:
    serving = bench.load("failing")
    error = serving.send([-1, 0]).error
    assert "negative" in str(error)
    serving.echoes([1, 0])
    serving.echoes([2, 0])


def _wrong_output_shape(bench: _Bench) -> None:
    serving = bench.load("wrong shape")
    assert isinstance(serving.send([1, 2], [3, 4]).error, Internal)
    assert isinstance(serving.send([1, 2], [3, 4]).error, Internal)


def _rescheduled(bench: _Bench) -> None:
    serving = bench.load("again", sequence_batching={"iterative_sequence": True})
    serving.echoes([1, 2])
    assert serving.observer.rows == [1, 1]


def _rescheduled_outside_of_an_iterative_sequence(bench: _Bench) -> None:
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


def _decoupled(bench: _Bench) -> None:
    serving = bench.load("decoupled", model_transaction_policy={"decoupled": True})
    for number in (0, 1, 5):
        assert [each.tolist() for each in serving.send([number, 7]).outputs] == [[[number, 7]]] * number


def _close_while_running(bench: _Bench) -> None:
    serving = bench.load("slow")
    reply = serving.send([1, 2])
    serving.retire()
    assert not reply.finals
    bench.adapter.release()
    assert reply.outputs[0].tolist() == [[1, 2]]
    bench._open.remove(serving)
    serving.close()


def _close_after_the_last_answer(bench: _Bench) -> None:
    """A batch may run on after its last answer: its instance is closed when the batch has finished, not before."""
    serving = bench.load("lingering", model_transaction_policy={"decoupled": True})
    assert serving.send([1, 2]).outputs[0].tolist() == [[1, 2]]
    serving.retire()
    ended = serving.begin_close()
    assert not ended.done(), "the batch is said to have finished, but it still runs"
    bench.adapter.release()
    ended.result(PATIENCE)
    bench._open.remove(serving)
    serving.loaded.close()


def _reload(bench: _Bench) -> None:
    for i in range(bench.adapter.reloads):
        serving = bench.load()
        serving.echoes([i, i])
        bench.close(serving)


def _two_instances(bench: _Bench) -> None:
    serving = bench.load(instance_group=[{"kind": "KIND_CPU", "count": 2}])
    assert len(serving.instances) == 2
    replies = [serving.send([i, i]) for i in range(20)]
    for i, reply in enumerate(replies):
        assert reply.outputs[0].tolist() == [[i, i]]


def _two_devices(bench: _Bench) -> None:
    if list(bench.backend.usable_gpus((0, 1))) != [0, 1]:
        raise Unsupported("the runtime as it is installed uses no GPU")
    serving = bench.load(instance_group=[{"kind": "KIND_GPU", "gpus": [0, 1]}])
    assert [place.device_id for place in serving.loaded.places] == [0, 1]
    replies = [serving.send([i, i]) for i in range(20)]
    for i, reply in enumerate(replies):
        assert reply.outputs[0].tolist() == [[i, i]]


def _slow_device(bench: _Bench) -> None:
    """A batch more is begun while the device works; each output is copied to the host once."""
    serving = bench.load("slow")
    [instance] = serving.instances
    if bench.adapter.copies(instance) is None:
        raise Unsupported("it has no device")
    replies = [serving.send([1, 2], [3, 4]) for _ in range(2)]
    deadline = monotonic() + PATIENCE
    most = serving.loaded.model.in_flight
    while serving.version.waiting > max(0, len(replies) - most):
        assert monotonic() < deadline, "no batch was begun while the device worked"
    assert not any(reply.finals for reply in replies)
    bench.adapter.release()
    for reply in replies:
        assert reply.outputs[0].tolist() == [[1, 2], [3, 4]]
    assert bench.adapter.copies(instance) == len(replies)


def _killed_child(bench: _Bench) -> None:
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
    Situation("ragged", _ragged),
    Situation("optional input absent", _optional_input_absent),
    Situation("null rows", _null_rows),
    Situation("cancelled before", _cancelled_before),
    Situation("cancelled during", _cancelled_during),
    Situation("exception", _exception),
    Situation("wrong output shape", _wrong_output_shape),
    Situation("rescheduled", _rescheduled),
    Situation("rescheduled outside of an iterative sequence", _rescheduled_outside_of_an_iterative_sequence),
    Situation("decoupled", _decoupled),
    Situation("close while running", _close_while_running),
    Situation("close after the last answer", _close_after_the_last_answer),
    Situation("reload", _reload),
    Situation("two instances", _two_instances),
    Situation("two devices", _two_devices),
    Situation("slow device", _slow_device),
    Situation("killed child", _killed_child),
)
