"""Instances whose batches end after `execute` has returned: several under way, ending in any order."""

from threading import Event

from halimede.errors import Internal
from halimede.scheduling.execution import Execution
from tests.fakes import PATIENCE
from tests.scheduling.rig import Rig


class Pending:
    """Keeps the batches that it was given, and ends them when a test says so."""

    def __init__(self) -> None:
        self.batches: list[Execution] = []
        self.refuses = False

    def __call__(self, execution: Execution) -> None:
        if self.refuses:
            raise RuntimeError("cannot begin")
        self.batches.append(execution)

    def end(self, i: int) -> None:
        batch = self.batches[i]
        batch.send(0, list(batch.requests[0].request.inputs.values()))
        batch.finished()


def settle(rig: Rig) -> None:
    """Has the instance's thread done with what it was given."""
    while rig.loop.ready:
        rig.loop.turn()
    reached = Event()
    rig.runner._instances.thread(0).submit(reached.set)
    assert reached.wait(PATIENCE)


def test_async_instance_has_two_batches_under_way_and_no_third() -> None:
    pending = Pending()
    rig = Rig([pending], in_flight=2)
    replies = [rig.submit(name) for name in "abc"]
    settle(rig)
    assert [batch.requests[0].request.id for batch in pending.batches] == ["a", "b"]
    assert rig.runner.waiting == 1
    pending.end(0)
    rig.finish(replies[0])
    settle(rig)
    assert [batch.requests[0].request.id for batch in pending.batches] == ["a", "b", "c"]
    for i in (1, 2):
        pending.end(i)
    rig.finish(*replies)
    rig.runner.close()


def test_async_batches_end_in_any_order() -> None:
    pending = Pending()
    rig = Rig([pending], in_flight=2)
    first, second = rig.submit("a"), rig.submit("b")
    settle(rig)
    pending.end(1)
    rig.finish(second)
    assert not first.answers
    pending.end(0)
    rig.finish(first)
    assert rig.settled == ["b", "a"]
    rig.runner.close()


def test_async_instance_that_cannot_begin_fails_its_requests_and_is_free() -> None:
    pending = Pending()
    pending.refuses = True
    rig = Rig([pending], in_flight=1)
    reply = rig.submit("a")
    rig.finish(reply)
    assert isinstance(reply.error, Internal)
    pending.refuses = False
    other = rig.submit("b")
    settle(rig)
    pending.end(0)
    rig.finish(other)
    assert other.response.id == "b"
    rig.runner.close()


def test_async_batch_without_an_answer_fails_with_the_text_of_the_contract() -> None:
    pending = Pending()
    rig = Rig([pending], in_flight=1)
    reply = rig.submit("a")
    settle(rig)
    pending.batches[0].finished()
    rig.finish(reply)
    assert str(reply.error) == "expected a single response, got 0"
    rig.runner.close()
