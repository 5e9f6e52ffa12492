"""`docs/tuning.md`, pasted: its commands run as written, in fewer seconds, and print the words of the page."""

from pathlib import Path

import pytest

from tests.examples.test_measuring import words
from tests.examples.test_tour import ROOT, run, steps

pytestmark = pytest.mark.perf

SECTIONS = ("From a number to a configuration", "A latency budget", "Reports")
QUICK = " --measurement-seconds 0.3 --run-config-search-max-concurrency 16 --run-config-search-max-instance-count 2"


def test_page_about_tuning(tmp_path: Path, demo_repository: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    before = (demo_repository / "digits" / "config.pbtxt").read_text()
    count = 0
    for section in SECTIONS:
        for step in steps(section, "tuning.md"):
            count += 1
            command = step.command + QUICK if "analyze profile" in step.command else step.command
            said = words(run(command, tmp_path, None))
            for piece in map(words, step.printed.split("...")):
                assert piece in said, f"{step.command}\nshould print\n{piece}\nand prints\n{said}"
    assert count == 4
    for kind in ("html", "pdf"):
        assert (
            tmp_path / "tuning" / "reports" / "summaries" / "digits" / f"result_summary.{kind}"
        ).stat().st_size > 9000
    assert (tmp_path / "tuning" / "models" / "digits" / "config.pbtxt").read_text().startswith(before.splitlines()[0])
    assert (demo_repository / "digits" / "config.pbtxt").read_text() == before
