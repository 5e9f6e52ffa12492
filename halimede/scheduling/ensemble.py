"""The runner of an ensemble: what a `Runner` is to a model with instances (contract S84 to S96).

Event-loop thread only. An inference enters by `submit` and leaves by exactly one final answer; how far it has come in
between, its `Run` knows.
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
    """In the place of a `Runner`; `observer` and `settled` as there."""

    waiting: ClassVar[int] = 0
    """Nothing of an ensemble waits for an instance of its own."""
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
        self._lines: list[deque[tuple[Run, Frame]]] = [deque() for _ in config.graph.reads]
        """Who waits for a step that has as many requests as it may (contract S90)."""

    # As a runner.

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
            self.end(inference, self.broke(error), Reason.OTHER)
            return
        self._runs[inference] = run
        run.begin()

    def cancel(self, inference: Inference) -> None:
        """The client has gone: no further step begins, those under way are cancelled (contract S94)."""
        inference.cancel()
        run = self._runs.get(inference)
        if run is not None:
            run.cancel()

    def settle(self, inference: Inference, answer: InferResponse | Error) -> None:
        """Ends an inference that was never submitted."""
        reason = Reason.CANCELED if isinstance(answer, Cancelled) else Reason.OTHER
        self.end(inference, answer, reason)

    def is_queued(self, inference: Inference) -> bool:
        """Whether one of its steps is."""
        return any(member.is_queued(step) for member, step in self._under_way(inference))

    def blockers_of(self, inference: Inference) -> Sequence[object]:
        """The instances that a step of it waits for, else those that one is at."""
        steps = self._under_way(inference)
        for member, step in sorted(steps, key=lambda each: not each[0].is_queued(each[1])):
            return member.blockers_of(step)
        return ()

    def _under_way(self, inference: Inference) -> list[tuple[Member, Inference]]:
        run = self._runs.get(inference)
        return [] if run is None else run.under_way()

    def mark(self, instance: int, healthy: bool, expected: bool) -> None:
        """There are no instances."""

    def resize(self, *_: object) -> None:
        """There are no instances."""

    def stop(self) -> None:
        """What was begun goes on; nothing else comes, since nobody finds the version any more."""

    def close(self) -> None:
        self._binding = None

    # For its runs.

    @property
    def prefix(self) -> str:
        """What errors of steps begin with (contract S88)."""
        return f"in ensemble '{self.config.name}', "

    def _bind(self) -> Binding:
        changes = self.config.changes()
        binding = self._binding
        if binding is None or changes != self._bound_at:
            binding = self._binding = self.config.bind()
            self._bound_at = changes
        return binding

    def admits(self, step: int, run: Run, frame: Frame) -> bool:
        """Whether one more request of this step may begin; if not, its turn comes. Asked only under a limit."""
        if self.in_flight[step] >= self.config.most_in_flight:
            self._lines[step].append((run, frame))
            return False
        self.in_flight[step] += 1
        return True

    def leaves(self, step: int) -> None:
        """A request of this step is over: it is the turn of those who waited, in a loop and not in each other."""
        self.in_flight[step] -= 1
        if self._admitting:
            return
        self._admitting = True
        try:
            while (step := self._next_step()) >= 0:
                run, frame = self._lines[step].popleft()
                self.in_flight[step] += 1
                run.admitted(frame, step)
        finally:
            self._admitting = False

    def _next_step(self) -> int:
        """One that somebody waits for and that may begin, -1 where there is none."""
        most = self.config.most_in_flight
        for step, line in enumerate(self._lines):
            if line and self.in_flight[step] < most:
                return step
        return -1

    def forget(self, run: "Run") -> int:
        """Nothing of it waits any more; how many requests did."""
        forgotten = 0
        for line in self._lines:
            kept = [each for each in line if each[0] is not run]
            forgotten += len(line) - len(kept)
            line.clear()
            line.extend(kept)
        return forgotten

    def broke(self, error: Exception) -> Error:
        log.exception("running ensemble '%s' broke", self.config.name, exc_info=error)
        return Internal(f"{type(error).__name__}: {error}")

    def end(self, inference: Inference, answer: Answer, reason: Reason) -> None:
        """The end of an inference: counted, answered, forgotten; each whatever the others do. A failure counts twice
        where it is not its own client's doing, as by the real server (contract S92)."""
        if inference.state is SETTLED:
            return
        inference.state = SETTLED
        self._runs.pop(inference, None)
        try:
            now = monotonic_ns()
            if not isinstance(answer, Error):
                if inference.times[_COMPUTE_START]:
                    self._observer.served(inference, inference.batch_size or 1, now)
                else:  # a cache had the answer
                    self._observer.succeeded(inference, now)
            else:
                for _ in range(2 if reason is Reason.OTHER else 1):
                    self._observer.failed(inference, now, reason)
        except Exception as error:
            self.broke(error)
        try:
            inference.reply.send(answer, True)
        except Exception as error:
            self.broke(error)
        try:
            self._settled(inference)
        except Exception as error:
            self.broke(error)
