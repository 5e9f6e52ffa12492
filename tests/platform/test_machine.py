"""Processors and memory as /proc tells of them."""

from pathlib import Path

import pytest

from halimede.platform.machine import Memory, Processors, memory

STAT = "cpu  {user} 0 0 {idle} {waiting} 0 0 0 {user} 0\ncpu0 1 2 3\n"


def test_utilization_is_the_share_of_the_time_since_the_last_look(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(STAT.format(user=100, idle=800, waiting=100))
    processors = Processors(tmp_path)
    assert processors.look() == 0.0
    stat.write_text(STAT.format(user=130, idle=850, waiting=120))
    assert processors.look() == pytest.approx(0.3)
    stat.write_text(STAT.format(user=230, idle=850, waiting=120))
    assert processors.look() == 1.0


@pytest.mark.parametrize("text", [None, "", "intr 1 2", "cpu a b", "cpu"])
def test_nobody_tells_of_the_processors(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "stat").write_text(text)
    assert not Processors(tmp_path).look()


def test_memory_in_use_is_what_is_not_available(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n")
    assert memory(tmp_path) == Memory(1000 * 1024, 600 * 1024)


@pytest.mark.parametrize("text", [None, "", "MemTotal: 5 kB\n", "MemTotal:\nMemAvailable: x\n"])
def test_nobody_tells_of_the_memory(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "meminfo").write_text(text)
    assert memory(tmp_path) is None
