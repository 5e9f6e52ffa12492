"""Shells complete commands, flags and values; the scripts know every flag of every command."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from halimede.cli.arguments import COMMANDS as SMALL
from halimede.cli.arguments import SHELLS
from halimede.cli.completion import actions_of, parser_of, script_of
from halimede.cli.main import COMMANDS, main
from halimede.options.flags import FLAGS, SERVED

_SUMMARIES = {name: command.summary for name, command in COMMANDS.items()}
_ASK = """
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
_halimede
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(words: Sequence[str], folder: Path, command: str = "halimede") -> list[str]:
    """What bash offers for the last of the words. Bash splits `--flag=x` into three words."""
    script = script_of("bash", _SUMMARIES) + _ASK.replace("_halimede", f"_{command}")
    ended = subprocess.run(
        ["bash", "-c", script, "bash", command, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=folder,
    )
    assert ended.stderr == ""
    return sorted(ended.stdout.split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ch"], ["check"]),
        (["model", ""], ["run"]),
        (["serve", "--model-con"], ["--model-config-name", "--model-control-mode"]),
        (["serve", "--model-control-mode", ""], ["explicit", "none", "poll"]),
        (["serve", "--model-control-mode", "=", "p"], ["poll"]),
        (["serve", "--model-control-mode", "="], ["explicit", "none", "poll"]),
        (["serve", "--allow-http", "=", "t"], ["true"]),
        (["serve", "--model-repository", "mo"], ["models"]),
        (["check", "mo"], ["models"]),
        (["check", "models", "--st"], ["--strict"]),
        (["init", "m"], ["model.onnx", "models"]),
        (["model", "run", "--js"], ["--json"]),
        (["model", "run", "--seq"], ["--sequence", "--sequence-id"]),
        (["completion", ""], sorted(SHELLS)),
        (["help", "che"], ["check"]),
    ],
)
def test_bash_completes(words: Sequence[str], offered: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "model.onnx").touch()
    assert completed(words, tmp_path) == offered


def test_bash_completes_tritonserver_as_serve(tmp_path: Path) -> None:
    words = ["--exit-on-error=false", "--model-control-mode", "=", "p"]
    assert completed(words, tmp_path, "tritonserver") == ["poll"]
    assert completed(["--http-por"], tmp_path, "tritonserver") == ["--http-port"]


@pytest.mark.parametrize("shell", SHELLS)
def test_script_has_every_flag(shell: str) -> None:
    script = script_of(shell, _SUMMARIES)
    flags = {flag.name for flag in FLAGS.values() if flag.support is SERVED and not flag.deprecated}
    flags |= {o[2:] for action in actions_of(parser_of(_SUMMARIES)) for o in action.option_strings if o[:2] == "--"}
    assert {"exit-timeout-secs", "strict", "once", "repeat"} <= flags
    assert {flag for flag in flags if f"--{flag}" not in script and f"-l {flag}" not in script} == set()


def test_every_small_command_is_a_subcommand() -> None:
    assert {name.partition(" ")[0] for name in SMALL} | {"serve", "perf", "analyze", "help"} == set(COMMANDS)


def test_script_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == script_of("bash", _SUMMARIES)


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "halimede.cli.completion")
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert capsys.readouterr() == ("", "error: completion needs a library: pip install 'halimede[completion]'\n")
