"""Lines, streams and levels of the log; every installation writes to streams of the test and is taken down after it."""

import io
import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import PIPE_BUF
from typing import Any

import pytest

from halimede.cli.log_lines import JsonFormatter, TritonFormatter, formatter_for
from halimede.cli.logging import AUDIT, MAX_WAITING, PERIOD, ROOT, LogFile, install, log_table, verbose
from halimede.cli.logging import Console as Streams
from halimede.errors import Invalid
from halimede.options import LogOptions
from tests.fakes import PATIENCE

logger = logging.getLogger(f"{ROOT}.tests")


class Console:
    """Two streams, as a process has them, and the log that is installed on them. Its clock is `now`."""

    def __init__(self) -> None:
        self.out = io.StringIO()
        self.err = io.StringIO()
        self.now = 0.0
        self.colours = False

    def install(self, options: LogOptions) -> None:
        streams = Streams(self.out, self.err, colours=self.colours)
        self.log = install(options, streams, lambda: self.now)

    def lines(self) -> tuple[list[str], list[str]]:
        """What was written, once all of it is."""
        self.log.close()
        return self.out.getvalue().splitlines(), self.err.getvalue().splitlines()


@pytest.fixture
def console() -> Iterator[Console]:
    root = logging.getLogger(ROOT)
    before = (root.level, root.propagate)
    yield Console()
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(before[0])
    root.propagate = before[1]


def record(message: str, level: int = logging.INFO, created: float = 1732156340.101932) -> logging.LogRecord:
    made = logging.LogRecord(f"{ROOT}.x", level, "models/lifecycle.py", 472, message, (), None)
    made.created = created
    made.process = 7950
    return made


def speak() -> None:
    logger.info("info")
    logger.warning("warning")
    logger.error("error")
    logger.log(verbose(1), "one")
    logger.log(verbose(2), "two")


def words(lines: list[str]) -> list[str]:
    return [line[line.index("] ") + 2 :].strip('"') for line in lines]


@pytest.mark.parametrize(
    ("level", "letter"),
    [
        (logging.ERROR, "E"),
        (logging.CRITICAL, "E"),
        (logging.WARNING, "W"),
        (logging.INFO, "I"),
        (verbose(1), "I"),
    ],
)
def test_default_line_has_severity_utc_time_process_and_place(level: int, letter: str) -> None:
    line = TritonFormatter().format(record("loading: m:1", level))
    assert line == f'{letter}1121 02:32:20.101932 7950 lifecycle.py:472] "loading: m:1"'


def test_default_line_pads_microseconds() -> None:
    assert "02:32:20.000007 " in TritonFormatter().format(record("x", created=1732156340.0000075))


def test_iso_line_has_date_before_severity() -> None:
    line = TritonFormatter("ISO8601").format(record("loading: m:1", logging.WARNING))
    assert line == '2024-11-21T02:32:20Z W 7950 lifecycle.py:472] "loading: m:1"'


def test_message_is_escaped_as_triton_does() -> None:
    # The right side is what the real server wrote for the same message of a Python model.
    line = TritonFormatter().format(record('café\n\x1b tab\there "q" \\ /slash'))
    assert line.endswith('] "café\\n\\u001B tab\\there \\"q\\" \\\\ /slash"')


MISLEADING = "\x7f\x80\x85\x9b\x9f\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069"
"""Characters that Triton writes as they are. A terminal obeys the first of them, and the others change the order of a
line or begin another."""


@pytest.mark.parametrize("style", ["default", "ISO8601", "json"])
def test_characters_that_mislead_are_escaped(style: str) -> None:
    made = record(f"model 'a{MISLEADING}b' is loaded", logging.WARNING)
    made.model = f"a{MISLEADING}b"
    line = formatter_for(style, escape=True, colours=False).format(made)
    assert line.isprintable()
    assert "".join(f"\\u{ord(each):04X}" for each in MISLEADING) in line
    if style == "json":
        assert json.loads(line)["model"] == f"a{MISLEADING}b"


def test_ordinary_text_of_any_language_stays() -> None:
    text = "ä 模型 שלום مرحبا \U0001f600 a\u200db"
    assert text in TritonFormatter().format(record(text))
    assert text in JsonFormatter().format(record(text))


def test_audit_is_written_whatever_the_levels_are(console: Console) -> None:
    console.install(LogOptions(info=False, warning=False, error=False))
    logger.info("not this")
    logging.getLogger(AUDIT).info("audit: x", extra={"identity": "alice"})
    out, err = console.lines()
    assert (words(out), err) == (["audit: x"], [])


def test_audit_has_a_file_of_its_own(tmp_path: Path, console: Console) -> None:
    streams = Streams(console.out, console.err)
    log = install(LogOptions(), streams, lambda: 0.0, str(tmp_path / "audit"))
    fields = {"identity": "alice", "shown": "key 1", "peer": "127.0.0.1:5", "action": "load", "outcome": "done"}
    logger.info("not there")
    logging.getLogger(AUDIT).info("audit: x", extra=fields)
    # As at the end of the process.
    for handler in (*logging.getLogger(AUDIT).handlers, log):
        handler.close()
    logging.getLogger(AUDIT).propagate = True
    (line,) = (tmp_path / "audit").read_text().splitlines()
    assert {name: json.loads(line)[name] for name in fields} == fields
    assert words(console.out.getvalue().splitlines()) == ["not there"]


def test_audit_file_that_cannot_be_opened(tmp_path: Path, console: Console) -> None:
    with pytest.raises(Invalid, match="Failed to open log file"):
        install(LogOptions(), Streams(console.out, console.err), audit_file=str(tmp_path / "no" / "audit"))


def test_message_is_plain_without_escaping() -> None:
    line = TritonFormatter(escape=False).format(record('a\n"b"'))
    assert line.endswith('472] a\n"b"')


def test_exception_is_part_of_the_message(console: Console) -> None:
    console.install(LogOptions())
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("it failed")
    _, err = console.lines()
    assert len(err) == 1
    assert re.search(r'"it failed\\nTraceback .*ValueError: broken"$', err[0])


def test_information_goes_to_out_and_the_rest_to_err(console: Console) -> None:
    console.install(LogOptions())
    speak()
    out, err = console.lines()
    assert (words(out), words(err)) == (["info"], ["warning", "error"])


def test_line_names_this_process_and_the_caller(console: Console) -> None:
    console.install(LogOptions())
    logger.info("here")
    out, _ = console.lines()
    assert re.fullmatch(rf'I\d{{4}} \d\d:\d\d:\d\d\.\d{{6}} {os.getpid()} test_logging\.py:\d+\] "here"', out[0])


@pytest.mark.parametrize(
    ("options", "out", "err"),
    [
        (LogOptions(info=False), [], ["warning", "error"]),
        (LogOptions(warning=False), ["info"], ["error"]),
        (LogOptions(error=False), ["info"], ["warning"]),
        (LogOptions(verbose=1), ["info", "one"], ["warning", "error"]),
        (LogOptions(verbose=2), ["info", "one", "two"], ["warning", "error"]),
        (LogOptions(info=False, warning=False, error=False, verbose=1), ["one"], []),
        (LogOptions(verbose=-1), ["info"], ["warning", "error"]),
    ],
)
def test_each_level_has_its_own_switch(console: Console, options: LogOptions, out: list[str], err: list[str]) -> None:
    console.install(options)
    speak()
    said = console.lines()
    assert (words(said[0]), words(said[1])) == (out, err)


def test_verbose_message_is_not_enabled_below_its_level(console: Console) -> None:
    console.install(LogOptions(verbose=1))
    assert logger.isEnabledFor(verbose(1))
    assert not logger.isEnabledFor(verbose(2))


def test_table_follows_its_heading_unchanged(console: Console) -> None:
    console.install(LogOptions())
    log_table(logger, '+--+\n| "|', "Models")
    out, _ = console.lines()
    assert re.search(r" test_logging\.py:\d+\] Models$", out[0])
    assert out[1:] == ["+--+", '| "|', ""]


def test_log_file_takes_everything_and_is_appended_to(console: Console, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    console.install(LogOptions(file=str(path)))
    speak()
    assert console.lines() == ([], [])
    first, *rest = path.read_text().splitlines()
    assert (first, words(rest)) == ("before", ["info", "warning", "error"])


def test_direct_line_follows_the_log_and_is_in_no_file(console: Console, tmp_path: Path) -> None:
    path = tmp_path / "log"
    console.install(LogOptions())
    logger.error("before")
    console.log.say_error("said")
    console.install(LogOptions(file=str(path)))
    console.log.say_error("said once more")
    before, *others = console.lines()[1]
    assert (words([before]), others) == (["before"], ["error: said", "error: said once more"])
    assert path.read_text() == ""


def test_log_file_that_cannot_be_opened_is_an_error(console: Console, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "log"
    with pytest.raises(Invalid) as caught:
        console.install(LogOptions(file=str(path)))
    assert str(caught.value) == f"Failed to open log file '{path}': No such file or directory"


def test_prefixes_of_warnings_and_errors_have_colours_on_a_terminal(console: Console) -> None:
    console.colours = True
    console.install(LogOptions())
    speak()
    console.log.say_error("said")
    out, err = console.lines()
    assert "\x1b" not in out[0]
    assert re.fullmatch(r'\x1b\[33mW\d{4} .*\] \x1b\[0m"warning"', err[0])
    assert re.fullmatch(r'\x1b\[31mE\d{4} .*\] \x1b\[0m"error"', err[1])
    assert err[2] == "\x1b[31merror:\x1b[0m said"


@pytest.mark.parametrize("form", ["default", "json"])
def test_files_and_json_have_no_colours(console: Console, tmp_path: Path, form: str) -> None:
    console.colours = True
    console.install(LogOptions(format="json"))
    speak()
    console.install(LogOptions(format=form, file=str(tmp_path / "log")))
    speak()
    assert "\x1b" not in "".join(console.lines()[1]) + (tmp_path / "log").read_text()


@contextmanager
def foreign_logger() -> Iterator[logging.Logger]:
    """A logger of a library that nobody has configured: pytest's handlers, at the root, do not see it."""
    logger = logging.getLogger("a_library")
    logger.propagate = False
    yield logger
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def test_warnings_of_other_loggers_are_lines_of_the_log(console: Console) -> None:
    before = logging.lastResort
    console.install(LogOptions())
    with foreign_logger() as foreign:
        foreign.info("not said")
        foreign.warning("careful")
        foreign.addHandler(logging.StreamHandler(io.StringIO()))
        foreign.warning("somebody else writes this")
    out, err = console.lines()
    assert (out, words(err)) == ([], ["careful"])
    assert re.match(r"W\d{4} .* test_logging\.py:\d+\] ", err[0])
    assert logging.lastResort is before


def test_attached_logger_has_the_levels_of_the_server(console: Console) -> None:
    console.install(LogOptions())
    with foreign_logger() as foreign:
        console.log.attach(foreign.name)
        below = foreign.getChild("backend")
        below.info("said")
        below.log(verbose(1), "not said")
        console.log.configure(LogOptions(verbose=1))
        below.log(verbose(1), "one")
        out, _ = console.lines()
        assert words(out) == ["said", "one"]
        assert not foreign.handlers


def test_second_installation_replaces_the_first(console: Console) -> None:
    console.install(LogOptions())
    logger.info("first")
    console.install(LogOptions(format="ISO8601"))
    logger.info("second")
    out, _ = console.lines()
    assert words(out) == ["first", "second"]
    assert re.match(r"\d{4}-\d\d-\d\dT", out[1])


def test_closed_console_does_not_stop_the_log(console: Console) -> None:
    console.install(LogOptions())
    console.out.close()
    logger.info("lost")
    logger.error("kept")
    console.log.close()
    assert words(console.err.getvalue().splitlines()) == ["kept"]


def test_line_that_the_console_cannot_encode_is_escaped(console: Console) -> None:
    written = io.BytesIO()
    console.out = io.TextIOWrapper(written, encoding="latin-1")  # type: ignore[assignment]
    console.install(LogOptions(escape=False))
    for message in ("before", "caf\xe9", "name '\udcff'", "\u6a21", "after"):
        logger.info(message)
    console.log.close()
    lines = words(written.getvalue().decode("latin-1").splitlines())
    assert lines == ["before", "caf\xe9", "name '\\udcff'", "\\u6a21", "after"]


def test_json_stays_valid_on_an_ascii_console(console: Console) -> None:
    written = io.BytesIO()
    console.out = io.TextIOWrapper(written, encoding="ascii")  # type: ignore[assignment]
    console.install(LogOptions(format="json"))
    logger.info("caf\xe9 \u6a21 \U0001f600")
    console.log.close()
    assert json.loads(written.getvalue())["message"] == "caf\xe9 \u6a21 \U0001f600"


class Pipe(io.RawIOBase):
    """What was written to it, each piece as it came."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self.pieces.append(bytes(data))
        return len(data)


def test_lines_are_written_together_up_to_the_pipe_limit(console: Console) -> None:
    """What workers print goes into the same pipe; only what is no longer than `PIPE_BUF` stays in one piece there."""
    pipe = Pipe()
    console.out = io.TextIOWrapper(io.BufferedWriter(pipe), encoding="utf-8")  # type: ignore[assignment]
    console.install(LogOptions(escape=False))
    messages = [f"line {i} " + "\u6a21" * (i % 50) for i in range(500)] + ["x" * 5000, "last"]
    for message in messages:
        logger.info(message)
    console.log.close()
    assert words(b"".join(pipe.pieces).decode().splitlines()) == messages
    assert all(piece.endswith(b"\n") for piece in pipe.pieces)
    assert all(len(piece) <= PIPE_BUF or piece.count(b"\n") == 1 for piece in pipe.pieces)
    assert len(pipe.pieces) < len(messages)


class StuckTerminal(io.StringIO):
    """Takes nothing until it is `released`; `begun` once it was given a line, `caught_up` once it was given `last`."""

    def __init__(self, last: str) -> None:
        super().__init__()
        self.begun, self.released, self.caught_up = threading.Event(), threading.Event(), threading.Event()
        self._last = last

    def write(self, text: str, /) -> int:
        self.begun.set()
        assert self.released.wait(PATIENCE)
        written = super().write(text)
        if self._last in text:
            self.caught_up.set()
        return written


@pytest.fixture
def stuck(console: Console) -> Iterator[StuckTerminal]:
    """A terminal for both streams that holds one line, with as many waiting as may."""
    terminal = StuckTerminal(f"line {MAX_WAITING}")
    console.out = console.err = terminal
    console.install(LogOptions())
    logger.info("line 0")
    assert terminal.begun.wait(PATIENCE)
    for i in range(MAX_WAITING):
        logger.info("line %d", i + 1)
    yield terminal
    terminal.released.set()


def test_lines_beyond_the_limit_are_lost_and_counted(console: Console, stuck: StuckTerminal) -> None:
    for _ in range(7):
        logger.error("lost")
    stuck.released.set()
    assert stuck.caught_up.wait(PATIENCE)
    logger.info("after")
    logger.info("and on")
    lines, _ = console.lines()
    written = [f"line {i}" for i in range(MAX_WAITING + 1)]
    assert words(lines) == [*written, "7 log lines lost: the reader of the log did not keep up", "after", "and on"]
    assert lines[MAX_WAITING + 1].startswith("W")


def test_lines_lost_at_the_end_are_counted(console: Console, stuck: StuckTerminal) -> None:
    logger.info("lost")
    stuck.released.set()
    lines, _ = console.lines()
    assert words(lines)[-2:] == [f"line {MAX_WAITING}", "1 log line lost: the reader of the log did not keep up"]


def test_changed_levels_and_format_apply_at_once(console: Console) -> None:
    """Contract L5: from the next line on; the streams stay."""
    console.install(LogOptions())
    speak()
    console.log.configure(LogOptions(verbose=1, info=False, error=False, format="ISO8601"))
    speak()
    out, err = console.lines()
    assert [line.rpartition("] ")[2] for line in out] == ['"info"', '"one"']
    assert [line.rpartition("] ")[2] for line in err] == ['"warning"', '"error"', '"warning"']
    assert re.match(r"\d{4}-\d{2}-\d{2}T.*Z W ", err[2])
    assert logger.isEnabledFor(verbose(1))
    console.log.configure(LogOptions())
    assert not logger.isEnabledFor(verbose(1))


def test_repetitions_are_reported_at_the_end(console: Console) -> None:
    console.install(LogOptions())
    for _ in range(5):
        logger.error("broke")
    _, err = console.lines()
    assert words(err) == ["broke", "broke (3 more of this)"]


def test_repetitions_are_reported_after_the_level_was_switched_off(console: Console) -> None:
    console.install(LogOptions())
    for _ in range(5):
        logger.error("broke")
    console.log.configure(LogOptions(error=False))
    logger.error("not said")
    _, err = console.lines()
    assert words(err) == ["broke", "broke (3 more of this)"]


class Watched(io.StringIO):
    """Sets `said` once `word` was written."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.said = threading.Event()
        self._word = word

    def write(self, text: str, /) -> int:
        written = super().write(text)
        if self._word in text:
            self.said.set()
        return written


def test_repetitions_are_reported_while_nothing_else_is_logged(console: Console) -> None:
    terminal = console.err = Watched("more of this")
    console.install(LogOptions())
    for _ in range(3):
        logger.error("broke")
    console.now += PERIOD
    assert terminal.said.wait(PATIENCE)
    assert words(terminal.getvalue().splitlines()) == ["broke", "broke (1 more of this)"]


def test_json_line_has_all_fields(console: Console) -> None:
    """Contract D24."""
    console.install(LogOptions(format="json"))
    logger.error('say "x"\n', extra={"model": "m", "version": 2, "request_id": "r"})
    log_table(logger, "| a |", "Models")
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("it failed")
    out, err = (list(map(json.loads, lines)) for lines in console.lines())
    assert (
        err[0].items()
        >= {
            "level": "ERROR",
            "pid": os.getpid(),
            "file": "test_logging.py",
            "message": 'say "x"\n',
            "model": "m",
            "version": 2,
            "request_id": "r",
        }.items()
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", err[0]["time"])
    assert (out[0]["message"], out[0]["table"]) == ("Models", "| a |")
    assert err[1]["exception"].endswith("ValueError: broken")
    assert not {"model", "request_id"} & set(err[1])


def test_json_line_stays_one_line() -> None:
    line = JsonFormatter().format(record("\udcff\n\x00é", logging.INFO - 1))
    assert "\n" not in line
    assert json.loads(line)["level"] == "VERBOSE"


def test_line_names_its_model_and_request_unless_the_message_does() -> None:
    made = record("broke")
    made.__dict__.update(model="m9", version=3, request_id="r1")
    assert TritonFormatter().format(made).endswith("\"[request id: r1] broke (model 'm9' version 3)\"")
    made = record("[request id: r1] model 'm9' broke")
    made.__dict__.update(model="m9", version=3, request_id="r1")
    assert TritonFormatter().format(made).endswith("\"[request id: r1] model 'm9' broke\"")


def test_line_names_its_instance_unless_the_message_does() -> None:
    made = record("model 'm9' broke")
    made.__dict__.update(model="m9", version=3, instance="i_0")
    assert TritonFormatter().format(made).endswith("\"model 'm9' broke (instance 'i_0')\"")
    made = record("broke")
    made.__dict__.update(model="m9", version=3, instance="i_0")
    assert TritonFormatter().format(made).endswith("\"broke (model 'm9' version 3, instance 'i_0')\"")
    assert json.loads(JsonFormatter().format(made))["instance"] == "i_0"
    made = record("i_0 of model 'm9' broke")
    made.__dict__.update(model="m9", version=3, instance="i_0")
    assert TritonFormatter().format(made).endswith("\"i_0 of model 'm9' broke\"")


def test_log_file_is_reopened_after_it_was_moved(console: Console, tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LogFile(str(path))
    file.write("one\n")
    path.rename(tmp_path / "log.1")
    file.write("two\n")
    path.unlink()
    file.write("three\n")
    file.flush()
    path.write_text("of another\n")
    file.write("four\n")
    file.close()
    assert path.read_text() == "of another\nfour\n"
    assert (tmp_path / "log.1").read_text() == "one\n"


def test_log_file_whose_folder_is_gone_stays_open(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    file = LogFile(str(folder / "log"))
    (folder / "log").rename(tmp_path / "kept")
    folder.rmdir()
    file.write("one\n")
    folder.mkdir()
    file.write("two\n")
    file.close()
    assert (tmp_path / "kept").read_text() == "one\n"
    assert (folder / "log").read_text() == "two\n"
