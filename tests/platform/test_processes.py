"""Waiting for a child without reaping it, by the system's descriptor and by asking again and again."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from halimede.platform.processes import ends_within


@pytest.fixture(params=["descriptor", "asking"])
def child(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    if request.param == "asking":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    with subprocess.Popen([sys.executable, "-c", "input(); raise SystemExit(7)"], stdin=subprocess.PIPE) as it:
        yield it
        it.kill()


def test_child_that_runs_does_not_end_in_time(child: subprocess.Popen[bytes]) -> None:
    assert not ends_within(child.pid, 0.05)


@pytest.mark.parametrize("seconds", [20.0, None])
def test_child_that_ended_keeps_its_number_and_its_status(
    child: subprocess.Popen[bytes], seconds: float | None
) -> None:
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()
    assert ends_within(child.pid, seconds)
    os.kill(child.pid, 0)
    assert child.wait() == 7
    assert ends_within(child.pid, seconds), "nobody's child any more"
