"""The contract in `docs/contract/`, and `tools/rows.py`, which says which of its rows a passing test claims.

Every claimed row must exist. To collect all tests takes half a minute, so the check has two parts: marks outside
`tests/conformance` name their rows themselves and are read as text; the tests in `tests/conformance` are collected.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.rows import CONTRACT, HERE, TESTS, read_contract, report

LIMIT = 120.0
"""Seconds that `tools/rows.py` may take in a test."""

MARK = re.compile(r"mark\.rows\(([^()]*)\)")
LITERALS = re.compile(r'(?:\s*"[\w-]+"\s*,?)+\s*')

PAGE = """
| ID | Feature | Exact contract |
|---|---|---|
| Z1 | First | a |
| Z2 | Sec\\|ond | b |
| Z3 | Third | c |
"""

TESTS_THAT_CLAIM = """
import pytest

@pytest.mark.rows("Z1")
def test_passes():
    pass

@pytest.mark.rows("Z2")
def test_fails():
    raise AssertionError

@pytest.mark.rows("Z3")
def test_skipped():
    pytest.skip("says why")
"""

UNKNOWN_CLAIM = """
import pytest

@pytest.mark.rows("Z4")
def test_unknown():
    pass
"""


def test_rows_have_one_page_each() -> None:
    ids = [row for rows in read_contract(CONTRACT).values() for row in rows]
    assert len(ids) > 800
    assert len(ids) == len(set(ids))


def test_rows_are_read_with_what_they_are_about(tmp_path: Path) -> None:
    (tmp_path / "02-page.md").write_text(PAGE)
    (tmp_path / "README.md").write_text("no table\n")
    assert read_contract(tmp_path) == {"02-page.md": {"Z1": "First", "Z2": "Sec\\|ond", "Z3": "Third"}}


def test_report_lists_rows_that_nothing_holds() -> None:
    lines = list(report({"02-page.md": {"Z1": "First", "Z2": "Second"}}, frozenset({"Z1"})))
    assert lines == ["\n02-page.md: 1 of 2 rows claimed", "  Z2     Second"]


def claims(path: Path) -> Iterator[str]:
    """The rows in the marks of a test module; fails at a mark that does not name its rows itself."""
    for found in MARK.findall(path.read_text()):
        assert LITERALS.fullmatch(found), f"{path}: mark.rows({found})"
        yield from re.findall(r'"([\w-]+)"', found)


def test_rows_claimed_by_marks_are_in_the_contract() -> None:
    known = set().union(*read_contract(CONTRACT).values())
    modules = set(TESTS.rglob("test_*.py")) - set((TESTS / "conformance").rglob("*.py")) - {Path(__file__)}
    found = {row for path in modules for row in claims(path)}
    assert len(found) > 200
    assert found <= known, sorted(found - known)


def run_rows(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "tools/rows.py", *arguments]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=LIMIT, check=False)


def test_rows_claimed_by_conformance_cases_are_in_the_contract() -> None:
    done = run_rows("--collect-only", "--tests", "tests/conformance")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A contract of one page, and a folder for tests."""
    (tmp_path / "contract").mkdir()
    (tmp_path / "contract" / "02-page.md").write_text(PAGE)
    (tmp_path / "tests").mkdir()
    return tmp_path


def test_rows_are_held_by_passing_tests_only(folder: Path) -> None:
    (folder / "tests" / "test_claims.py").write_text(TESTS_THAT_CLAIM)
    done = run_rows("--contract", str(folder / "contract"), "--tests", str(folder / "tests"))
    assert done.returncode == 0, done.stderr
    assert "02-page.md: 1 of 3 rows claimed\n  Z2     Sec\\|ond\n  Z3     Third\n" in done.stdout
    assert "1 tests that claim rows were failed\n1 tests that claim rows were skipped" in done.stdout


def test_rows_fail_at_a_claim_that_the_contract_lacks(folder: Path) -> None:
    (folder / "tests" / "test_claims.py").write_text(UNKNOWN_CLAIM)
    arguments = ("--contract", str(folder / "contract"), "--tests", str(folder / "tests"))
    for more in ((), ("--collect-only",)):
        done = run_rows(*arguments, *more)
        assert done.returncode == 1
        assert "claimed by tests and not in the contract: Z4" in done.stdout


def test_rows_fail_without_a_contract(folder: Path) -> None:
    done = run_rows("--contract", str(folder / "tests"))
    assert done.returncode == 2
    assert "has no rows" in done.stderr
