"""The pair of servers of the session, and the summary of what was equal to the real server."""

import os
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.conformance import segments, servers
from tests.conformance.masks import MASKS
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair, Result

RESULTS = pytest.StashKey[list[Result]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RESULTS] = []


@pytest.fixture(scope="session")
def oracle() -> None:
    """Installs the real server. If that fails, the tests are skipped; with CI=true they fail."""
    reason = servers.install_oracle()
    if reason is not None and os.environ.get("CI") == "true":
        pytest.fail(f"the real server cannot be installed: {reason}")
    if reason is not None:
        pytest.skip(f"the real server cannot be installed: {reason}")


@pytest.fixture(scope="session")
def pair(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers with the models of this folder, started side by side."""
    folder = tmp_path_factory.mktemp("conformance")
    repo = servers.copy_models(folder / "models")
    with segments.made(), pair_of(repo, folder) as both:
        yield both


@pytest.fixture
def results(request: pytest.FixtureRequest) -> list[Result]:
    """The list for a test's result, for the summary."""
    return request.config.stash[RESULTS]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a process of pytest-xdist: sends the results to the process that prints the summary."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["conformance"] = pickle.dumps(session.config.stash[RESULTS])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of pytest-xdist has ended. One that crashed has sent nothing."""
    sent = getattr(node, "workeroutput", {}).get("conformance")
    if sent is not None:
        node.config.stash[RESULTS] += pickle.loads(sent)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    results = config.stash[RESULTS]
    if results:
        terminalreporter.section("conformance with the real server")
        for line in _summary(results):
            terminalreporter.write_line(line)


def _summary(results: Sequence[Result]) -> Iterator[str]:
    refusals = sum(result.refused for result in results)
    counts = Counter(result.verdict for result in results)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    yield f"{len(results)} cases, {refusals} of them refusals: {verdicts}"
    for result in results:
        if result.instead is not None and result.verdict != "different":
            yield f"{result.verdict}: {result.case} ({result.instead.reason})"
    for mask, count in Counter(mask for result in results for mask in result.masks).most_common():
        yield f"masked in {count}: {mask} ({MASKS[mask].reason})"
    for result in results:
        if result.verdict == "different":
            yield f"different: {result.case}"
