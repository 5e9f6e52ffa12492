"""Each case is sent to ours and to the real server. Status, the headers of the contract, and body must be equal."""

import pytest

from tests.conformance.case import Case
from tests.conformance.cases import ensembles_5_4
from tests.conformance.cases.table import ALL
from tests.conformance.masks import MASKS
from tests.conformance.runner import Pair, Result, compare


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name, marks=pytest.mark.rows(*c.rows)) for c in ALL])
def test_answer_as_the_real_server(case: Case, pair: Pair, results: list[Result]) -> None:
    result = compare(case, pair)
    results.append(result)
    assert result.ours == result.wanted
    assert not result.stale, "the real server answers like this by now: the mark is out of date"


def test_case_names_are_unique() -> None:
    names = [case.name for case in ALL]
    assert len(set(names)) == len(names)


def test_masks_are_all_used() -> None:
    assert {name for case in (*ALL, *ensembles_5_4.CASES) for name in case.masks} == set(MASKS)
