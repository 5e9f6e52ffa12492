"""The tools that change models under load, load many of them, and look for memory that does not come back: for seconds
instead of minutes.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 200


def passes(*command: str) -> str:
    """What the tool says."""
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
def test_memory_of_a_model_comes_back() -> None:
    """Of the first unload and the third: what is kept once is kept at the second."""
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
    """How fast is for the tool: here other tests run beside it."""
    said = passes("tools.many_models", "--models=50", "--broken=5", "--most-time=20")
    assert "50 models, 5 of them broken" in said
