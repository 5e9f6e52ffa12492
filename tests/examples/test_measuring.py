"""`docs/measuring.md`, pasted: each command runs as written, on another port, and prints the words of the page."""

import re
from pathlib import Path

import pytest

from tests.compat.serving import Serving
from tests.examples.test_tour import Step, run, steps

pytestmark = pytest.mark.perf

SECTIONS = ("The first number", "One level", "A rate instead of clients", "Files, plots and comparisons")
STEADY = " --stability-percentage 99999"
"""Takes any measurement for a steady one: other tests run at the same time."""


@pytest.mark.parametrize("section", SECTIONS)
def test_page_about_measuring(section: str, tmp_path: Path, demo_server: Serving) -> None:
    found = list(steps(section, "measuring.md"))
    assert found
    for step in found:
        command = step.command
        if "--compare" not in command:
            command = command.replace("halimede perf", f"halimede perf -u {demo_server.http_url}") + STEADY
        check(step, run(command, tmp_path, None))


def check(step: Step, said: str) -> None:
    """Compares words: every number may be another one."""
    there = words(said)
    for piece in map(words, step.printed.split("...")):
        assert piece in there, f"{step.command}\nshould print\n{piece}\nand prints\n{said}"


def words(text: str) -> str:
    text = re.sub(r"localhost:\d+|127\.0\.0\.1:\d+", "ADDRESS", text)
    return "".join(re.sub(r"\d[\d,.]*(?<![,.])", "N", text).split())
