"""The runner of one model version: joins policy, instances, timer and reply slots. The one impure part of scheduling.

Event-loop thread only; instance threads come back through `Loop.call_soon_threadsafe`. An inference enters by `submit`
and leaves by exactly one final answer to its reply slot.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from time import monotonic_ns
from typing import Protocol

from halimede.errors import Cancelled, Error, Internal, Unavailable
from halimede.requests import Answer, InferResponse, Moment
from halimede.scheduling.execution import Execution, Outcome
from halimede.scheduling.flow import Flow, cost_of
from halimede.scheduling.inference import QUEUED, RUNNING, SETTLED, Inference
from halimede.scheduling.inline import PLACED_BYTES, Quickness, TurnBudget
from halimede.scheduling.instances import Instances, Runnable
from halimede.scheduling.policy import Batch, Policy
from halimede.tensors import DataType, Tensor

log = logging.getLogger(__name__)

_PAUSE_NS = 100_000_000
"""After a policy broke at a time of its own, until it is asked again."""
_QUEUE_START, _COMPUTE_START = int(Moment.QUEUE_START), int(Moment.COMPUTE_START)


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
    def responded(self, index: int, answer: Answer, ns: int) -> None:
        """The response of that number, of a request that may have many, came so long after the one before."""
        ...


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

    `gathers`: a batch is better begun when everything that has arrived is there, since its beginning costs more than
    a turn of the loop. `restore` gives an output the shape that clients see, where that is not the model's."""

    model_name: str
    model_version: int
    datatypes: Mapping[str, DataType]
    decoupled: bool
    inline_safe: bool
    on_loop: bool
    restore: Callable[[Tensor], Tensor] | None = None
    gathers: bool = False


class _Bell:
    """What timers hold, as one may ring long after its runner was closed, and shall keep nothing of it in memory."""

    def __init__(self, woken: Callable[[], None]) -> None:
        self.woken: Callable[[], None] | None = woken

    def ring(self) -> None:
        if self.woken is not None:
            self.woken()


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
        self._wakes: list[int] = []
        """When timers ring, the next one last: another is set only where it rings sooner."""
        self._bell = _Bell(self._woken)
        self._finished: deque[Execution] = deque()
        self._elsewhere: deque[Execution] = deque()
        self._looks = False
        self._stopping = False
        self._resuming = False
        policy.resize(len(instances), monotonic_ns())

    @property
    def waiting(self) -> int:
        """How many inferences wait for an instance."""
        return self._policy.waiting

    @property
    def inline_executions(self) -> int:
        """How many batches ran on the event loop because they are quick."""
        return self._quickness.inline_runs

    def submit(self, inference: Inference) -> None:
        """Takes an inference on its way. A refusal goes to its reply slot at once."""
        now = monotonic_ns()
        inference.times[_QUEUE_START] = now
        try:
            refusal = self._stopped(inference) if self._stopping else self._policy.admit(inference, now)
            if refusal is None:
                if self._facts.gathers:
                    self._advance_soon()
                else:
                    self._advance(now)
                return
            refusal.refused = True
        except Exception as error:
            refusal = self._broke(error)
            self._withdraw(inference, now)
        if inference.state is QUEUED:
            self._end(inference, refusal, now, Reason.REJECTED)

    def _withdraw(self, inference: Inference, now: int) -> None:
        """Takes an inference out of a policy that has just broken, so that no later batch runs it again."""
        try:
            self._policy.cancel(inference, now)
        except Exception as error:
            self._broke(error)

    def cancel(self, inference: Inference) -> None:
        """The client has gone: a waiting inference is over at once, a running one is told and runs to its end. Whoever
        waits for that client to read goes on (contract G34)."""
        inference.cancel()
        if inference.flow is not None:
            inference.flow.release()
        now = monotonic_ns()
        try:
            over = inference.state is QUEUED and self._policy.cancel(inference, now)
        except Exception as error:
            self._broke(error)
            return
        if over:
            self._end(inference, self._cancelled(inference), now, Reason.CANCELED)
            self._enter()  # without it the others may be a batch that is due

    def settle(self, inference: Inference, answer: InferResponse | Error) -> None:
        """Ends an inference that was never submitted: a cache has its answer, or the client went before."""
        reason = Reason.CANCELED if isinstance(answer, Cancelled) else Reason.OTHER
        self._end(inference, answer, monotonic_ns(), reason)

    def mark(self, instance: int, healthy: bool, expected: bool) -> None:
        """An instance broke or is well again (`Instances.mark`); what waits for that goes on."""
        self._instances.mark(instance, healthy, expected)
        self._enter()

    def stop(self) -> None:
        """No more inferences are taken; what is here runs to its end (contract S3)."""
        self._stopping = True

    def close(self) -> None:
        """Ends the instance threads; called when nothing is left to run."""
        self._instances.stop()
        self._bell.woken = None

    @staticmethod
    def _stopped(inference: Inference) -> Error:
        return Unavailable(
            inference.request.log_prefix
            + "Server is stopping, scheduler for model has stopped accepting new inference requests"
        )

    @staticmethod
    def _cancelled(inference: Inference) -> Error:
        return Cancelled(inference.request.log_prefix + "Cancelled")

    def _broke(self, error: Exception) -> Error:
        """Something of ours broke: logged with its trace, told in a line."""
        log.exception("running model '%s' broke", self._facts.model_name, exc_info=error)
        return Internal(f"{type(error).__name__}: {error}")

    # Who runs next.

    def _advance(self, now: int) -> None:
        """Settles what is over and starts what is due, until neither is left. Never re-entered: a callback that comes
        back in here while it runs only leaves its work for the outermost call. `now` is 0 where nobody has looked."""
        if self._advancing:
            return
        self._advancing = True
        policy, free, finished, elsewhere = self._policy, self._instances.free, self._finished, self._elsewhere
        try:
            while True:
                if finished:
                    self._drain(finished.popleft())
                elif elsewhere:
                    self._drain(elsewhere.popleft())
                elif not policy.waiting:
                    return
                elif not (free and self._has_time() and self._start_next(now or monotonic_ns(), free)):
                    if at := policy.expires_at:
                        self._wake_at(at)
                    return
                now = 0
        finally:
            self._advancing = False

    def _has_time(self) -> bool:
        """Whether more may be started in this turn of the loop; if not, the next turn goes on."""
        if self._facts.on_loop or self._loop.budget.left:
            return True
        self._advance_soon()
        return False

    def _advance_soon(self) -> None:
        """In the next turn of the loop: after everything that has arrived in this one."""
        if not self._resuming:
            self._resuming = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resuming = False
        self._enter()

    def _enter(self) -> None:
        """An entry from the loop that holds no request of its own: what breaks is logged, the requests wait on."""
        try:
            self._advance(0)
        except Exception as error:
            self._broke(error)

    def _start_next(self, now: int, free: Sequence[int]) -> bool:
        """Starts the batch that is due on one of these instances; False when there is none."""
        policy = self._policy
        if 0 < policy.expires_at <= now:
            self._expire(now)
        step = policy.next(free, now)
        if isinstance(step, Batch):
            self._start(step, now)
            return True
        if step is not None:
            self._wake_at(step.at)
        return False

    def _expire(self, now: int) -> None:
        for inference, error in self._policy.expire(now):
            self._end(inference, error, now, Reason.REJECTED)

    def _wake_at(self, when: int) -> None:
        """Looks again at that time."""
        if not self._wakes or when < self._wakes[-1]:
            self._loop.call_at(when, self._bell.ring)
            self._wakes.append(when)

    def _woken(self) -> None:
        """Who waited too long is told so now, be an instance free or not (contract D4)."""
        self._wakes.pop()
        now = monotonic_ns()
        try:
            self._expire(now)
        except Exception as error:
            self._broke(error)
            self._wake_at(now + _PAUSE_NS)  # not at once: it may break each time
            return
        self._enter()

    def _start(self, batch: Batch, now: int) -> None:
        """Runs the batch: on the loop where that is allowed, else on the instance's thread."""
        instance = self._instances.take(batch.instance)
        rows = destined = 0
        facts = self._facts
        for inference in batch.rows:
            inference.state = RUNNING
            rows += inference.batch_size or 1
            if facts.decoupled and inference.flow is None:
                inference.flow = Flow(inference.reply, inference.request.most_ahead)
                if inference.cancelled:
                    inference.flow.release()
                inference.responded_at = now
            if inference.destinations is not None:
                destined += 1 + sum(place.byte_size for place in inference.destinations.values())
        inline = not facts.on_loop and destined < PLACED_BYTES and self._quickness.allows(rows)
        notify = None if inline else self._notified
        execution = Execution(batch.rows, rows, batch.instance, facts.datatypes, facts.decoupled, notify)
        if destined:
            execution.has_destinations = True
        if inline:
            execution.on_loop = True
            execution.run(instance.execute, True, now)
            self._loop.budget.spend(execution.compute_end - now)
            self._drain(execution)
        elif facts.on_loop:
            execution.on_loop = True
            execution.run(instance.execute, False, now)
        else:
            self._run_on_thread(execution, instance)
            self._loop.budget.spend(monotonic_ns() - now)

    def _run_on_thread(self, execution: Execution, instance: Runnable) -> None:
        looks, self._looks = self._looks, True  # a quick one may be over before this returns, and needs no call then
        try:
            thread = self._instances.thread(execution.instance)
            thread.submit(partial(execution.run, instance.execute, True))
        except (RuntimeError, OSError) as error:  # the system gives no more threads
            execution.on_loop = True
            execution.break_off(self._broke(error))
        finally:
            self._looks = looks

    # What came of it.

    def _notified(self, execution: Execution) -> None:
        """A batch has outcomes. Called on whatever thread produced them; a backend that is placed on the loop, or ran
        there, calls on the loop."""
        if execution.on_loop:
            self._arrived(execution)
            return
        self._elsewhere.append(execution)
        if not self._looks:  # the loop says that it looks no more before it looks for the last time
            self._looks = True
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._looks = False
        self._enter()

    def _arrived(self, execution: Execution) -> None:
        self._finished.append(execution)
        self._enter()

    def _drain(self, execution: Execution) -> None:
        """Sends the outcomes of a batch to their reply slots; when it is done, frees its instance.

        The guard of this entry from the loop: whatever breaks while one request is settled fails that request only.
        """
        done = execution.done
        if done and execution.instance >= 0:
            try:
                self._account(execution)
            except Exception as error:
                self._broke(error)
        now = monotonic_ns()
        for outcome in self._outcomes(execution, done):
            inference = execution.requests[outcome.i]
            if inference.state is RUNNING:
                try:
                    self._settle(execution, inference, outcome, now)
                except Exception as error:
                    self._end(inference, self._broke(error), now, Reason.OTHER)

    def _outcomes(self, execution: Execution, done: bool) -> Iterable[Outcome]:
        """What the batch has to say now: as it comes for a decoupled model, one answer each for others: at the end,
        or after it where the backend said so."""
        outcomes, number = execution.outcomes, len(execution.requests)
        if self._facts.decoupled:
            taken = [outcomes.popleft() for _ in range(len(outcomes))]
            return [outcome for outcome in taken if 0 <= outcome.i < number]
        if not done:
            return ()
        if number == 1 and len(outcomes) == 1:
            outcome = outcomes[0]
            if outcome.final and outcome.answer is not None:
                outcomes.clear()
                return (outcome,)
        answers = execution.single_answers()
        # Those that shall run again are put back at the front, the first of them last.
        return sorted(answers, key=lambda outcome: (outcome.again, -outcome.i if outcome.again else outcome.i))

    def _account(self, execution: Execution) -> None:
        """Frees the instance and counts the batch; the time stamps of the batch are those of all its requests."""
        index, execution.instance = execution.instance, -1
        self._instances.give_back(index)
        start, input_end, output_start, end = times = execution.times()
        for inference in execution.requests:
            inference.times[_COMPUTE_START:] = times
        if self._facts.inline_safe:
            self._quickness.ran(execution.rows, end - start - execution.placed_ns, execution.on_loop)
        self._policy.freed(index, end)
        self._observer.executed(execution.rows, input_end - start, output_start - input_end, end - output_start)

    def _settle(self, execution: Execution, inference: Inference, outcome: Outcome, now: int) -> None:
        answer = outcome.answer
        if outcome.again and inference.cancelled:  # nobody cancels it a second time
            self._end(inference, self._cancelled(inference), now, Reason.CANCELED)
            return
        if outcome.again:
            inference.state = QUEUED
            self._policy.released(inference, now, True)
            return
        response = answer if answer is None or isinstance(answer, Error) else self._response(inference, answer, outcome)
        if not outcome.final:
            writable = inference.reply.send(response, False)
            if inference.flow is not None:
                inference.flow.delivered(cost_of(answer), writable)
                self._responded(inference, response, now)
            return
        if not execution.done:  # a decoupled model's last word before its batch is over
            inference.times[_COMPUTE_START:] = execution.times(now)
        self._end(inference, response, now, Reason.BACKEND)

    def _responded(self, inference: Inference, answer: Answer, now: int) -> None:
        self._observer.responded(inference.responses, answer, now - inference.responded_at)
        inference.responses += 1
        inference.responded_at = now

    def _response(self, inference: Inference, outputs: Sequence[Tensor], outcome: Outcome) -> InferResponse:
        """The response with the outputs that were asked for."""
        wanted, facts = inference.outputs, self._facts
        kept = []
        for tensor in outputs:
            if tensor.name in wanted:
                kept.append(tensor if facts.restore is None else facts.restore(tensor))
        return InferResponse(inference.request.id, facts.model_name, facts.model_version, kept, outcome.parameters)

    def _end(self, inference: Inference, answer: Answer, now: int, reason: Reason) -> None:
        """The end of an inference: counted, told to the policy, answered, forgotten; each whatever the others do.

        `reason` is what a failure counts as."""
        ran = inference.state is RUNNING
        if inference.state is SETTLED:
            return
        inference.state = SETTLED
        try:
            if ran:
                self._policy.released(inference, now, False)
            if isinstance(answer, Error):
                self._observer.failed(inference, now, reason)
            else:
                self._observer.succeeded(inference, now)
        except Exception as error:
            self._broke(error)
        try:
            inference.reply.send(answer, True)
            if inference.flow is not None:
                self._responded(inference, answer, now)
        except Exception as error:
            self._broke(error)
        try:
            if inference.flow is not None:
                inference.flow.release()
        except Exception as error:
            self._broke(error)
        try:
            self._settled(inference)
        except Exception as error:
            self._broke(error)
