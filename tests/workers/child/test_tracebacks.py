"""What the log gets of a model's exceptions, and how often."""

import re
import threading
from typing import Any

import pytest

from halimede.workers.child import tracebacks
from halimede.workers.child.tracebacks import MOST_CHARACTERS, MOST_KINDS, Reporter, readable


def raised(source: str, **names: Any) -> BaseException:
    """What this source raises, from a file `model.py` that does not exist."""
    try:
        exec(compile(source, "/m/1/model.py", "exec"), names)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_traceback_has_causes_and_no_frames_of_this_package() -> None:
    def through_ours(work: Any) -> None:
        Reporter(lambda *_: work(), "x").report("execute", ValueError())

    source = "try:\n    call(lambda: 1 / 0)\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e\n"
    text = readable(raised(source, call=through_ours))
    assert 'File "/m/1/model.py", line 2' in text
    assert 'File "/m/1/model.py", line 4' in text
    assert "ZeroDivisionError: division by zero" in text
    assert "direct cause" in text
    assert text.endswith("KeyError: 'k'")
    assert tracebacks.__file__ not in text


def test_message_cannot_pass_for_a_line_of_the_log() -> None:
    text = readable(raised(r"raise ValueError('one\nI1121 two\x1b[2J\r\u0085three')"))
    assert all(line.startswith("    ") for line in text.split("\n"))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


def test_long_message_is_shortened_in_the_middle() -> None:
    text = readable(raised("raise ValueError('a' * 10 ** 6 + 'end')"))
    assert len(text) < MOST_CHARACTERS + 1000
    assert "characters left out" in text
    assert text.endswith("end")


def test_exception_that_cannot_be_printed() -> None:
    source = "class E(Exception):\n    def __str__(self): raise SystemExit\nraise E"
    assert "E" in readable(raised(source))


def test_circle_of_causes_ends() -> None:
    error = raised("a, b = ValueError('a'), ValueError('b')\na.__cause__, b.__cause__ = b, a\nraise a")
    assert "ValueError: b" in readable(error)


class Told:
    """A Reporter with a clock that is moved by hand, and what it told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lines: list[tuple[str, int, str]] = []
        self.reporter = Reporter(lambda *line: self.lines.append(line), "model 'm'", lambda: self.now)

    def headings(self) -> list[str]:
        return [text.partition("\n")[0] for _, _, text in self.lines]


def test_report_names_place_and_model() -> None:
    told = Told()
    told.reporter.report("execute", raised("x = 1\nraise ValueError('v')"))
    [(file, line, text)] = told.lines
    assert (file, line) == ("model.py", 2)
    assert text.startswith("exception in execute of model 'm':\n    Traceback (most recent call last):\n")


def test_mistake_in_the_syntax_has_its_own_place() -> None:
    told = Told()
    try:
        compile("x = 1\nclass M\n", "/m/1/model.py", "exec")
    except SyntaxError as error:
        told.reporter.report("the import", error.with_traceback(None))
    assert told.lines[0][:2] == ("model.py", 2)


def test_code_under_a_strange_name_cannot_begin_a_line() -> None:
    told = Told()
    try:
        exec(compile("1 / 0", "a\nE1121 b", "exec"))
    except ZeroDivisionError as error:
        told.reporter.report("execute", error)
    assert told.lines[0][0] == "a\\x0aE1121 b"


def test_same_failure_is_counted_for_a_second_whatever_its_message() -> None:
    told = Told()
    for i in range(5):
        told.reporter.report("execute", raised(f"raise ValueError('{i}')"))
    told.now += 0.9
    told.reporter.report("execute", raised("raise ValueError('late')"))
    assert len(told.lines) == 1
    told.now += 0.2
    told.reporter.report("execute", raised("raise ValueError('again')"))
    assert told.headings()[1:] == ["exception in execute of model 'm' (5 more since it was last shown):"]


def test_other_lines_and_other_types_are_told_apart() -> None:
    told = Told()
    for source in ("raise ValueError", "\nraise ValueError", "raise KeyError"):
        told.reporter.report("execute", raised(source))
    assert len(told.lines) == 3


def test_memory_of_what_was_shown_has_a_bound() -> None:
    told = Told()
    first = raised("raise ValueError")
    told.reporter.report("execute", first)
    for i in range(MOST_KINDS):
        told.reporter.report("execute", raised("\n" * (i + 1) + "raise ValueError"))
    told.reporter.report("execute", first)
    assert len(told.lines) == MOST_KINDS + 2


@pytest.fixture
def usual_hook() -> Any:
    """The hook of this process is as before afterwards."""
    before = threading.excepthook
    calls: list[Any] = []
    threading.excepthook = calls.append
    yield calls
    threading.excepthook = before


def run_thread(work: Any) -> None:
    thread = threading.Thread(target=work, name="mine\nE")
    thread.start()
    thread.join(20)


def test_exception_that_ends_a_thread_is_told(usual_hook: list[Any]) -> None:
    told = Told()
    told.reporter.watch_threads()
    run_thread(lambda: exec(compile("1 / 0", "/m/1/model.py", "exec")))
    assert told.headings() == ["exception in thread 'mine\\x0aE' of model 'm':"]
    assert usual_hook == []


def test_exception_in_a_thread_without_a_server_goes_the_usual_way(usual_hook: list[Any]) -> None:
    def gone(*line: Any) -> None:
        raise BrokenPipeError

    Reporter(gone, "m").watch_threads()
    run_thread(lambda: exec("1 / 0"))
    assert [type(args.exc_value) for args in usual_hook] == [ZeroDivisionError]
