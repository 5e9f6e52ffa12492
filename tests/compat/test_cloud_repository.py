"""A server whose models are in cloud storage: an S3 server on this machine, beside a local folder."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.serving import Serving, write_model
from tests.storage.emulators import CREDENTIALS, XmlStorage, moto_s3, xml_storage

LIMIT = 60.0
EXPLICIT = ("--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false")
MODEL = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        said = pb_utils.Tensor("OUTPUT0", np.array([NUMBER], np.int32))
        return [pb_utils.InferenceResponse([said]) for _ in requests]
"""

Serve = Callable[..., Serving]


def infer(server: Serving, model: str) -> Any:
    tensor = {"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [7]}
    status, answer = server.ask(f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode())
    return answer["outputs"][0]["data"] if status == 200 else answer


def control(server: Serving, model: str, what: str) -> tuple[int, Any]:
    return server.ask(f"/v2/repository/models/{model}/{what}", b"")


def index(server: Serving) -> dict[str, tuple[str, str]]:
    _, lines = server.ask("/v2/repository/index", b"")
    return {line["name"]: (line.get("state", ""), line.get("reason", "")) for line in lines}


def write(folder: Path, name: str, number: int) -> None:
    version = write_model(folder, name, "INT32", backend="python")
    (version / "model.py").write_text(MODEL.replace("NUMBER", str(number)))


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[XmlStorage]:
    write(tmp_path / "away", "said", 1)
    write(tmp_path / "away", "never", 2)
    with xml_storage() as storage:
        storage.put(tmp_path / "away", "models")
        yield storage


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a server with a local repository, which has the model `here`, and a remote one."""
    write_model(tmp_path / "here", "here", "INT32")
    (tmp_path / "tmp").mkdir()
    started: list[Serving] = []

    def start(url: str, *flags: str, **environment: str) -> Serving:
        surroundings = {**CREDENTIALS, "TMPDIR": str(tmp_path / "tmp"), **environment}
        flags = (f"--model-repository={url}", *flags)
        started.append(Serving(tmp_path / "here", tmp_path / "log", *flags, environment=surroundings))
        return started[-1].wait_until_live()

    yield start
    for server in started:
        server.kill()


def copies(root: Path) -> list[str]:
    return [name for name in os.listdir(root / "tmp") if name.startswith("halimede-cloud-")]  # noqa: PTH208 - names


def test_next_start_downloads_nothing(serve: Serve, storage: XmlStorage, tmp_path: Path) -> None:
    """And what a damaged file gives is the model as it is in the storage."""
    url = f"s3://127.0.0.1:{storage.port}/bucket/models"
    flags = ("--model-control-mode=explicit", "--load-model=said", f"--cloud-cache-directory={tmp_path / 'cache'}")
    fetched = ["models/said/1/model.py", "models/said/config.pbtxt"]
    for expected in (fetched, [], fetched):
        server = serve(url, *flags)
        assert infer(server, "said") == [1]
        assert storage.fetched() == expected
        assert server.stop() == 0
        if not expected:
            for file in (tmp_path / "cache" / "files").iterdir():
                file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.rows("R24")
def test_models_of_s3_come_and_go(serve: Serve, storage: XmlStorage, tmp_path: Path) -> None:
    flags = ("--model-control-mode=explicit", "--load-model=said", "--load-model=here")
    server = serve(f"s3://127.0.0.1:{storage.port}/bucket/models", *flags)
    assert infer(server, "said") == [1]
    assert infer(server, "here") == [7]
    assert index(server)["never"] == ("", "")
    fetched = storage.fetched()
    assert fetched == ["models/said/1/model.py", "models/said/config.pbtxt"]  # and nothing of the other model

    # Nothing changed: nothing is fetched, nothing is loaded.
    assert control(server, "said", "load")[0] == 200
    assert storage.fetched() == []
    server.until_logged("successfully loaded 'said'")
    assert server.log_text().count("successfully loaded 'said'") == 1

    storage.objects["models/said/1/model.py"] = MODEL.replace("NUMBER", "5").encode()
    assert control(server, "said", "load")[0] == 200
    assert storage.fetched() == ["models/said/1/model.py"]
    assert infer(server, "said") == [5]

    # Wrong bytes: the load fails, what serves serves on.
    storage.objects["models/said/1/model.py"] = MODEL.replace("NUMBER", "6").encode()
    storage.spoilt.add("models/said/1/model.py")
    answer = (500, {"error": "failed to load 'said', failed to poll from model repository"})
    assert control(server, "said", "load") == answer
    text = "sent other bytes of '1/model.py' than its etag"
    server.until(lambda: text in server.log_text(), "did not tell why in its log")
    assert infer(server, "said") == [5]
    storage.spoilt.clear()

    # An outage: the same, and the rest of the server answers.
    storage.status = 503
    assert control(server, "said", "load")[0] == 500
    assert infer(server, "said") == [5]
    assert set(index(server)) == {"said", "never", "here"}
    storage.status = 200

    assert control(server, "said", "load")[0] == 200
    assert infer(server, "said") == [6]
    assert control(server, "said", "unload")[0] == 200
    [copy] = copies(tmp_path)
    assert (tmp_path / "tmp" / copy).stat().st_mode & 0o777 == 0o700
    server.process.terminate()
    assert server.wait() == 0
    assert copies(tmp_path) == []


def test_storage_that_answers_500_is_the_reason_in_the_index(serve: Serve, storage: XmlStorage) -> None:
    storage.status = 500
    url = f"s3://127.0.0.1:{storage.port}/bucket/models"
    server = serve(url, *EXPLICIT)
    state, reason = index(server)[url]
    assert state == "UNAVAILABLE"
    assert reason.startswith(f"Unavailable: failed to list '{url}': ")
    assert infer(server, "here") == [7]
    storage.status = 200


def test_model_that_cannot_be_fetched_has_its_reason_in_the_index(serve: Serve, storage: XmlStorage) -> None:
    storage.spoilt.add("models/never/1/model.py")
    server = serve(f"s3://127.0.0.1:{storage.port}/bucket/models", *EXPLICIT)
    state, reason = index(server)["never"]
    assert state == "UNAVAILABLE"
    assert "sent other bytes of '1/model.py' than its etag" in reason
    assert (infer(server, "said"), infer(server, "here")) == ([1], [7])


def test_repository_is_followed_by_polls(serve: Serve, storage: XmlStorage) -> None:
    server = serve(
        f"s3://127.0.0.1:{storage.port}/bucket/models", "--model-control-mode=poll", "--repository-poll-secs=1"
    )
    server.until(lambda: infer(server, "said") == [1], "did not load the model", LIMIT)
    storage.objects["models/said/1/model.py"] = MODEL.replace("NUMBER", "8").encode()
    server.until(lambda: infer(server, "said") == [8], "did not see the change", LIMIT)
    storage.status = 500
    server.until(lambda: "listing it failed" in server.log_text(), "did not miss the storage", LIMIT)
    assert infer(server, "said") == [8]
    storage.status = 200


@pytest.mark.rows("R24")
def test_s3_by_moto_with_a_file_of_credentials(serve: Serve, tmp_path: Path) -> None:
    import boto3

    write(tmp_path / "away", "said", 3)
    with moto_s3() as port:
        url = f"http://127.0.0.1:{port}"
        key = {"aws_access_key_id": "user", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=url, **key)
        client.create_bucket(Bucket="bucket")
        for file in (tmp_path / "away").rglob("*"):
            if file.is_file():
                client.upload_file(str(file), "bucket", f"a/b/{file.relative_to(tmp_path / 'away')}")
        entry = {"key_id": "user", "secret_key": "secret", "region": "us-east-1"}
        (tmp_path / "credentials").write_text(json.dumps({"s3": {"": entry}}))
        none = dict.fromkeys(CREDENTIALS, "")
        none["TRITON_CLOUD_CREDENTIAL_PATH"] = str(tmp_path / "credentials")
        server = serve(f"s3://127.0.0.1:{port}/bucket/a/b", **none)
        assert infer(server, "said") == [3]
