#!/usr/bin/env python3
"""Runs the tests and prints, page by page, the rows of the contract that no passing test claims.

    rows.py [--contract FOLDER] [--tests PATH] [--collect-only] [AREA ...]

The contract is `docs/contract/`. A test claims rows by `@pytest.mark.rows("H30", ...)`; a conformance case claims them
by its data. A test that fails or is skipped claims nothing. AREA is the beginning of a page's name (`01`): only these
pages are printed, and all tests still run. With `--collect-only` no test runs, and only unknown rows are printed.

Exit status: 0; 1 if a test claims a row that the contract does not have; 2 if the folder has no rows; pytest's own if
the tests could not run.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent
CONTRACT = HERE / "docs" / "contract"
TESTS = HERE / "tests"

_ROW = re.compile(r"^\| ([A-Z]+[0-9]+[a-z]?(?:-[0-9]+)?) \| ((?:[^|\\]|\\.)*?) \|", re.MULTILINE)
_RAN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)

Rows = Mapping[str, str]
"""Row id to what the row is about, in the order of its page."""


def read_contract(folder: Path) -> dict[str, Rows]:
    """The rows of each page that has any, by the page's file name."""
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    return {name: dict(_ROW.findall(text)) for name, text in files.items() if _ROW.search(text)}


class Claims:
    """A pytest plugin that records which rows the tests claim, and how the tests ended."""

    def __init__(self) -> None:
        self._claimed: dict[str, frozenset[str]] = {}  # by the test's id
        self._passed: set[str] = set()
        self._fell: dict[str, set[str]] = {"failed": set(), "skipped": set()}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        rows = frozenset(str(row) for mark in item.iter_markers("rows") for row in mark.args)
        if rows:
            self._claimed[item.nodeid] = rows

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._fell[report.outcome].add(report.nodeid)
        elif report.when == "call":
            self._passed.add(report.nodeid)

    @property
    def named(self) -> frozenset[str]:
        """Rows that any test claims."""
        return frozenset().union(*self._claimed.values())

    @property
    def held(self) -> frozenset[str]:
        """Rows that a passing test claims. A test whose teardown fails has not passed."""
        good = self._passed - self._fell["failed"]
        return frozenset().union(*(rows for test, rows in self._claimed.items() if test in good))

    def lost(self) -> Iterator[str]:
        """Lines: how many tests that claim rows failed or were skipped."""
        for outcome, tests in self._fell.items():
            count = len(tests & self._claimed.keys())
            if count:
                yield f"{count} tests that claim rows were {outcome}"


def report(contract: Mapping[str, Rows], held: frozenset[str]) -> Iterator[str]:
    """Lines: for each page how many of its rows are in `held`, then those that are not."""
    for name, rows in contract.items():
        missing = [row for row in rows if row not in held]
        yield f"\n{name}: {len(rows) - len(missing)} of {len(rows)} rows claimed"
        yield from (f"  {row:<6} {rows[row]}" for row in missing)


def run_tests(claims: Claims, tests: Path, *, collect_only: bool) -> int:
    """Runs or only collects the tests in `tests`, from the root of the repository; returns pytest's exit status."""
    os.chdir(HERE)
    wanted = ["-q", "--collect-only"] if collect_only else ["-q"]
    config = ["-c", str(HERE / "pyproject.toml"), "--rootdir", str(HERE)]
    return int(pytest.main([*wanted, *config, str(tests)], plugins=[claims]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", metavar="AREA")
    parser.add_argument("--contract", type=Path, default=CONTRACT, metavar="FOLDER")
    parser.add_argument("--tests", type=Path, default=TESTS, metavar="PATH")
    parser.add_argument("--collect-only", action="store_true")
    options = parser.parse_args(arguments)
    contract = read_contract(options.contract.absolute())
    if not contract:
        parser.error(f"{options.contract} has no rows")
    claims = Claims()
    status = run_tests(claims, options.tests.absolute(), collect_only=options.collect_only)
    if status not in _RAN:
        return status
    if not options.collect_only:
        shown = {name: rows for name, rows in contract.items() if name.startswith(tuple(options.areas) or "")}
        print("\n".join([*report(shown, claims.held), "", *claims.lost()]))
    unknown = sorted(claims.named.difference(*contract.values()))
    if unknown:
        print(f"claimed by tests and not in the contract: {' '.join(unknown)}")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
