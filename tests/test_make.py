"""What the targets of the Makefile that set up the compiled form ask for, by what the user wants."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECONDS = 30.0


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that is set up, whose programs only print what they are asked, and in which form."""
    (tmp_path / "bin").mkdir()
    for name in ("python", "halimede"):
        program = tmp_path / "bin" / name
        program.write_text('#!/bin/sh\necho "[$HALIMEDE_COMPILED] $*"\n')
        program.chmod(0o755)
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


@pytest.mark.parametrize("variables", [{}, {"CI": "true"}])
def test_server_runs_where_nothing_can_be_compiled(environment: Path, variables: dict[str, str]) -> None:
    """Tests insist, where `CI` is set, and nothing else does."""
    compiling, _, serving = asked("serve", environment, **variables)
    assert compiling.endswith(" -m tools.compile --optional")
    assert serving.startswith("[] serve --model-repository=examples/model_repository ")


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
    for target, folders in (("test", "tests/compat tests/examples"), ("conformance", "tests/conformance")):
        *_, last = asked(target, environment, **variables)
        assert last.startswith(f"[{form}] -m pytest ")
        assert last.endswith(f" {folders}")


@pytest.mark.parametrize("name", ["Makefile", ".ci/run"])
def test_paths_that_are_named_exist(name: str) -> None:
    """A file that was renamed would leave out its tests, or the lane that its changes ask for, without a word."""
    paths = re.findall(r"(?<![\w./-])(?:halimede|tests|tools|bench|examples)/[\w./*-]+", (ROOT / name).read_text())
    made_by_make = ("examples/model_repository", "examples/torch_repository", "bench/results")
    named = [path for path in paths if not path.startswith(made_by_make)]
    assert len(named) > 8
    assert [path for path in named if not any(ROOT.glob(path))] == []
