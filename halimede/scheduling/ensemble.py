"""Runs the inferences of an ensemble (S84 to S96). Stands in the place of a `Runner`; event-loop thread only.

    entry         effect on an inference
    -----------   -------------------------------------------------------------------------------
    submit        QUEUED -> RUNNING: a `Run` starts its steps; or SETTLED with an error
    cancel        no further step starts; steps under way are cancelled; SETTLED when these are over
    settle        QUEUED -> SETTLED: a cache has its answer
    end           RUNNING -> SETTLED: called by its `Run`, once

A step that is limited by `max_inflight_requests` waits in a queue here until another request of that step is over
(S90).
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import ClassVar

from halimede.errors import Cancelled, Error, Internal
from halimede.requests import Answer, InferResponse, Stamp
from halimede.scheduling.ensemble_run import Run
from halimede.scheduling.inference import RUNNING, SETTLED, Inference
from halimede.scheduling.runner_config import Observer, Reason
from halimede.scheduling.step_binding import Binding, EnsembleRunnerConfig, Member
from halimede.scheduling.step_graph import Frame

log = logging.getLogger(__name__)

_QUEUE_START, _COMPUTE_START = int(Stamp.QUEUE_START), int(Stamp.COMPUTE_START)


class EnsembleRunner:
    """`observer` counts what becomes of inferences. `settled` is called with each that is over, after its final
    answer."""

    waiting: ClassVar[int] = 0
    """An ensemble has no instances of its own to wait for."""
    inline_executions: ClassVar[int] = 0

    def __init__(self, config: EnsembleRunnerConfig, observer: Observer, settled: Callable[[Inference], None]) -> None:
        self.config = config
        self._observer = observer
        self._settled = settled
        self._runs: dict[Inference, Run] = {}
        self._binding: Binding | None = None
        self._bound_at = -1
        self.in_flight = [0] * len(config.graph.reads)
        self._admitting = False
        self._waiting_for: list[deque[tuple[Run, Frame]]] = [deque() for _ in config.graph.reads]
        """By step, the runs that wait until it has fewer requests in flight (S90)."""

    # ---- the interface of a runner

    def submit(self, inference: Inference) -> None:
        now = inference.times[_QUEUE_START] = monotonic_ns()
        inference.state = RUNNING
        try:
            binding = self._bind()
            run = Run(self, inference, binding, now)
        except Error as error:
            self.end(inference, error.prefixed(self.prefix), Reason.OTHER)
            return
        except Exception as error:
            self.end(inference, self.internal_error(error), Reason.OTHER)
            return
        self._runs[inference] = run
        run.begin()

    def cancel(self, inference: Inference) -> None:
        """The client has gone: no further step starts, and those under way are cancelled (S94)."""
        inference.mark_cancelled()
        run = self._runs.get(inference)
        if run is not None:  # else it is over, or a cache looks for its answer
            run.cancel()

    def settle(self, inference: Inference, answer: InferResponse | Error) -> None:
        """Ends an inference that was never submitted: a cache has its answer, or the client went before."""
        reason = Reason.CANCELED if isinstance(answer, Cancelled) else Reason.OTHER
        self.end(inference, answer, reason)

    def is_queued(self, inference: Inference) -> bool:
        """Whether one of its steps waits for an instance."""
        return any(member.is_queued(step) for member, step in self._under_way(inference))

    def blockers_of(self, inference: Inference) -> Sequence[object]:
        """The instances that a step of the inference waits for; if none waits, those that run one."""
        steps = self._under_way(inference)
        for member, step in sorted(steps, key=lambda each: not each[0].is_queued(each[1])):
            return member.blockers_of(step)
        return ()

    def _under_way(self, inference: Inference) -> list[tuple[Member, Inference]]:
        run = self._runs.get(inference)
        return [] if run is None else run.under_way()

    def mark(self, instance: int, healthy: bool, expected: bool) -> None:
        """Does nothing: an ensemble has no instances."""

    def resize(self, *_: object) -> None:
        """Does nothing: an ensemble has no instances."""

    def stop(self) -> None:
        """Does nothing: a version that stops is not found any more, so no further request comes."""

    def close(self) -> None:
        self._binding = None  # it holds the versions of the steps, whose memory must go

    # ---- what its runs call

    @property
    def prefix(self) -> str:
        """What errors of steps begin with (S88)."""
        return f"in ensemble '{self.config.name}', "

    def _bind(self) -> Binding:
        """The models that serve the steps now."""
        changes = self.config.changes()
        binding = self._binding
        if binding is None or changes != self._bound_at:
            binding = self._binding = self.config.bind()
            self._bound_at = changes
        return binding

    def admits(self, step: int, run: Run, frame: Frame) -> bool:
        """Whether one more request of this step may start; if not, `Run.admitted` is called when it may. Called only if
        the ensemble has a limit."""
        if self.in_flight[step] >= self.config.most_in_flight:
            self._waiting_for[step].append((run, frame))
            return False
        self.in_flight[step] += 1
        return True

    def step_over(self, step: int) -> None:
        """A request of this step is over, so a waiting one may start."""
        self.in_flight[step] -= 1
        # A step that answers at once comes back here; the outermost call continues, so that the stack does not grow.
        if self._admitting:
            return
        self._admitting = True
        try:
            while (step := self._next_step()) >= 0:
                run, frame = self._waiting_for[step].popleft()
                self.in_flight[step] += 1
                run.admitted(frame, step)
        finally:
            self._admitting = False

    def _next_step(self) -> int:
        """A step that a run waits for and that may start; -1 if there is none."""
        most = self.config.most_in_flight
        for step, runs in enumerate(self._waiting_for):
            if runs and self.in_flight[step] < most:
                return step
        return -1

    def forget(self, run: "Run") -> int:
        """Takes out all waiting requests of a run. Returns how many there were."""
        forgotten = 0
        for runs in self._waiting_for:
            kept = [each for each in runs if each[0] is not run]
            forgotten += len(runs) - len(kept)
            runs.clear()
            runs.extend(kept)
        return forgotten

    def internal_error(self, error: Exception) -> Error:
        """Logs an exception that no code here expects, and returns what the request is answered."""
        name, version = self.config.name, self.config.version
        log.exception("ensemble '%s' version %d: internal error; the request fails", name, version, exc_info=error)
        return Internal(f"{type(error).__name__}: {error}")

    def end(self, inference: Inference, answer: Answer, reason: Reason) -> None:
        """Ends an inference: counts it, answers it, reports it. An exception in one of these does not keep the others
        from happening."""
        if inference.state is SETTLED:
            return
        inference.state = SETTLED
        self._runs.pop(inference, None)
        try:
            now = monotonic_ns()
            if not isinstance(answer, Error):
                if inference.times[_COMPUTE_START]:
                    self._observer.served(inference, inference.batch_size or 1, now)
                else:  # a cache had the answer, and no step ran
                    self._observer.succeeded(inference, now)
            else:
                # The real server counts a failure of a step twice (S92).
                for _ in range(2 if reason is Reason.OTHER else 1):
                    self._observer.failed(inference, now, reason)
        except Exception as error:
            self.internal_error(error)
        try:
            inference.reply.send(answer, True)
        except Exception as error:
            self.internal_error(error)
        try:
            self._settled(inference)
        except Exception as error:
            self.internal_error(error)
