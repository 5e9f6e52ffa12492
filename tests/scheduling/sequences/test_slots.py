"""Which requests are admitted, which sequences have a slot, and when a sequence ends."""

from collections.abc import Callable

import pytest

from halimede.config.sequencing import Control, ControlKind
from halimede.errors import Cancelled, Invalid, Unavailable
from halimede.scheduling.policy import MAX_EXPIRED_PER_CALL, Batch
from halimede.scheduling.sequences.slots import CONFLICTS_PERIOD_NS
from halimede.tensors import BYTES
from tests.scheduling.sequences.rig import IDLE, PolicyRig, direct, oldest

BOTH = pytest.mark.parametrize("made", [direct, oldest])
Made = Callable[..., PolicyRig]


@BOTH
@pytest.mark.rows("S50", "S51", "S52")
def test_invalid_requests_are_refused_in_the_order_of_checks(made: Made) -> None:
    rig = made()
    errors = [
        rig.try_("1")[1],
        rig.try_("2", "")[1],
        rig.try_("3", 0, rows=2)[1],
        rig.try_("4", 7, "S", rows=2)[1],
        rig.try_("5", 7)[1],
        rig.try_("6", 7, "E")[1],
    ]
    no_id = "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
    rows = "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"
    start = (
        "inference request for sequence 7 to model 'm' must specify the START flag on the first request of the sequence"
    )
    assert [str(error) for error in errors] == [no_id, no_id, rows, rows, start, start]
    assert {type(error) for error in errors} == {Invalid}
    assert rig.policy.waiting == 0


def test_id_that_is_not_utf8_is_passed_on_as_it_came() -> None:
    """Text from JSON has its bytes as surrogate escapes."""
    control = Control(ControlKind.CORRID, "ID", BYTES)
    first = oldest(controls=(control,)).send("a", b"\xff1".decode("utf-8", "surrogateescape"), "S")
    tensor = first.sequence.id_tensor
    assert tensor is not None
    assert bytes(tensor.memory.host()) == b"\x02\0\0\0\xff1"


@pytest.mark.rows("H72")
def test_id_of_the_other_kind() -> None:
    numbers, texts = direct(), direct(controls=[Control(ControlKind.CORRID, "ID", BYTES)])
    _, text = numbers.try_("a", "one", "S")
    _, number = texts.try_("a", 1, "S")
    words = "[request id: a] sequence batching control '{}' data-type is '{}', but model 'm' expects '{}'"
    assert str(text) == words.format("CORRID", "BYTES", "UINT64")
    assert str(number) == words.format("ID", "UINT64", "BYTES")
    texts.send("b", "one", "S")


def test_ids_that_look_alike() -> None:
    rig = direct(controls=[])
    number, text = rig.send("a", 1, "S"), rig.send("b", "1", "S")
    assert rig.next() == ["a", "b"]
    assert number.states is not text.states


@BOTH
@pytest.mark.rows("S3")
def test_after_the_stop_no_sequence_begins(made: Made) -> None:
    rig = made()
    rig.send("a1", 1, "S")
    rig.policy.stop()
    _, error = rig.try_("b1", 2, "S")
    assert isinstance(error, Unavailable)
    assert str(error) == "Server is stopping, scheduler for model has stopped accepting new inference requests"
    rig.send("a2", 1, "E")


@pytest.mark.rows("S54")
def test_slot_with_the_lowest_number() -> None:
    rig = direct(slots=2, instances=3)
    runs = [rig.send(str(i), i, "S").sequence for i in range(1, 8)]
    places = [(run.slot, run.instance) for run in runs]
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (-1, -1)]


@BOTH
@pytest.mark.rows("S55")
def test_sequence_that_ended_while_it_waited_is_another_than_the_next(made: Made) -> None:
    rig = made(slots=1)
    first = rig.send("a1", 1, "S")
    one, end, other = rig.send("b1", 2, "S"), rig.send("b2", 2, "E"), rig.send("b3", 2, "S")
    assert one.sequence is end.sequence is not other.sequence
    rig.send("a2", 1, "E")
    order = []
    running = first
    while isinstance(batch := rig.batch(), Batch):
        (running,) = batch.rows
        order.append(running.request.id)
        rig.end(running)
    assert order == ["a1", "a2", "b1", "b2", "b3"]


@BOTH
@pytest.mark.rows("S53")
def test_sequence_that_starts_again_has_the_same_slot_and_nothing_of_before(made: Made) -> None:
    rig = made(slots=2)
    a1, a2, a3 = rig.send("a1", 1, "S"), rig.send("a2", 1, "S"), rig.send("a3", 1)
    assert a1.sequence is a2.sequence is a3.sequence
    assert a1.states is not a2.states
    assert a2.states is a3.states


@BOTH
@pytest.mark.rows("S56")
def test_idle_sequence_is_over_at_its_time(made: Made) -> None:
    rig = made(slots=1)
    a1 = rig.send("a1", 1, "S")
    b1 = rig.send("b1", 2, "S")
    assert rig.next() == ["a1"]
    rig.end(a1)
    assert rig.policy.expires_at == 100 + IDLE
    rig.now += IDLE - 1
    rig.send("a2", 1)
    assert rig.policy.expires_at <= rig.now + IDLE
    rig.now += IDLE - 1
    assert rig.expired() == {}
    assert b1.sequence.instance < 0
    rig.now += 1
    rig.expired()
    _, error = rig.try_("a3", 1)
    assert "must specify the START flag" in str(error)
    assert rig.next() == ["a2"]


def test_idle_time_counts_from_the_slot_on() -> None:
    rig = oldest(slots=1)
    a1, _ = rig.send("a1", 1, "SE"), rig.send("b1", 2, "S")
    assert rig.next() == ["a1"]
    rig.now += 5 * IDLE
    assert rig.expired() == {}
    rig.end(a1)
    rig.now += IDLE - 1
    assert rig.expired() == {}
    rig.send("b2", 2)


def in_parts(rig: PolicyRig) -> list[int]:
    """How many requests are refused at a time, until none is."""
    counts = []
    while 0 < rig.policy.expires_at <= rig.now:
        counts.append(len(rig.policy.expire(rig.now)))
    return counts


@BOTH
def test_sequences_that_time_out_together_are_refused_a_part_at_a_time(made: Made) -> None:
    rig = made(slots=1)
    rig.send("a1", 1, "S")
    for number in range(MAX_EXPIRED_PER_CALL + 10):
        rig.send("b", 2 + number, "S", timeout_us=1)
    rig.now += 1000
    assert in_parts(rig) == [MAX_EXPIRED_PER_CALL, 10]
    assert rig.policy.waiting == 1


@BOTH
def test_many_requests_behind_a_cancelled_one_are_refused_a_part_at_a_time(made: Made) -> None:
    rig = made(slots=1)
    rig.send("a1", 1, "S")
    first = rig.send("b1", 2, "S")
    for _ in range(MAX_EXPIRED_PER_CALL + 10):
        rig.send("b", 2)
    assert rig.policy.cancel(first, rig.now)
    assert in_parts(rig) == [MAX_EXPIRED_PER_CALL, 10]


@BOTH
def test_sequences_that_become_idle_together_end_a_part_at_a_time(made: Made) -> None:
    rig = made(slots=3 * MAX_EXPIRED_PER_CALL)
    for number in range(MAX_EXPIRED_PER_CALL + 10):
        rig.send("a", 1 + number, "S")
    rig.now += 2 * IDLE
    assert in_parts(rig) == [0, 0]


def test_sequences_that_start_again_are_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    rig = oldest(slots=3)
    for later in (0, 1, 2, CONFLICTS_PERIOD_NS):
        rig.now += later
        rig.send("a", 1, "S")
        rig.send("b", 2, "S")
    first, second = (record.getMessage() for record in caplog.records)
    assert first.endswith("terminated early.")
    assert second.endswith("terminated early. (3 more since the last such line)")


@BOTH
@pytest.mark.rows("S57")
def test_sequence_waits_as_long_as_its_least_patient_request(made: Made) -> None:
    rig = made(slots=1)
    a1 = rig.send("a1", 1, "S")
    rig.send("b1", 2, "S", timeout_us=500)
    rig.send("b2", 2, timeout_us=100)
    rig.send("b3", 2)
    rig.send("c1", 3, "S")
    assert rig.policy.expires_at == 100 + 100_000
    rig.now += 100_000
    text = "timeout of the corresponding sequence has been expired"
    assert rig.expired() == {"b1": text, "b2": text, "b3": text}
    _, error = rig.try_("b4", 2)
    assert isinstance(error, Invalid)
    rig.next()
    rig.send("a2", 1, "E")
    rig.end(a1)
    assert rig.next() == ["a2"]


@BOTH
@pytest.mark.rows("S65")
def test_cancelled_request_ends_its_sequence(made: Made) -> None:
    rig = made(slots=1)
    first = rig.send("a1", 1, "S")
    rig.next()
    second = rig.send("a2", 1)
    doomed = rig.send("a3", 1)
    rig.send("a4", 1)
    b1 = rig.send("b1", 2, "S")
    assert rig.policy.cancel(doomed, rig.now)
    assert not rig.policy.cancel(doomed, rig.now)
    assert rig.policy.expires_at == 1
    refusals = rig.policy.expire(rig.now)
    assert [(one.request.id, type(error)) for one, error in refusals] == [("a4", Cancelled)]
    _, error = rig.try_("a5", 1)
    assert isinstance(error, Invalid)
    rig.end(first)
    assert rig.next() == ["a2"]
    rig.end(second)
    assert rig.policy.waiting == 1
    assert b1.waits


@BOTH
def test_cancelled_sequence_in_the_backlog(made: Made) -> None:
    rig = made(slots=1)
    rig.send("a1", 1, "S")
    b1, _ = rig.send("b1", 2, "S"), rig.send("b2", 2, "E")
    c1 = rig.send("c1", 3, "S", timeout_us=1)
    assert rig.policy.cancel(b1, rig.now)
    assert rig.policy.cancel(c1, rig.now)
    assert [one.request.id for one, _ in rig.policy.expire(rig.now)] == ["b2"]
    assert rig.policy.waiting == 1
    assert rig.policy.expires_at == 100 + IDLE


@BOTH
@pytest.mark.rows("S72")
def test_request_without_an_id_is_a_sequence_of_its_own(made: Made) -> None:
    rig = made(iterative=True)
    known = rig.send("x", 2, "S")
    first, second = rig.send("a"), rig.send("b")
    assert [one.request.correlation_id for one in (first, second)] == [1, 3]
    assert first.request.sequence_start
    assert first.sequence is not known.sequence is not second.sequence


@BOTH
@pytest.mark.rows("S72")
def test_request_that_runs_again_keeps_its_slot_until_it_is_over(made: Made) -> None:
    rig = made(slots=1, iterative=True)
    one, waits = rig.send("a", 0, "E"), rig.send("b")
    assert rig.next() == ["a"]
    states = one.states
    rig.end(one, again=[one])
    assert rig.next() == ["a"]
    assert not one.request.sequence_start
    assert not one.request.sequence_end
    assert one.states is states
    assert waits.sequence.instance < 0
    rig.end(one)
    assert rig.next() == ["b"]
    rig.end(waits)
    assert rig.policy.expires_at == 0


@BOTH
@pytest.mark.rows("S73")
def test_instances_come_and_go_with_their_sequences(made: Made) -> None:
    rig = made(slots=1, instances=2)
    left: list[int] = []
    a1, b1, c1 = rig.send("a1", 1, "S"), rig.send("b1", 2, "S"), rig.send("c1", 3, "S")
    rig.policy.change_instances([4], [1], left.append, rig.now)
    assert (c1.sequence.instance, b1.sequence.instance) == (4, 1)
    rig.free.append(4)
    assert [rig.next(), rig.next(), rig.next()] == [["a1"], ["b1"], ["c1"]]
    rig.end(b1, instance=1)
    b2 = rig.send("b2", 2, "E")
    assert rig.next() == ["b2"]
    d1 = rig.send("d1", 4, "S")
    assert d1.sequence.instance < 0
    rig.end(b2, instance=1)
    assert left == [1]
    assert d1.sequence.instance < 0
    rig.end(a1, instance=0)
    rig.policy.change_instances([5], [0], left.append, rig.now)
    assert d1.sequence.instance == 5
    assert left == [1]


def test_state_that_cannot_begin_begins_nothing() -> None:
    rig = direct()

    def breaks() -> None:
        raise MemoryError

    object.__setattr__(rig.policy._rules, "begin", breaks)
    with pytest.raises(MemoryError):
        rig.send("a1", 1, "S")
    object.__setattr__(rig.policy._rules, "begin", None)
    _, error = rig.try_("a2", 1)
    assert isinstance(error, Invalid)
    assert rig.policy.waiting == 0


@BOTH
def test_unused_slots_cost_nothing(made: Made) -> None:
    rig = made(2**31 - 1)
    ones = [rig.send(f"{i}", i, "S") for i in range(1, 4)]
    assert [one.sequence.slot for one in ones] == [0, 1, 2]
    assert isinstance(rig.next(), list)


def test_many_short_sequences_leave_nothing() -> None:
    rig = direct(slots=1)
    for i in range(1, 500):
        one = rig.send("a", i, "SE")
        rig.next()
        rig.end(one)
    assert len(rig.policy._idle._heap) == 0
    for i in range(1, 500):
        one, two = rig.send("a", i, "S"), rig.send("b", i, "E")
        rig.next()
        rig.end(one)
        rig.next()
        rig.end(two)
    assert len(rig.policy._idle._heap) < 100
    assert not rig.policy._live
