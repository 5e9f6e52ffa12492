"""Ensembles, compared with the real server: requests, streams, refusals, and models that are loaded and unloaded
(contract 5.4)."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import ensembles, rawhttp, servers, transcript
from tests.conformance.case import Case, post
from tests.conformance.cases.ensembles_5_4 import ADMIN, CASES, LOADS, REQUESTS, STORY, STREAMS
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair, Result, compare

PATIENCE = 20.0  # seconds for a log to be written
_EXPLICIT = "--model-control-mode=explicit"
_CACHE = "--cache-config=local,size=1048576"


def _serving(folder: Path, *flags: str) -> Iterator[Pair]:
    with pair_of(folder / "models", folder, *flags) as both:
        yield both


@pytest.fixture(scope="module")
def everything(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers, started with all ensembles."""
    folder = tmp_path_factory.mktemp("ensembles")
    ensembles.write(folder / "models")
    yield from _serving(folder, _EXPLICIT, "--load-model=*", _CACHE)


@pytest.fixture(scope="module")
def nothing(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers, started without models."""
    folder = tmp_path_factory.mktemp("story")
    ensembles.write(folder / "models")
    yield from _serving(folder, _EXPLICIT)


def _as_the_real_server(case: Case, pair: Pair, results: list[Result]) -> None:
    result = compare(case, pair)
    results.append(result)
    assert result.ours == result.wanted
    assert not result.stale, "the real server answers like this by now: the mark is out of date"


def _params(cases: tuple[Case, ...]) -> list[object]:
    return [pytest.param(case, id=case.name, marks=pytest.mark.rows(*case.rows)) for case in cases]


@pytest.mark.parametrize("case", _params((*ADMIN, *REQUESTS, *STREAMS)))
def test_ensemble_as_the_real_server(case: Case, everything: Pair, results: list[Result]) -> None:
    _as_the_real_server(case, everything, results)


@pytest.mark.parametrize("case", _params((*LOADS, *STORY)))
def test_members_come_and_go_as_in_the_real_server(case: Case, nothing: Pair, results: list[Result]) -> None:
    _as_the_real_server(case, nothing, results)


@pytest.mark.rows("S80", "S81")
@pytest.mark.parametrize("model", ensembles.MALFORMED)
def test_log_about_a_malformed_ensemble_is_that_of_the_real_server(model: str, everything: Pair) -> None:
    for server in (everything.ours, everything.real):
        rawhttp.converse(server.http, (post(f"/v2/repository/models/{model}/load", b""),))
    ours = _said(everything.ours.log, rf"failed to load '{model}': (.+?)\"?$")
    real = _said(everything.real.log, rf"Poll failed for model directory '{model}': (.+?)\"$")
    assert ours == real


def _said(log: Path, pattern: str) -> str:
    """The last such text in the log. A thread writes our log."""
    limit = time.monotonic() + PATIENCE
    while not (found := re.findall(pattern, log.read_text(errors="replace"), re.MULTILINE)):
        assert time.monotonic() < limit, pattern
        time.sleep(0.02)
    return str(found[-1])


@pytest.mark.rows("S83")
def test_circle_of_ensembles_is_refused_by_name(oracle: None, tmp_path: Path) -> None:
    """The real server often crashes. If it does not, it begins with any of the models."""
    ensembles.write(tmp_path / "models")
    ensembles.write_circles(tmp_path / "models")
    command = (*servers.our_command(), _EXPLICIT, "--load-model=circle1", "--load-model=chain")
    with servers.Server("ours", command, tmp_path / "models", tmp_path / "ours.log") as ours:
        ours.wait()
        for model, way in {
            "circle1": "circle1 -> ... -> circle2 -> circle1",
            "circle2": "circle2 -> ... -> circle1 -> circle2",
            "own_member": "own_member -> ... -> own_member -> own_member",
        }.items():
            asked = post(f"/v2/repository/models/{model}/load", b"")
            text = transcript.of_http(rawhttp.converse(ours.http, (asked,))).text
            assert f"load failed for model '{model}': circular dependency between ensembles: {way}" in text
        assert ours.alive


def test_case_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
