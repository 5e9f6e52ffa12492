"""Shells complete commands, flags and values; the scripts know every flag that the tables have."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from halimede.cli.main import COMMANDS, main
from halimede.errors import Invalid
from halimede.options import completion_script, parse_completion
from halimede.options.completion import LINES, SHELLS

_SUMMARIES = {name: command.summary for name, command in COMMANDS.items()}
_ASK = """
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
_halimede
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(words: Sequence[str], folder: Path) -> list[str]:
    """What bash offers for the last of the words, as it splits them: `--flag=x` is three."""
    script = completion_script("bash", _SUMMARIES) + _ASK
    ended = subprocess.run(
        ["bash", "-c", script, "bash", "halimede", *words],
        capture_output=True,
        text=True,
        timeout=20,
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
        (["serve", "--http-port", "-"], []),
        (["check", "mo"], ["models"]),
        (["check", "--st"], ["--strict"]),
        (["init", "m"], ["model.onnx", "models"]),
        (["model", "run", "--js"], ["--json"]),
        (["completion", ""], sorted(SHELLS)),
    ],
)
def test_bash_completes(words: Sequence[str], offered: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "model.onnx").touch()
    assert completed(words, tmp_path) == offered


@pytest.mark.parametrize("shell", SHELLS)
def test_every_flag_is_known(shell: str) -> None:
    script = completion_script(shell, _SUMMARIES)
    start = "-l " if shell == "fish" else "--"
    for line in LINES:
        assert all(f"{start}{flag.name}" in script for flag in line.served)


def test_every_command_is_known() -> None:
    assert {line.words.partition(" ")[0] for line in LINES} == set(COMMANDS)


def test_quotes_do_not_break_a_script() -> None:
    script = completion_script("zsh", {"serve": "the server's: [all]"})
    assert "'serve:the server'\\''s\\: \\[all\\]'" in script


def test_script_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == completion_script("bash", _SUMMARIES)


def test_unknown_shell() -> None:
    with pytest.raises(Invalid, match="'bsh' is not one of bash, zsh, fish\nDid you mean 'bash'"):
        parse_completion(["bsh"])


@pytest.mark.parametrize("words", [[], ["bash", "zsh"]])
def test_wrong_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", *words]) == 1
    assert "Usage: halimede completion" in capsys.readouterr().err
