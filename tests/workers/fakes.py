"""What a worker needs around it in a test: an event loop that turns in a thread, a batch, and a receiver of answers."""

import asyncio
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from halimede.backends.api import Arrays
from halimede.devices import Device
from halimede.errors import Error
from halimede.requests import InferRequest, Parameters
from halimede.tensors import BYTES, Shape, Tensor, array_of, tensor_of

PATIENCE = 20.0
"""Seconds after which a wait for another process has failed."""

T = TypeVar("T")


class FakeRequest:
    """One request of a batch: its tensors and the outputs it wants."""

    def __init__(self, *inputs: Tensor, outputs: Sequence[str] = ("OUTPUT0",), **fields: Any) -> None:
        self.request = InferRequest("m")
        self.request.inputs = {tensor.name: tensor for tensor in inputs}
        for name, value in fields.items():
            setattr(self.request, name, value)
        self.outputs = tuple(outputs)
        self.batch_size = 1
        self.cancelled = False
        self._tell: Callable[[], None] = lambda: None

    def when_cancelled(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def cancel(self) -> None:
        """On the loop."""
        self.cancelled = True
        self._tell()


class FakeBatch:
    def __init__(self, *requests: FakeRequest) -> None:
        self.requests = requests

    def arrays(self) -> Arrays:
        raise AssertionError("a worker's batch is not gathered by the server")

    def parts(self, name: str) -> Sequence[Tensor]:
        raise AssertionError("the worker is given requests, not parts")

    def shape(self, name: str) -> Shape:
        raise AssertionError("the worker is given requests, not arrays")

    def gather(self, name: str, into: Any, device: Device | None = None) -> None:
        raise AssertionError("the worker is given requests, not arrays")

    def arrays_of(self, i: int) -> Arrays:
        raise AssertionError("a worker's batch is not gathered by the server")


class FakeResponses:
    """Keeps what a batch is answered with; `given_up` are the requests that were told to have no answer. `wait` for its
    end and for those that answer `later`, `wait_free` for the end alone."""

    def __init__(self) -> None:
        self.sent: dict[int, list[Tensor]] = {}
        self.failed: dict[int, Error] = {}
        self.given_up: set[int] = set()
        self.later: list[int] = []
        self.parameters: dict[int, Parameters] = {}
        self.times: tuple[int, int] | None = None
        self._promised: set[int] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._free = threading.Event()

    def on_writable(self, i: int, resume: Callable[[], None]) -> None:
        raise AssertionError("a model of one response waits for no reader")

    def send(
        self, i: int, outputs: Sequence[Tensor] | None, final: bool = True, parameters: Parameters | None = None
    ) -> None:
        assert final
        self._check_first(i)
        if outputs is None:
            self.given_up.add(i)
        else:
            self.sent[i] = list(outputs)
            self.parameters[i] = parameters or {}
        self._answered(i)

    def fail(self, i: int, error: Error, final: bool = True) -> None:
        self._check_first(i)
        self.failed[i] = error
        self._answered(i)

    def _check_first(self, i: int) -> None:
        assert i not in self.sent
        assert i not in self.failed
        assert i not in self.given_up
        assert not self._free.is_set() or i in self.later

    def _answered(self, i: int) -> None:
        with self._lock:
            self._promised.discard(i)
            if self._free.is_set():
                self.later.remove(i)
                if not self.later:
                    self._over.set()

    def fail_all(self, error: Exception) -> None:
        raise AssertionError("no backend under test fails a whole batch")

    def again(self, i: int) -> None:
        raise AssertionError("no backend under test reschedules")

    def scatter(self, outputs: Mapping[str, Any], device: Device | None = None) -> None:
        raise AssertionError("a worker answers request by request")

    def scatter_to(self, i: int, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        raise AssertionError("a worker answers with tensors")

    def compute_times(self, input_end: int, output_start: int) -> None:
        self.times = (input_end, output_start)

    def promise(self, later: Collection[int]) -> None:
        assert not self._free.is_set()
        self._promised = set(later)

    def finished(self, later: Collection[int] = ()) -> None:
        assert not self._free.is_set()
        with self._lock:
            self.later = sorted(later or self._promised)
            self._free.set()
            if not self.later:
                self._over.set()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def wait_free(self) -> "FakeResponses":
        assert self._free.wait(PATIENCE), "the batch was never finished"
        return self

    def wait(self) -> "FakeResponses":
        assert self._over.wait(PATIENCE), f"the batch was never finished, or {self.later} not answered"
        return self

    def arrays(self, i: int = 0) -> dict[str, npt.NDArray[Any]]:
        return {tensor.name: array_of(tensor) for tensor in self.sent[i]}


class FakeStream:
    """Keeps what the requests of a decoupled model are answered with, in order, as `(what, final)`: the elements of
    OUTPUT0, an error's text, or None for "no more"; `wait` for the last answers, `wait_free` for the end of the batch.
    While a request is `clogged`, who waits for its client to read is kept in `waiting`.
    """

    def __init__(self, size: int = 1) -> None:
        self.said: list[list[tuple[Any, bool]]] = [[] for _ in range(size)]
        self.parameters: list[Parameters] = []
        self.times: tuple[int, int] | None = None
        self.clogged: set[int] = set()
        self.waiting: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._open = set(range(size))
        self._free = False

    def on_writable(self, i: int, resume: Callable[[], None]) -> None:
        if i in self.clogged:
            self.waiting.append(resume)
        else:
            resume()

    def send(
        self, i: int, outputs: Sequence[Tensor] | None, final: bool = True, parameters: Parameters | None = None
    ) -> None:
        arrays = {tensor.name: array_of(tensor).tolist() for tensor in outputs or ()}
        self._say(i, arrays.get("OUTPUT0", arrays) if outputs is not None else None, final)
        self.parameters.append(parameters or {})

    def fail(self, i: int, error: Error, final: bool = True) -> None:
        self._say(i, error.message, final)

    def fail_all(self, error: Exception) -> None:
        raise AssertionError("no backend under test fails a whole batch")

    def again(self, i: int) -> None:
        raise AssertionError("no backend under test reschedules")

    def scatter(self, outputs: Mapping[str, Any], device: Device | None = None) -> None:
        raise AssertionError("a worker answers request by request")

    def scatter_to(self, i: int, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        raise AssertionError("a worker answers with tensors")

    def compute_times(self, input_end: int, output_start: int) -> None:
        assert not self._free
        self.times = (input_end, output_start)

    def promise(self, later: Collection[int]) -> None:
        """Of the answers that come later nothing is expected but that they come."""

    def finished(self, later: Collection[int] = ()) -> None:
        with self._changed:
            assert not self._free
            self._free = True
            self._changed.notify_all()

    def _say(self, i: int, what: Any, final: bool) -> None:
        with self._changed:
            assert i in self._open, "an answer after the last"
            self.said[i].append((what, final))
            if final:
                self._open.remove(i)
            self._changed.notify_all()

    @property
    def free(self) -> bool:
        return self._free

    @property
    def open(self) -> bool:
        return bool(self._open)

    def wait_free(self) -> "FakeStream":
        with self._changed:
            assert self._changed.wait_for(lambda: self._free, PATIENCE), "the batch was never finished"
        return self

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Until what was said so far is such that something holds."""
        with self._changed:
            assert self._changed.wait_for(holds, PATIENCE), f"it stayed at {[len(said) for said in self.said]} answers"

    def wait(self) -> "FakeStream":
        """Until every request has its last answer and the batch is over."""
        with self._changed:
            over = self._changed.wait_for(lambda: self._free and not self._open, PATIENCE)
        assert over, f"not all requests were answered: {self.said}"
        return self


def text_tensor(name: str, *texts: str | bytes) -> Tensor:
    raw = [text.encode() if isinstance(text, str) else text for text in texts]
    return tensor_of(name, BYTES, np.array(raw, dtype=object))


@contextmanager
def turning_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that turns in a thread of its own until the end of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


def on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], T]) -> T:
    """The result of the call, made on the loop."""

    async def made() -> T:
        return call()

    return asyncio.run_coroutine_threadsafe(made(), loop).result(PATIENCE)
