"""`halimede perf` beside the real perf_analyzer: equal words, columns and statuses, whichever server answers."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance import load_runs, servers
from tests.conformance.load_runs import BENCH, COUNT, REAL, REFUSED, SECONDS, SERVED, run
from tests.conformance.runner import Pair

pytestmark = pytest.mark.perf

OURS = (sys.executable, "-m", "halimede", "perf")
MODELS = load_runs.MODELS | {"floor": BENCH / "floor", "failing": servers.MODELS / "raises"}

WRONG = (
    "-m x -b 0",
    "-m x -i foo",
    "-m x -p abc",
    "-m x --concurrency-range 1:2:3:4",
    "-m x --concurrency-range 0",
    "-m x --shape foo",
    "-m x --shape foo:0",
    "-m x --binary-search",
    "-m x --binary-search -l 10 --concurrency-range 4:2",
    "-m x --binary-search -l 10 --concurrency-range 4:0",
    "-m x --concurrency-range 1:0",
    "-m x --percentile 100",
    "-m x --request-count -1",
    "-m x --request-rate-range 0",
    "-m x --request-rate-range 1:x",
    "-m x --request-distribution even",
    "-m x --request-intervals /nosuch",
    "-m x --streaming",
    "-m x --async --sync",
    "-m x --measurement-mode none",
    "-m x --measurement-request-count 0",
    "-m x --max-threads 0",
    "-m x --stability-percentage -1",
    "-m x --latency-threshold -1",
    "-m x --sequence-id-range 5:1",
    "-m x --sequence-length-variation -1",
    "-m x --num-of-sequences 0",
    "-m x --shared-memory disk",
    "-m x --string-length 0",
    "-m x --grpc-compression-algorithm gzip",
    "-m x -i grpc --grpc-compression-algorithm zip",
    "-m x --ssl-https-verify-peer 2",
    "-m x --ssl-grpc-root-certifications-file /nosuch",
    "-m x --ssl-https-private-key-type TXT",
    "-m x --trace-level SOME",
    "-m x --request-parameter a:1:int",
    "-m x -i grpc --request-parameter a",
    "-m x --periodic-concurrency-range 1",
    "-m x --periodic-concurrency-range 1:4:2",
    "-m x --periodic-concurrency-range 1:4",
    "-m x --service-kind openai",
    "-m x --service-kind tfserving",
    "-m x --service-kind torchserve",
    "-m x --metrics-url x:1",
    "-m x --metrics-interval 5",
    "-z --input-data / -m x",
    "",
)
"""Wrong command lines that the real one and ours refuse with the same words."""
LEVELS = (
    "http -m floor --shape INPUT0:16 --concurrency-range 1:2 -p 200 -s 999 -v",
    "grpc -m floor --shape INPUT0:16 --concurrency-range 2 --measurement-mode count_windows -s 999 --percentile 90",
    "grpc -m floor --shape INPUT0:16 --request-rate-range 50 -p 200 -s 999",
    "http -m floor --shape INPUT0:16 --concurrency-range 1:4 -l 1000 --binary-search -p 200 -s 999",
)
"""Searches and windows. Their texts are equal, except for what depends on chance."""


@pytest.fixture(scope="module")
def both(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with load_runs.serving(tmp_path_factory.mktemp("perf"), MODELS) as started:
        yield started


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return load_runs.data_files(tmp_path_factory.mktemp("data"))


@pytest.mark.rows("X10", "X11", "X17", "X18", "X19", "X20", "X21", "X22", "X23", "X27")
@pytest.mark.parametrize("case", SERVED)
def test_words_are_those_of_the_real_one(both: Pair, data: Mapping[str, Path], case: str, tmp_path: Path) -> None:
    _compare(both, data, case, tmp_path, COUNT)


@pytest.mark.rows("X5", "X6", "X7", "X24")
@pytest.mark.parametrize("case", LEVELS)
def test_searches_are_those_of_the_real_one(both: Pair, data: Mapping[str, Path], case: str, tmp_path: Path) -> None:
    _compare(both, data, case, tmp_path, ())


def _compare(both: Pair, data: Mapping[str, Path], case: str, folder: Path, more: Sequence[str]) -> None:
    runs = [(REAL, both.real, "a"), (OURS, both.real, "b"), (OURS, both.ours, "c")]
    # Shared memory of the real one has the same names in each run.
    with ThreadPoolExecutor(1 if "--shared-memory" in case else 2) as pool:
        real, on_real, on_ours = pool.map(
            lambda one: run(one[0], one[1], case, data, folder / f"{one[2]}.csv", more), runs
        )
    for ours in (on_real, on_ours):
        assert ours.said == real.said
        assert ours.faults == real.faults
        assert (ours.status, real.status) == (0, 0)
        assert [list(row) for row in ours.table] == [list(row) for row in real.table]
        assert all(float(value) >= 0 for row in ours.table for value in row.values() if value)


@pytest.mark.rows("X3")
def test_periodic_requests_are_those_of_the_real_one(both: Pair, data: Mapping[str, Path], tmp_path: Path) -> None:
    """Requests are added each time when the last ones have had two responses; only the export tells of them."""
    case = "grpc -m decoupled --streaming --input-data {many} --periodic-concurrency-range 1:5:2 --request-period 2"
    found = []
    for tool, server, name in ((REAL, both.real, "real"), (OURS, both.ours, "ours")):
        export = tmp_path / f"{name}.json"
        ran = run(tool, server, case, data, tmp_path / "none.csv", ("--profile-export-file", str(export)))
        (experiment,) = json.loads(export.read_text())["experiments"]
        counts = sorted(len(request["response_timestamps"]) for request in experiment["requests"])
        found.append((ran.status, ran.said, experiment["experiment"], counts))
    assert found[0] == found[1]
    assert len(found[0][3]) == 5


@pytest.mark.rows("X11", "X25", "X26")
@pytest.mark.parametrize("case", REFUSED)
def test_refusal_is_that_of_the_real_one(both: Pair, data: Mapping[str, Path], case: str, tmp_path: Path) -> None:
    real = run(REAL, both.real, case, data, tmp_path / "a.csv", COUNT)
    ours = run(OURS, both.ours, case, data, tmp_path / "b.csv", COUNT)
    assert ours.faults == real.faults
    assert ours.status == real.status != 0
    # What was measured before the failure is kept, so ours may say more.
    assert ours.said[: len(real.said)] == real.said


@pytest.mark.rows("X26")
@pytest.mark.parametrize("line", WRONG)
def test_wrong_line_is_refused_in_the_words_of_the_real_one(oracle: None, line: str) -> None:
    real, ours = (
        subprocess.run([*tool, *line.split()], capture_output=True, text=True, timeout=SECONDS, check=False)
        for tool in (REAL, OURS)
    )
    assert ours.stderr.splitlines()[0] == real.stderr.splitlines()[0]
    assert ours.returncode == real.returncode == 99
