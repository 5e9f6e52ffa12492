"""A runner whose ports are all fakes, so that a test sees each answer and can make each port raise."""

from collections.abc import Callable, Sequence
from threading import Event
from time import monotonic_ns

import numpy as np

from halimede.errors import Error
from halimede.requests import Answer
from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import Inference
from halimede.scheduling.inline import WINDOW
from halimede.scheduling.instances import Instances
from halimede.scheduling.policy import Batch, Policy, Wake
from halimede.scheduling.queue import DefaultPolicy
from halimede.scheduling.runner import Runner
from halimede.scheduling.runner_config import Observer, RunnerConfig
from halimede.tensors import FP32, Tensor, tensor_of
from tests.fakes import PATIENCE, FakeInstance, ManualLoop, RecordingObserver, RecordingReply, echo, inference

Behaviour = Callable[[Execution], None]


class Rig:
    """One runner. `submit` returns the reply slot; `settled` has the ids of the settled requests."""

    def __init__(
        self,
        behaviours: Sequence[Behaviour] = (echo,),
        policy: Policy | None = None,
        *,
        decoupled: bool = False,
        inline_safe: bool = False,
        on_loop: bool = False,
        gathers: bool = False,
        in_flight: int = 0,
        observer: Observer | None = None,
        settled: Callable[[Inference], None] | None = None,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.loop = ManualLoop()
        self.observer = RecordingObserver()
        self.settled: list[str] = []
        self.instances = [FakeInstance(behave) for behave in behaviours]
        self._settled = settled
        config = RunnerConfig(
            *("m", 3, dict.fromkeys("xyz", FP32), decoupled, inline_safe, on_loop),
            gathers=gathers,
            completes_later=in_flight > 0,
        )
        self.runner = Runner(
            config,
            policy or DefaultPolicy(),
            Instances("m:3", self.instances, in_flight=max(1, in_flight)),
            self.loop,
            observer or self.observer,
            self._over,
            clock=clock,
        )

    def _over(self, one: Inference) -> None:
        self.settled.append(one.request.id)
        if self._settled is not None:
            self._settled(one)

    def submit(
        self, name: str = "", rows: int = 0, on_send: Callable[[Answer, bool], None] | None = None, key: object = None
    ) -> RecordingReply:
        reply = RecordingReply(on_send)
        self.start(name, reply, rows, key)
        return reply

    def start(self, name: str, reply: RecordingReply, rows: int = 0, key: object = None) -> Inference:
        array = np.full((max(rows, 1), 1), float(len(name)), np.float32)
        one = inference(name, reply, rows, [tensor_of("x", FP32, array)], ["x"], key)
        self.runner.submit(one)
        return one

    def finish(self, *replies: RecordingReply) -> None:
        """Turns the loop until each of these has its final answer."""
        self.loop.run_until(lambda: all(reply.finals for reply in replies))

    def warm_up(self) -> None:
        """Reports quick runs, so that the model runs inline from now on."""
        for _ in range(2 * WINDOW):
            self.runner._eligibility.ran(1, 1, True)


class ScriptedPolicy(DefaultPolicy):
    """The default policy. The method `breaks` raises once; `refuse` is the answer to one `admit`, `wake` to `next`."""

    allows_fast_path = False

    def __init__(self, breaks: str = "", refuse: Error | None = None, wake: Sequence[int] = ()) -> None:
        super().__init__()
        self.breaks = breaks
        self._refuse = refuse
        self._wake = list(wake)

    def _perhaps_break(self, method: str) -> None:
        if method == self.breaks:
            self.breaks = ""
            raise RuntimeError(f"{method} broke")

    def admit(self, inference: Inference, now: int) -> Error | None:
        self._perhaps_break("admit")
        refuse, self._refuse = self._refuse, None
        return refuse or super().admit(inference, now)

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        self._perhaps_break("next")
        if self._wake:
            return Wake(self._wake.pop(0))
        return super().next(free, now)

    def freed(self, instance: int, now: int) -> None:
        self._perhaps_break("freed")

    def cancel(self, inference: Inference, now: int) -> bool:
        self._perhaps_break("cancel")
        return super().cancel(inference, now)


def tensor(name: str = "x") -> Tensor:
    return tensor_of(name, FP32, np.zeros((1, 1), np.float32))


def finishing(behave: Callable[[Execution], None]) -> Callable[[Execution], None]:
    """The behaviour, and then `finished`, which a backend placed on the loop must call itself."""

    def behaves(execution: Execution) -> None:
        behave(execution)
        if execution.on_loop:
            execution.finished()

    return behaves


def raising(error: BaseException) -> Callable[[Execution], None]:
    def behave(execution: Execution) -> None:
        raise error

    return behave


def held_back(release: Event) -> Callable[[Execution], None]:
    def behave(execution: Execution) -> None:
        assert release.wait(PATIENCE)
        echo(execution)

    return behave
