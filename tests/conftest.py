"""What holds for all tests: in CI a run is repeatable, and nothing is left out."""

import os
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

os.environ.setdefault("HALIMEDE_COMPILED", "off")
"""Here and in the servers that tests start: the other form is tested where a run asks for it, as `make test` does for
those with servers and `make test-forms` for units."""

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
"""As the command sets it: ONNX Runtime in the tests' own process reports to nobody."""

for name in ("FORCE_COLOR", "NO_COLOR"):  # tests compare what commands print
    os.environ.pop(name, None)

IN_CI = os.environ.get("CI") == "true"

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile("ci" if IN_CI else "search")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """In CI a skip is a failure: what a test needs, the project's files install."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report
