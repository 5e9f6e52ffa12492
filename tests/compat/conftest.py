"""Servers that many tests of the official clients share: one with every datatype, one with the models of the kinds."""

import re
from collections.abc import Iterator

import pytest

from tests import interpreters
from tests.compat.kinds import FLAGS, Kinds, write_kinds
from tests.compat.serving import Serving, write_repository


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A running server. `server.http_url` and `server.grpc_url` are `host:port`; `server.log_text()` is its log.

    Its models are those of `serving.write_repository`. At the end it must stop on SIGTERM with exit status 0, and leave
    nothing behind.
    """
    folder = tmp_path_factory.mktemp("compat")
    with Serving(write_repository(folder / "models"), folder / "server.log") as serving:
        serving.wait_until_live()
        yield serving
        status = serving.stop()
        assert status == 0, f"exit status {status}: ...{serving.log_text()[-3000:]}"


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinds]:
    """A running server with the models of the official examples' kinds (`kinds.write_kinds`)."""
    folder = tmp_path_factory.mktemp("kinds")
    repository = write_kinds(folder / "models")
    with Serving(repository, folder / "server.log", *FLAGS) as serving:
        yield Kinds(serving.wait_until_live(), repository)
        assert serving.stop() == 0, serving.log_text()[-3000:]


_OF_A_PYTHON = re.compile(r"test_python_environments\.py::.*\[(3\.\d+)\]")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the Python versions in which models were served, and those that this machine does not have."""
    passed = [_OF_A_PYTHON.search(report.nodeid) for report in terminalreporter.stats.get("passed", ())]
    served = {found[1] for found in passed if found}
    if served:
        terminalreporter.section("Pythons of models' own environments")
        for version, python in interpreters.found().items():
            terminalreporter.write_line(f"{'served' if version in served else 'not asked for'}: {version} ({python})")
        terminalreporter.write_line(f"not on this machine: {', '.join(interpreters.absent()) or 'none'}")
