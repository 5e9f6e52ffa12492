"""Random histories of a sequence policy: requests, batches, cancels and time in any order, and the invariants that must
hold after each step.
"""

from collections import defaultdict
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, cast

from halimede.config.sequencing import Control, ControlKind, DirectStrategy, SequenceBatching
from halimede.errors import Cancelled, Invalid, TimedOut
from halimede.models.policies import controls_of
from halimede.requests import NULL_REPLY, Stamp
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Wake
from halimede.scheduling.sequences import DirectPolicy, OldestPolicy, SequenceRules
from halimede.scheduling.sequences.slots import SequencePolicy, SequenceRun
from halimede.tensors import BOOL, FP32, INT32, UINT64, HostMemory, Tensor, array_of
from tests.fakes import inference

Choose = Callable[[int], int]
"""A number from 0 to below this one."""

CONTROLS = (
    Control(ControlKind.START, "START", INT32, (0, 1)),
    Control(ControlKind.END, "END", FP32, (0, 1)),
    Control(ControlKind.READY, "READY", BOOL, (0, 1)),
    Control(ControlKind.CORRID, "CORRID", UINT64),
)
IDLE = 1000  # nanoseconds, as all times here
_IDS: tuple[int | str, ...] = (1, 2, 3, 4, 5, 6, 7, 8)


class Kept:
    """The state of a sequence: a hash of everything that its model has received since START."""

    key = None

    def __init__(self) -> None:
        self.digest = b""

    def add(self, payload: bytes) -> None:
        self.digest = after(self.digest, payload)


def after(digest: bytes, payload: bytes) -> bytes:
    return blake2b(digest + payload, digest_size=8).digest()


class Sent:
    """A request, and the digest that its sequence has when it has run. `batch` is the row of its last one."""

    def __init__(self, one: Inference, digest: bytes, number: int, start: int) -> None:
        self.one = one
        self.digest = digest
        self.number = number
        self.start = start
        self.runs = 0
        self.over = False


class Player:
    """`choose` makes every choice. Call `live`, then `end`, which finishes everything that was begun."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self.slots = 1 + choose(4)
        self.rows = self.slots
        instances = 1 + choose(2)
        controls = controls_of(SequenceBatching(DirectStrategy(), controls=CONTROLS), batches=True)
        self.iterative = choose(5) == 0
        rules = SequenceRules("m", self.slots, IDLE, controls, self.iterative, cast(Any, Kept))
        delay, self.policy = choose(2) * 50, cast(SequencePolicy, None)
        self.direct = choose(2) == 0
        if self.direct:
            self.policy = DirectPolicy(rules, delay, (0.0, 0.5, 1.0)[choose(3)])
        else:
            self.rows = 1 + choose(4)
            self.policy = OldestPolicy(rules, self.rows, (self.rows,), delay)
        self.policy.resize(instances, 0)
        self.now = 1
        self.free = list(range(instances))
        self.busy: dict[int, list[Sent | None]] = {}
        self.sent: dict[int, Sent] = {}
        self.digests: dict[int | str, bytes] = {}
        self.places: dict[SequenceRun, tuple[int, int]] = {}
        self.tenants: dict[tuple[int, int], SequenceRun] = {}
        self.last: dict[SequenceRun, int] = defaultdict(int)
        self.slotted: set[SequenceRun] = set()
        self.begun: dict[SequenceRun, int] = {}
        self.number = 0

    # ---- what happens

    def live(self, steps: int) -> None:
        for _ in range(steps):
            (self.send, self.send, self.send, self.start, self.start, self.finish, self.wait, self.cancel)[
                self._choose(8)
            ]()
            self.check()

    def send(self) -> None:
        self.number += 1
        one = inference(str(self.number), None, 1, [_payload(self.number)])
        request = one.request
        request.correlation_id = _IDS[self._choose(len(_IDS))]
        flags = self._choose(8)
        request.sequence_start, request.sequence_end = flags in (0, 1, 2, 3), flags in (3, 4)
        request.timeout_us = (0, 0, 1)[self._choose(3)]
        one.batch_key = self._choose(4) == 0
        one.times[Stamp.QUEUE_START] = self.now
        self._expire()
        refusal = self.policy.admit(one, self.now)
        if refusal is not None:
            assert isinstance(refusal, Invalid)
            assert not request.sequence_start
            return
        known = b"" if request.sequence_start else self.digests[request.correlation_id]
        digest = self.digests[request.correlation_id] = after(known, _bytes(self.number))
        self.sent[id(one)] = Sent(one, digest, self.number, self.begun.setdefault(one.sequence, self.number))

    def start(self) -> None:
        self._expire()
        if not self.free or not self.policy.waiting:
            return
        step = self.policy.next(self.free, self.now)
        if isinstance(step, Batch):
            self._run(step)
        elif isinstance(step, Wake):
            assert step.at > self.now

    def _run(self, batch: Batch) -> None:
        self.free.remove(batch.instance)
        rows: list[Sent | None] = []
        assert 0 < len(batch.rows) <= self.rows
        assert len({one.batch_key for one in batch.rows if one.reply is not NULL_REPLY}) == 1
        for row, one in enumerate(batch.rows):
            null = one.reply is NULL_REPLY
            _check_controls(one, null)
            rows.append(None if null else self._ran(self.sent[id(one)], batch.instance, row))
        assert any(rows)
        assert not self.direct or len(rows) <= self.slots
        self.busy[batch.instance] = rows

    def _ran(self, sent: Sent, instance: int, row: int) -> Sent:
        assert not sent.over
        run = sent.one.sequence
        again, sent.runs = sent.runs > 0, sent.runs + 1
        assert sent.number > self.last[run] or (again and sent.number == self.last[run]), "out of order"
        self.last[run] = sent.number
        if not again:
            kept = cast(Any, sent.one.states)
            kept.add(_bytes(sent.number))
            assert kept.digest == sent.digest, "the state of another sequence"
        place = (instance, row) if self.direct else (instance, -1)
        known = run in self.places
        assert self.places.setdefault(run, place) == place, "another slot"
        if self.direct:
            tenant = self.tenants.get(place)
            assert tenant is run or not known, "a slot of two"
            self.tenants[place] = run
        else:
            others = [each for rows in self.busy.values() for each in rows if each and each.one.sequence is run]
            assert not others, "two at once"
        return sent

    def finish(self) -> None:
        if not self.busy:
            return
        instance = sorted(self.busy)[self._choose(len(self.busy))]
        rows = self.busy.pop(instance)
        self.free.append(instance)
        self.policy.freed(instance, self.now)
        again = [sent for sent in rows if sent and self.iterative and sent.runs < 4 and self._choose(2)]
        for sent in rows:
            if sent is not None:
                sent.over = sent not in again
                self.policy.released(sent.one, self.now, sent in again)

    def wait(self) -> None:
        self._pass((1, 60, 300, IDLE + 1)[self._choose(4)])

    def _pass(self, time: int) -> None:
        self.now += time
        self._expire()

    def _expire(self) -> None:
        at = self.policy.expires_at
        if not 0 < at <= self.now:
            return
        for one, error in self.policy.expire(self.now):
            assert isinstance(error, TimedOut | Cancelled)
            self._over(one)
        assert not 0 < self.policy.expires_at <= self.now

    def _over(self, one: Inference) -> None:
        sent = self.sent[id(one)]
        assert not sent.over, "answered twice"
        sent.over = True

    def cancel(self) -> None:
        open_ones = [sent for sent in self.sent.values() if not sent.over]
        if open_ones and self._choose(3) == 0:
            sent = open_ones[self._choose(len(open_ones))]
            if self.policy.cancel(sent.one, self.now):
                self._over(sent.one)
                assert not self.policy.cancel(sent.one, self.now)

    # ---- what must hold

    def check(self) -> None:
        running = {id(sent.one) for rows in self.busy.values() for sent in rows if sent}
        refused = {id(one) for one, _ in self.policy._refused}
        waiting = [sent for key, sent in self.sent.items() if not sent.over and key not in running | refused]
        assert self.policy.waiting == len(waiting)
        slotless = [sent.start for sent in waiting if sent.one.sequence.instance < 0]
        for sent in waiting:
            patience = sent.one.request.timeout_us * 1000
            if patience and sent.one.sequence.instance < 0:
                assert sent.one.times[Stamp.QUEUE_START] + patience > self.now, "waits too long"
        for sent in waiting:
            run = sent.one.sequence
            if run.instance >= 0 and run not in self.slotted:
                self.slotted.add(run)
                assert all(sent.start < other for other in slotless), "served out of turn"

    def end(self) -> None:
        """Everything that was begun comes to an end, and nothing is left of it."""
        for _ in range(10_000):
            if not (self.policy.waiting or self.busy or self.policy.expires_at):
                break
            self._expire()
            if self.busy:
                self.finish()
            step = self.policy.next(self.free, self.now) if self.free and self.policy.waiting else None
            if isinstance(step, Batch):
                self._run(step)
            elif not self.busy:
                times = [step.at if step is not None else 0, self.policy.expires_at]
                assert any(times) or not self.policy.waiting, "stuck"
                self._pass(max(0, min((at for at in times if at), default=0) - self.now))
            self.check()
        assert all(sent.over for sent in self.sent.values()), "no answer"
        self._all_slots_are_there()

    def _all_slots_are_there(self) -> None:
        """As many sequences as there are slots can begin, and not one more."""
        room, policy = self.slots * len(self.free), self.policy
        runs = []
        for number in range(room + 1):
            one = inference("x", None, 1, [_payload(0)])
            one.request.correlation_id, one.request.sequence_start = 100 + number, True
            assert policy.admit(one, self.now) is None
            runs.append(one.sequence)
        assert [run.instance >= 0 for run in runs] == [True] * room + [False]


def _payload(number: int) -> Tensor:
    return Tensor("x", INT32, (1, 1), HostMemory(_bytes(number)))


def _bytes(number: int) -> bytes:
    return number.to_bytes(4, "little")


def _check_controls(one: Inference, null: bool) -> None:
    inputs, request = one.request.inputs, one.request
    start, end, ready, correlation_id = (
        array_of(inputs[name]).tolist() for name in ("START", "END", "READY", "CORRID")
    )
    assert ready == [[not null]]
    assert start == [[int(request.sequence_start)]]
    assert end == [[float(request.sequence_end)]]
    assert correlation_id == [[0 if null else request.correlation_id]]
