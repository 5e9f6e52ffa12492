"""Runs the inferences of one model version. It connects the policy, the instances, the timers and the reply slots.

The policies are pure; the runner is the part of `scheduling` that starts batches, sets timers and sends answers. It
does not know what a model computes or where a request came from. All methods run on the event-loop thread, except
`_notify`, which any thread may call.

An inference is QUEUED (in the policy, or in a cache before `submit`), RUNNING (in a batch) or SETTLED (answered).

    entry                  called by                                   inference before -> after
    ---------------------  ------------------------------------------  ------------------------------------------
    submit                 the model version                           QUEUED -> QUEUED, RUNNING or SETTLED
    settle                 a response cache; a cancel before submit    QUEUED -> SETTLED
    cancel                 the engine: the client has gone             QUEUED -> SETTLED; RUNNING stays RUNNING
    mark, resize           supervision of instances; a model update    others may start
    stop, close            unload                                      stop: later ones are refused
    _notify                `Execution`, any thread: it has outcomes    RUNNING -> SETTLED, or QUEUED to run again
    _drain_from_threads    the loop, after `_notify` on a thread       as `_notify`
    _next_turn             the loop, after `_advance_next_turn`        others may start
    _timer_fired           the loop, at a time that a policy asked for QUEUED -> SETTLED if it waited too long
    _advance_from_loop     the rate limiter: an instance may run       others may start

    the runner calls       when
    ---------------------  ------------------------------------------------------------------------------------
    Policy.admit, .next    a request arrives; an instance is free
    Instances.take         a batch starts
    Runnable.execute       a batch runs, on the instance's thread or on the loop
    Instances.give_back    a batch has finished; then `Policy.freed` and `Observer.executed`
    StatefulPolicy         an inference that ran becomes SETTLED, or is queued to run again (`released`)
    Observer               an inference succeeded or failed; before its answer is sent
    Reply.send             there is an answer; exactly one is final
    settled                the inference is SETTLED and its final answer was sent
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic_ns

from halimede.errors import Cancelled, Error, Internal, Invalid
from halimede.requests import Answer, InferResponse, Stamp
from halimede.scheduling.execution import Execution, Outcome, response_of
from halimede.scheduling.flow import Flow, cost_of
from halimede.scheduling.inference import QUEUED, RUNNING, SETTLED, Inference
from halimede.scheduling.inline import PLACED_BYTES, InlineEligibility
from halimede.scheduling.instances import Instances, Runnable
from halimede.scheduling.policy import Batch, Policy, is_stateful_policy
from halimede.scheduling.queue import FifoQueue
from halimede.scheduling.rate_limiter import LimiterSlots
from halimede.scheduling.refusals import cancelled, not_iterative, stopping
from halimede.scheduling.runner_config import Loop, Observer, Reason, RunnerConfig
from halimede.scheduling.sequence_state import commit_states

log = logging.getLogger(__name__)

_RETRY_NS = 100_000_000
"""Time until a policy whose timer raised is asked again."""
SLICE_NS = 1_000_000
"""Time that the answers of a batch may take in a turn of the loop."""
OUTCOMES_PER_LOOK = 16
"""Answers after which the clock is looked at."""
_QUEUE_START, _COMPUTE_START = int(Stamp.QUEUE_START), int(Stamp.COMPUTE_START)


class TimerTarget:
    """A runner's callback for its timers. These may fire hours after its end and must not keep it in memory."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def fire(self) -> None:
        if self.callback is not None:
            self.callback()


class Runner:
    """`settled` is called with each inference that is SETTLED, after its final answer was sent. `limiter` has the
    limiter slots of the instances; None without a rate limiter. `clock` returns monotonic nanoseconds."""

    def __init__(
        self,
        config: RunnerConfig,
        policy: Policy,
        instances: Instances,
        loop: Loop,
        observer: Observer,
        settled: Callable[[Inference], None],
        limiter: LimiterSlots | None = None,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._config = config
        self._policy = policy
        self._instances = instances
        self._loop = loop
        self._budget = loop.budget
        self._observer = observer
        self._settled = settled
        self._limiter = limiter
        self._clock = clock
        self._eligibility = InlineEligibility(config.inline_safe)
        self._advancing = False
        self._timers: list[int] = []
        """When the pending timers fire, the next one last. A new timer is set only if it fires before all of them."""
        self._timer_target = TimerTarget(self._timer_fired)
        self._drainable: deque[Execution] = deque()
        """Batches with outcomes to deliver, reported on the loop."""
        self._drainable_from_threads: deque[Execution] = deque()
        """Batches with outcomes to deliver, reported by other threads."""
        self._drain_is_due = False
        """Whether the loop will read `_drainable_from_threads` anyway, so that a thread need not call it."""
        self._stopping = False
        self._turn_is_due = False
        self._stateful_policy = policy if is_stateful_policy(policy) else None
        self._may_run_again = self._stateful_policy is not None and self._stateful_policy.iterative
        # A worker process would be idle while the loop writes answers, so the next batch starts before that. Not with
        # a stateful policy: it may choose the next batch only after the requests of this one are released.
        self._starts_before_answers = config.on_loop and self._stateful_policy is None
        self._has_fast_path = (
            isinstance(policy, FifoQueue)
            and policy.allows_fast_path
            and config.inline_safe
            and limiter is None
            and not (config.decoupled or config.gathers or config.on_loop or config.implicit_state)
        )
        if limiter is not None:
            limiter.watch(self._advance_from_loop)
        policy.resize(len(instances), clock())

    @property
    def waiting(self) -> int:
        """How many inferences are QUEUED in the policy."""
        return self._policy.waiting

    @property
    def inline_executions(self) -> int:
        """How many batches ran on the event loop because they are quick."""
        return self._eligibility.inline_runs

    def submit(self, inference: Inference) -> None:
        """Queues or runs an inference. A refusal goes to its reply slot before this returns."""
        now = self._clock()
        inference.times[_QUEUE_START] = now
        try:
            if self._has_fast_path and self._take_fast_path(inference, now):
                return
            refusal = stopping(inference) if self._stopping else self._policy.admit(inference, now)
            if refusal is None:
                if self._config.gathers:
                    self._advance_next_turn()
                else:
                    self._advance(now)
                return
            refusal.refused = True
        except Exception as error:
            # The policy raised, perhaps because of another inference. It might never start this one, so this one fails.
            refusal = self._internal_error(error)
            self._withdraw(inference, now)
        if inference.state is QUEUED:
            # An invalid request is a mistake of the client, so it does not count as a failure of the model.
            self._settle(inference, refusal, now, None if isinstance(refusal, Invalid) else Reason.REJECTED)
        if self._drainable_from_threads:
            # A turn with many refusals is long. An instance that became free meanwhile must not wait for its end.
            self._advance_from_loop()

    # ---- the fast path

    def _take_fast_path(self, inference: Inference, now: int) -> bool:
        """Runs a request on the loop without the queue, alone in its batch. Returns False if it must be queued.

        Most requests to small models take this path: nothing waits, the model is quick, there is one answer.
        """
        rows = inference.batch_size or 1
        # Not while `_advance` runs, and not before finished batches are drained: that frees instances and counts the
        # batches in order. A request with destinations takes the slow path, which measures the time of writing to them.
        if (
            self._advancing
            or self._stopping
            or self._drainable
            or self._drainable_from_threads
            or self._policy.waiting
            or not self._instances.free
            or inference.destinations is not None
            or not self._budget.left
            or not self._eligibility.allows(rows, inference.input_bytes)
        ):
            return False
        self._advancing = True
        try:
            self._run_at_once(inference, rows, now)
        finally:
            self._advancing = False
        # The reader of the answer may have submitted more requests.
        if self._drainable or self._drainable_from_threads or self._policy.waiting:
            self._advance(0)
        return True

    def _run_at_once(self, inference: Inference, rows: int, now: int) -> None:
        """Does for one request what `_start`, `_drain`, `_deliver` and `_settle` do for a batch."""
        config, instances = self._config, self._instances
        inference.state = RUNNING
        index = instances.rotate()
        execution = Execution((inference,), rows, index, config.datatypes, False, None, self._clock)
        execution.on_loop = True
        if config.ragged is not None:  # else the attribute of the class says so, which takes no time
            execution.ragged = config.ragged
        execution.run(instances.instances[index].execute, True, now)
        end = execution.compute_end
        self._budget.spend(end - now)
        response = self._single_response(inference, execution)
        if response is None:
            # An error, several answers or none, or a request to run again: `_drain` handles all of them.
            instances.take(index)
            self._drain(execution)
            return
        # `Policy.freed` and `give_back` need no call: nothing waits, and `rotate` has put the instance last already.
        self._eligibility.ran(rows, end - now, True, inference.input_bytes)
        inference.times[_COMPUTE_START:] = (now, execution.input_end or now, execution.output_start or end, end)
        inference.state = SETTLED
        try:
            self._observer.served(inference, rows, end)
        except Exception as error:
            self._internal_error(error)
        try:
            inference.reply.send(response, True)
        except Exception as error:
            self._internal_error(error)
        try:
            self._settled(inference)
        except Exception as error:
            self._internal_error(error)

    def _single_response(self, inference: Inference, execution: Execution) -> InferResponse | None:
        """The response, if the model gave exactly one answer and it is valid; else None."""
        outcomes = execution.outcomes
        if len(outcomes) != 1:
            return None
        outcome = outcomes[0]
        answer = outcome.answer
        if not outcome.final or outcome.i or answer is None or isinstance(answer, Error):
            return None
        try:
            return response_of(answer, outcome.parameters, inference, self._config)
        except Exception:  # `_deliver` gets the same error and reports it
            return None

    # ---- other entries

    def _withdraw(self, inference: Inference, now: int) -> None:
        """Removes an inference from a policy that raised in `admit` or `next`, so that no later batch runs it."""
        try:
            self._policy.cancel(inference, now)
        except Exception as error:
            self._internal_error(error)

    def cancel(self, inference: Inference) -> None:
        """The client has gone. Settles a queued inference at once. A running one continues; its backend can see that it
        is cancelled. A producer that waits for this client to read continues too (G34)."""
        inference.mark_cancelled()
        if inference.flow is not None:
            inference.flow.release()
        now = self._clock()
        try:
            withdrawn = inference.state is QUEUED and self._policy.cancel(inference, now)
        except Exception as error:
            self._internal_error(error)
            return
        if withdrawn:
            self._settle(inference, cancelled(inference), now, Reason.CANCELED)
            # Without it, the others may have a preferred batch size, so their batch is due now.
            self._advance_from_loop()

    def settle(self, inference: Inference, answer: InferResponse | Error) -> None:
        """Settles an inference that was never submitted: a cache has its answer, or the client left before."""
        reason = Reason.CANCELED if isinstance(answer, Cancelled) else Reason.OTHER
        self._settle(inference, answer, self._clock(), reason)

    def mark(self, instance: int, healthy: bool, expected: bool) -> None:
        """An instance broke or recovered. `expected`: the broken one comes back soon, so requests wait for it."""
        self._instances.mark(instance, healthy, expected)
        self._advance_from_loop()

    def resize(
        self,
        added: Mapping[int, tuple[bool, Callable[[], None] | None]],
        removed: Iterable[int],
        left: Callable[[int], None],
    ) -> None:
        """Adds and removes instances while the version serves (R13). `added` has for each index whether the instance is
        passive, and what its thread must call first. `left` is called with each removed index when it is idle."""
        for index, (passive, prepare) in added.items():
            self._instances.add(index, passive, prepare)
        if self._limiter is not None:
            left = self._limiter.removing(left)
        if self._stateful_policy is not None:
            # In a later turn: the policy may call this while it forms the batch with the instance's last request.
            def remove(index: int) -> None:
                self._loop.call_soon(partial(self._instances.remove, index, left))

            serving = [index for index, (passive, _) in added.items() if not passive]
            self._stateful_policy.change_instances(serving, list(removed), remove, self._clock())
        else:
            for index in removed:
                self._instances.remove(index, left)
            self._policy.resize(len(self._instances), self._clock())
        self._advance_from_loop()

    def stop(self) -> None:
        """Refuses further inferences. Those that are queued or running continue. A stateful policy still admits
        requests of sequences that have begun (S3)."""
        if self._stateful_policy is not None:
            self._stateful_policy.stop()
        else:
            self._stopping = True

    def close(self) -> None:
        """Ends the instance threads. All inferences are settled; a decoupled batch that still runs is drained."""
        self._instances.stop()
        self._timer_target.callback = None  # breaks a reference cycle: the model's memory must be released now
        if self._limiter is not None:
            self._limiter.watch(lambda: None)

    # ---- which batch runs next

    def _advance(self, now: int) -> None:
        """Drains finished batches and starts due ones, until there are none. `now` is 0 if the clock was not read.

        A call while another one runs returns at once: the outer call does its work.
        """
        if self._advancing:
            return
        self._advancing = True
        policy, free, budget = self._policy, self._instances.free, self._budget
        drainable, from_threads = self._drainable, self._drainable_from_threads
        # A backend with Placement.LOOP only passes batches on. That takes too little time to count in the budget.
        is_cheap = self._config.on_loop
        try:
            while True:
                # Finished batches first: they free instances, and clients wait for their answers.
                if drainable:
                    self._drain(drainable.popleft())
                elif from_threads:
                    self._drain(from_threads.popleft())
                elif not policy.waiting or not free:
                    break
                elif not (is_cheap or budget.left):
                    self._advance_next_turn()
                    break
                elif not self._start_next(now or self._clock(), free):
                    break
                now = 0  # the start took time, so the clock must be read again
            # A request that times out is answered on time, even if no instance is free. A stateful policy needs a timer
            # even if nothing waits, because sequences become idle.
            if (policy.waiting or self._stateful_policy is not None) and (at := policy.expires_at):
                self._set_timer(at)
        finally:
            self._advancing = False
            if self._limiter is not None:
                self._limiter.trim(*self._wanted(free))

    def _advance_next_turn(self) -> None:
        """Advances in the next turn of the loop, when all requests that arrived in this turn are queued."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_is_due = False
        self._advance_from_loop()

    def _advance_from_loop(self) -> None:
        """Advances without a request that could get the error: an error is logged, and the requests stay queued."""
        try:
            self._advance(0)
        except Exception as error:
            self._internal_error(error)

    def _start_next(self, now: int, free: Sequence[int], admitted: bool = False) -> bool:
        """Starts the batch that is due, on one of the `free` instances. Returns whether there was one. `admitted`: the
        rate limiter allows these instances to run."""
        if self._limiter is not None and not admitted:
            return self._start_limited(self._limiter, now, free)
        policy = self._policy
        if 0 < policy.expires_at <= now:
            self._expire(now)
        step = policy.next(free, now)
        if isinstance(step, Batch):
            self._start(step, now)
            return True
        if step is not None:
            self._set_timer(step.at)
        return False

    def _start_limited(self, limiter: LimiterSlots, now: int, free: Sequence[int]) -> bool:
        """Starts a batch on an instance that the rate limiter allows to run; asks for as many as there may be batches.
        The limiter calls back when an instance that it refused now may run (S100)."""
        wanted, most = self._wanted(free)
        for index in limiter.by_turn(wanted)[:most]:
            if limiter.ask(index):
                try:
                    if self._start_next(now, (index,), True):
                        return True
                except BaseException:
                    limiter.finished(index)
                    raise
                finally:
                    limiter.withdraw(index)  # which does nothing if a batch has started
        return False

    def _wanted(self, free: Sequence[int]) -> tuple[Sequence[int], int]:
        """The `free` instances that may get a batch, and the largest possible number of batches."""
        stateful_policy = self._stateful_policy
        if stateful_policy is None:
            return free, self._policy.waiting
        wanted = [index for index in free if stateful_policy.wants(index)]
        return wanted, len(wanted)

    def _expire(self, now: int) -> None:
        for inference, error in self._policy.expire(now):
            self._settle(inference, error, now, Reason.CANCELED if isinstance(error, Cancelled) else Reason.REJECTED)

    def _set_timer(self, when: int) -> None:
        # A timer cannot be cancelled. One that fires too early asks the policy and sets the next one.
        if not self._timers or when < self._timers[-1]:
            self._loop.call_at(when, self._timer_target.fire)
            self._timers.append(when)

    def _timer_fired(self) -> None:
        """Answers the requests that have waited too long, even if no instance is free (D4)."""
        self._timers.pop()
        now = self._clock()
        try:
            self._expire(now)
        except Exception as error:
            self._internal_error(error)
            self._set_timer(now + _RETRY_NS)  # with a delay, because it may raise each time
            return
        self._advance_from_loop()

    def _start(self, batch: Batch, now: int) -> None:
        """Runs the batch on the loop if `_prepare` chose that, else on the thread of its instance."""
        index, config = batch.instance, self._config
        instance = self._instances.take(index)
        if self._limiter is not None:
            self._limiter.started(index)
        try:
            execution = self._prepare(batch, now)
        except Exception as error:
            self._fail_batch(batch, self._internal_error(error), now)
            return
        if config.on_loop:
            execution.on_loop = True
            execution.run(instance.execute, False, now)
        elif execution.on_loop:
            execution.run(instance.execute, True, now)
            self._budget.spend(execution.compute_end - now)
            self._drain(execution)
        else:
            self._run_on_thread(execution, instance)
            self._budget.spend(self._clock() - now)

    def _prepare(self, batch: Batch, now: int) -> Execution:
        """The execution of a batch that is about to run. Its `on_loop` is True if it runs inline."""
        config, rows, placed_bytes, input_bytes = self._config, 0, 0, 0
        for inference in batch.rows:
            if inference.state is QUEUED:  # else an empty row of a batch of sequences, which is SETTLED from the start
                inference.state = RUNNING
            rows += inference.batch_size or 1
            input_bytes += inference.input_bytes
            # A request that runs again keeps its flow: its client may still have answers of the last run to read.
            if config.decoupled and inference.flow is None:
                inference.flow = Flow(inference.reply, inference.request.most_ahead)
                if inference.cancelled:  # `cancel` ran before there was a flow to release
                    inference.flow.release()
                inference.responded_at = now
            if inference.destinations is not None:
                # Plus 1, so that the sum is above 0 for destinations without bytes too.
                placed_bytes += 1 + sum(place.byte_size for place in inference.destinations.values())
        inline = not config.on_loop and placed_bytes < PLACED_BYTES and self._eligibility.allows(rows, input_bytes)
        # `_start` drains an inline batch itself, so it needs no notification.
        notify = None if inline else self._notify
        execution = Execution(batch.rows, rows, batch.instance, config.datatypes, config.decoupled, notify, self._clock)
        execution.on_loop, execution.input_bytes = inline, input_bytes
        if placed_bytes:
            execution.has_destinations = True
        execution.ragged = config.ragged
        if config.implicit_state:
            execution.carry_states()
        return execution

    def _fail_batch(self, batch: Batch, error: Error, now: int) -> None:
        """A batch could not be prepared. Its requests are no longer in the policy, so they must be settled here."""
        index = batch.instance
        try:
            self._instances.give_back(index)
            self._policy.freed(index, now)
        except Exception as other:
            self._internal_error(other)
        if self._limiter is not None:
            self._limiter.finished(index)
        for inference in batch.rows:
            if inference.state is not SETTLED:
                inference.state = RUNNING  # so that `_settle` tells the policy
                self._settle(inference, error, now, Reason.OTHER)

    def _run_on_thread(self, execution: Execution, instance: Runnable) -> None:
        # A quick batch may finish before `submit` returns. `_advance` looks for it, so no call to the loop is needed.
        was_due, self._drain_is_due = self._drain_is_due, True
        try:
            thread = self._instances.thread(execution.instance)
            thread.submit(partial(execution.run, instance.execute, not self._config.completes_later))
        except (RuntimeError, OSError) as error:  # the system has no more threads
            execution.on_loop = True
            execution.break_off(self._internal_error(error))
        finally:
            self._drain_is_due = was_due

    # ---- what became of a batch

    def _notify(self, execution: Execution) -> None:
        """A batch has outcomes. Called on the thread that produced them, which may be the loop's."""
        if execution.on_loop:
            self._drainable.append(execution)
            self._advance_from_loop()
            return
        self._drainable_from_threads.append(execution)
        # The loop clears the flag before it reads the deque for the last time, so no execution is missed.
        if not self._drain_is_due:
            self._drain_is_due = True
            try:
                self._loop.call_soon_threadsafe(self._drain_from_threads)
            except RuntimeError:
                """The loop is closed: the engine has ended, and no client is left to answer."""

    def _drain_from_threads(self) -> None:
        self._drain_is_due = False
        self._advance_from_loop()

    def _drain(self, execution: Execution) -> None:
        """Delivers the outcomes of a batch. If the batch has finished, frees its instance first.

        An exception in the delivery to one request fails that request only.
        """
        done, index = execution.done, execution.instance
        if done and index >= 0:  # -1 for an answer after the end of the batch: the instance is free already
            try:
                self._free(execution)
            except Exception as error:
                self._internal_error(error)
            if self._limiter is not None:
                self._limiter.finished(index)
        outcomes = self._outcomes(execution, done)
        if done and self._starts_before_answers and self._policy.waiting:
            self._start_before_answers()
        self._deliver_some(execution, outcomes, 0)

    def _deliver_some(self, execution: Execution, outcomes: Sequence[Outcome], start: int) -> None:
        """Delivers the outcomes from `start` on. Those of a large batch that take long come in several turns of the
        loop."""
        now = self._clock()
        for number, outcome in enumerate(outcomes[start:] if start else outcomes, start):
            # Those of a decoupled model are few, because their clients must read them.
            looks = not number % OUTCOMES_PER_LOOK and number > start and not self._config.decoupled
            if looks and self._clock() - now >= SLICE_NS:
                self._loop.call_soon(partial(self._deliver_some, execution, outcomes, number))
                return
            inference = execution.requests[outcome.i]
            if inference.state is RUNNING:  # else an empty row, or an answer after the final one
                try:
                    self._deliver(execution, inference, outcome, now)
                except Error as error:  # the outputs do not fit the configuration
                    self._settle(inference, error, now, Reason.BACKEND)
                except Exception as error:
                    self._settle(inference, self._internal_error(error), now, Reason.OTHER)

    def _free(self, execution: Execution) -> None:
        """Frees the instance and counts the batch. Copies the batch's time stamps to all its requests."""
        index, execution.instance = execution.instance, -1
        self._instances.give_back(index)  # first, so that an exception in the lines below does not keep the instance
        start, input_end, output_start, end = times = execution.times()
        for inference in execution.requests:
            inference.times[_COMPUTE_START:] = times
        if self._config.inline_safe:
            took = end - start - execution.placed_ns
            self._eligibility.ran(execution.rows, took, execution.on_loop, execution.input_bytes)
        self._policy.freed(index, end)
        self._observer.executed(execution.rows, input_end - start, output_start - input_end, end - output_start)

    def _outcomes(self, execution: Execution, done: bool) -> Sequence[Outcome]:
        """The outcomes to deliver now. Those of a decoupled model are delivered as they come. Other models give one
        answer per request: when the batch has finished, or later if the backend has said so."""
        if self._config.decoupled:
            number = len(execution.requests)
            return [outcome for outcome in execution.take() if 0 <= outcome.i < number]
        if not done:
            return ()
        return execution.single_answers()

    def _start_before_answers(self) -> None:
        """Starts the next batch before the answers of this one are written."""
        free = self._instances.free
        try:
            if free:
                self._start_next(self._clock(), free)
        except Exception as error:
            self._internal_error(error)

    def _deliver(self, execution: Execution, inference: Inference, outcome: Outcome, now: int) -> None:
        """Handles one outcome of a running inference: it runs again, or it has an answer, the final one or not."""
        answer = outcome.answer
        if outcome.again and not self._may_run_again:
            # Refused here, for all backends: a policy that is not iterative may have given the slot away.
            answer = not_iterative()
        if self._config.implicit_state and inference.next_states is not None:
            commit_states(inference, answer, outcome.final)
        if outcome.again and answer is None:
            self._queue_again(execution, inference, now)
            return
        response: Answer = None
        if isinstance(answer, Error):
            response = answer
        elif answer is not None:
            response = response_of(answer, outcome.parameters, inference, self._config)
        if not outcome.final:
            writable = inference.reply.send(response, False)
            if inference.flow is not None:  # it is set for decoupled models only
                inference.flow.delivered(cost_of(answer), writable)
                self._count_response(inference, response, now)
            return
        if not execution.done:  # the last response of a decoupled request whose batch still runs
            inference.times[_COMPUTE_START:] = execution.times(now)
        self._settle(inference, response, now, Reason.BACKEND)

    def _queue_again(self, execution: Execution, inference: Inference, now: int) -> None:
        if inference.cancelled:  # the engine cancels only once, so the request would run again for ever
            self._settle(inference, cancelled(inference), now, Reason.CANCELED)
            return
        assert self._stateful_policy is not None  # only an iterative sequence runs again
        # Each run counts as a request (S72).
        if not execution.done:
            inference.times[_COMPUTE_START:] = execution.times(now)
        self._observer.ran(inference)
        inference.times[_QUEUE_START] = now
        inference.state = QUEUED
        self._stateful_policy.released(inference, now, True)

    def _count_response(self, inference: Inference, answer: Answer, now: int) -> None:
        age = 0 if inference.responses else now - inference.times[Stamp.REQUEST_START]
        self._observer.responded(inference.responses, answer, now - inference.responded_at, age)
        inference.responses += 1
        inference.responded_at = now

    def _settle(self, inference: Inference, answer: Answer, now: int, reason: Reason | None) -> None:
        """Settles an inference: tells the policy, counts it, sends the final answer, calls `settled`. Each step is done
        even if another one raises. `reason` is what a failure counts as; None if it does not count."""
        ran = inference.state is RUNNING
        if inference.state is SETTLED:
            return
        inference.state = SETTLED
        try:
            if ran and self._stateful_policy is not None:
                self._stateful_policy.released(inference, now, False)
            if isinstance(answer, Error):
                if reason is not None:
                    self._observer.failed(inference, now, reason)
            else:
                self._observer.succeeded(inference, now)
        except Exception as error:
            self._internal_error(error)
        try:
            inference.reply.send(answer, True)
            if inference.flow is not None:
                self._count_response(inference, answer, now)
        except Exception as error:
            self._internal_error(error)
        try:
            if inference.flow is not None:
                inference.flow.release()
        except Exception as error:
            self._internal_error(error)
        try:
            self._settled(inference)
        except Exception as error:
            self._internal_error(error)

    # ---- errors

    def _internal_error(self, error: Exception) -> Error:
        """Logs an unexpected exception. Returns the error to answer with, if a request is concerned."""
        name, version = self._config.model_name, self._config.model_version
        log.exception(
            "model '%s' version %d: internal error in its scheduler; the model keeps serving",
            name,
            version,
            exc_info=error,
            extra={"model": name, "version": version},
        )
        return Internal(f"{type(error).__name__}: {error}")
