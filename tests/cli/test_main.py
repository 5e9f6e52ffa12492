"""The `halimede` command up to the point where a server would start: what it prints, where, and its exit status."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from halimede import FORM, __version__
from halimede.cli.main import main
from halimede.options import usage
from tests.backends.onnx_models import identity


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AIP_MODE", "AIP_STORAGE_URI"):
        monkeypatch.delenv(name, raising=False)


def test_version_is_printed_by_the_command_and_by_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == main(["serve", "--version"]) == 0
    assert capsys.readouterr().out == f"halimede {__version__} ({FORM})\n" * 2


def test_help_of_the_command_lists_the_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "\n  serve       serve the models of" in capsys.readouterr().out


def test_command_without_words_prints_help_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert capsys.readouterr().err.startswith("Usage: halimede <command>")


def test_unknown_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sevre"]) == 1
    assert capsys.readouterr().err.endswith("\nunknown command 'sevre'\nDid you mean 'serve'?\n")


def test_flag_without_a_command_shows_where_it_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model-repository=r"]) == 1
    assert capsys.readouterr().err.endswith("Flags follow a command: halimede serve --model-repository=r\n")


def test_help_of_serve_goes_to_stderr_and_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 1
    assert capsys.readouterr() == ("", usage() + "\n")


def test_wrong_flag_prints_usage_and_the_message_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--http-prt=1"]) == 1
    text = f"{usage()}\nunrecognized option '--http-prt=1'\nDid you mean '--http-port'?\n"
    assert capsys.readouterr() == ("", text)


def test_flag_of_a_missing_feature_is_named_without_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model-repository=r", "--allow-sagemaker=1"]) == 1
    assert capsys.readouterr() == ("", "error: --allow-sagemaker=true is not supported yet\n")


def test_missing_repository_is_reported_after_the_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--http-thread-count=3"]) == 1
    assert capsys.readouterr().err == (
        "Warning: '--http-thread-count' has no effect: connections are served by one event loop.\n"
        "error: creating server: Invalid argument - --model-repository must be specified\n"
    )


@pytest.mark.rows("C1")
def test_module_runs_as_the_command() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "halimede", "serve", "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (1, "", usage() + "\n")


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
