"""The locks of `requirements/` have what `pyproject.toml` asks for, with hashes, and what CI installs has a lock.

`tools.lock` writes them again.
"""

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.audit import Findings
from tools.lock import FIRST, LOCKS

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_EXTRAS = _PROJECT["project"]["optional-dependencies"]


def text_of(lock: str) -> str:
    return (ROOT / "requirements" / f"{lock}.txt").read_text()


def entries(lock: str) -> list[tuple[Requirement, list[str]]]:
    """The packages of a lock, each with its hashes."""
    joined = text_of(lock).replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    parts = [line.split("--hash=") for line in lines]
    return [(Requirement(first.strip()), [each.strip() for each in hashes]) for first, *hashes in parts]


def wanted(requirements: Sequence[str]) -> Iterator[Requirement]:
    """The requirements, with those of the extras of this project that they name."""
    for each in map(Requirement, requirements):
        if each.name == "halimede":
            for extra in each.extras:
                yield from wanted(_EXTRAS[extra])
        else:
            yield each


def on(python: str, **names: str) -> dict[str, str]:
    """The environment that markers ask for, on Linux."""
    fixed = {"sys_platform": "linux", "os_name": "posix", "platform_system": "Linux", "platform_machine": "x86_64"}
    return {**fixed, "python_version": python, "python_full_version": f"{python}.9", **names}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("lock", LOCKS)
def test_lock_has_what_the_project_asks_for(lock: str, python: str) -> None:
    locked: dict[str, str] = {}
    for entry, _ in entries(lock):
        if entry.marker is None or entry.marker.evaluate(on(python)):
            (pin,) = entry.specifier
            assert pin.operator == "=="
            assert canonicalize_name(entry.name) not in locked, f"{entry.name} is locked twice"
            locked[canonicalize_name(entry.name)] = pin.version
    asked = [*_PROJECT["project"]["dependencies"], *(f"halimede[{extra}]" for extra in LOCKS[lock])]
    for requirement in wanted(asked):
        if requirement.marker is None or requirement.marker.evaluate(on(python, extra="")):
            version = locked.get(canonicalize_name(requirement.name))
            assert version is not None, f"{requirement} is not in requirements/{lock}.txt: run python -m tools.lock"
            assert requirement.specifier.contains(version, prereleases=True), f"{requirement}, locked is {version}"


@pytest.mark.parametrize("lock", LOCKS)
def test_each_package_has_hashes_and_no_place(lock: str) -> None:
    for entry, hashes in entries(lock):
        assert hashes, entry.name
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), entry.name
        assert entry.url is None
    assert "://" not in text_of(lock)
    assert not re.search(r"^--", text_of(lock), re.MULTILINE)


def test_locks_that_are_installed_together_agree() -> None:
    """pip would replace a package that another lock has with another version."""
    versions = {(entry.name, str(entry.marker)): str(entry.specifier) for entry, _ in entries(FIRST)}
    for lock in LOCKS:
        for entry, _ in entries(lock):
            pinned = versions.get((entry.name, str(entry.marker)), str(entry.specifier))
            assert str(entry.specifier) == pinned, f"{entry.name} in {lock}"


def test_what_make_installs_has_a_lock() -> None:
    makefile = (ROOT / "Makefile").read_text()
    names = dict(re.findall(r"^(\w+) := (.*)$", makefile, re.MULTILINE))
    calls = re.findall(r"\$\(call install,(\w+),([^)]+\)?)\)", makefile)
    assert len(calls) > 2
    for lock, given in calls:
        extras = names[given[2:-1]] if given.startswith("$(") else given
        assert set(extras.split(",")) <= set(LOCKS[lock]), (lock, extras)


@pytest.mark.parametrize(
    ("ci", "asked"),
    [
        ("", ["-m pip install -q --disable-pip-version-check -e .[dev]"]),
        (
            "true",
            [
                "-m pip install -q --disable-pip-version-check --require-hashes -r requirements/ci.txt",
                "-m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .",
            ],
        ),
    ],
)
def test_ci_installs_the_lock(tmp_path: Path, ci: str, asked: list[str]) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$*"\n')
    python.chmod(0o755)
    (tmp_path / ".demo").touch()
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "MAKEFLAGS")}
    command = ["make", "-s", f"VENV={tmp_path}", f"CI={ci}", str(tmp_path / ".dev")]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=30, capture_output=True, text=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("-m")] == asked


def test_audit_without_its_database_says_so() -> None:
    findings = Findings()
    findings.add({"name": "a", "skip_reason": "Dependency not found on PyPI"})
    assert findings.lines() == [
        "skipped: the database cannot be reached, nothing was looked up (Dependency not found on PyPI)"
    ]
    assert Findings().lines()[0].startswith("skipped: ")


def test_audit_tells_each_vulnerability_once() -> None:
    findings = Findings()
    fault = {"id": "CVE-1", "fix_versions": ["2.1"], "aliases": [], "description": "d"}
    for _ in range(2):  # two locks have the package
        findings.add({"name": "a", "version": "2.0", "vulns": [fault]})
    findings.add({"name": "b", "version": "1.0", "vulns": []})
    findings.add({"name": "c", "skip_reason": "not on the index"})
    assert findings.lines() == [
        "c: not looked up: not on the index",
        "a 2.0: CVE-1, fixed in: 2.1",
        "2 packages, 1 vulnerabilities",
    ]
