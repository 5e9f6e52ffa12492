import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import cast

import pytest

from halimede.scheduling.instances import Instances, InstanceThread
from tests.fakes import PATIENCE, FakeInstance, echo


@pytest.fixture
def thread() -> Iterator[InstanceThread]:
    thread = InstanceThread("t")
    yield thread
    thread.stop()


def test_instance_thread_runs_what_it_is_given_in_order(thread: InstanceThread) -> None:
    done: SimpleQueue[tuple[int, str]] = SimpleQueue()
    for i in range(5):
        thread.submit(lambda i=i: done.put((i, threading.current_thread().name)))  # type: ignore[misc] # i is bound
    assert [done.get(timeout=PATIENCE) for _ in range(5)] == [(i, "t") for i in range(5)]


def test_instance_thread_survives_work_that_breaks(thread: InstanceThread) -> None:
    done: SimpleQueue[str] = SimpleQueue()

    def breaks() -> None:
        raise RuntimeError("broken")

    thread.submit(breaks)
    thread.submit(lambda: done.put("after"))
    assert done.get(timeout=PATIENCE) == "after"


def test_thread_lets_go_of_what_it_was_given(thread: InstanceThread) -> None:
    class Held:
        """Memory of a client, say."""

    held, gone = Held(), threading.Event()
    weakref.finalize(held, gone.set)
    thread.submit(cast("Callable[[], None]", partial(id, held)))
    del held
    assert gone.wait(PATIENCE), "held until the next batch comes"


def test_instances_take_their_turns() -> None:
    copies = [FakeInstance(echo) for _ in range(3)]
    instances = Instances("m:1", copies)
    assert (len(instances), list(instances.free)) == (3, [0, 1, 2])
    assert instances.take(1) is copies[1]
    assert instances.take(0) is copies[0]
    assert list(instances.free) == [2]
    instances.give_back(1)
    instances.give_back(0)
    assert list(instances.free) == [2, 1, 0]


def test_rotate_puts_an_instance_last() -> None:
    instances = Instances("m:1", [FakeInstance(echo) for _ in range(3)])
    instances.take(1)
    assert [instances.rotate() for _ in range(3)] == [0, 2, 0]
    assert list(instances.free) == [2, 0]
    assert instances.busy == 1


def test_broken_instance_gets_nothing_while_another_is_well() -> None:
    instances = Instances("m:1", [FakeInstance(echo) for _ in range(3)])
    instances.take(0)
    instances.mark(0, False, False)
    instances.mark(1, False, True)
    instances.give_back(0)
    assert list(instances.free) == [2]
    instances.mark(1, True, False)
    assert list(instances.free) == [2, 1]
    instances.mark(0, True, False)
    assert list(instances.free) == [2, 1, 0]


def test_broken_instances_refuse_only_if_none_is_expected_back() -> None:
    instances = Instances("m:1", [FakeInstance(echo) for _ in range(2)])
    instances.mark(0, False, False)
    instances.mark(1, False, True)
    assert list(instances.free) == []
    instances.mark(1, False, False)
    assert sorted(instances.free) == [0, 1]
    instances.take(0)
    instances.mark(1, True, False)
    instances.give_back(0)
    assert list(instances.free) == [1]


def test_instances_start_a_thread_at_first_use_and_keep_it() -> None:
    def alive() -> list[str]:
        return sorted(one.name for one in threading.enumerate() if one.name.startswith("only here:1"))

    instances = Instances("only here:1", [FakeInstance(echo) for _ in range(50)])
    assert alive() == []
    assert instances.thread(7) is instances.thread(7)
    assert instances.thread(7) is not instances.thread(8)
    assert alive() == ["only here:1 #7", "only here:1 #8"]
    instances.stop()


def test_instance_with_a_thread_of_its_own_runs_there_and_ends_it_itself(thread: InstanceThread) -> None:
    instance = FakeInstance(echo)
    instance.thread = thread  # type: ignore[attr-defined] # an instance may have one
    instances = Instances("m:1", [instance, FakeInstance(echo)])
    assert instances.thread(0) is thread
    assert instances.thread(1) is not thread
    instances.stop()
    done = threading.Event()
    thread.submit(done.set)
    assert done.wait(PATIENCE)


def test_passive_instances_are_never_free() -> None:
    instances = Instances("m:1", [FakeInstance(echo) for _ in range(3)], passive={1})
    assert (len(instances), list(instances.free)) == (2, [0, 2])
    instances.mark(1, healthy=False, expected=True)
    instances.mark(1, healthy=True, expected=False)
    assert list(instances.free) == [0, 2]
    instances.mark(0, healthy=False, expected=False)
    instances.mark(2, healthy=False, expected=False)
    assert sorted(instances.free) == [0, 2], "both broke for good, and are there to refuse"


def test_threads_are_prepared_before_anything_runs_there() -> None:
    done: SimpleQueue[str] = SimpleQueue()
    instances = Instances("m:1", [FakeInstance(echo)] * 2, prepare={1: lambda: done.put("prepared")})
    instances.thread(1).submit(partial(done.put, "ran"))
    assert [done.get(timeout=PATIENCE) for _ in range(2)] == ["prepared", "ran"]
    instances.thread(0).submit(partial(done.put, "ran"))
    assert done.get(timeout=PATIENCE) == "ran"
    instances.stop()


def test_instance_with_two_batches_in_flight_is_free_twice() -> None:
    instances = Instances("m:1", [FakeInstance(echo) for _ in range(2)], in_flight=2)
    assert (len(instances), list(instances.free)) == (2, [0, 1, 0, 1])
    instances.take(0)
    assert (list(instances.free), instances.busy) == ([1, 0, 1], 1)
    instances.take(0)
    instances.take(1)
    assert (list(instances.free), instances.busy) == ([1], 2)
    instances.give_back(0)
    instances.give_back(0)
    assert (list(instances.free), instances.busy) == ([1, 0, 0], 1)


def test_broken_instance_with_batches_in_flight_is_withheld_with_all_its_slots() -> None:
    instances = Instances("m:1", [FakeInstance(echo) for _ in range(2)], in_flight=2)
    instances.take(0)
    instances.mark(0, healthy=False, expected=False)
    assert list(instances.free) == [1, 1]
    instances.give_back(0)
    assert list(instances.free) == [1, 1]
    instances.mark(0, healthy=True, expected=False)
    assert sorted(instances.free) == [0, 0, 1, 1]


def test_leaving_instance_ends_all_its_batches_first() -> None:
    left: list[int] = []
    instances = Instances("m:1", [FakeInstance(echo) for _ in range(2)], in_flight=2)
    instances.take(0)
    instances.take(0)
    instances.remove(0, left.append)
    instances.give_back(0)
    assert (left, list(instances.free)) == ([], [1, 1])
    instances.give_back(0)
    assert (left, list(instances.free)) == ([0], [1, 1])
    instances.remove(1, left.append)
    assert left == [0, 1]
    instances.add(0)
    assert list(instances.free) == [0, 0]


def test_instances_are_idle_when_the_last_batch_has_ended() -> None:
    instances, calls = Instances("m:1", [FakeInstance(echo), FakeInstance(echo)], in_flight=2), list[str]()
    instances.take(0)
    instances.take(0)
    instances.take(1)
    instances.remove(1, lambda index: calls.append("left"))
    instances.when_idle(lambda: calls.append("idle"))
    instances.give_back(1)
    instances.give_back(0)
    assert calls == ["left"]
    instances.give_back(0)
    assert calls == ["left", "idle"]
    instances.take(0)
    instances.give_back(0)
    assert calls == ["left", "idle"], "called twice"


def test_instances_without_a_batch_are_idle_at_once() -> None:
    calls: list[str] = []
    instances = Instances("m:1", [FakeInstance(echo), FakeInstance(echo)], passive=[1])
    instances.mark(0, healthy=False, expected=True)
    instances.when_idle(lambda: calls.append("idle"))
    Instances("m:1", []).when_idle(lambda: calls.append("an ensemble's"))
    assert calls == ["idle", "an ensemble's"]
