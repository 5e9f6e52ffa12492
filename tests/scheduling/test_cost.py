"""What batches cost, learned from those that ran."""

import pytest

from halimede.scheduling.cost import Cost

MS = 1_000_000


def test_cost_of_one_size_only_is_all_fixed() -> None:
    cost = Cost()
    for _ in range(10):
        cost.ran(4, 8 * MS)
    assert (round(cost.fixed), cost.of_a_row) == (8 * MS, 0.0)
    assert round(cost.expected(16)) == 8 * MS


@pytest.mark.parametrize(("fixed", "each"), [(5, 1), (0, 2), (7, 0)])
def test_cost_of_several_sizes_is_split(fixed: int, each: int) -> None:
    cost = Cost()
    for i in range(400):
        rows = 1 + i % 8
        cost.ran(rows, (fixed + each * rows) * MS)
    assert cost.fixed / MS == pytest.approx(fixed, abs=0.05)
    assert cost.of_a_row / MS == pytest.approx(each, abs=0.02)


def test_cost_is_never_negative() -> None:
    cost = Cost()
    for rows, ns in ((1, 9 * MS), (8, MS), (1, 8 * MS), (8, 2 * MS)):
        cost.ran(rows, ns)
    assert cost.of_a_row >= 0
    assert cost.fixed >= 0
