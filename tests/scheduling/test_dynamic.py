"""The dynamic batcher against contract S20 to S25 and C60. The rows `observed` are what Triton 2.51 did with the same
queue, held back by TRITONSERVER_DELAY_SCHEDULER until it was full."""

from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.requests import Stamp
from halimede.scheduling.dynamic import DynamicPolicy
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Wake
from tests.fakes import inference

MS = 1_000_000
FREE = (0,)


def admit(policy: DynamicPolicy, rows: int, now: int, key: object = None) -> Inference:
    one = inference(batch_size=rows, batch_key=key)
    one.times[Stamp.QUEUE_START] = now
    assert policy.admit(one, now) is None
    return one


def filled(policy: DynamicPolicy, rows: Sequence[int], keys: Sequence[object] = ()) -> DynamicPolicy:
    for i, n in enumerate(rows):
        admit(policy, n, 0, keys[i] if keys else None)
    return policy


def rows_of(step: Batch | Wake | None) -> list[int]:
    assert isinstance(step, Batch), step
    return [one.rows for one in step.rows]


def all_batches(policy: DynamicPolicy, now: int = 0) -> list[list[int]]:
    """The batches, as rows of their requests, until nothing is due."""
    batches = []
    while isinstance(step := policy.next(FREE, now), Batch):
        batches.append(rows_of(step))
    return batches


@pytest.mark.parametrize(
    ("max_rows", "preferred", "rows", "batches"),
    [
        pytest.param(8, [8], [1] * 5, [[1] * 5], id="nothing better to come: all of them"),
        pytest.param(8, [8], [], [], id="empty queue"),
        pytest.param(8, [4], [1] * 6, [[1] * 4, [1] * 2], id="the preferred prefix, then the rest"),
        pytest.param(8, [2, 4], [1] * 6, [[1] * 4, [1] * 2], id="the largest preferred prefix"),
        pytest.param(8, [2, 6], [1] * 5, [[1, 1], [1, 1], [1]], id="a smaller preferred size at once"),
        pytest.param(8, [4], [3, 3], [[3], [3]], id="cut before the largest preferred size is passed"),
        pytest.param(8, [4], [3, 1, 3], [[3, 1], [3]], id="preferred by sum of rows"),
        pytest.param(8, [6], [2, 3, 3], [[2, 3], [3]], id="cut before passing it, with two before"),
        pytest.param(8, [6], [7, 1], [[7], [1]], id="larger than preferred: alone (S25)"),
        pytest.param(8, [4], [8, 4], [[8], [4]], id="as large as the largest batch"),
        pytest.param(8, [8], [5, 5, 5], [[5], [5], [5]], id="never beyond max_batch_size"),
        pytest.param(8, [3, 8], [1, 2, 3], [[1, 2], [3]], id="a request that would pass the max leaves the preferred"),
        pytest.param(1, [1], [1, 1], [[1], [1]], id="max_batch_size 1 (S35)"),
        pytest.param(0, [], [0, 0], [[1], [1]], id="max_batch_size 0 (S35)"),
    ],
)
def test_batches_without_delay(max_rows: int, preferred: list[int], rows: list[int], batches: list[list[int]]) -> None:
    assert all_batches(filled(DynamicPolicy(max_rows, preferred, 0), rows)) == batches


@pytest.mark.parametrize(
    ("max_rows", "preferred", "rows", "observed"),
    [
        (8, [8], [1] * 32, {8: 4}),
        (16, [8], [1] * 32, {8: 4}),
        (32, [8], [1] * 32, {8: 4}),
        (16, [16], [1] * 32, {16: 2}),
        (12, [12], [1] * 32, {8: 1, 12: 2}),
        (12, [4, 8], [1] * 32, {8: 4}),
        (8, [6], [1] * 32, {2: 1, 6: 5}),
        (8, [3, 5], [1] * 32, {2: 1, 5: 6}),
        (16, [16], [1, 2, 3], {2: 1, 14: 1, 15: 1, 16: 2}),
        (12, [4, 8], [1, 2, 3], {4: 4, 7: 1, 8: 5}),
        (8, [6], [3] * 32, {6: 16}),
        (8, [6], [5] * 32, {5: 32}),
        (12, [12], [7, 1], {8: 16}),
        (16, [16], [16] + [1] * 31, {15: 1, 16: 2}),
        (1, [1], [1] * 32, {1: 32}),
        (0, [], [0] * 32, {1: 32}),
    ],
)
def test_batches_of_a_full_queue_as_observed(
    max_rows: int, preferred: list[int], rows: list[int], observed: dict[int, int]
) -> None:
    policy = filled(DynamicPolicy(max_rows, preferred, 0, start_at=32), list(islice(cycle(rows), 32)))
    assert Counter(map(sum, all_batches(policy))) == observed


def test_batches_of_alternating_shapes_as_observed() -> None:
    keys = [(1 + i // 5 % 2,) for i in range(32)]
    policy = filled(DynamicPolicy(16, [8], 0, start_at=32), [1] * 32, keys)
    assert Counter(map(sum, all_batches(policy))) == {5: 6, 2: 1}


@pytest.mark.parametrize(
    ("keys", "batches"),
    [
        ("aab", [2, 1]),
        ("aba", [1, 1, 1]),
        ("aaaa", [4]),
        ([None, None], [2]),
    ],
)
def test_batches_hold_one_shape_each(keys: Sequence[object], batches: list[int]) -> None:
    assert [len(b) for b in all_batches(filled(DynamicPolicy(8, [8], 0), [1] * len(keys), keys))] == batches


@pytest.mark.parametrize(
    ("preferred", "rows", "now", "expected"),
    [
        pytest.param([8], [1], 0, Wake(10 * MS), id="alone: waits for company"),
        pytest.param([8], [1], 10 * MS - 1, Wake(10 * MS), id="still, right before its time"),
        pytest.param([8], [1], 10 * MS, [1], id="its time has come"),
        pytest.param([4, 8], [1] * 4, 0, [1] * 4, id="a preferred size does not wait"),
        pytest.param([4, 8], [1] * 5, 0, [1] * 4, id="nor does one that was passed"),
        pytest.param([4, 8], [1] * 5, 10 * MS, [1] * 5, id="overdue: all that fit, not cut to preferred"),
        pytest.param([4], [1] * 9, 10 * MS, [1] * 8, id="overdue: no more than max_batch_size"),
        pytest.param([4], [3, 3], 0, [3], id="beyond the largest preferred size"),
        pytest.param([4], [7], 0, [7], id="larger than preferred: at once (S25)"),
        pytest.param([8], [5, 5], 0, [5], id="cannot grow: too large together"),
    ],
)
def test_batch_with_a_delay_of_10_ms(
    preferred: list[int], rows: list[int], now: int, expected: Wake | list[int]
) -> None:
    step = filled(DynamicPolicy(8, preferred, 10 * MS), rows).next(FREE, now)
    assert (step if isinstance(step, Wake) else rows_of(step)) == expected


def test_batch_with_a_delay_that_cannot_grow_for_its_shape() -> None:
    policy = filled(DynamicPolicy(8, [8], 10 * MS), [1, 1, 1], "aab")
    assert rows_of(policy.next(FREE, 0)) == [1, 1]
    assert policy.next(FREE, 0) == Wake(10 * MS)


def test_delay_counts_from_the_oldest_request() -> None:
    policy = DynamicPolicy(8, [8], 10 * MS)
    admit(policy, 1, 2 * MS)
    admit(policy, 1, 9 * MS)
    assert policy.next(FREE, 9 * MS) == Wake(12 * MS)
    assert rows_of(policy.next(FREE, 12 * MS)) == [1, 1]


def test_delay_counts_anew_when_the_oldest_request_has_gone() -> None:
    policy = DynamicPolicy(8, [8], 10 * MS)
    oldest = admit(policy, 1, 0)
    admit(policy, 1, 5 * MS)
    assert policy.cancel(oldest, 6 * MS)
    assert policy.next(FREE, 10 * MS) == Wake(15 * MS)


@pytest.mark.parametrize("delay_ns", [0, 10 * MS])
def test_hook_holds_back_requests_until_enough_wait_and_only_once(delay_ns: int) -> None:
    policy = DynamicPolicy(8, [8], delay_ns, start_at=4)
    filled(policy, [8, 8, 8])
    assert policy.next(FREE, 10_000 * MS) is None
    filled(policy, [8])
    assert all_batches(policy) == [[8]] * 4
    filled(policy, [8])
    assert all_batches(policy) == [[8]]


def test_batch_names_the_instance_that_is_free_longest() -> None:
    step = filled(DynamicPolicy(4, [2], 0), [1, 1]).next((3, 1), 0)
    assert isinstance(step, Batch)
    assert step.instance == 3


@st.composite
def policies(draw: st.DrawFn) -> tuple[DynamicPolicy, int, int]:
    """A policy, its largest batch and its delay."""
    max_rows = draw(st.integers(1, 12))
    preferred = draw(st.lists(st.integers(1, max_rows), max_size=3, unique=True)) or [max_rows]
    delay = draw(st.sampled_from([0, 1, 7]))
    return DynamicPolicy(max_rows, sorted(preferred), delay), max_rows, delay


@settings(deadline=None)
@given(policies(), st.data())
def test_no_request_is_lost_doubled_overtaken_or_late(
    parts: tuple[DynamicPolicy, int, int], data: st.DataObject
) -> None:
    policy, max_rows, delay = parts
    arrived: list[Inference] = []
    gone: list[Inference] = []
    served: list[Inference] = []
    now = 0
    for event in data.draw(st.lists(st.sampled_from(["admit", "admit", "next", "cancel", "time"]), max_size=40)):
        waiting = [one for one in arrived if one not in served and one not in gone]
        assert policy.waiting == len(waiting)
        if event == "admit":
            arrived.append(admit(policy, data.draw(st.integers(1, max_rows)), now, data.draw(st.sampled_from("aab"))))
        elif event == "cancel" and waiting:
            gone.append(data.draw(st.sampled_from(waiting)))
            assert policy.cancel(gone[-1], now)
        elif event == "time":
            now += data.draw(st.integers(1, 5))
        elif event == "next":
            check_step(policy.next(FREE, now), waiting, served, max_rows, delay, now)
    now += delay
    while policy.waiting:
        waiting = [one for one in arrived if one not in served and one not in gone]
        check_step(policy.next(FREE, now), waiting, served, max_rows, delay, now)
    assert served == [one for one in arrived if one not in gone]


def check_step(
    step: Batch | Wake | None,
    waiting: list[Inference],
    served: list[Inference],
    max_rows: int,
    delay: int,
    now: int,
) -> None:
    """A batch is the front of the queue, of one shape and of the allowed size. No request waits beyond the delay."""
    if isinstance(step, Batch):
        assert list(step.rows) == waiting[: len(step.rows)]
        assert step.rows
        assert sum(one.rows for one in step.rows) <= max_rows
        assert len({one.batch_key for one in step.rows}) == 1
        served.extend(step.rows)
    elif step is None:
        assert not waiting
    else:
        assert now < step.at <= waiting[0].times[Stamp.QUEUE_START] + delay


@pytest.mark.parametrize(("delay_ns", "start_at", "direct"), [(0, 0, True), (MS, 0, False), (0, 2, False)])
def test_fast_path_is_allowed_only_without_delay_and_start_at(delay_ns: int, start_at: int, direct: bool) -> None:
    policy = DynamicPolicy(8, [4], delay_ns, start_at)
    assert policy.allows_fast_path is direct
    admit(policy, 1, 0)
    assert isinstance(policy.next(FREE, 0), Batch) is direct
