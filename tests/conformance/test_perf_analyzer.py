"""The real perf_analyzer with rare options against both servers: equal words in its report, whatever the numbers are.

It reads metadata, configuration, statistics and trace settings, registers shared memory, and validates answers if its
data say what must come.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance import load_runs
from tests.conformance.load_runs import MODELS, OTHER_DATA, REAL, REFUSED, SECONDS, SERVED, Ran, run
from tests.conformance.runner import Pair


@pytest.fixture(scope="module")
def both(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with load_runs.serving(tmp_path_factory.mktemp("perf_analyzer"), MODELS) as started:
        yield started


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return load_runs.data_files(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("case", SERVED)
def test_report_is_that_of_the_real_server(both: Pair, data: Mapping[str, Path], case: str, tmp_path: Path) -> None:
    ours, real = _runs(both, case, data, tmp_path)
    assert (ours.said, ours.faults) == (real.said, real.faults)
    assert (ours.status, real.status) == (0, 0)
    (row,), (real_row,) = ours.table, real.table
    assert list(row) == list(real_row)
    assert all(float(value) >= 0 for value in row.values() if value)
    assert int(row["Server Queue"]) < SECONDS * 1e6


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_is_that_of_the_real_server(both: Pair, data: Mapping[str, Path], case: str, tmp_path: Path) -> None:
    ours, real = _runs(both, case, data, tmp_path)
    assert ours == real
    assert ours.status != 0
    assert ("{wrong}" in case) is (OTHER_DATA in ours.complained)


def _runs(both: Pair, case: str, data: Mapping[str, Path], folder: Path) -> tuple[Ran, Ran]:
    """Our run and the real server's, side by side; for shared memory one after the other, as segments have the same
    names."""
    with ThreadPoolExecutor(1 if "--shared-memory" in case else 2) as pool:
        ours, real = (
            pool.submit(run, REAL, one, case, data, folder / f"{one.http}.csv") for one in (both.ours, both.real)
        )
        return ours.result(), real.result()
