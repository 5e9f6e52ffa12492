"""Runs the inferences of one model version: policy, instances, timers and reply slots meet here.

The policies are pure; the runner is the part of `scheduling` that starts batches, sets timers and sends answers. It
does not know what a model computes, nor where a request came from. Everything runs on the event-loop thread, except
`_notify`, which any thread may call.

An inference is QUEUED (the policy owns it), RUNNING (an instance has it) or SETTLED (it had its final answer).

    entry                  called by                                   inference before -> after
    ---------------------  ------------------------------------------  ------------------------------------------
    submit                 the model version                           QUEUED -> QUEUED, RUNNING or SETTLED
    settle                 a response cache; a cancel before submit    QUEUED -> SETTLED
    cancel                 the engine: the client has gone             QUEUED -> SETTLED; RUNNING stays RUNNING
    mark, resize           supervision of instances; a model update    others may start
    stop, close            unload                                      stop: later ones are refused
    _notify                `Execution`: outcomes are there, any thread  RUNNING -> SETTLED, or QUEUED to run again
    _drain_from_threads    the loop, after `_notify` on a thread       as `_notify`
    _next_turn             the loop, after `_advance_next_turn`        others may start
    _timer_fired           the loop, at a time that a policy named     QUEUED -> SETTLED if it waited too long
    _advance_from_loop     the rate limiter: an instance may run       others may start

    exit                   when
    ---------------------  ------------------------------------------------------------------------------------
    Policy.admit, .next    a request came; an instance is free
    Instances.take         a batch starts
    Runnable.execute       a batch runs, on the instance's thread or on the loop
    Instances.give_back    a batch has finished; then `Policy.freed` and `Observer.executed`
    StatefulPolicy         an inference that ran is about to be SETTLED, or runs again (`released`)
    Observer               an inference succeeded or failed; before its answer is sent
    Reply.send             an answer, exactly one of them final
    settled                the inference is SETTLED and its final answer was sent
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic_ns

from halimede.errors import Cancelled, Error, Internal, Invalid
from halimede.requests import Answer, InferResponse, Parameters, Stamp
from halimede.scheduling.execution import Execution, Outcome
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
from halimede.tensors import Tensor

log = logging.getLogger(__name__)

_RETRY_NS = 100_000_000
"""Time until a policy whose timer raised is asked again."""
_QUEUE_START, _COMPUTE_START = int(Stamp.QUEUE_START), int(Stamp.COMPUTE_START)


class TimerTarget:
    """The callback of a runner's timers. A timer may outlive its runner by hours and must not keep it in memory."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def fire(self) -> None:
        if self.callback is not None:
            self.callback()


class Runner:
    """`settled` is called with each inference that is over, after its final answer was sent. `limiter` has the slots of
    the instances in the server's rate limiter, None if the server has none. `clock` returns monotonic nanoseconds."""

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
        """When the pending timers fire, the next one last. A new one is only set if it fires sooner."""
        self._timer_target = TimerTarget(self._timer_fired)
        self._drainable: deque[Execution] = deque()
        """Batches with outcomes, notified on the loop."""
        self._drainable_from_threads: deque[Execution] = deque()
        """Batches with outcomes, notified on other threads."""
        self._drain_is_due = False
        """Whether the loop looks into `_drainable_from_threads` without another call."""
        self._stopping = False
        self._turn_is_due = False
        self._stateful_policy = policy if is_stateful_policy(policy) else None
        self._may_run_again = self._stateful_policy is not None and self._stateful_policy.iterative
        # A worker process would wait while answers are written, so it gets its next batch first. A stateful policy
        # may need the end of one request to choose the next.
        self._starts_before_answers = config.on_loop and self._stateful_policy is None
        self._has_fast_path = (
            isinstance(policy, FifoQueue)
            and policy.allows_fast_path
            and config.inline_safe
            and limiter is None
            and not (config.decoupled or config.gathers or config.on_loop or config.stateful)
        )
        if limiter is not None:
            limiter.watch(self._advance_from_loop)
        policy.resize(len(instances), clock())

    @property
    def waiting(self) -> int:
        """How many inferences wait for an instance."""
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
            # A batch fails by itself, so it was the policy that raised: before it took this inference, or afterwards,
            # since it has this one. Another inference may be the cause, but this one might wait for ever then.
            refusal = self._internal_error(error)
            self._withdraw(inference, now)
        if inference.state is QUEUED:
            # An invalid request says nothing about the model, so it is no failure in its statistics.
            self._settle(inference, refusal, now, None if isinstance(refusal, Invalid) else Reason.REJECTED)
        if self._drainable_from_threads:
            # A turn may be long and full of refusals; an instance that became free meanwhile must not wait for its end.
            self._advance_from_loop()

    # ---- the fast path

    def _take_fast_path(self, inference: Inference, now: int) -> bool:
        """Runs a request on the loop as a batch of its own, without the queue. Returns False if it must queue.

        Most requests to small models are like this: nothing waits, the model is quick, there is one answer.
        """
        rows = inference.batch_size or 1
        # Not from within `_advance`, and not before batches that have finished: they free instances and are counted
        # first. Destinations take the steps, which measure the time of writing there.
        if (
            self._advancing
            or self._stopping
            or self._drainable
            or self._drainable_from_threads
            or self._policy.waiting
            or not self._instances.free
            or inference.destinations is not None
            or not self._budget.left
            or not self._eligibility.allows(rows)
        ):
            return False
        self._advancing = True
        try:
            self._run_at_once(inference, rows, now)
        finally:
            self._advancing = False
        # The answer may have made its receiver submit more.
        if self._drainable or self._drainable_from_threads or self._policy.waiting:
            self._advance(0)
        return True

    def _run_at_once(self, inference: Inference, rows: int, now: int) -> None:
        """Executes and answers in one go what `_start`, `_drain`, `_deliver` and `_settle` do in steps."""
        config, instances = self._config, self._instances
        inference.state = RUNNING
        index = instances.rotate()
        execution = Execution((inference,), rows, index, config.datatypes, False, None, self._clock)
        execution.on_loop = True
        if config.ragged is not None:
            execution.ragged = config.ragged
        execution.run(instances.instances[index].execute, True, now)
        end = execution.compute_end
        self._budget.spend(end - now)
        response = self._single_response(inference, execution)
        if response is None:
            # An error, several answers or none, a request to run again: the steps know what to do.
            instances.take(index)
            self._drain(execution)
            return
        # The policy and `give_back` are left out: nothing waits, and `rotate` has put the instance last already.
        self._eligibility.ran(rows, end - now, True)
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
        """The response if the model gave exactly one and nothing is wrong with it."""
        outcomes = execution.outcomes
        if len(outcomes) != 1:
            return None
        outcome = outcomes[0]
        answer = outcome.answer
        if not outcome.final or outcome.i or answer is None or isinstance(answer, Error):
            return None
        try:
            return response_of(answer, outcome.parameters, inference, self._config)
        except Exception:  # `_deliver` meets the same error and reports it
            return None

    # ---- other entries

    def _withdraw(self, inference: Inference, now: int) -> None:
        """Takes an inference out of a policy that raised while admitting it, so that no later batch runs it."""
        try:
            self._policy.cancel(inference, now)
        except Exception as error:
            self._internal_error(error)

    def cancel(self, inference: Inference) -> None:
        """The client has gone. A waiting inference is settled at once. The model of a running one learns of it, and the
        inference runs to its end. A producer that waits for this client to read continues (G34)."""
        inference.cancel()
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
            # It may have kept the others from a preferred batch size, so that their batch is due now.
            self._advance_from_loop()

    def settle(self, inference: Inference, answer: InferResponse | Error) -> None:
        """Ends an inference that was never submitted: a cache has its answer, or the client went before."""
        reason = Reason.CANCELED if isinstance(answer, Cancelled) else Reason.OTHER
        self._settle(inference, answer, self._clock(), reason)

    def mark(self, instance: int, healthy: bool, expected: bool) -> None:
        """An instance broke or recovered. `expected`: a broken one comes back soon, so requests wait for it."""
        self._instances.mark(instance, healthy, expected)
        self._advance_from_loop()

    def resize(
        self,
        added: Mapping[int, tuple[bool, Callable[[], None] | None]],
        removed: Iterable[int],
        left: Callable[[int], None],
    ) -> None:
        """Adds and removes instances while the version serves (R13). `added` has, by index, whether the instance is
        passive and what its thread must call first. `left` is called with each removed index once it is idle."""
        for index, (passive, prepare) in added.items():
            self._instances.add(index, passive, prepare)
        if self._limiter is not None:
            left = self._limiter.removing(left)
        if self._stateful_policy is not None:
            # In a later turn: the policy may report the last sequence of an instance gone while it forms that batch.
            def remove(index: int) -> None:
                self._loop.call_soon(partial(self._instances.remove, index, left))

            serving = [index for index, (passive, _) in added.items() if not passive]
            self._stateful_policy.exchange(serving, list(removed), remove, self._clock())
        else:
            for index in removed:
                self._instances.remove(index, left)
            self._policy.resize(len(self._instances), self._clock())
        self._advance_from_loop()

    def stop(self) -> None:
        """Refuses further inferences; those that are here run to their end. A stateful policy still takes requests of
        sequences that have begun (S3)."""
        if self._stateful_policy is not None:
            self._stateful_policy.stop()
        else:
            self._stopping = True

    def close(self) -> None:
        """Ends the instance threads. Called when every inference is settled. A decoupled batch may still run; it is
        drained as usual."""
        self._instances.stop()
        self._timer_target.callback = None  # a reference cycle: the memory of the model must go now, not at a GC
        if self._limiter is not None:
            self._limiter.watch(lambda: None)

    # ---- which batch runs next

    def _advance(self, now: int) -> None:
        """Drains finished batches and starts due ones until neither is left. `now` is 0 if the clock was not read.

        Never re-entered: a callback that comes back here while this runs leaves its work to the outermost call.
        """
        if self._advancing:
            return
        self._advancing = True
        policy, free, budget = self._policy, self._instances.free, self._budget
        drainable, from_threads = self._drainable, self._drainable_from_threads
        # A backend placed on the loop only passes batches on, which takes no time worth counting.
        is_cheap = self._config.on_loop
        try:
            while True:
                # First what has finished: it frees instances, and clients wait for it.
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
                now = 0  # that took time, so the next batch reads the clock
            # A timeout is answered at its time, whether an instance is free or not. A stateful policy has times of its
            # own even if nothing waits: sequences become idle.
            if (policy.waiting or self._stateful_policy is not None) and (at := policy.expires_at):
                self._set_timer(at)
        finally:
            self._advancing = False
            if self._limiter is not None:
                self._limiter.trim(*self._wanted(free))

    def _advance_next_turn(self) -> None:
        """Advances in the next turn of the loop, after everything that has arrived in this one."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_is_due = False
        self._advance_from_loop()

    def _advance_from_loop(self) -> None:
        """Advances on behalf of no particular request: an error is logged and the requests keep waiting."""
        try:
            self._advance(0)
        except Exception as error:
            self._internal_error(error)

    def _start_next(self, now: int, free: Sequence[int], admitted: bool = False) -> bool:
        """Starts the batch that is due on one of these instances. Returns whether there was one. `admitted`: the rate
        limiter lets these instances run."""
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
        """Asks the rate limiter for as many instances as there may be batches for. It calls back when one that it
        cannot let run now may run (S100)."""
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
                    limiter.withdraw(index)  # unless a batch has started
        return False

    def _wanted(self, free: Sequence[int]) -> tuple[Sequence[int], int]:
        """Which of these instances may get a batch, and how many batches there may be."""
        stateful_policy = self._stateful_policy
        if stateful_policy is None:
            return free, self._policy.waiting
        wanted = [index for index in free if stateful_policy.wants(index)]
        return wanted, len(wanted)

    def _expire(self, now: int) -> None:
        for inference, error in self._policy.expire(now):
            self._settle(inference, error, now, Reason.CANCELED if isinstance(error, Cancelled) else Reason.REJECTED)

    def _set_timer(self, when: int) -> None:
        # A timer cannot be taken back. One that fires too early asks the policy, and sets the next one.
        if not self._timers or when < self._timers[-1]:
            self._loop.call_at(when, self._timer_target.fire)
            self._timers.append(when)

    def _timer_fired(self) -> None:
        """Requests that waited too long are answered now, whether an instance is free or not (D4)."""
        self._timers.pop()
        now = self._clock()
        try:
            self._expire(now)
        except Exception as error:
            self._internal_error(error)
            self._set_timer(now + _RETRY_NS)  # later, since it may raise each time
            return
        self._advance_from_loop()

    def _start(self, batch: Batch, now: int) -> None:
        """Runs the batch: on the loop if that is allowed, else on the instance's thread."""
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
        """The execution of a batch that is about to run; `on_loop` says whether it runs inline."""
        rows = placed_bytes = 0
        config = self._config
        for inference in batch.rows:
            if inference.state is QUEUED:  # a row that only fills a batch of sequences is SETTLED from the start
                inference.state = RUNNING
            rows += inference.batch_size or 1
            # A request that runs again keeps its flow: its client still has answers of the earlier run to read.
            if config.decoupled and inference.flow is None:
                inference.flow = Flow(inference.reply, inference.request.most_ahead)
                if inference.cancelled:  # the cancel found no flow to release
                    inference.flow.release()
                inference.responded_at = now
            if inference.destinations is not None:
                # 1 more, so that destinations of no bytes count too.
                placed_bytes += 1 + sum(place.byte_size for place in inference.destinations.values())
        inline = not config.on_loop and placed_bytes < PLACED_BYTES and self._eligibility.allows(rows)
        # What runs inline is drained right after it, so it notifies nothing.
        notify = None if inline else self._notify
        execution = Execution(batch.rows, rows, batch.instance, config.datatypes, config.decoupled, notify, self._clock)
        execution.on_loop = inline
        if placed_bytes:
            execution.has_destinations = True
        execution.ragged = config.ragged
        if config.stateful:
            execution.carry_states()
        return execution

    def _fail_batch(self, batch: Batch, error: Error, now: int) -> None:
        """A batch could not be prepared. Its policy has given its requests away, so they end here or never."""
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
                inference.state = RUNNING  # for the policy, which must hear of its end
                self._settle(inference, error, now, Reason.OTHER)

    def _run_on_thread(self, execution: Execution, instance: Runnable) -> None:
        # A quick batch may finish before `submit` returns. `_advance` looks for it, so it needs no call to the loop.
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
        # The loop clears the flag before it looks for the last time, so no execution is forgotten in between.
        if not self._drain_is_due:
            self._drain_is_due = True
            try:
                self._loop.call_soon_threadsafe(self._drain_from_threads)
            except RuntimeError:
                """The loop is closed: the engine has ended, and the outcomes have no receiver."""

    def _drain_from_threads(self) -> None:
        self._drain_is_due = False
        self._advance_from_loop()

    def _drain(self, execution: Execution) -> None:
        """Sends the outcomes of a batch to their reply slots. If the batch has finished, frees its instance first.

        An exception while one request is answered fails that request only.
        """
        done, index = execution.done, execution.instance
        if done and index >= 0:  # a request that answers later comes here again, when the instance is free already
            try:
                self._free(execution)
            except Exception as error:
                self._internal_error(error)
            if self._limiter is not None:
                self._limiter.finished(index)
        outcomes = self._outcomes(execution, done)
        if done and self._starts_before_answers and self._policy.waiting:
            self._start_before_answers()
        now = self._clock()
        for outcome in outcomes:
            inference = execution.requests[outcome.i]
            if inference.state is RUNNING:  # else a null row, or an answer after the final one
                try:
                    self._deliver(execution, inference, outcome, now)
                except Exception as error:
                    self._settle(inference, self._internal_error(error), now, Reason.OTHER)

    def _free(self, execution: Execution) -> None:
        """Frees the instance and counts the batch. The batch's time stamps are those of all its requests."""
        index, execution.instance = execution.instance, -1
        self._instances.give_back(index)  # first, so that nothing that raises keeps the instance
        start, input_end, output_start, end = times = execution.times()
        for inference in execution.requests:
            inference.times[_COMPUTE_START:] = times
        if self._config.inline_safe:
            self._eligibility.ran(execution.rows, end - start - execution.placed_ns, execution.on_loop)
        self._policy.freed(index, end)
        self._observer.executed(execution.rows, input_end - start, output_start - input_end, end - output_start)

    def _outcomes(self, execution: Execution, done: bool) -> Sequence[Outcome]:
        """The outcomes to deliver now. A decoupled model's are delivered as they come. Other models give one answer for
        each request: when the batch has finished, or later if the backend said so."""
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
            # Any backend may ask for this. Refused here, for all of them: a policy that is not iterative may have given
            # the place of the request to another one.
            answer = not_iterative()
        if self._config.stateful and inference.next_states is not None:
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
        if inference.cancelled:  # the engine cancels once only, so it would run for ever
            self._settle(inference, cancelled(inference), now, Reason.CANCELED)
            return
        assert self._stateful_policy is not None  # only an iterative sequence runs again
        # Each run counts as a request of its own (S72).
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
        """Ends an inference: tells the policy, counts it, answers it, reports it. An exception in one of these does not
        keep the others from happening. `reason` is what a failure counts as, None for nothing."""
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
        """Logs an exception that no code here expects, and returns what a request that it concerns is answered."""
        name, version = self._config.model_name, self._config.model_version
        log.exception(
            "model '%s' version %d: internal error in its scheduler; the model keeps serving",
            name,
            version,
            exc_info=error,
            extra={"model": name, "version": version},
        )
        return Internal(f"{type(error).__name__}: {error}")


def response_of(
    outputs: Sequence[Tensor], parameters: Parameters | None, inference: Inference, config: RunnerConfig
) -> InferResponse:
    """The response with the requested outputs, in the shape that clients see."""
    wanted, restore = inference.outputs, config.restore
    kept = []
    for tensor in outputs:
        if tensor.name in wanted:
            kept.append(tensor if restore is None else restore(tensor))
    return InferResponse(inference.request.id, config.model_name, config.model_version, kept, parameters)
