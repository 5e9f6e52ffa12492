"""Colours and the progress of the start, seen on a terminal; and nothing of both elsewhere."""

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from halimede.cli.logging import console_of_process
from halimede.cli.progress import StatusLine, progress_text
from halimede.cli.terminal import has_colours, painted
from halimede.models.lifecycle import ModelTable
from tests.compat.serving import write_model
from tests.ports import free_ports

LIMIT = 60.0
PLAIN = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
_HOLDS = """
class TritonPythonModel:
    def initialize(self, args):
        open(f"{args['model_repository']}/begun", "r").read()
        raise RuntimeError("broken")
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "on_terminal", "elsewhere"),
    [
        ({}, True, False),
        ({"NO_COLOR": ""}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ({"TERM": "dumb"}, False, False),
        ({"TERM": "xterm"}, True, False),
    ],
)
def test_colours_are_for_terminals(environment: Mapping[str, str], on_terminal: bool, elsewhere: bool) -> None:
    assert has_colours(Terminal(), environment) is on_terminal
    assert has_colours(io.StringIO(), environment) is elsewhere
    assert has_colours(None, {}) is False


def test_only_levels_have_a_colour() -> None:
    assert painted("x", "error", True) == "\x1b[31mx\x1b[0m"
    assert painted("x", "error", False) == painted("x", "info", True) == "x"


def test_status_line_is_erased_for_a_line_of_the_log_and_drawn_again() -> None:
    terminal = Terminal()
    line = StatusLine(terminal)
    line.draw()
    assert terminal.getvalue() == ""
    line.text = "1 of 2"
    line.draw()
    line.draw()
    line.erase()
    line.draw()
    line.text = "x" * 200
    line.draw()
    line.text = ""
    line.draw()
    erase = "\r\x1b[K"
    shown = ["1 of 2\r", "", "1 of 2\r", "x" * 79 + "\r", ""]
    assert terminal.getvalue() == "".join(erase + each for each in shown)


def test_status_line_without_a_terminal_does_nothing() -> None:
    line = StatusLine(None)
    line.text = "x"
    line.draw()
    assert not line.exists


def test_progress_counts_models_that_are_loaded_or_failed() -> None:
    models = ModelTable()
    assert progress_text(models, 1.0) == ""
    for name in ("a", "b", "c", "d"):
        models.loading(name)
    models.refuse("a", None, "no configuration")
    models.refuse("b", 1, "no file")
    models.loading("c", [1])
    assert progress_text(models, 12.4) == "[############------------] 2 of 4 models loaded, 12 s"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_log_has_colours_and_progress_only_on_a_terminal(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TERM", raising=False)
    err = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    console = console_of_process()
    assert (console.terminal, console.colours) == ((err, True) if is_terminal else (None, False))


# ---- a whole process on a terminal


@contextmanager
def on_terminal(*words: str, environment: Mapping[str, str] = PLAIN) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command whose standard streams are a terminal, with the descriptor of the other end."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "halimede", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm"},
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(descriptor: int, wanted: str = "") -> str:
    """What the terminal shows until it has `wanted`; without it, until the process ends."""
    text, end = "", time.monotonic() + LIMIT
    while not wanted or not re.search(wanted, text):
        assert select.select([descriptor], [], [], max(end - time.monotonic(), 0))[0], text
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # Linux's way to say that nobody holds the other end
            piece = b""
        if not piece:
            assert not wanted, text
            break
        text += piece.decode()
    return text


def flags() -> list[str]:
    http, grpc, metrics = free_ports(3)
    local = ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
    return [*local, f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]


def test_server_shows_progress_and_colours_on_a_terminal(tmp_path: Path) -> None:
    write_model(tmp_path, "fine", "INT32")
    version = write_model(tmp_path, "slow", "INT32", backend="python")
    (version / "model.py").write_text(_HOLDS)
    os.mkfifo(version.parent / "begun")
    with on_terminal("serve", f"--model-repository={tmp_path}", "--exit-on-error=false", *flags()) as (process, screen):
        before = read_until(screen, r"1 of 2 models loaded, \d+ s\r")
        assert "\r\x1b[K[############------------] 1 of 2 models loaded, " in before
        writer = os.open(version.parent / "begun", os.O_WRONLY)
        os.close(writer)
        after = read_until(screen, "Started Metrics Service")
        assert re.search(r"\x1b\[31mE\d{4} [^\n]*\] \x1b\[0mexception in initialize of model 'slow'", after)
        # Each line of the log begins in the first column, and the progress is gone at the end.
        lines = re.sub(r"\r\x1b\[K(\[[^\r\n]*\r)?", "\r", before + after).splitlines()
        assert "models loaded" not in "".join(lines)
        process.send_signal(signal.SIGTERM)
        read_until(screen)
        assert process.wait(LIMIT) == 0


def test_commands_colour_the_word_error_on_a_terminal(tmp_path: Path) -> None:
    with on_terminal("model", "run", str(tmp_path / "none")) as (process, screen):
        assert read_until(screen).startswith("\x1b[31merror:\x1b[0m '")
        assert process.wait(LIMIT) == 1


def test_report_of_check_has_coloured_severities(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "identity" input { name: "x" data_type: FP32 dims: 1 }')
    with on_terminal("check", str(tmp_path)) as (process, screen):
        told = read_until(screen)
        assert re.search(r"^\S+config\.pbtxt:1:\s+\x1b\[31merror\x1b\[0m: ", told, re.MULTILINE), told
        assert process.wait(LIMIT) == 1
    with on_terminal("check", str(tmp_path), environment=PLAIN | {"NO_COLOR": "1"}) as (process, screen):
        assert "\x1b" not in read_until(screen)
        assert process.wait(LIMIT) == 1
    words = [sys.executable, "-m", "halimede", "check", str(tmp_path)]
    piped = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, env=PLAIN, check=False)
    assert "\x1b" not in piped.stdout
    forced = PLAIN | {"FORCE_COLOR": "1"}
    piped = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, env=forced, check=False)
    assert "\x1b[31merror" in piped.stdout
