"""Asks the database of known vulnerabilities about the packages of the locks: `python -m tools.audit PIP_AUDIT`.

The exit status is 1 if a package has one. If the database cannot be reached, it is 0, and the last line says that
nothing was looked up.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.lock import FOLDER, LOCKS

SECONDS = 300.0


@dataclass(slots=True)
class Findings:
    """What the reports of all locks say. `known` has a line for each vulnerability."""

    looked_up: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)

    def add(self, dependency: Mapping[str, Any]) -> None:
        """A dependency of a report, as pip-audit writes it."""
        name = dependency["name"]
        if "skip_reason" in dependency:
            self.skipped[name] = dependency["skip_reason"]
            return
        self.looked_up.add(name)
        for each in dependency["vulns"]:
            better = ", ".join(each["fix_versions"]) or "none"
            self.known[each["id"]] = f"{name} {dependency['version']}: {each['id']}, fixed in: {better}"

    def lines(self) -> list[str]:
        """The report. The last line says how much of it is true."""
        if not self.looked_up:
            why = next(iter(self.skipped.values()), "pip-audit said nothing")
            return [f"skipped: the database cannot be reached, nothing was looked up ({why})"]
        told = [f"{name}: not looked up: {reason}" for name, reason in sorted(self.skipped.items())]
        total = f"{len(self.looked_up)} packages, {len(self.known)} vulnerabilities"
        return [*told, *sorted(self.known.values()), total]


def report(program: str, lock: str) -> Sequence[Mapping[str, Any]]:
    """The dependencies of a report; none if pip-audit reaches nothing at all."""
    command = [program, "--no-deps", "--disable-pip", "--format=json", "--progress-spinner=off"]
    command += ["--requirement", str(FOLDER / f"{lock}.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    try:
        found: Sequence[Mapping[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, LookupError):
        print(f"{lock}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}", file=sys.stderr)
        return ()
    return found


def main() -> int:
    findings = Findings()
    for lock in LOCKS:
        for dependency in report(sys.argv[1], lock):
            findings.add(dependency)
    print("\n".join(findings.lines()))
    return 1 if findings.known else 0


if __name__ == "__main__":
    sys.exit(main())
