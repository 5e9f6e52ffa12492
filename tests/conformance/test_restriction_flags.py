"""Error texts of both servers for bad restrictions on the command line (C26, C35), and for bad models to load (C15)."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conformance import servers
from tests.processes import TRITONSERVER

SECONDS = 120.0

_BAD = ("x:k=v", "health,health:k=v", "health", "health:k", "health:k=", "health,:k=v")
_FLAGS = (("--http-restricted-api", "C26"), ("--grpc-restricted-protocol", "C35"))
CASES = (
    *((row, (f"{flag}={value}",)) for flag, row in _FLAGS for value in _BAD),
    *((row, (f"{flag}=health:a=b", f"{flag}=trace,health:c=d")) for flag, row in _FLAGS),
    ("C15", ("--load-model=x",)),
)


def said(command: Sequence[str]) -> tuple[int, list[str]]:
    """The exit status, and the text in the last lines of standard error."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    "flags", [pytest.param(flags, id=" ".join(flags), marks=pytest.mark.rows(row)) for row, flags in CASES]
)
def test_refusal_is_that_of_the_real_server(oracle: None, flags: Sequence[str], tmp_path: Path) -> None:
    real_status, real = said([str(servers.ORACLE), "serve", str(tmp_path), "1", "2", "3", *flags])
    status, ours = said([*TRITONSERVER, f"--model-repository={tmp_path}", *flags])
    assert (status, real_status) == (1, 1)
    words = [line for line in real if line.startswith(("Bad option", "--", "unknown", "restricted", "Error:"))][-2:]
    assert words
    assert [line for line in ours if line in words] == words
