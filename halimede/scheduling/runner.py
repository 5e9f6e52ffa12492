"""The runner of one model version: joins policy, instances, timer and reply slots. The one impure part of scheduling.

Event-loop thread only; instance threads come back through `Loop.call_soon_threadsafe`. An inference enters by `submit`
and leaves by exactly one final answer to its reply slot.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from time import monotonic_ns
from typing import Protocol

from halimede.errors import Cancelled, Error, Internal, Unavailable
from halimede.requests import InferResponse, Moment
from halimede.scheduling.execution import Execution, Outcome
from halimede.scheduling.inference import Inference, State
from halimede.scheduling.inline import Quickness, TurnBudget
from halimede.scheduling.instances import Instances
from halimede.scheduling.policy import Batch, Policy, Wake
from halimede.tensors import DataType, Tensor

log = logging.getLogger(__name__)


class Reason(Enum):
    """Why an inference failed, for the statistics (contract M2)."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


class Observer(Protocol):
    """Told of what happened, on the loop thread: `inference.times` is complete then."""

    def executed(self, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None: ...
    def succeeded(self, inference: Inference, now: int) -> None: ...
    def failed(self, inference: Inference, now: int, reason: Reason) -> None: ...


class Loop(Protocol):
    """What a runner needs of the event loop and of the engine that owns it."""

    @property
    def budget(self) -> TurnBudget: ...
    def call_soon(self, callback: Callable[[], None]) -> object: ...
    def call_soon_threadsafe(self, callback: Callable[..., None], /, *args: object) -> object: ...
    def call_at(self, when: int, callback: Callable[[], None]) -> None:
        """Calls back at this monotonic nanosecond or soon after, not before."""
        ...


@dataclass(frozen=True, slots=True)
class RunnerFacts:
    """What a runner knows of its model. `on_loop`: the backend's execute only passes batches on (Placement.LOOP).

    `restore` gives an output the shape that clients see, where that is not the model's."""

    model_name: str
    model_version: int
    datatypes: Mapping[str, DataType]
    decoupled: bool
    inline_safe: bool
    on_loop: bool
    restore: Callable[[Tensor], Tensor] | None = None


class Runner:
    """`settled` is called with each inference that is over, after its final answer was sent."""

    def __init__(
        self,
        facts: RunnerFacts,
        policy: Policy,
        instances: Instances,
        loop: Loop,
        observer: Observer,
        settled: Callable[[Inference], None],
    ) -> None:
        self._facts = facts
        self._policy = policy
        self._instances = instances
        self._loop = loop
        self._observer = observer
        self._settled = settled
        self._quickness = Quickness(facts.inline_safe)
        self._advancing = False
        self._wake_at = 0
        self._finished: deque[Execution] = deque()
        self._stopping = False
        policy.resize(len(instances), monotonic_ns())

    @property
    def waiting(self) -> int:
        """How many inferences wait for an instance."""
        return self._policy.waiting

    def submit(self, inference: Inference) -> None:
        """Takes an inference on its way. A refusal goes to its reply slot at once."""
        now = monotonic_ns()
        inference.times[Moment.QUEUE_START] = now
        refusal = self._stopped(inference) if self._stopping else self._policy.admit(inference, now)
        if refusal is not None:
            self._fail(inference, refusal, now, Reason.REJECTED)
            return
        self._advance(now)

    def cancel(self, inference: Inference) -> None:
        """The client has gone: a waiting inference is over at once, a running one is told and runs to its end."""
        inference.cancelled = True
        now = monotonic_ns()
        if inference.state is State.QUEUED and self._policy.cancel(inference, now):
            self._fail(inference, Cancelled(inference.request.log_prefix + "Cancelled"), now, Reason.CANCELED)

    def stop(self) -> None:
        """No more inferences are taken; what is here runs to its end (contract S3)."""
        self._stopping = True

    def close(self) -> None:
        """Ends the instance threads; called when nothing is left to run."""
        self._instances.stop()

    @staticmethod
    def _stopped(inference: Inference) -> Error:
        return Unavailable(
            inference.request.log_prefix
            + "Server is stopping, scheduler for model has stopped accepting new inference requests"
        )

    # Who runs next.

    def _advance(self, now: int) -> None:
        """Settles what is over and starts what is due, until neither is left. Never re-entered: a callback that comes
        back in here while it runs only leaves its work for the outermost call."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._finished or (self._policy.waiting and self._instances.free):
                if self._finished:
                    self._drain(self._finished.popleft())
                elif not self._start_next(now):
                    return
                else:
                    now = monotonic_ns()
        finally:
            self._advancing = False

    def _start_next(self, now: int) -> bool:
        """Starts the batch that is due; False when there is none, or when the loop should turn first."""
        policy = self._policy
        for inference, error in policy.expire(now):
            self._fail(inference, error, now, Reason.REJECTED)
        step = policy.next(self._instances.free, now)
        if isinstance(step, Batch):
            return self._start(step)
        if step is not None:
            self._wake(step)
        return False

    def _wake(self, wake: Wake) -> None:
        if not self._wake_at or wake.at < self._wake_at:
            self._wake_at = wake.at
            self._loop.call_at(wake.at, self._woken)

    def _woken(self) -> None:
        self._wake_at = 0
        self._advance(monotonic_ns())

    def _start(self, batch: Batch) -> bool:
        """Runs the batch, inline where that is allowed. False when the loop should turn before more is started."""
        instance = self._instances.take(batch.instance)
        rows = 0
        for inference in batch.rows:
            inference.state = State.RUNNING
            rows += inference.rows
        facts = self._facts
        execution = Execution(batch.rows, rows, batch.instance, facts.datatypes, facts.decoupled, self._notified)
        if facts.on_loop:
            execution.on_loop = True
            execution.run(instance.execute, False)
            return True
        if not self._quickness.allows(rows):
            work = execution.run
            self._instances.thread(batch.instance).submit(lambda: work(instance.execute, True))
            return True
        execution.on_loop = True
        execution.run(instance.execute, True)
        budget = self._loop.budget
        budget.spend(execution.compute_end - execution.start)
        if budget.left:
            return True
        self._loop.call_soon(self._resume)
        return False

    def _resume(self) -> None:
        self._advance(monotonic_ns())

    # What came of it.

    def _notified(self, execution: Execution) -> None:
        """A batch has outcomes. Called on whatever thread produced them."""
        if execution.on_loop:
            self._arrived(execution)
        else:
            self._loop.call_soon_threadsafe(self._arrived, execution)

    def _arrived(self, execution: Execution) -> None:
        self._finished.append(execution)
        self._advance(monotonic_ns())

    def _drain(self, execution: Execution) -> None:
        """Sends the outcomes of a batch to their reply slots; when it is done, frees its instance.

        The guard of this entry from the loop: whatever breaks while one request is settled fails that request only.
        """
        done = execution.done
        if done and execution.instance >= 0:
            self._account(execution)
        while execution.outcomes:
            outcome = execution.outcomes.popleft()
            inference = execution.requests[outcome.i]
            if inference.state is State.RUNNING:
                try:
                    self._settle(inference, outcome)
                except Exception:
                    log.exception("settling a request of model '%s' broke", self._facts.model_name)
                    self._abandon(inference)
        if done and not self._facts.decoupled:
            for inference in execution.requests:
                if inference.state is State.RUNNING:
                    self._fail(inference, Internal("expected a single response, got 0"), monotonic_ns(), Reason.BACKEND)

    def _abandon(self, inference: Inference) -> None:
        """Ends a request whose settling broke: it is counted and forgotten, and answered if its slot still can."""
        if inference.state is not State.SETTLED:
            inference.state = State.SETTLED
            self._policy.released(inference, monotonic_ns(), False)
        try:
            inference.reply.send(Internal("the server failed to send the response"), True)
        except Exception:
            log.exception("the reply slot of a request broke")
        self._settled(inference)

    def _account(self, execution: Execution) -> None:
        """Frees the instance and counts the batch; the time stamps of the batch are those of all its requests."""
        execution.settle_times()
        index, execution.instance = execution.instance, -1
        start, input_end = execution.start, execution.input_end
        output_start, end = execution.output_start, execution.compute_end
        for inference in execution.requests:
            inference.times[Moment.COMPUTE_START :] = (start, input_end, output_start, end)
        self._instances.give_back(index)
        self._policy.freed(index, end)
        if self._facts.inline_safe:
            self._quickness.ran(execution.rows, end - start, execution.on_loop)
        self._observer.executed(execution.rows, input_end - start, output_start - input_end, end - output_start)

    def _settle(self, inference: Inference, outcome: Outcome) -> None:
        now = monotonic_ns()
        if outcome.again:
            inference.state = State.QUEUED
            self._policy.released(inference, now, True)
            return
        answer, final = outcome.answer, outcome.final
        if isinstance(answer, Error):
            if final or not self._facts.decoupled:
                self._fail(inference, answer, now, Reason.BACKEND)
            else:
                inference.reply.send(answer, False)
            return
        response = None if answer is None else self._response(inference, answer, outcome)
        if not final:
            inference.reply.send(response, False)
            return
        inference.state = State.SETTLED
        self._policy.released(inference, now, False)
        self._observer.succeeded(inference, now)
        inference.reply.send(response, True)
        self._settled(inference)

    def _response(self, inference: Inference, outputs: Sequence[Tensor], outcome: Outcome) -> InferResponse:
        """The response with the outputs that were asked for."""
        wanted = inference.outputs
        if len(outputs) != len(wanted) or any(tensor.name not in wanted for tensor in outputs):
            outputs = [tensor for tensor in outputs if tensor.name in wanted]
        facts = self._facts
        outputs = list(outputs) if facts.restore is None else [facts.restore(tensor) for tensor in outputs]
        return InferResponse(inference.request.id, facts.model_name, facts.model_version, outputs, outcome.parameters)

    def _fail(self, inference: Inference, error: Error, now: int, reason: Reason) -> None:
        ran = inference.state is State.RUNNING
        inference.state = State.SETTLED
        if ran:
            self._policy.released(inference, now, False)
        self._observer.failed(inference, now, reason)
        inference.reply.send(error, True)
        self._settled(inference)
