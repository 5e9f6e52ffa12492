"""The runner of one model version: joins policy, instances, timer and reply slots. The one impure part of scheduling.

Event-loop thread only; instance threads come back through `Loop.call_soon_threadsafe`. An inference enters by `submit`
and leaves by exactly one final answer to its reply slot.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic_ns

from halimede.errors import Cancelled, Error, Internal, Invalid, Unavailable
from halimede.requests import Answer, InferResponse, Stamp
from halimede.scheduling.execution import Execution, Outcome
from halimede.scheduling.fast_path import FastPath, response_of
from halimede.scheduling.flow import Flow, cost_of
from halimede.scheduling.inference import QUEUED, RUNNING, SETTLED, Inference
from halimede.scheduling.inline import PLACED_BYTES, InlineEligibility
from halimede.scheduling.instances import Instances, Runnable
from halimede.scheduling.policy import Batch, Policy, is_stateful_policy
from halimede.scheduling.queue import FifoQueue
from halimede.scheduling.runner_config import Bell, Loop, Observer, Reason, RunnerConfig
from halimede.scheduling.sequence_state import commit

log = logging.getLogger(__name__)

_PAUSE_NS = 100_000_000
"""After a policy broke at a time of its own, until it is asked again."""
_QUEUE_START, _COMPUTE_START = int(Stamp.QUEUE_START), int(Stamp.COMPUTE_START)


class Runner:
    """`settled` is called with each inference that is over, after its final answer was sent."""

    def __init__(
        self,
        config: RunnerConfig,
        policy: Policy,
        instances: Instances,
        loop: Loop,
        observer: Observer,
        settled: Callable[[Inference], None],
    ) -> None:
        self._config = config
        self._policy = policy
        self._instances = instances
        self._loop = loop
        self._observer = observer
        self._settled = settled
        self._eligibility = InlineEligibility(config.inline_safe)
        self._advancing = False
        self._wakes: list[int] = []
        """When timers ring, the next one last: another is set only where it rings sooner."""
        self._bell = Bell(self._woken)
        self._finished: deque[Execution] = deque()
        self._elsewhere: deque[Execution] = deque()
        self._looks = False
        self._stopping = False
        self._resuming = False
        self._stateful_policy = policy if is_stateful_policy(policy) else None
        """The policy, where something is due at a time though nothing waits."""
        self._starts_first = config.on_loop and self._stateful_policy is None
        """Whether a worker is given its next batch before the answers of the one before are written: it would wait for
        that. Not where who is over decides who is next."""
        self._direct = isinstance(policy, FifoQueue) and policy.direct and not config.gathers and type(self) is Runner
        """Whether a request that finds nobody waiting may be run without the queue being asked."""
        self._fast_path = (
            FastPath(config, instances, loop.budget, self._eligibility, observer, settled, self._drain, self._broke)
            if self._direct and FastPath.serves(config)
            else None
        )
        policy.resize(len(instances), monotonic_ns())

    @property
    def waiting(self) -> int:
        """How many inferences wait for an instance."""
        return self._policy.waiting

    @property
    def inline_executions(self) -> int:
        """How many batches ran on the event loop because they are quick."""
        return self._eligibility.inline_runs

    def submit(self, inference: Inference) -> None:
        """Takes an inference on its way. A refusal goes to its reply slot at once."""
        now = monotonic_ns()
        inference.times[_QUEUE_START] = now
        try:
            if self._direct and self._run_direct(inference, now):
                return
            refusal = self._stopped(inference) if self._stopping else self._policy.admit(inference, now)
            if refusal is None:
                if self._config.gathers:
                    self._advance_soon()
                else:
                    self._advance(now)
                return
            refusal.refused = True
        except Exception as error:
            refusal = self._broke(error)
            self._withdraw(inference, now)
        if inference.state is QUEUED:
            # What is wrong with a request itself is none of the model's failures.
            self._end(inference, refusal, now, None if isinstance(refusal, Invalid) else Reason.REJECTED)
        if self._elsewhere:  # an instance may be free again, and a turn full of refusals is long
            self._enter()

    def _run_direct(self, inference: Inference, now: int) -> bool:
        """Runs a request that finds nothing to be done, without the queue; whether that could be."""
        free = self._instances.free
        if self._advancing or self._stopping or self._finished or self._elsewhere or self._policy.waiting or not free:
            return False
        if not (self._config.on_loop or self._loop.budget.left):
            return False
        self._advancing = True
        try:
            if self._fast_path is None or not self._fast_path.run(inference, now):
                self._start(Batch(free[0], (inference,)), now)
        finally:
            self._advancing = False
        if self._finished or self._elsewhere or self._policy.waiting:
            self._advance(0)
        return True

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

    def resize(
        self,
        added: Mapping[int, tuple[bool, Callable[[], None] | None]],
        removed: Iterable[int],
        left: Callable[[int], None],
    ) -> None:
        """Instances come (by index: whether they are passive, and what to call first on their threads) and go
        (`Instances.remove`); what waits goes on with those that are there then (contract R13)."""
        for index, (passive, prepare) in added.items():
            self._instances.add(index, passive, prepare)
        if self._stateful_policy is not None:
            # Later, as an instance may be told to have been left while a batch is begun on it.
            def leave(index: int) -> None:
                self._loop.call_soon(partial(self._instances.remove, index, left))

            serving = [index for index, (passive, _) in added.items() if not passive]
            self._stateful_policy.exchange(serving, list(removed), leave, monotonic_ns())
        else:
            for index in removed:
                self._instances.remove(index, left)
            self._policy.resize(len(self._instances), monotonic_ns())
        self._enter()

    def stop(self) -> None:
        """No more inferences are taken; what is here runs to its end (contract S3)."""
        if self._stateful_policy is not None:
            self._stateful_policy.stop()
        else:
            self._stopping = True

    def close(self) -> None:
        """Ends the instance threads; called when nothing is left to run."""
        self._instances.stop()
        self._bell.woken = self._fast_path = None  # which have the runner

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
        about = {"model": self._config.model_name, "version": self._config.model_version}
        log.exception("running model '%s' broke", self._config.model_name, exc_info=error, extra=about)
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
                    if self._stateful_policy is not None and (at := policy.expires_at):
                        self._wake_at(at)
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
        if self._config.on_loop or self._loop.budget.left:
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
            self._end(inference, error, now, Reason.CANCELED if isinstance(error, Cancelled) else Reason.REJECTED)

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
        config = self._config
        for inference in batch.rows:
            if inference.state is QUEUED:  # one that fills a batch is over from the beginning
                inference.state = RUNNING
            rows += inference.batch_size or 1
            if config.decoupled and inference.flow is None:
                inference.flow = Flow(inference.reply, inference.request.most_ahead)
                if inference.cancelled:
                    inference.flow.release()
                inference.responded_at = now
            if inference.destinations is not None:
                destined += 1 + sum(place.byte_size for place in inference.destinations.values())
        inline = not config.on_loop and destined < PLACED_BYTES and self._eligibility.allows(rows)
        notify = None if inline else self._notified
        execution = Execution(batch.rows, rows, batch.instance, config.datatypes, config.decoupled, notify)
        if destined:
            execution.has_destinations = True
        execution.ragged = config.ragged
        if config.stateful:
            execution.carry_states()
        if inline:
            execution.on_loop = True
            execution.run(instance.execute, True, now)
            self._loop.budget.spend(execution.compute_end - now)
            self._drain(execution)
        elif config.on_loop:
            execution.on_loop = True
            execution.run(instance.execute, False, now)
        else:
            self._run_on_thread(execution, instance)
            self._loop.budget.spend(monotonic_ns() - now)

    def _run_on_thread(self, execution: Execution, instance: Runnable) -> None:
        looks, self._looks = self._looks, True  # a quick one may be over before this returns, and needs no call then
        try:
            thread = self._instances.thread(execution.instance)
            thread.submit(partial(execution.run, instance.execute, not self._config.completes_later))
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
            try:
                self._loop.call_soon_threadsafe(self._look)
            except RuntimeError:
                """The loop is closed: the engine has ended, and nobody waits for what came of it."""

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
        outcomes = self._outcomes(execution, done)
        if done and self._starts_first and self._policy.waiting:
            self._start_first(outcomes)
        now = monotonic_ns()
        for outcome in outcomes:
            inference = execution.requests[outcome.i]
            if inference.state is RUNNING:
                try:
                    self._settle(execution, inference, outcome, now)
                except Exception as error:
                    self._end(inference, self._broke(error), now, Reason.OTHER)

    def _start_first(self, outcomes: Iterable[Outcome]) -> None:
        """Starts the next batch before the answers of this one are written. A request that shall run again comes
        before all others."""
        free = self._instances.free
        try:
            if free and not any(outcome.again for outcome in outcomes):
                self._start_next(monotonic_ns(), free)
        except Exception as error:
            self._broke(error)

    def _outcomes(self, execution: Execution, done: bool) -> Sequence[Outcome]:
        """What the batch has to say now: as it comes for a decoupled model, one answer each for others: at the end,
        or after it where the backend said so."""
        if self._config.decoupled:
            number = len(execution.requests)
            return [outcome for outcome in execution.take() if 0 <= outcome.i < number]
        if not done:
            return ()
        answers = execution.single_answers()
        if (
            len(answers) == 1 or self._stateful_policy is not None
        ):  # whose policy has places for those that shall run again
            return answers
        # Those that shall run again are put back at the front, the first of them last.
        return sorted(answers, key=lambda outcome: (outcome.again, -outcome.i if outcome.again else outcome.i))

    def _account(self, execution: Execution) -> None:
        """Frees the instance and counts the batch; the time stamps of the batch are those of all its requests."""
        index, execution.instance = execution.instance, -1
        self._instances.give_back(index)
        start, input_end, output_start, end = times = execution.times()
        for inference in execution.requests:
            inference.times[_COMPUTE_START:] = times
        if self._config.inline_safe:
            self._eligibility.ran(execution.rows, end - start - execution.placed_ns, execution.on_loop)
        self._policy.freed(index, end)
        self._observer.executed(execution.rows, input_end - start, output_start - input_end, end - output_start)

    def _settle(self, execution: Execution, inference: Inference, outcome: Outcome, now: int) -> None:
        answer = outcome.answer
        if self._config.stateful and inference.next_states is not None:
            commit(inference, answer, outcome.final)
        if outcome.again and inference.cancelled:  # nobody cancels it a second time
            self._end(inference, self._cancelled(inference), now, Reason.CANCELED)
            return
        if outcome.again:
            if self._stateful_policy is not None:
                self._count_run(execution, inference, now)
            inference.state = QUEUED
            self._policy.released(inference, now, True)
            return
        response: Answer = None
        if isinstance(answer, Error):
            response = answer
        elif answer is not None:
            response = response_of(answer, outcome.parameters, inference, self._config)
        if not outcome.final:
            writable = inference.reply.send(response, False)
            if inference.flow is not None:
                inference.flow.delivered(cost_of(answer), writable)
                self._responded(inference, response, now)
            return
        if not execution.done:  # a decoupled model's last word before its batch is over
            inference.times[_COMPUTE_START:] = execution.times(now)
        self._end(inference, response, now, Reason.BACKEND)

    def _count_run(self, execution: Execution, inference: Inference, now: int) -> None:
        """A run of an inference that shall run once more, and waits for that from now on."""
        if not execution.done:
            inference.times[_COMPUTE_START:] = execution.times(now)
        self._observer.ran(inference)
        inference.times[_QUEUE_START] = now

    def _responded(self, inference: Inference, answer: Answer, now: int) -> None:
        age = 0 if inference.responses else now - inference.times[Stamp.REQUEST_START]
        self._observer.responded(inference.responses, answer, now - inference.responded_at, age)
        inference.responses += 1
        inference.responded_at = now

    def _end(self, inference: Inference, answer: Answer, now: int, reason: Reason | None) -> None:
        """The end of an inference: counted, told to the policy, answered, forgotten; each whatever the others do.

        `reason` is what a failure counts as, None for nothing."""
        ran = inference.state is RUNNING
        if inference.state is SETTLED:
            return
        inference.state = SETTLED
        try:
            if ran:
                self._policy.released(inference, now, False)
            if isinstance(answer, Error):
                if reason is not None:
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
