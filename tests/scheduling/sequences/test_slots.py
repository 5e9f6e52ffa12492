"""Which requests are taken, who has a slot, and when a sequence is over."""

from collections.abc import Callable

import pytest

from halimede.config.sequencing import Control, ControlKind
from halimede.errors import Cancelled, Invalid, Unavailable
from halimede.scheduling.policy import Batch
from halimede.tensors import BYTES
from tests.scheduling.sequences.rig import IDLE, CallRouter, direct, oldest

BOTH = pytest.mark.parametrize("made", [direct, oldest])
Made = Callable[..., CallRouter]


@BOTH
@pytest.mark.rows("S50", "S51", "S52")
def test_what_is_wrong_with_a_request(made: Made) -> None:
    router = made()
    errors = [
        router.try_("1")[1],
        router.try_("2", "")[1],
        router.try_("3", 0, rows=2)[1],
        router.try_("4", 7, "S", rows=2)[1],
        router.try_("5", 7)[1],
        router.try_("6", 7, "E")[1],
    ]
    no_id = "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
    rows = "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"
    start = (
        "inference request for sequence 7 to model 'm' must specify the START flag on the first request of the sequence"
    )
    assert [str(error) for error in errors] == [no_id, no_id, rows, rows, start, start]
    assert {type(error) for error in errors} == {Invalid}
    assert router.policy.waiting == 0


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
    router = direct(controls=[])
    number, text = router.send("a", 1, "S"), router.send("b", "1", "S")
    assert router.next() == ["a", "b"]
    assert number.states is not text.states


@BOTH
@pytest.mark.rows("S3")
def test_after_the_stop_no_sequence_begins(made: Made) -> None:
    router = made()
    router.send("a1", 1, "S")
    router.policy.stop()
    _, error = router.try_("b1", 2, "S")
    assert isinstance(error, Unavailable)
    assert str(error) == "Server is stopping, scheduler for model has stopped accepting new inference requests"
    router.send("a2", 1, "E")


@pytest.mark.rows("S54")
def test_slot_with_the_lowest_number() -> None:
    router = direct(slots=2, instances=3)
    runs = [router.send(str(i), i, "S").sequence for i in range(1, 8)]
    places = [(run.slot, run.instance) for run in runs]
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (-1, -1)]


@BOTH
@pytest.mark.rows("S55")
def test_sequence_that_ended_while_it_waited_is_another_than_the_next(made: Made) -> None:
    router = made(slots=1)
    first = router.send("a1", 1, "S")
    one, end, other = router.send("b1", 2, "S"), router.send("b2", 2, "E"), router.send("b3", 2, "S")
    assert one.sequence is end.sequence is not other.sequence
    router.send("a2", 1, "E")
    order = []
    running = first
    while isinstance(batch := router.batch(), Batch):
        (running,) = batch.rows
        order.append(running.request.id)
        router.end(running)
    assert order == ["a1", "a2", "b1", "b2", "b3"]


@BOTH
@pytest.mark.rows("S53")
def test_sequence_that_starts_again_has_the_same_slot_and_nothing_of_before(made: Made) -> None:
    router = made(slots=2)
    a1, a2, a3 = router.send("a1", 1, "S"), router.send("a2", 1, "S"), router.send("a3", 1)
    assert a1.sequence is a2.sequence is a3.sequence
    assert a1.states is not a2.states
    assert a2.states is a3.states


@BOTH
@pytest.mark.rows("S56")
def test_idle_sequence_is_over_at_its_time(made: Made) -> None:
    router = made(slots=1)
    a1 = router.send("a1", 1, "S")
    b1 = router.send("b1", 2, "S")
    assert router.next() == ["a1"]
    router.end(a1)
    assert router.policy.expires_at == 100 + IDLE
    router.now += IDLE - 1
    router.send("a2", 1)
    assert router.policy.expires_at <= router.now + IDLE
    router.now += IDLE - 1
    assert router.expired() == {}
    assert b1.sequence.instance < 0
    router.now += 1
    router.expired()
    _, error = router.try_("a3", 1)
    assert "must specify the START flag" in str(error)
    assert router.next() == ["a2"]


def test_idle_time_counts_from_the_slot_on() -> None:
    router = oldest(slots=1)
    a1, _ = router.send("a1", 1, "SE"), router.send("b1", 2, "S")
    assert router.next() == ["a1"]
    router.now += 5 * IDLE
    assert router.expired() == {}
    router.end(a1)
    router.now += IDLE - 1
    assert router.expired() == {}
    router.send("b2", 2)


@BOTH
@pytest.mark.rows("S57")
def test_sequence_waits_as_long_as_its_least_patient_request(made: Made) -> None:
    router = made(slots=1)
    a1 = router.send("a1", 1, "S")
    router.send("b1", 2, "S", timeout_us=500)
    router.send("b2", 2, timeout_us=100)
    router.send("b3", 2)
    router.send("c1", 3, "S")
    assert router.policy.expires_at == 100 + 100_000
    router.now += 100_000
    text = "timeout of the corresponding sequence has been expired"
    assert router.expired() == {"b1": text, "b2": text, "b3": text}
    _, error = router.try_("b4", 2)
    assert isinstance(error, Invalid)
    router.next()
    router.send("a2", 1, "E")
    router.end(a1)
    assert router.next() == ["a2"]


@BOTH
@pytest.mark.rows("S65")
def test_cancelled_request_ends_its_sequence(made: Made) -> None:
    router = made(slots=1)
    first = router.send("a1", 1, "S")
    router.next()
    second = router.send("a2", 1)
    doomed = router.send("a3", 1)
    router.send("a4", 1)
    b1 = router.send("b1", 2, "S")
    assert router.policy.cancel(doomed, router.now)
    assert not router.policy.cancel(doomed, router.now)
    assert router.policy.expires_at == 1
    refusals = router.policy.expire(router.now)
    assert [(one.request.id, type(error)) for one, error in refusals] == [("a4", Cancelled)]
    _, error = router.try_("a5", 1)
    assert isinstance(error, Invalid)
    router.end(first)
    assert router.next() == ["a2"]
    router.end(second)
    assert router.policy.waiting == 1
    assert b1.waits


@BOTH
def test_cancelled_sequence_in_the_backlog(made: Made) -> None:
    router = made(slots=1)
    router.send("a1", 1, "S")
    b1, _ = router.send("b1", 2, "S"), router.send("b2", 2, "E")
    c1 = router.send("c1", 3, "S", timeout_us=1)
    assert router.policy.cancel(b1, router.now)
    assert router.policy.cancel(c1, router.now)
    assert [one.request.id for one, _ in router.policy.expire(router.now)] == ["b2"]
    assert router.policy.waiting == 1
    assert router.policy.expires_at == 100 + IDLE


@BOTH
@pytest.mark.rows("S72")
def test_request_without_an_id_is_a_sequence_of_its_own(made: Made) -> None:
    router = made(iterative=True)
    known = router.send("x", 2, "S")
    first, second = router.send("a"), router.send("b")
    assert [one.request.correlation_id for one in (first, second)] == [1, 3]
    assert first.request.sequence_start
    assert first.sequence is not known.sequence is not second.sequence


@BOTH
@pytest.mark.rows("S72")
def test_request_that_runs_again_keeps_its_slot_until_it_is_over(made: Made) -> None:
    router = made(slots=1, iterative=True)
    one, waits = router.send("a", 0, "E"), router.send("b")
    assert router.next() == ["a"]
    states = one.states
    router.end(one, again=[one])
    assert router.next() == ["a"]
    assert not one.request.sequence_start
    assert not one.request.sequence_end
    assert one.states is states
    assert waits.sequence.instance < 0
    router.end(one)
    assert router.next() == ["b"]
    router.end(waits)
    assert router.policy.expires_at == 0


@BOTH
@pytest.mark.rows("S73")
def test_instances_come_and_go_with_their_sequences(made: Made) -> None:
    router = made(slots=1, instances=2)
    left: list[int] = []
    a1, b1, c1 = router.send("a1", 1, "S"), router.send("b1", 2, "S"), router.send("c1", 3, "S")
    router.policy.exchange([4], [1], left.append, router.now)
    assert (c1.sequence.instance, b1.sequence.instance) == (4, 1)
    router.free.append(4)
    assert [router.next(), router.next(), router.next()] == [["a1"], ["b1"], ["c1"]]
    router.end(b1, instance=1)
    b2 = router.send("b2", 2, "E")
    assert router.next() == ["b2"]
    d1 = router.send("d1", 4, "S")
    assert d1.sequence.instance < 0
    router.end(b2, instance=1)
    assert left == [1]
    assert d1.sequence.instance < 0
    router.end(a1, instance=0)
    router.policy.exchange([5], [0], left.append, router.now)
    assert d1.sequence.instance == 5
    assert left == [1]


def test_state_that_cannot_begin_begins_nothing() -> None:
    router = direct()

    def breaks() -> None:
        raise MemoryError

    object.__setattr__(router.policy._rules, "begin", breaks)
    with pytest.raises(MemoryError):
        router.send("a1", 1, "S")
    object.__setattr__(router.policy._rules, "begin", None)
    _, error = router.try_("a2", 1)
    assert isinstance(error, Invalid)
    assert router.policy.waiting == 0


@BOTH
def test_unused_slots_cost_nothing(made: Made) -> None:
    router = made(2**31 - 1)
    ones = [router.send(f"{i}", i, "S") for i in range(1, 4)]
    assert [one.sequence.slot for one in ones] == [0, 1, 2]
    assert isinstance(router.next(), list)


def test_many_short_sequences_leave_nothing() -> None:
    router = direct(slots=1)
    for i in range(1, 500):
        one = router.send("a", i, "SE")
        router.next()
        router.end(one)
    assert len(router.policy._idle._heap) == 0
    for i in range(1, 500):
        one, two = router.send("a", i, "S"), router.send("b", i, "E")
        router.next()
        router.end(one)
        router.next()
        router.end(two)
    assert len(router.policy._idle._heap) < 100
    assert not router.policy._live
