"""The commands of docs/pytorch.md, pasted one after the other."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.compat.serving import Serving
from tests.pytorch import scripts

PAGE = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text()
LIMIT = 120
BODY = re.compile(r"-d '(\{.*?\})'", re.DOTALL)


def commands() -> list[str]:
    """What follows a `$`, up to the next one."""
    blocks = re.findall(r"^```\n(\$ .*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [command.strip() for block in blocks for command in re.split(r"^\$ ", block, flags=re.MULTILINE) if command]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The commands `python` and `halimede` are those of these tests."""
    folder = tmp_path_factory.mktemp("bin")
    for name, words in {"python": "", "halimede": " -m halimede"}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{words} "$@"\n')
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}


def run(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_commands_of_the_page(tmp_path: Path, environment: Mapping[str, str]) -> None:
    for name, text in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(text)
    asked = []
    for command in commands():
        if command.startswith("curl"):
            asked.append(BODY.search(command))
        elif not command.startswith("halimede serve"):
            run(command, tmp_path, environment)
    assert len(asked) == 1
    assert asked[0] is not None
    with Serving(tmp_path / "models", tmp_path / "log", environment=dict(environment)) as serving:
        serving.wait_until_live()
        body = asked[0][1].encode()
        answers = []
        for model in ("classifier", "exported"):
            status, answer = serving.ask(f"/v2/models/{model}/infer", body)
            assert status == 200, answer
            answers.append(answer["outputs"][0]["data"])
            _, config = serving.ask(f"/v2/models/{model}/config")
            assert (config["max_batch_size"] > 1, "dynamic_batching" in config) == (True, True)
        assert sum(answers[0]) == pytest.approx(1, abs=1e-5)
        assert len(answers[1]) == 3


def init(
    source: Path, folder: Path, environment: Mapping[str, str], *inputs: str
) -> "subprocess.CompletedProcess[str]":
    words = [word for text in inputs for word in ("--input", text)]
    command = ["halimede", "init", str(source), str(folder / "models"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)


def test_init_finds_what_the_outputs_are(tmp_path: Path, environment: Mapping[str, str]) -> None:
    scripts.save(scripts.AddSub(), tmp_path / "sums.pt")
    done = init(tmp_path / "sums.pt", tmp_path, environment, "INPUT1:INT64[-1,-1]", "INPUT0:INT64[-1,-1]")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "models" / "sums" / "config.pbtxt").read_text()
    assert 'backend: "pytorch"' in text
    assert text.count("TYPE_INT64") == 4
    assert text.count("dims: [ -1 ]") == 4
    assert 'name: "OUTPUT__1"' in text


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ((), "halimede init FILE --input NAME:FP32[-1,3]"),
        (("INPUT0:FP32[-1,2]",), "the inputs of the model are INPUT0 (Tensor), INPUT1 (Tensor)"),
        (("INPUT0:FP33[2]", "INPUT1:FP32[2]"), "is not NAME:DATATYPE[SIZES]"),
        (("INPUT0:FP32[2]", "INPUT1:FP32[3]"), "the model fails for zeros of the shapes INPUT0 [2], INPUT1 [3]"),
    ],
)
def test_init_refuses(tmp_path: Path, environment: Mapping[str, str], inputs: tuple[str, ...], reason: str) -> None:
    scripts.save(scripts.AddSub(), tmp_path / "sums.pt")
    done = init(tmp_path / "sums.pt", tmp_path, environment, *inputs)
    assert done.returncode == 1
    assert reason in done.stderr
    assert not (tmp_path / "models" / "sums").exists()


def test_check_names_files_of_other_kinds(tmp_path: Path, environment: Mapping[str, str]) -> None:
    version = tmp_path / "models" / "m" / "1"
    version.mkdir(parents=True)
    np.save(version / "model.pt", np.zeros(1))
    (version / "model.pt.npy").rename(version / "model.pt")
    tensors = (
        'input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }'
    )
    (version.parent / "config.pbtxt").write_text('platform: "torch_aoti" default_model_filename: "model.pt"' + tensors)
    done = subprocess.run(
        ["halimede", "check", str(tmp_path / "models"), "--json"],
        env=environment, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "is no file of torch" in json.dumps(json.loads(done.stdout))
