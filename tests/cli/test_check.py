"""`halimede check` as a process: what it prints where, and its exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from halimede.cli.main import main
from tests.checking.faulty import FAULTS, write_faults

LIMIT = 60


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "halimede", "check", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)


def good(repository: Path) -> Path:
    folder = repository / "m"
    (folder / "1").mkdir(parents=True)
    tensor = "data_type: TYPE_FP32 dims: [ -1 ]"
    (folder / "config.pbtxt").write_text(
        f'backend: "identity"\ninput {{ name: "INPUT0" {tensor} }}\noutput {{ name: "OUTPUT0" {tensor} }}\n'
    )
    return folder


def test_faults_are_printed_as_compilers_do(tmp_path: Path) -> None:
    write_faults(tmp_path)
    ended = run(str(tmp_path))
    assert ended.returncode == 1
    assert ended.stderr == ""
    for fault in FAULTS:
        assert f"{tmp_path / fault.name}" in ended.stdout
        assert fault.text in ended.stdout
    place = tmp_path / "wrong_enum" / "config.pbtxt"
    told = f"{place}:3: error: 'data_type' has no value 'FP32'\n    instead: data_type: TYPE_FP32\n"
    assert told in ended.stdout
    assert ended.stdout.endswith("no code of the models was run (--load does)\n")


def test_json_is_one_document_if_models_print(tmp_path: Path) -> None:
    folder = good(tmp_path)
    (folder / "config.pbtxt").write_text((folder / "config.pbtxt").read_text().replace("identity", "python"))
    (folder / "1" / "model.py").write_text(
        "print('loud')\nclass TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    )
    ended = run(str(tmp_path), "--json", "--load")
    made = json.loads(ended.stdout)
    assert (ended.returncode, made["ok"], made["models"][0]["loaded"]) == (0, True, [1])


def test_strict_makes_warnings_fail(tmp_path: Path) -> None:
    (good(tmp_path) / "config.pbtext").touch()
    assert run(str(tmp_path)).returncode == 0
    ended = run(str(tmp_path), "--strict")
    assert ended.returncode == 1
    assert "\n0 errors, 1 warning, 0 notes" in ended.stdout


def test_wrong_line_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 1
    assert main(["check", "r", "--jsn"]) == 1
    said = capsys.readouterr().err
    assert "error: the following arguments are required: REPO\nhalimede check --help lists the options.\n" in said
    assert "unrecognized option '--jsn'. Did you mean '--json'?" in said


def test_help_says_that_no_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--help"]) == 0
    assert "No code of a model runs" in capsys.readouterr().out


def test_migration_prints_a_table_and_commands(tmp_path: Path) -> None:
    good(tmp_path)
    ended = run(str(tmp_path), "--migrate", "--backend-directory=backends")
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    assert lines[0].split() == ["model", "backend", "verdict", "needed"]
    assert lines[2].split() == ["m", "identity", "serves", "-"]
    command = " ".join(
        line.removesuffix("\\").strip() for line in lines[lines.index("The model serves as it is.") + 1 :]
    )
    assert command.split() == ["halimede", "serve", f"--model-repository={tmp_path}", "--backend-directory=backends"]


def test_migration_of_a_model_that_cannot_serve_has_status_1(tmp_path: Path) -> None:
    (good(tmp_path) / "config.pbtxt").write_text('backend: "tensorrtllm"')
    ended = run(str(tmp_path), "--migrate", "--json")
    made = json.loads(ended.stdout)
    assert (ended.returncode, made["models"][0]["verdict"]["reason"]) == (1, "backend")
