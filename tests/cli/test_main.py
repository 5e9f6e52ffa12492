"""The `halimede` command up to the point where a server would start: what it prints, where, and its exit status."""

import os
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import NoReturn

import pytest

from halimede import FORM, __version__
from halimede.cli.main import COMMANDS, main, tritonserver
from halimede.options import usage
from tests.backends.onnx_models import identity
from tests.processes import TRITONSERVER

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AIP_MODE", "AIP_STORAGE_URI"):
        monkeypatch.delenv(name, raising=False)


def test_version_is_printed_by_the_command_and_by_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == main(["serve", "--version"]) == tritonserver(["--version"]) == 0
    assert capsys.readouterr().out == f"halimede {__version__} ({FORM})\n" * 3


def test_help_of_the_command_lists_the_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "\n  serve       serve the models of" in capsys.readouterr().out


def test_command_without_words_prints_help_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert capsys.readouterr().err.startswith("Usage: halimede <command>")


def test_unknown_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sevre"]) == 1
    assert capsys.readouterr() == ("", "error: unknown command 'sevre'. Did you mean 'serve'?\n")


def test_unknown_command_without_a_near_one_names_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 1
    assert capsys.readouterr() == ("", "error: unknown command 'xyzzy'\nhalimede --help lists the commands.\n")


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["help"], "Usage: halimede <command>"),
        (["help", "serve"], "Usage: halimede serve "),
        (["help", "model"], "Usage: halimede model <command>"),
        (["help", "model", "run"], "usage: halimede model run "),
        (["help", "help"], "Usage: halimede <command>"),
        (["model", "--help"], "Usage: halimede model <command>"),
        (["model", "-h"], "Usage: halimede model <command>"),
        (["model", "help"], "Usage: halimede model <command>"),
        (["serve", "-h"], "Usage: halimede serve "),
    ],
)
def test_help_that_was_asked_for_is_output(words: list[str], start: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    said = capsys.readouterr()
    assert said.out.startswith(start)
    assert said.err == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == main(["help", command]) == 0
    assert capsys.readouterr().err == ""


def test_misspelt_option_of_the_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--hlep"]) == 1
    assert capsys.readouterr().err == "error: unknown option '--hlep'. Did you mean '--help'?\n"


def test_flag_without_a_command_shows_where_it_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model-repository=r"]) == 1
    told = "unknown option '--model-repository=r'. Options follow a command: halimede serve --model-repository=r"
    assert capsys.readouterr() == ("", f"error: {told}\n")


def test_help_of_serve_is_as_wide_as_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns, width in (("60", 80), ("102", 100), ("500", 120)):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["serve", "--help"]) == 0
        assert capsys.readouterr() == (usage(width=width), "")


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--http-prt=1", "unrecognized option '--http-prt=1'. Did you mean '--http-port'?"),
        ("--xyzzy", "unrecognized option '--xyzzy'\nhalimede serve --help lists the options."),
        (
            "--http-port=x",
            'Bad option: "--http-port".\nInvalid option value. Got x\nhalimede serve --help lists the options.',
        ),
        (
            "--load-model=m",
            "Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
            "\nhalimede serve --help lists the options.",
        ),
    ],
)
def test_wrong_flag_is_told_in_a_few_words(flag: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", flag]) == 1
    assert capsys.readouterr() == ("", f"error: {told}\n")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_tritonserver_goes_to_stderr_and_exits_1(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tritonserver([flag]) == 1
    assert capsys.readouterr() == ("", usage("tritonserver") + "\n")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--http-prt=1", "unrecognized option '--http-prt=1'. Did you mean '--http-port'?"),
        ("--http-port=x", 'Bad option: "--http-port".\nInvalid option value. Got x'),
    ],
)
def test_wrong_flag_of_tritonserver_prints_usage_and_the_message_last(
    flag: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tritonserver([flag]) == 1
    assert capsys.readouterr() == ("", f"{usage('tritonserver')}\n{message}\n")


def test_tritonserver_without_flags_misses_the_repository(capsys: pytest.CaptureFixture[str]) -> None:
    assert tritonserver([]) == main(["serve"]) == 1
    text = "error: creating server: Invalid argument - --model-repository must be specified\n"
    assert capsys.readouterr() == ("", text * 2)


def test_both_commands_are_installed() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    found = {name: EntryPoint(name, value, "console_scripts").load() for name, value in scripts.items()}
    assert found == {"halimede": main, "tritonserver": tritonserver}


def test_flag_of_a_missing_feature_is_named_without_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model-repository=r", "--allow-sagemaker=1"]) == 1
    assert capsys.readouterr() == ("", "error: --allow-sagemaker=true is not supported yet\n")


def test_missing_repository_is_reported_after_the_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--http-thread-count=3"]) == 1
    assert capsys.readouterr().err == (
        "Warning: '--http-thread-count' has no effect: connections are served by one event loop.\n"
        "error: creating server: Invalid argument - --model-repository must be specified\n"
    )


def test_module_runs_as_the_command() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "halimede", "serve", "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("Usage: halimede serve ")


@pytest.mark.rows("C1")
@pytest.mark.parametrize("flag", ["--help", "--bogus", "--http-port=x"])
def test_tritonserver_prints_its_usage_as_triton_does(flag: str) -> None:
    run = subprocess.run([*TRITONSERVER, flag], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("Usage: tritonserver [options]\n")
    messages = {
        "--help": "",
        "--bogus": "\nunrecognized option '--bogus'\n",
        "--http-port=x": '\nBad option: "--http-port".\nInvalid option value. Got x\n',
    }
    assert run.stderr.endswith(messages[flag])


def test_interrupt_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*words: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("halimede.cli.main.parse", interrupted)
    assert main(["serve"]) == 128 + signal.SIGINT
    assert capsys.readouterr() == ("", "error: interrupted\n")


def test_command_line_is_read_without_importing_the_server() -> None:
    heavy = "{'numpy', 'grpc', 'google.protobuf', 'uvloop', 'tritonclient', 'onnxruntime', 'asyncio', 'logging'}"
    code = f"import sys, halimede.cli.main; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "[]\n"


def test_closed_standard_streams_are_opened_to_dev_null() -> None:
    code = (
        "import os, sys\nfrom halimede.cli.main import main\nsys.argv = ['halimede', '--version']\nmain()\n"
        "print([os.path.samestat(os.fstat(n), os.stat(os.devnull)) and os.get_inheritable(n) for n in (0, 2)])\n"
        "print(os.open(os.devnull, os.O_RDONLY))"
    )
    closed = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" <&- 2>&-', sys.executable, code], stdout=subprocess.PIPE, timeout=60, check=True
    )
    assert closed.stdout.decode() == f"halimede {__version__} ({FORM})\n[True, True]\n3\n"


def test_closed_pipe_prints_no_error() -> None:
    """As of `halimede check REPO | head`."""
    gone, end = os.pipe()
    os.close(gone)
    try:
        run = subprocess.run(
            [sys.executable, "-m", "halimede", "--version"], stdout=end, stderr=subprocess.PIPE, timeout=60, check=False
        )
    finally:
        os.close(end)
    assert (run.returncode, run.stderr) == (128 + signal.SIGPIPE, b"")


def test_closed_output_is_no_failure() -> None:
    line = 'exec "$0" -m halimede --version >&-'
    run = subprocess.run(["sh", "-c", line, sys.executable], stderr=subprocess.PIPE, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (0, b"")


def test_onnx_runtime_sends_no_telemetry(tmp_path: Path) -> None:
    """It would begin by a database of what to report, in the home directory."""
    home, model = tmp_path / "home", tmp_path / "m" / "1"
    home.mkdir()
    model.mkdir(parents=True)
    (model / "model.onnx").write_bytes(identity("FP32", [2]))
    environment = {**os.environ, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    del environment["ORT_DISABLE_TELEMETRY"]
    line = [sys.executable, "-m", "halimede", "model", "run", str(tmp_path / "m"), "--input", "x=[1, 2]"]
    run = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert list(home.rglob("*")) == []


def test_telemetry_setting_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    assert main(["--version"]) == 0
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"
