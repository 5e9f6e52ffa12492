"""What the targets of the Makefile that set up the compiled form ask for, by what the user wants."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECONDS = 30.0


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that is set up, whose Python only prints what it is asked, and in which form."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "[$HALIMEDE_COMPILED] $*"\n')
    python.chmod(0o755)
    for name in (".demo", ".dev"):
        (tmp_path / name).touch()
    return tmp_path


def asked(target: str, environment: Path, **variables: str) -> list[str]:
    plain = {name: value for name, value in os.environ.items() if name not in ("CI", "HALIMEDE_COMPILED", "MAKEFLAGS")}
    command = ["make", "-s", target, f"VENV={environment}"]
    done = subprocess.run(
        command, cwd=ROOT, env=plain | variables, check=True, timeout=SECONDS, capture_output=True, text=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(("wanted", "form"), [("", ""), ("on", ""), ("off", "off"), ("only", "")])
def test_what_must_be_compiled_can_be(environment: Path, wanted: str, form: str) -> None:
    """With `only` nothing is imported before it is compiled, and so it would never be."""
    assert asked("compiled", environment, HALIMEDE_COMPILED=wanted) == [f"[{form}] -m tools.compile --optional"]


@pytest.mark.parametrize(
    ("variables", "form"),
    [
        ({}, "on"),
        ({"HALIMEDE_COMPILED": "off"}, "off"),
        ({"HALIMEDE_COMPILED": "only"}, "only"),
        ({"CI": "true"}, "only"),
    ],
)
def test_servers_are_tested_in_the_form_that_is_wanted(environment: Path, variables: dict[str, str], form: str) -> None:
    *_, last = asked("test", environment, **variables)
    assert last == f"[{form}] -m pytest tests/compat tests/conformance tests/examples"
