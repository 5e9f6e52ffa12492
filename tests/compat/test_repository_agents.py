"""A running server with repository agents: a checksum, and the example that decrypts."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends import onnx_models
from tests.compat.serving import Serving

LIMIT = 20.0
AGENTS = Path(__file__).parents[2] / "examples" / "agents"
CONFIG = 'backend: "onnxruntime"\n'
CONTENT = onnx_models.identity("FP32", [2])


def infer(server: Serving, model: str) -> Any:
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}
    status, answer = server.ask(f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode())
    return answer["outputs"][0]["data"] if status == 200 else answer


def write(models: Path, name: str, more: str = "") -> Path:
    version = models / name / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(CONTENT)
    (models / name / "config.pbtxt").write_text(CONFIG + more)
    return models / name


def checksum(digest: str) -> str:
    parameters = f'key: "MD5:1/model.onnx" value: "{digest}"'
    return f'model_repository_agents {{ agents {{ name: "checksum" parameters {{ {parameters} }} }} }}\n'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    models = tmp_path / "models"
    good = hashlib.md5(CONTENT).hexdigest()
    write(models, "good", checksum(good))
    write(models, "bad", checksum("0" * 32))
    write(models, "missing", 'model_repository_agents { agents { name: "nope" } }\n')
    plain = write(tmp_path / "plain", "secret")
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, *map(str, (AGENTS / "encrypt.py", plain, models / "secret", tmp_path / "key"))]
    subprocess.run(command, check=True, timeout=LIMIT)
    flags = (
        "--exit-on-error=false",
        "--model-control-mode=explicit",
        "--load-model=*",
        f"--repoagent-directory={AGENTS}",
    )
    with Serving(models, tmp_path / "log", *flags, environment={"TMPDIR": str(tmp_path / "tmp")}) as server:
        yield server.wait_until_live()


def folders(root: Path) -> list[str]:
    return [name for name in os.listdir(root / "tmp") if name.startswith("halimede-agents-")]  # noqa: PTH208 - names


@pytest.mark.rows("R22", "R23")
def test_checksum_and_decryption(server: Serving, tmp_path: Path) -> None:
    index = {line["name"]: line.get("reason", "") for line in server.ask("/v2/repository/index", b"")[1]}
    assert index["bad"].startswith("Invalid argument: Mismatched MD5 hash for file 1/model.onnx, expect: 000")
    assert "unable to find 'libtritonrepoagent_nope.so' for repo agent 'nope'" in index["missing"]
    assert infer(server, "good") == [1, 2]
    assert infer(server, "secret") == [1, 2]

    # What the client reads of a load that an agent stops is what it reads of any model that cannot be polled.
    answer = (500, {"error": "failed to load 'bad', failed to poll from model repository"})
    assert server.ask("/v2/repository/models/bad/load", b"") == answer

    encrypted = tmp_path / "models" / "secret" / "1" / "model.onnx.encrypted"
    assert CONTENT not in encrypted.read_bytes()
    [folder] = folders(tmp_path)
    assert (tmp_path / "tmp" / folder / "secret" / "1" / "model.onnx").read_bytes() == CONTENT
    assert server.ask("/v2/repository/models/secret/unload", b"")[0] == 200
    server.until(lambda: not folders(tmp_path), "left the decrypted model")

    changed = bytearray(encrypted.read_bytes())
    changed[-1] ^= 1
    encrypted.write_bytes(changed)
    assert server.ask("/v2/repository/models/secret/load", b"")[0] == 500
    server.until_logged("'1/model.onnx' cannot be decrypted")
    assert not folders(tmp_path)
    assert infer(server, "good") == [1, 2]
