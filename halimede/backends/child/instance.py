"""An instance in a child process: batches become frames, answers become responses, a dead process is replaced.

It knows no model and no scheduling. `backends.python` adds calls between models and readiness. Load threads create and
close an instance; everything else runs on the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import count
from typing import Generic, TypeVar

from halimede.backends.api import Batch, BatchedRequest, Responses
from halimede.backends.child.in_flight import InFlightBatch
from halimede.errors import Error, Internal
from halimede.tensors import Buffer
from halimede.workers.child import frames
from halimede.workers.host.limit import ExecutionLimit
from halimede.workers.host.supervisor import Supervisor
from halimede.workers.host.worker import Worker
from halimede.workers.messages import Answer, read_answers, requests_frame

log = logging.getLogger(__name__)

InFlight = TypeVar("InFlight", bound=InFlightBatch)

_ANSWERS = frozenset({frames.ANSWERS, frames.FAILED})


class ChildInstance(Generic[InFlight]):
    """A process that serves a model, and after its death another one.

    | state | `healthy` | event | next state |
    |---|---|---|---|
    | serving | True | the process ends: `_lost` | down |
    | down | False | the supervisor brings another process: `_take_over` | serving, or warming if it has a warm-up |
    | warming | False | the warm-up ends: `_warmed` | serving |
    | warming | False | the process ends: `_lost` | down |
    | any | - | `close` | closed |

    In `down`, requests wait as long as the supervisor expects the process back soon. A batch may take `limit` seconds,
    0 for any time; then the process is killed. The model may take `finish_limit` seconds to finish.
    """

    sends_rows = False
    """Whether the child needs to know how many rows each request has."""

    def __init__(
        self,
        worker: Worker,
        name: str,
        loop: asyncio.AbstractEventLoop,
        supervisor: Supervisor,
        limit: float,
        finish_limit: float,
        new_batch: Callable[[Sequence[BatchedRequest], Responses, Sequence[int]], InFlight],
    ) -> None:
        self._worker = worker
        self._name = name
        self._loop = loop
        self._finish_limit = finish_limit
        self._supervisor = supervisor
        self._new_batch = new_batch
        self._limit = ExecutionLimit(loop, limit, self._hangs, self._waits_for_readers) if limit else None
        self._failure: Error | None = None
        self._changed: Callable[[bool, bool], None] = lambda healthy, expected: None
        self._proven = False
        self._numbers = count(1)
        self._in_flight: dict[int, InFlight] = {}
        self._warm: Callable[[Callable[[], None]], object] | None = None
        self._warming = False
        supervisor.attach(self._take_over, self._tell)

    @property
    def healthy(self) -> bool:
        return self._worker.alive and not self._warming

    @property
    def in_flight_batches(self) -> Collection[InFlight]:
        """The batches that the process has."""
        return self._in_flight.values()

    @property
    def pid(self) -> int:
        return self._worker.pid

    @property
    def restarts(self) -> int:
        return self._supervisor.count

    def listen(self) -> None:
        """Lets the loop take over the process, which has loaded its model."""
        self._worker.attach(self._loop, self._arrived, self._lost)

    def watch(self, changed: Callable[[bool, bool], None]) -> None:
        self._changed = changed
        if not self.healthy:
            self._tell()

    def execute(self, batch: Batch, responses: Responses) -> None:
        """Passes the batch on and returns; the answers come later, by the loop. Raises Internal if the process is gone
        (P10). A request that cannot be passed on fails alone."""
        if not self._worker.alive:
            raise self._unhealthy()
        requests = batch.requests
        positions: Sequence[int] = range(len(requests))
        number = next(self._numbers)
        try:
            buffers = requests_frame(number, requests, self._worker.segments, self.sends_rows)
        except Error:
            # Something in the batch cannot be written: look for it request by request, which is slow and rare.
            positions = self._passable(requests, responses)
            if not positions:
                responses.finished()
                return
            requests = [requests[i] for i in positions]
            buffers = requests_frame(number, requests, self._worker.segments, self.sends_rows)
        self._in_flight[number] = self._new_batch(requests, responses, positions)
        if self._limit is not None:
            self._limit.begin()
        self._worker.send(buffers)

    def _passable(self, requests: Sequence[BatchedRequest], responses: Responses) -> list[int]:
        """The requests that a frame can carry. Each of the others fails with its own error."""
        passable = []
        for i, request in enumerate(requests):
            try:
                requests_frame(0, [request], None, self.sends_rows)
            except Error as error:
                responses.fail(i, error)
            else:
                passable.append(i)
        return passable

    def close(self) -> None:
        """Asks the model to finish (P8), then ends the process, within `finish_limit` seconds. Blocks."""
        self._supervisor.close()
        if self._worker.alive:
            self._worker.close(self._finish_limit)
        self._let_go()
        self._supervisor.forget(self._worker)

    # ---- what a subclass may add

    def _let_go(self) -> None:
        """The process is gone, or was asked to go. Any thread."""

    def _other_frame(self, message: frames.Frame) -> None:
        """A frame that is about no batch. Raises what `frames.MALFORMED` lists."""
        raise frames.FrameError(f"a frame of kind {message.kind} is not expected here")

    def _unhealthy(self) -> Internal:
        return Internal(f"the process of instance '{self._name}' is not healthy")

    def _failed(self, words: str) -> Internal:
        """The error of the requests of a batch that failed."""
        return Internal(f"Failed to process the request(s) for model '{self._name}', message: {words}")

    # ---- frames

    def _arrived(self, message: frames.Frame) -> None:
        in_flight = self._in_flight.get(message.batch)
        try:
            if message.kind in _ANSWERS:
                if in_flight is not None:  # else the batch was failed when the time limit ended
                    self._answer(in_flight, message)
            elif message.kind == frames.QUESTION and message.flags == frames.IS_CANCELLED:
                self._reply(in_flight, message)
            else:
                self._other_frame(message)
        except frames.MALFORMED as error:
            self._worker.end_malformed(error)

    def _answer(self, in_flight: InFlight, message: frames.Frame) -> None:
        answers: Sequence[Answer] = ()
        if message.kind == frames.ANSWERS:
            answers = read_answers(message, len(in_flight.requests))
        if in_flight.running:  # the times of the batch, and not of the answers after it
            in_flight.responses.compute_times(message.first_moment, message.second_moment)
        if message.kind == frames.FAILED:
            error = self._failed(message.message())
            log.error("%s", error, extra={**self._worker.about, "request_id": ids_of(in_flight.requests)})
            in_flight.fail(error)
        for answer in answers:
            in_flight.answer(answer)
            if not answer.final:
                self._give_credit(in_flight, answer.i, message)
        if message.flags & frames.FINISHED:
            # Only a batch of a client proves that the process works. A process that dies in each warm-up must be
            # restarted with pauses.
            if not self._proven and not self._warming:
                self._proven = True
                self._supervisor.served()
            in_flight.finish()
            if self._limit is not None:
                self._limit.end()
                if any(other.running for other in self._in_flight.values()):
                    self._limit.begin()  # of several batches in flight, each may take the time
        if not in_flight.running and not in_flight.missing:  # answers may come after FINISHED
            self._in_flight.pop(message.batch, None)

    def _give_credit(self, in_flight: InFlight, index: int, message: frames.Frame) -> None:
        """Counts an answer that is not the last, and sends CREDIT when its reader has taken enough to be worth a frame.

        If the reader allows only few answers ahead (G32), each answer is worth a frame. CREDIT carries the sum and not
        the difference, so that the order of these frames does not matter."""
        if in_flight.taken is None:
            in_flight.taken = [0] * len(in_flight.requests)
            in_flight.due = [frames.CREDIT_STEP] * len(in_flight.requests)
        most_ahead = in_flight.requests[index].request.most_ahead
        cost = frames.cost(len(message.data), most_ahead)
        in_flight.taken[index] = taken = in_flight.taken[index] + cost
        if 0 < most_ahead < frames.WINDOW // frames.OVERHEAD or taken >= in_flight.due[index]:
            in_flight.due[index] = taken + frames.CREDIT_STEP
            credit = frames.frame(frames.CREDIT, [frames.NUMBER.pack(taken)], None, message.batch, index)
            in_flight.unread += 1
            read = partial(self._read, in_flight, self._worker, credit)
            in_flight.responses.on_writable(in_flight.positions[index], read)
            in_flight.waits = in_flight.unread > 0

    def _read(self, in_flight: InFlight, worker: Worker, credit: list[Buffer]) -> None:
        """The reader of a request has taken its answers."""
        in_flight.unread -= 1
        if self._limit is not None and in_flight.waits and in_flight.running and worker.alive:
            self._limit.begin()  # the time that the model waited for its reader does not count
        worker.send(credit)

    def _reply(self, in_flight: InFlight | None, message: frames.Frame) -> None:
        """Answers whether the client of a request has gone (P82). Of a request that is over the answer is no."""
        (number,) = message.unpack(frames.NUMBER)
        index = message.count
        cancelled = in_flight is not None and index < len(in_flight.requests) and in_flight.requests[index].cancelled
        self._worker.send(frames.frame(frames.REPLY, [], None, number, int(cancelled)))

    # ---- supervision

    def _lost(self) -> None:
        error, self._failure = self._failure or self._unhealthy(), None
        in_flight_batches, self._in_flight = self._in_flight, {}
        if self._limit is not None:
            self._limit.end()
        self._let_go()
        self._supervisor.lost(self._worker)
        # The runner must know before the batches end: else it would give this instance the next one.
        self._tell()
        for in_flight in in_flight_batches.values():
            in_flight.fail(error)
            if in_flight.running:
                in_flight.finish()

    def _tell(self) -> None:
        self._changed(self.healthy, self._supervisor.expected)

    def _take_over(self, worker: Worker) -> None:
        """The supervisor has started another process."""
        self._worker = worker
        self._proven = False
        self.listen()
        if self._warm is None:
            self._serve()
        else:
            self._warming = True
            self._warm(partial(self._warmed, worker))

    def _serve(self) -> None:
        self._supervisor.serves()
        self._tell()

    def warm_again_by(self, warm: Callable[[Callable[[], None]], object]) -> None:
        self._warm = warm

    def _warmed(self, worker: Worker) -> None:
        # The process may have died in its warm-up, and another one may be in its place.
        if worker is self._worker and worker.alive:
            self._warming = False
            self._serve()

    def _hangs(self) -> None:
        error = self._failure = self._failed("the time limit for execute is over")
        log.error("%s", error, extra=self._worker.about)
        self._worker.end(f"of '{self._name}' is killed: it exceeded its time limit")

    def _waits_for_readers(self) -> bool:
        return any(in_flight.unread for in_flight in self._in_flight.values() if in_flight.running)


def ids_of(requests: Sequence[BatchedRequest]) -> str:
    """The ids of the requests of a batch, for the log."""
    return ", ".join(one.request.id for one in requests if one.request.id)
