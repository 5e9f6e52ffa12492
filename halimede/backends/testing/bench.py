"""What the situations of the contract suite work with: a bench that loads models as the server does, and runs them on
an event loop on a thread of its own. Needs no test framework.
"""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Condition
from time import monotonic, monotonic_ns, sleep
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from halimede.backends.api import Backend, BackendContext, Batch, Responses, is_on_device
from halimede.errors import Error
from halimede.models.backend_pool import BackendPool
from halimede.models.loader import LoadedVersion, LoadOptions, load
from halimede.models.repository import FoundModel
from halimede.models.version import ModelVersion
from halimede.platform.wakeable_thread import WakeableThread
from halimede.requests import Answer, InferRequest, InferResponse, Resume
from halimede.scheduling.inference import Inference
from halimede.scheduling.inline import TurnBudget
from halimede.scheduling.runner_config import Reason
from halimede.tensors import FP32, DataType, Tensor, array_of, tensor_of

A = TypeVar("A")
Array = npt.NDArray[Any]
Rows = Sequence[Sequence[float]]

PATIENCE = 60.0
"""Seconds after which an answer is missing."""
STILL = 0.3
"""Seconds without an answer after which a model is said to wait for its reader. A model that ignores its reader answers
sooner; a machine that is too slow for this hides the mistake, but reports none."""
RELOADS = 50
"""How often a model is loaded and closed again."""


class NotApplicable(Exception):
    """The backend cannot be in this situation. The text says why."""


class Adapter:
    """Tiny models of one backend. A subclass sets `name`, and implements `create` and `write`.

    name -- the name of the backend in a configuration
    reloads -- how often a model is loaded and closed again: less than `RELOADS` if each load takes a process
    patience -- seconds until a situation fails because nothing happens
    input, output -- the names of the tensors
    input_type, output_type -- their datatypes
    ready -- the name of the control input of "sequence"

    Situations think in rows of numbers: "echo" answers with the rows that it gets. A backend that cannot do this
    overrides `encode`, which makes the input tensor of rows, and `expected`, which makes the output tensor that a
    correct model returns for them. Both keep the number of rows.
    """

    name = ""
    reloads = RELOADS
    patience = PATIENCE
    input = "INPUT0"
    output = "OUTPUT0"
    ready = "READY"
    input_type: DataType = FP32
    output_type: DataType = FP32

    def create(self, context: BackendContext) -> Backend:
        """Makes the backend."""
        raise NotImplementedError

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        """Writes the files of a model into a version directory. `shape` is that of its tensors, with the batch
        dimension if the model batches, and with -1 for any size. Returns fields for its configuration besides those of
        the situation, such as parameters. Raises NotApplicable if the backend cannot play the role.

        | role | the model |
        |---|---|
        | echo | answers with its input |
        | bytes | "echo" with a BYTES input and output |
        | sequence | "echo" with a control input (`ready`), which it may ignore |
        | ragged | "echo" with a ragged input |
        | optional | "echo" with an optional input INPUT1, which it ignores |
        | broken | its file cannot be read: `open` raises an Error that blames FILE |
        | failing | fails with the text "negative" if the first number of a row is negative |
        | wrong shape | answers with one row less |
        | wrong datatype | answers with an array of a wrong dtype |
        | unknown output | answers with an output that its configuration does not have |
        | slow | "echo" that answers after `release` |
        | watching | "slow" that also answers when the client has gone |
        | complete | "echo" whose file declares its input and output |
        | again | "echo" that calls `responses.again` in the first of two runs of a request |
        | decoupled | answers as many times as the first number says |
        | lingering | decoupled; answers once, and ends its batch after `release` |

        `Situation.role` says which situations need a role.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Lets "slow", "watching" and "lingering" models continue, those of later batches too. In a child process they
        share no memory with the adapter, so they can wait for a file that this method creates."""

    def kill(self, instance: Any) -> None:
        """Kills the process of an instance. Raises NotApplicable if it has no process."""
        pid: int | None = getattr(instance, "pid", None)
        if pid is None:
            raise NotApplicable("its instances are in the server's process")
        os.kill(pid, signal.SIGKILL)

    def encode(self, rows: Array) -> Array:
        """The input tensor for rows of float32."""
        return rows

    def expected(self, rows: Array) -> Array:
        """The output tensor of "echo" for rows of float32."""
        return rows

    @property
    def echoes_tensors(self) -> bool:
        """Whether the output of "echo" is its input, in any shape."""
        return type(self).encode is Adapter.encode and type(self).expected is Adapter.expected


class Reply:
    """Keeps the answers of one request. Filled on the event loop, read by the thread of the test."""

    def __init__(self, output: str) -> None:
        self._output = output
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

    def wait(self, seconds: float = PATIENCE) -> list[Answer]:
        """All answers, once the final one is there."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.finals > 0, seconds), "no final answer came"
            assert self.finals == 1, f"{self.finals} final answers"
            return list(self.answers)

    @property
    def outputs(self) -> list[Array]:
        """The output of each response, on the host."""
        return [array_of(tensor) for tensor in self.tensors]

    @property
    def tensors(self) -> list[Tensor]:
        """The output of each response, where it is."""
        found = []
        for answer in self.wait():
            assert isinstance(answer, InferResponse), f"{answer!r} is no response"
            found += [tensor for tensor in answer.outputs if tensor.name == self._output]
        return found

    @property
    def error(self) -> Error:
        """The one answer, which must be an error."""
        answers = self.wait()
        assert len(answers) == 1, answers
        assert isinstance(answers[0], Error), answers
        return answers[0]


class SlowReader(Reply):
    """Takes nothing until `read`, then everything."""

    def __init__(self, output: str) -> None:
        super().__init__(output)
        self._reads = False
        self._waiting: list[Resume] = []

    def send(self, answer: Answer, final: bool) -> bool:
        super().send(answer, final)
        with self._changed:
            return self._reads

    def on_writable(self, resume: Resume) -> None:
        with self._changed:
            if not self._reads:
                self._waiting.append(resume)
                return
        resume()

    def wait_until_still(self, most: int) -> None:
        """Until no answer comes any more. Fails if there are more than `most`."""
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.answers), PATIENCE), "no answer came"
            while self._changed.wait(STILL):
                assert len(self.answers) <= most, f"the model goes on after {most} answers that nobody reads"

    def read(self) -> None:
        """On the event loop."""
        with self._changed:
            self._reads = True
            waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()


class Observer:
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


class LoopThread:
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


class Counted:
    """An instance that counts the calls of `execute` that have begun and those that have returned."""

    def __init__(self, instance: Any) -> None:
        self._instance = instance
        self.begun = 0
        self.returned = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instance, name)

    def execute(self, batch: Batch, responses: Responses) -> None:
        self.begun += 1
        try:
            self._instance.execute(batch, responses)
        finally:
            self.returned += 1


class Serving:
    """A loaded model that serves. `instances` are those of the backend, `counted` the same with counters."""

    def __init__(self, loaded: LoadedVersion, loop: LoopThread, decoupled: bool, adapter: Adapter) -> None:
        self.instances: list[Any] = list(loaded.instances)
        self.counted = [Counted(instance) for instance in self.instances]
        self.loaded = loaded = replace(loaded, instances=tuple(self.counted))
        self._adapter = adapter
        self.observer = Observer()
        self._loop = loop
        self._decoupled = decoupled
        self._keys = count(1)
        self._idle: Future[None] = Future()
        self.version = loop.do(lambda: ModelVersion(loaded, loop, self.observer, lambda inference: None, 0, True))

    @property
    def copies(self) -> int | None:
        """How many tensors were copied from the model's devices to the host; None if it has no device."""
        model = self.loaded.model
        return model.copies.value if is_on_device(model) else None

    def ask(self, *tensors: Tensor, reply: Reply | None = None, **fields: Any) -> tuple[Reply, Inference]:
        """Begins an inference with these inputs, whose answers `reply` takes."""
        request = InferRequest("m")
        request.inputs = {tensor.name: tensor for tensor in tensors}
        request.decoupled_ok = self._decoupled
        for field, value in fields.items():
            setattr(request, field, value)
        slot = reply or Reply(self._adapter.output)

        def begin() -> Inference:
            inference = self.version.infer(next(self._keys), request, slot, monotonic_ns())
            self.version.submit(inference)
            return inference

        return slot, self._loop.do(begin)

    def read(self, reader: SlowReader) -> None:
        """Lets a slow reader take everything."""
        self._loop.do(reader.read)

    def input(self, rows: Rows | Array) -> Tensor:
        """The input tensor for these rows."""
        adapter = self._adapter
        return tensor_of(adapter.input, adapter.input_type, adapter.encode(np.asarray(rows, np.float32)))

    def send(self, *rows: Sequence[float], **fields: Any) -> Reply:
        """Begins an inference with these rows. `fields` are those of the `InferRequest`."""
        return self.ask(self.input(rows), **fields)[0]

    def check(self, reply: Reply, rows: Rows | Array) -> None:
        """Expects one response, with the output for these rows."""
        [output] = reply.outputs
        expected = self._adapter.expected(np.asarray(rows, np.float32))
        assert np.array_equal(output, expected), f"{output} instead of {expected}"

    def echoes(self, *rows: Sequence[float]) -> None:
        """Sends one request and checks the response."""
        self.check(self.send(*rows), rows)

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
        self._loop.do(self.version.forget)
        self.loaded = self.version.loaded


class Bench:
    """What a situation works with: it loads models of the adapter. `Situation.run` gets one. A package can write
    situations of its own with it."""

    def __init__(self, adapter: Adapter, folder: Path, loop: LoopThread, backend: Backend) -> None:
        self.adapter = adapter
        self._folder = folder
        self._loop = loop
        self.backend = backend
        self._pool = BackendPool(lambda name: backend, {adapter.name})
        self._open: list[Serving] = []

    def load(self, role: str = "echo", width: int = 2, **config: Any) -> Serving:
        """A model of this role with rows of `width` numbers, -1 for any. Fields of `config` take precedence over those
        that the adapter gives. Raises Error."""
        loaded, decoupled = self._load(role, width, config)
        if isinstance(loaded, Error):
            raise loaded
        serving = Serving(loaded, self._loop, decoupled, self.adapter)
        self._open.append(serving)
        return serving

    def failure(self, role: str) -> Error:
        """The error that a load of a model of this role fails with."""
        loaded, _ = self._load(role, 2, {})
        assert isinstance(loaded, Error), "the load succeeded"
        return loaded

    def _load(self, role: str, width: int, config: Mapping[str, Any]) -> tuple[LoadedVersion | Error, bool]:
        adapter, traits = self.adapter, self.backend.traits
        version = self._folder / "m" / "1"
        version.mkdir(parents=True, exist_ok=True)
        batches = config.get("max_batch_size", 8) > 0
        given = adapter.write(role, version, [-1, width] if batches else [width])
        usual: dict[str, Any] = {
            "name": "m",
            "backend": adapter.name,
            "max_batch_size": 8,
            "input": [self.tensor("input", width)],
            "output": [self.tensor("output", width)],
            "instance_group": [{"kind": "KIND_CPU", "count": 1}],
        }
        if traits.formats:  # the configuration of a backend that is not installed gets no file name from the registry
            usual["default_model_filename"] = traits.formats[0].filename
        fields: dict[str, Any] = {**usual, **given, **config}
        options = LoadOptions(on_loop=self._loop.loop.call_soon_threadsafe, gpus=(0, 1))
        found = FoundModel("m", self._folder / "m", json.dumps(fields))
        loaded = load(found, [1], self._pool, options).versions[1]
        return loaded, bool(fields.get("model_transaction_policy", {}).get("decoupled"))

    def tensor(self, side: str, width: int, **fields: Any) -> dict[str, Any]:
        """The `side` ("input" or "output") of a configuration, for rows of `width` numbers, -1 for any."""
        adapter = self.adapter
        if width < 0 and not adapter.echoes_tensors:
            raise NotApplicable("its tensors have sizes of their own")
        is_input = side == "input"
        make = adapter.encode if is_input else adapter.expected
        datatype = adapter.input_type if is_input else adapter.output_type
        dims = [-1] if width < 0 else list(make(np.zeros((1, width), np.float32)).shape[1:])
        name = adapter.input if is_input else adapter.output
        return {"name": name, "data_type": datatype.config_name, "dims": dims, **fields}

    def forget(self, serving: Serving) -> None:
        """For a situation that closes the model itself."""
        self._open.remove(serving)

    def close(self, serving: Serving) -> None:
        self.forget(serving)
        serving.retire()
        serving.close()

    def close_all(self) -> None:
        for serving in list(self._open):
            self.close(serving)


@contextmanager
def bench_of(adapter: Adapter, folder: Path) -> Iterator[Bench]:
    loop = LoopThread()
    try:
        backend = adapter.create(BackendContext(loop.loop))
        bench = Bench(adapter, folder, loop, backend)
        try:
            yield bench
            bench.close_all()
        finally:
            adapter.release()
            backend.close()
            loop.do(lambda: None)  # what the close left to the loop
    finally:
        loop.close()


def resources() -> dict[str, int]:
    """What the process has open, by its kind."""
    return {"threads": threading.active_count(), "descriptors": len(list(Path("/proc/self/fd").iterdir()))}
