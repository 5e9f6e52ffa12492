#!/usr/bin/env python3
"""Runs the tests and prints, file by file, the rows of the contract that no passing test claims.

    rows.py [--contract FOLDER] [AREA ...]

A test claims rows by `@pytest.mark.rows("H30", ...)`; the conformance cases do so with their data. A test that fails
or is skipped claims nothing. AREA is the beginning of a file's name (`01`): only these files are printed, all tests run
all the same. The contract lies beside the clone, not in it; without it there is nothing to do, and that is no failure.
Exit status: 0, or 1 where a test claims a row that the contract does not have, or pytest's own where the tests could
not run.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent
CONTRACT = HERE.parent / "shared" / "contract"

_ROW = re.compile(r"^\| ([A-Z]+[0-9]+[a-z]?(?:-[0-9]+)?) \| ((?:[^|\\]|\\.)*?) \|", re.MULTILINE)
_RAN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)

Rows = Mapping[str, str]  # row id to what the row is about, in the order of its file


def read_contract(folder: Path) -> dict[str, Rows]:
    """The rows of each file that has any, by the file's name."""
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    return {name: dict(_ROW.findall(text)) for name, text in files.items() if _ROW.search(text)}


class Claims:
    """A pytest plugin that takes down which rows the tests claim, and how the tests went."""

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
        """Rows that a passing test claims; a test that fails as it is torn down has not passed."""
        good = self._passed - self._fell["failed"]
        return frozenset().union(*(rows for test, rows in self._claimed.items() if test in good))

    def lost(self) -> Iterator[str]:
        """Which tests claim rows and did not pass, in words."""
        for outcome, tests in self._fell.items():
            count = len(tests & self._claimed.keys())
            if count:
                yield f"{count} tests that claim rows were {outcome}"


def report(contract: Mapping[str, Rows], held: frozenset[str]) -> Iterator[str]:
    """Lines: for each file how many rows are claimed, and the others."""
    for name, rows in contract.items():
        missing = [row for row in rows if row not in held]
        yield f"\n{name}: {len(rows) - len(missing)} of {len(rows)} rows claimed"
        yield from (f"  {row:<6} {rows[row]}" for row in missing)


def run_tests(claims: Claims) -> int:
    """The exit status of a run of all tests, from the root of the repository."""
    os.chdir(HERE)
    return int(pytest.main(["-q"], plugins=[claims]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", metavar="AREA")
    parser.add_argument("--contract", type=Path, default=CONTRACT, metavar="FOLDER")
    options = parser.parse_args(arguments)
    contract = read_contract(options.contract.absolute())
    if not contract:
        print(f"no contract in {options.contract}: there are no rows to look for")
        return 0
    claims = Claims()
    status = run_tests(claims)
    if status not in _RAN:
        return status
    shown = {name: rows for name, rows in contract.items() if name.startswith(tuple(options.areas) or "")}
    print("\n".join([*report(shown, claims.held), "", *claims.lost()]))
    unknown = sorted(claims.named.difference(*contract.values()))
    if unknown:
        print(f"claimed by tests and not in the contract: {' '.join(unknown)}")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
