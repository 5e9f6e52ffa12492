"""Model control and settings with all four official clients, against a server in explicit mode; and again with front
ends that talk to the engine in bytes only."""

import asyncio
import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
from tritonclient.utils import InferenceServerException

from tests.compat.serving import Serving, write_model
from tests.compat.test_far_port import FarServing

SECONDS = 60.0
FLAGS = (
    "--model-control-mode=explicit",
    "--load-model=still",
    "--allow-code-upload=true",
    "--http-restricted-api=model-config,statistics:secret=open sesame",
    "--grpc-restricted-protocol=model-config,statistics:secret=open sesame",
    "--http-header-forward-pattern=^x-",
    "--grpc-header-forward-pattern=^x-",
)
CLIENTS = {"http": httpclient, "grpc": grpcclient, "http.aio": httpaio, "grpc.aio": grpcaio}

ECHO = """import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = np.array([request.parameters()], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", text)])
"""
WAITS = """    def initialize(self, args):
        import os
        import time

        limit = time.monotonic() + 120
        while not os.path.exists("{go}") and time.monotonic() < limit:
            time.sleep(0.01)
"""
ECHO_CONFIG = {
    "backend": "python",
    "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_STRING", "dims": [-1]}],
    "instance_group": [{"kind": "KIND_CPU"}],
}

MARK_CONFIG = {
    "backend": "identity",
    "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
}


class Client:
    """One of the four clients. Each call opens it, makes one request and closes it. Answers of gRPC are converted to
    plain data."""

    def __init__(self, name: str, serving: Serving) -> None:
        self.module: Any = CLIENTS[name]
        self.plain = {"as_json": True} if name.startswith("grpc") else {}
        self._url = serving.grpc_url if name.startswith("grpc") else serving.http_url
        self._is_async = name.endswith("aio")

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        if self._is_async:
            return asyncio.run(asyncio.wait_for(self._awaited(method, arguments, named), SECONDS))
        with self.module.InferenceServerClient(self._url) as client:
            return getattr(client, method)(*arguments, **named)

    async def _awaited(self, method: str, arguments: Any, named: Any) -> Any:
        async with self.module.InferenceServerClient(self._url) as client:
            return await getattr(client, method)(*arguments, **named)

    def index(self) -> dict[str, str]:
        """The state of each model, or its reason if it has one."""
        listed = self.call("get_model_repository_index", **self.plain)
        models = listed["models"] if self.plain else listed
        return {model["name"]: model.get("reason") or model.get("state", "") for model in models}

    def infer(self, model: str, headers: dict[str, str] | None = None) -> Any:
        tensor = self.module.InferInput("INPUT0", [1], "INT32")
        tensor.set_data_from_numpy(np.array([7], np.int32))
        return self.call("infer", model, [tensor], headers=headers).as_numpy("OUTPUT0").tolist()

    def refusal(self, method: str, *arguments: Any, **named: Any) -> str:
        with pytest.raises(InferenceServerException) as caught:
            self.call(method, *arguments, **named)
        return str(caught.value.message())


def repository(folder: Path) -> Path:
    for name in ("still", "moved"):
        write_model(folder, name, "INT32")
    return folder


@pytest.fixture(scope="module", params=[Serving, FarServing], ids=["near", "far"])
def serving(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("control")
    with request.param(repository(folder / "models"), folder / "server.log", *FLAGS) as serving:
        yield serving.wait_until_live()
        assert serving.stop() == 0, serving.log_text()[-3000:]


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest, serving: Serving) -> Client:
    return Client(request.param, serving)


def until(serving: Serving, holds: Callable[[], bool]) -> None:
    serving.until(holds, "did not come that far")


@pytest.mark.rows("H110", "H112", "H116", "G7", "G8", "G9")
def test_model_is_loaded_listed_and_unloaded(client: Client, serving: Serving) -> None:
    assert client.index()["still"] == "READY"
    assert client.infer("still") == [7]
    client.call("load_model", "moved")
    assert client.index()["moved"] == "READY"
    assert client.infer("moved") == [7]
    client.call("unload_model", "moved")
    assert "has no available versions" in client.refusal("get_model_metadata", "moved")
    until(serving, lambda: client.index()["moved"] == "unloaded")
    client.call("unload_model", "nobody", unload_dependents=True)
    assert client.refusal("load_model", "nobody") == "failed to load 'nobody', failed to poll from model repository"


@pytest.mark.rows("H113", "H114")
def test_model_comes_with_its_configuration_and_files(client: Client, serving: Serving) -> None:
    files = {"file:1/model.py": ECHO.encode()}
    client.call("load_model", "sent", config=json.dumps(ECHO_CONFIG), files=files)
    [text] = client.infer("sent")
    assert json.loads(text or b"{}") == {}
    client.call("unload_model", "sent")
    until(serving, lambda: "sent" not in client.index())
    refused = client.refusal("load_model", "sent", files=files)
    assert refused == "failed to load 'sent', failed to poll from model repository"
    refused = client.refusal("load_model", "sent", config=json.dumps(ECHO_CONFIG), files={f"file:{'A' * 256}": b"a"})
    assert refused.startswith("Invalid file path 'file:AAA")
    assert client.call("is_server_live")


@pytest.mark.rows("H25", "G14")
def test_headers_reach_the_model(client: Client) -> None:
    client.call("load_model", "echo", config=json.dumps(ECHO_CONFIG), files={"file:1/model.py": ECHO.encode()})
    [text] = client.infer("echo", {"x-user": "me", "y-user": "nobody"})
    assert json.loads(text) == {"x-user": "me"}


@pytest.mark.rows("H24", "G13")
def test_restricted_requests_need_their_key(client: Client) -> None:
    prefix = "triton-grpc-protocol-" if client.plain else ""
    refused = client.refusal("get_inference_statistics")
    assert refused.endswith(f"is restricted, expecting header '{prefix}secret'")
    assert client.call("get_inference_statistics", headers={f"{prefix}secret": "open sesame"}, **client.plain)
    assert client.call("is_server_live")


@pytest.mark.rows("H124", "G12", "L5")
def test_log_settings_act(client: Client, serving: Serving) -> None:
    asked = {"log_info": False, "log_verbose_level": 2, "log_format": "ISO8601"}
    at = logged_so_far(client, serving)
    changed = settings(client, client.call("update_log_settings", asked, **client.plain))
    assert {key: changed[key] for key in asked} == asked
    client.call("load_model", "moved")
    client.call("unload_model", "moved")
    assert "successfully loaded" not in serving.log_text()[at:]
    back = {"log_info": True, "log_verbose_level": 0, "log_format": "default"}
    assert settings(client, client.call("update_log_settings", back, **client.plain)) == settings(
        client, client.call("get_log_settings", **client.plain)
    )
    client.call("load_model", "moved")
    until(serving, lambda: "successfully loaded 'moved'" in serving.log_text()[at:])
    client.call("unload_model", "moved")
    refused = client.refusal("update_log_settings", {"log_file": "elsewhere"})
    assert refused == "log file location can not be updated through network protocol"


def logged_so_far(client: Client, serving: Serving) -> int:
    """The length of the log when everything logged so far is written: a thread writes it."""
    mark = f"mark_{uuid.uuid4().hex}"
    client.call("load_model", mark, config=json.dumps(MARK_CONFIG), files={"file:1/nothing": b""})
    client.call("unload_model", mark)
    serving.until_logged(f"successfully loaded '{mark}'")
    return len(serving.log_text())


def settings(client: Client, answer: Any) -> dict[str, Any]:
    """The log settings over HTTP."""
    if not client.plain:
        return dict(answer)
    return {key: next(iter(value.values()), None) for key, value in answer["settings"].items()}


@pytest.mark.rows("H121", "H122", "H123", "G11")
def test_trace_settings_are_kept(client: Client) -> None:
    def rate(answer: Any) -> Any:
        return answer["settings"]["trace_rate"]["value"] if client.plain else [answer["trace_rate"]]

    changes = {"trace_rate": "7", "trace_count": "3"}
    assert rate(client.call("update_trace_settings", "still", changes, **client.plain)) == ["7"]
    assert rate(client.call("get_trace_settings", **client.plain)) == ["1000"]
    assert rate(client.call("get_trace_settings", "still", **client.plain)) == ["7"]
    cleared = {"trace_rate": None, "trace_count": None}
    assert rate(client.call("update_trace_settings", "still", cleared, **client.plain)) == ["1000"]
    refused = client.refusal("update_trace_settings", settings={"trace_level": ["TIMESTAMPS"]})
    assert refused == "Attempting to set invalid trace setting :trace file name is not given"


@pytest.mark.rows("G8", "G41", "R17")
def test_slow_load_delays_no_other_request(client: Client, serving: Serving, tmp_path: Path) -> None:
    go = tmp_path / "go"
    source = ECHO.replace("    def execute", WAITS.format(go=go) + "\n    def execute", 1)
    files = {"file:1/model.py": source.encode()}
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(client.call, "load_model", "waits", config=json.dumps(ECHO_CONFIG), files=files)
        try:
            until(serving, lambda: client.index().get("waits") == "LOADING")
            assert client.call("is_server_live")
            assert client.infer("still") == [7]
            client.call("load_model", "moved")
        finally:
            go.touch()
        assert loading.result(SECONDS) is None
    assert client.index()["waits"] == "READY"
    client.call("unload_model", "waits")
    client.call("unload_model", "moved")
    until(serving, lambda: "waits" not in client.index())


def test_uploaded_code_needs_consent(tmp_path: Path) -> None:
    flags = ("--model-control-mode=explicit", "--allow-grpc=false")
    with Serving(repository(tmp_path / "models"), tmp_path / "server.log", *flags) as serving:
        serving.wait_until_live()
        client = Client("http", serving)
        refused = client.refusal(
            "load_model", "sent", config=json.dumps(ECHO_CONFIG), files={"file:1/model.py": ECHO.encode()}
        )
        assert "--allow-code-upload=true" in refused
        # Something beyond the client: a body that is no load at all leaves the server well.
        request = urllib.request.Request(
            f"http://{serving.http_url}/v2/repository/models/x/load", b"\x00{", method="POST"
        )
        with pytest.raises(urllib.error.HTTPError, match="500"):
            urllib.request.urlopen(request, timeout=SECONDS)
        assert client.index() == {"moved": "", "still": ""}
        assert serving.stop() == 0
