"""`halimede convert` as a user calls it."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SECONDS = 300.0
CLOSE = 1e-5
"""The largest difference of two answers of the small models here."""


def run(*words: str | Path, more: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "halimede", "convert", *map(str, words)]
    return subprocess.run(
        command, env={**os.environ, **(more or {})}, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def converted(*words: str | Path, more: Mapping[str, str] | None = None) -> float:
    """Converts a model whose outputs are numbers. The largest difference that the command prints."""
    done = run(*words, more=more)
    assert done.returncode == 0, (done.stdout, done.stderr)
    found = re.search(r"^largest difference of the outputs on random inputs: (\S+) ", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return float(found[1])
