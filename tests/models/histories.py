"""Random histories of one model version: arrivals, sizes, shapes, priorities, timeouts, cancellations, failures, on a
clock that is moved by hand; and what must hold in each of them, whatever the configuration.

The expectations are computed here from the contract alone (S21, S22, S26 to S34), without the policies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from halimede.backends.api import Placement
from halimede.config import DynamicBatching, ModelConfig, QueuePolicy
from halimede.errors import Cancelled, Error, Internal, TimedOut, Unavailable
from halimede.models.version import ModelVersion
from halimede.requests import Answer, InferRequest, InferResponse, Resume
from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import Inference
from halimede.tensors import INT32, HostMemory, Tensor
from tests.fakes import ManualLoop, RecordingObserver
from tests.models.configs import config_of, spec
from tests.models.fakes import loaded

US = 1000
START = 1_000_000 * US
EVENTS = 24
_SHAPES = (1, 2)
_TENSORS = {(n, w): Tensor("x", INT32, (n, w), HostMemory(bytes(4 * n * w))) for n in range(9) for w in _SHAPES}
_FLAT = {w: Tensor("x", INT32, (w,), HostMemory(bytes(4 * w))) for w in _SHAPES}


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


@dataclass(slots=True, eq=False)
class Asked:
    """A request as the history sees it. `place` orders what waits on one level. `deadline` is 0 where it may wait."""

    number: int
    rows: int
    width: int
    level: int
    arrived: int
    deadline: int
    place: int
    inference: Inference | None = None
    answers: list[tuple[Answer, bool]] = field(default_factory=list)
    waits: bool = False
    ran: bool = False

    def send(self, answer: Answer, final: bool) -> bool:
        self.answers.append((answer, final))
        return True

    def on_writable(self, resume: Resume) -> None:
        resume()


class Held:
    """An instance placed on the loop: its batches last until the history ends them."""

    healthy = True

    def __init__(self, began: Callable[["Held", Execution], None]) -> None:
        self.running: Execution | None = None
        self._began = began

    def execute(self, batch: Execution, responses: Execution) -> None:
        assert self.running is None, "two batches at once"
        self.running = batch
        self._began(self, batch)

    def close(self) -> None:
        """Nothing to give back."""


def drawn_policy(random: Random, delays: bool = True) -> QueuePolicy:
    return QueuePolicy(
        max_size=random.choice((0, 0, 1, 3)),
        timeout_us=random.choice((0, 3, 10)),
        allow_override=random.random() < 0.5,
        delays=delays and random.random() < 0.5,
    )


def drawn_config(random: Random) -> ModelConfig:
    """A configuration that passes the checks."""
    largest = random.choice((0, 1, 4, 8))
    batching = None
    ordered = random.random() < 0.25
    default = drawn_policy(random, not ordered)
    if random.random() < 0.85:
        preferred = {random.randint(1, largest) for _ in range(random.randint(0, 2))} if largest else set()
        levels = random.choice((0, 1)) if ordered else random.choice((0, 0, 1, 2, 3))
        batching = DynamicBatching(
            preferred_batch_sizes=tuple(sorted(preferred)) or ((largest,) if largest else ()),
            max_queue_delay_us=random.choice((0, 0, 4, 9)),
            preserve_ordering=ordered,
            priority_levels=levels,
            default_priority_level=random.randint(1, levels) if levels else 0,
            level_policies={
                n: drawn_policy(random, not ordered) for n in range(1, levels + 1) if random.random() < 0.5
            },
        )
    if random.random() < 0.2:
        default = QueuePolicy()
    tensor = spec("x", "INT32", [-1])
    config = config_of(tensor, outputs=[tensor], max_batch_size=largest, batching=batching)
    return replace(config, queue_policy=default)


class History:
    """One version and what became of its requests. Every step checks what must hold then."""

    def __init__(self, random: Random, clock: Clock) -> None:
        self.random = random
        self.clock = clock
        self.loop = ManualLoop()
        self.config = config = drawn_config(random)
        self.batching = config.dynamic_batching
        self.policies = {} if self.batching is None else self.batching.level_policies
        self.instances = [Held(self._began) for _ in range(random.choice((1, 1, 2, 3)))]
        self.asked: list[Asked] = []
        self.by_inference: dict[Inference, Asked] = {}
        self.settled: list[Asked] = []
        self._ordered = self.batching is not None and self.batching.preserve_ordering
        self.observer = RecordingObserver()
        opened = replace(loaded(config), instances=self.instances)  # type: ignore[arg-type] # it is given executions
        opened.model.placement = Placement.LOOP  # type: ignore[misc] # a fake's
        self.version = ModelVersion(opened, self.loop, self.observer, self._settled, clock=clock)

    # What happens.

    def run(self) -> None:
        events: Sequence[Callable[[], None]] = (
            *(self.arrive,) * 5,
            *(self.finish,) * 3,
            *(self.pass_time,) * 3,
            self.cancel,
            self.burst,
        )
        for _ in range(EVENTS):
            self.random.choice(events)()
            self.check()
        self.end()

    def arrive(self) -> None:
        random, now = self.random, self.clock.now
        largest = self.config.max_batch_size
        priority, timeout = random.choice((0, 1, 1, 2, 3, 9)), random.choice((0, 2, 5, 50))
        level, policy = self._level_of(priority)
        limit = timeout if policy.allow_override and 0 < timeout < policy.timeout_us else policy.timeout_us
        asked = Asked(
            number=len(self.asked),
            rows=random.randint(1, largest) if random.random() < 0.5 and largest else min(largest, 1),
            width=random.choice((1, 1, 1, 2)),
            level=level,
            arrived=now,
            deadline=now + limit * US if limit else 0,
            place=len(self.asked),
        )
        self.asked.append(asked)
        line = sum(one.waits and one.level == level for one in self.asked)
        full = bool(policy.max_size) and line >= policy.max_size
        request = request_of(asked, priority, timeout, bool(largest))
        asked.inference = self.version.infer(asked.number, request, asked, now)
        self.by_inference[asked.inference] = asked
        asked.waits = not full
        self.version.submit(asked.inference)
        refused = [answer for answer, _ in asked.answers if isinstance(answer, Unavailable)]
        assert bool(refused) == full, (asked, policy, line)
        if full:
            assert str(refused[0]) == f"[request id: {asked.number}] Exceeds maximum queue size"

    def burst(self) -> None:
        for _ in range(self.random.randint(2, 6)):
            self.arrive()

    def finish(self) -> None:
        """An instance ends its batch: with answers, with failures, or with requests that want to run again."""
        busy = [one for one in self.instances if one.running is not None]
        if not busy:
            return
        instance = self.random.choice(busy)
        self.finish_one(instance)

    def finish_one(self, instance: Held) -> None:
        execution, instance.running = instance.running, None
        assert execution is not None
        breaks = self.random.random() < 0.1
        for i, inference in enumerate(execution.requests):
            chance = self.random.random()
            if breaks:
                break
            if chance < 0.1:
                execution.again(i)  # which fails it, as it is of no iterative sequence
            elif chance > 0.9:
                execution.fail(i, Internal("the model says no"))
            else:
                execution.send(i, [inference.request.inputs["x"]])
        if breaks:
            execution.break_off(Internal("the model broke"))
        else:
            execution.finished()

    def pass_time(self) -> None:
        self.move_to(self.clock.now + self.random.choice((1, 1, 2, 5, 20)) * US)

    def move_to(self, when: int) -> None:
        """Timers ring at their times."""
        while self.loop.timers and self.loop.timers[0][0] <= when:
            self.clock.now = max(self.clock.now, self.loop.timers[0][0])
            self.loop.ring()
            self.check()
        self.clock.now = when

    def cancel(self) -> None:
        open_ = [one for one in self.asked if not one.answers]
        if not open_:
            return
        asked = self.random.choice(open_)
        assert asked.inference is not None
        waited, asked.waits = asked.waits, False
        self.version.cancel(asked.inference)
        if waited and not (self._ordered and asked.ran):
            assert isinstance(asked.answers[-1][0], Cancelled), "cancelled while it waited, and not over at once"

    def end(self) -> None:
        """Nothing more comes; time passes and instances answer until all are answered."""
        for _ in range(4 * len(self.asked) + 8):
            if all(one.answers for one in self.asked):
                break
            busy = [one for one in self.instances if one.running is not None]
            if busy:
                self.finish_one(busy[0])
            else:
                self.move_to(self.clock.now + 10 * US)
            self.check()
        for one in self.asked:
            assert [final for _, final in one.answers] == [True], f"not answered once: {one}"
        assert len(self.settled) == len(self.asked)
        assert (self.version.held, self.version.waiting) == (0, 0)
        assert len(self.observer.successes) + len(self.observer.failures) == len(self.asked)

    # What must hold.

    def check(self) -> None:
        now = self.clock.now
        waiting = [one for one in self.asked if one.waits]
        for one in waiting:
            if one.answers:  # the queue has told it that it waited too long
                assert isinstance(one.answers[0][0], TimedOut), one
                assert str(one.answers[0][0]) == "Request timeout expired"
                assert now == one.deadline, f"told {now - one.deadline} ns after its time: {one}"
                assert not self._policy(one).delays
                one.waits = False
            else:
                assert not self._expired(one), f"waited too long and was not told: {one}"
        waiting = [one for one in waiting if one.waits]
        assert self.version.waiting == len(waiting)
        assert len(self.loop.timers) <= len(self.asked) + 2
        if any(one.running is None for one in self.instances) and waiting:
            self._check_idle(waiting)
        if self._ordered:
            ran = [one.number for one in self.settled if one.ran]
            assert ran == sorted(ran), f"answered out of order: {ran}"
            first_open = next((one.number for one in self.asked if not one.answers), len(self.asked))
            assert not ran or ran[-1] < first_open, f"{ran[-1]} was answered before {first_open}"

    def _began(self, instance: Held, batch: Execution) -> None:
        rows = [self.by_inference[inference] for inference in batch.requests]
        line = self._line([one for one in self.asked if one.waits and not one.answers])
        assert rows, "an empty batch"
        assert rows == line[: len(rows)], f"not the first of those that wait: {rows} of {line}"
        assert sum(max(1, one.rows) for one in rows) <= max(1, self.config.max_batch_size)
        assert len(rows) == 1 or self.batching is not None
        assert len({one.width for one in rows}) == 1
        assert not any(self._expired(one) for one in rows), "ran after its time"
        for one in rows:
            one.waits, one.ran = False, True

    def _check_idle(self, waiting: Sequence[Asked]) -> None:
        """Something waits beside an idle instance: only for a better batch, and not for longer than allowed."""
        assert self.batching is not None
        delay = self.batching.max_queue_delay_us * US
        preferred = self.batching.preferred_batch_sizes
        assert delay, f"idle beside {waiting}"
        rows, oldest = 0, self.clock.now
        line = self._line(waiting)
        for one in line:
            assert one.width == line[0].width, "a batch that cannot grow waits"
            rows += max(1, one.rows)
            oldest = min(oldest, one.arrived)
            assert rows not in preferred, "a batch of a preferred size waits"
        assert rows < max(preferred, default=0), "a batch larger than preferred waits"
        assert self.clock.now < oldest + delay, "the delay is over"

    def _line(self, waiting: Sequence[Asked]) -> list[Asked]:
        """Who is served in which order (S26, S31)."""

        def key(one: Asked) -> tuple[int, int, int]:
            late = bool(one.deadline) and self.clock.now >= one.deadline and self._policy(one).delays
            return one.level, one.deadline if late else 0, one.place

        return sorted(waiting, key=key)

    def _expired(self, one: Asked) -> bool:
        return 0 < one.deadline <= self.clock.now and not self._policy(one).delays

    def _level_of(self, priority: int) -> tuple[int, QueuePolicy]:
        batching = self.batching
        if batching is None or not batching.priority_levels:
            return 0, self.config.queue_policy
        level = priority if 0 < priority <= batching.priority_levels else batching.default_priority_level
        return level, self.policies.get(level, self.config.queue_policy)

    def _policy(self, one: Asked) -> QueuePolicy:
        return self.policies.get(one.level, self.config.queue_policy) if one.level else self.config.queue_policy

    def _settled(self, inference: Inference) -> None:
        asked = self.by_inference[inference]
        self.settled.append(asked)
        assert sum(final for _, final in asked.answers) == 1, "settled before it was answered"
        answer = asked.answers[-1][0]
        assert isinstance(answer, InferResponse | Error)


def request_of(asked: Asked, priority: int, timeout: int, batching: bool) -> InferRequest:
    request = InferRequest("m")
    request.id = str(asked.number)
    request.priority, request.timeout_us = priority, timeout
    request.inputs["x"] = _TENSORS[asked.rows, asked.width] if batching else _FLAT[asked.width]
    return request


def play(random: Random) -> None:
    """One history. Raises AssertionError where something does not hold."""
    clock = Clock()
    History(random, clock).run()
