"""The tools that change models under load, load many models, and look for memory that is not returned: for seconds
instead of minutes."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 200


def passes(*command: str) -> str:
    """The output of a tool that must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-5000:]}{done.stderr[-3000:]}"
    assert done.stdout.rstrip().endswith("PASSED")
    return done.stdout


@pytest.mark.rows("R11", "R12", "R13", "D18")
def test_no_request_fails_while_models_change() -> None:
    assert "80 changes" in passes("tools.soak_reloads", "--changes=80", "--clients=100", "--python=0.05")


@pytest.mark.rows("D7")
def test_memory_of_a_model_is_returned() -> None:
    """Compares the first unload with the third. What is kept once is in both."""
    passes(
        "tools.memory_back",
        "--rounds=3",
        "--megabytes=40",
        "--most-ratio=1.2",
        "--only",
        "onnxruntime",
        "python in process",
    )


def test_many_models_load_although_some_are_broken() -> None:
    """The tool itself measures the speed: here other tests run beside it."""
    said = passes("tools.many_models", "--models=50", "--broken=5", "--most-time=20")
    assert "50 models, 5 of them broken" in said
