"""A server with `--auth`, and the official clients: keys, roles, limits, certificates, changes of the file, audit.

tritonclient changes the headers that it is given, so each call has its own.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
import tritonclient.http.auth as http_auth
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.compat.serving import Serving, write_held_model, write_model
from tests.transport.certificates import Certificates, certificates

SECONDS = 60.0
PARAMETERS = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        texts = [np.array([request.parameters()], dtype=object) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", text)]) for text in texts]
"""
MODEL = "plain"


class Guarded:
    """A running server, its file of identities and the keys in it."""

    def __init__(self, serving: Serving, folder: Path, keys: dict[str, str]) -> None:
        self.serving = serving
        self.folder = folder
        self.keys = keys

    def header(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[name]}"}

    def until(self, holds: Callable[[], bool], what: str) -> None:
        self.serving.until(holds, what, SECONDS)


def auth(folder: Path, *words: str) -> str:
    """Runs `halimede auth`, and returns the key that it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "halimede", "auth", *words, f"--file={folder / 'auth.toml'}"],
        capture_output=True,
        timeout=SECONDS,
        check=True,
        text=True,
    )
    return done.stdout.strip()


IDENTITIES = {
    "app": ("infer",),
    "grafana": ("read",),
    "ops": ("control",),
    "slow": ("infer", "--rate=0.001", "--burst=2"),
    "few": ("infer", "--concurrent=1"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("auth")
    repository = folder / "models"
    write_model(repository, MODEL, "INT32", max_batch_size=8)
    write_held_model(repository)
    (write_model(repository, "parameters", "BYTES", backend="python") / "model.py").write_text(PARAMETERS)
    keys = {name: auth(folder, "add", name, f"--role={role}", *more) for name, (role, *more) in IDENTITIES.items()}
    auth(folder, "add", "anonymous", "--role=health")
    forwarded = ("--http-header-forward-pattern=^(auth|x-)", "--grpc-header-forward-pattern=^(auth|x-)")
    flags = (f"--auth={folder}/auth.toml", f"--audit-file={folder}/audit", "--http-metrics=true", *forwarded)
    with Serving(
        repository, folder / "log", *flags, "--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true"
    ) as serving:
        yield Guarded(serving.wait_until_live(), folder, keys)
        assert serving.stop() == 0, serving.log_text()[-3000:]


def inputs_of(client: Any) -> list[Any]:
    given = client.InferInput("INPUT0", [1, 3], "INT32")
    given.set_data_from_numpy(np.array([[1, 2, 3]], np.int32))
    return [given]


def http(guarded: Guarded) -> Any:
    return httpclient.InferenceServerClient(
        guarded.serving.http_url, connection_timeout=SECONDS, network_timeout=SECONDS
    )


def rpc(guarded: Guarded) -> Any:
    return grpcclient.InferenceServerClient(guarded.serving.grpc_url)


def test_clients_with_a_key(guarded: Guarded) -> None:
    headers = guarded.header("app")
    for client, module in ((http(guarded), httpclient), (rpc(guarded), grpcclient)):
        with client:
            answer = client.infer(MODEL, inputs_of(module), headers=dict(headers))
            assert answer.as_numpy("OUTPUT0").tolist() == [[1, 2, 3]]
            assert client.is_server_ready()
            assert client.get_model_metadata(MODEL, headers=dict(headers))


def test_asynchronous_clients_with_a_key(guarded: Guarded) -> None:
    headers = guarded.header("app")

    async def ask() -> None:
        for module, url in ((httpaio, guarded.serving.http_url), (grpcaio, guarded.serving.grpc_url)):
            async with module.InferenceServerClient(url) as client:
                plain = httpclient if module is httpaio else grpcclient
                answer = await client.infer(MODEL, inputs_of(plain), headers=dict(headers))
                assert answer.as_numpy("OUTPUT0").tolist() == [[1, 2, 3]]

    asyncio.run(asyncio.wait_for(ask(), SECONDS))


def test_basic_authentication_of_the_client(guarded: Guarded) -> None:
    with http(guarded) as client:
        client.register_plugin(http_auth.BasicAuth("app", guarded.keys["app"]))
        assert client.infer(MODEL, inputs_of(httpclient)).as_numpy("OUTPUT0").tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("name", "call", "http_status", "grpc_status"),
    [
        ("", "infer", "401", "UNAUTHENTICATED"),
        ("wrong", "infer", "401", "UNAUTHENTICATED"),
        ("grafana", "infer", "403", "PERMISSION_DENIED"),
        ("ops", "infer", "403", "PERMISSION_DENIED"),
        ("app", "load", "403", "PERMISSION_DENIED"),
        ("grafana", "load", "403", "PERMISSION_DENIED"),
        ("app", "index", "403", "PERMISSION_DENIED"),
        ("app", "register", "403", "PERMISSION_DENIED"),
        ("grafana", "settings", "403", "PERMISSION_DENIED"),
    ],
)
def test_request_that_is_refused(guarded: Guarded, name: str, call: str, http_status: str, grpc_status: str) -> None:
    headers = {} if not name else {"authorization": "Bearer x"} if name == "wrong" else guarded.header(name)
    for client, module, status in ((http(guarded), httpclient, http_status), (rpc(guarded), grpcclient, grpc_status)):
        calls: dict[str, Callable[..., object]] = {
            "infer": partial(client.infer, MODEL, inputs_of(module)),
            "load": partial(client.load_model, MODEL),
            "index": client.get_model_repository_index,
            "register": partial(client.register_system_shared_memory, "r", "/r", 8),
            "settings": partial(client.update_log_settings, {"log_verbose_level": 1}),
        }
        with client, pytest.raises(InferenceServerException) as caught:
            calls[call](headers=dict(headers))
        assert status in str(caught.value.status()), caught.value
        assert ("may not" if "403" in http_status else "key") in str(caught.value.message())


def stream_one(guarded: Guarded, name: str) -> Any:
    """The first answer of a stream: a result or an error."""
    answers: list[Any] = []
    with rpc(guarded) as client:
        client.start_stream(lambda result, error: answers.append(error or result), headers=guarded.header(name))
        with contextlib.suppress(InferenceServerException):  # the stream may have ended already
            client.async_stream_infer(MODEL, inputs_of(grpcclient))
        guarded.until(lambda: bool(answers), "answered nothing")
        client.stop_stream()
    return answers[0]


def test_stream(guarded: Guarded) -> None:
    assert stream_one(guarded, "app").as_numpy("OUTPUT0").tolist() == [[1, 2, 3]]
    assert "PERMISSION_DENIED" in str(stream_one(guarded, "grafana"))


def test_models_do_not_see_keys(guarded: Guarded) -> None:
    for client, module in ((http(guarded), httpclient), (rpc(guarded), grpcclient)):
        given = module.InferInput("INPUT0", [1], "BYTES").set_data_from_numpy(np.array([b"x"], dtype=object))
        with client:
            answer = client.infer("parameters", [given], headers={**guarded.header("app"), "x-a": "b"})
        assert json.loads(answer.as_numpy("OUTPUT0")[0]) == {"x-a": "b"}


def test_rate(guarded: Guarded) -> None:
    headers = guarded.header("slow")
    with http(guarded) as client, rpc(guarded) as other:
        client.infer(MODEL, inputs_of(httpclient), headers=dict(headers))
        other.infer(MODEL, inputs_of(grpcclient), headers=dict(headers))
        with pytest.raises(InferenceServerException, match=r"'slow' may send 0.001 requests per second") as caught:
            client.infer(MODEL, inputs_of(httpclient), headers=dict(headers))
        assert caught.value.status() == "429"
        with pytest.raises(InferenceServerException, match=r"'slow' may send 0.001 requests per second") as caught:
            other.infer(MODEL, inputs_of(grpcclient), headers=dict(headers))
        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


def test_inferences_in_flight(guarded: Guarded) -> None:
    headers, model = guarded.header("few"), guarded.folder / "models" / "held"
    begun = model / "begun"
    held = httpclient.InferInput("INPUT0", [1], "INT32").set_data_from_numpy(np.array([7], np.int32))
    with http(guarded) as client, rpc(guarded) as other:
        running = client.async_infer("held", [held], headers=dict(headers))
        guarded.until(begun.exists, "did not begin")
        with pytest.raises(InferenceServerException, match="'few' may have 1 inferences in flight"):
            other.infer(MODEL, inputs_of(grpcclient), headers=dict(headers))
        # Nobody else is held up.
        other.infer(MODEL, inputs_of(grpcclient), headers=guarded.header("app"))
        (model / "go").touch()
        assert running.get_result(timeout=SECONDS).as_numpy("OUTPUT0").tolist() == [7]
        other.infer(MODEL, inputs_of(grpcclient), headers=dict(headers))


def test_metrics(guarded: Guarded) -> None:
    def scrape(port: int, name: str) -> int:
        headers = "".join(f"{key}: {value}\n" for key, value in (guarded.header(name) if name else {}).items())
        done = subprocess.run(
            ["curl", "-s", "-o", os.devnull, "-w", "%{http_code}", "-H", "@-", f"http://127.0.0.1:{port}/metrics"],
            input=headers,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        return int(done.stdout)

    for port in (guarded.serving.metrics_port, guarded.serving.http_port):
        assert [scrape(port, name) for name in ("grafana", "app", "")] == [200, 403, 401]


def test_changes_are_audited(guarded: Guarded) -> None:
    file = guarded.folder / "audit"
    with rpc(guarded) as client, http(guarded) as other:
        client.unload_model("held", headers=guarded.header("ops"))
        other.load_model("held", headers=guarded.header("ops"))
        other.update_log_settings({"log_info": False}, headers=guarded.header("ops"))
        client.update_log_settings({"log_info": True}, headers=guarded.header("ops"))
        for asking in (client, other):
            with pytest.raises(InferenceServerException):
                asking.unregister_system_shared_memory(headers=guarded.header("few"))
            with pytest.raises(InferenceServerException):
                asking.unregister_system_shared_memory()

    def lines(*names: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, file.read_text().splitlines()) if line["identity"] in names]

    guarded.until(lambda: len(lines("few")) >= 2, "wrote no audit")
    assert [(line["action"], line["outcome"]) for line in lines("ops")] == [
        ("unload model 'held'", "done"),
        ("load model 'held'", "done"),
        ("change log settings: info=False", "done"),
        ("change log settings: info=True", "done"),
    ]
    number = guarded.keys["ops"].split("_")[1]
    assert {(line["shown"], line["peer"].partition(":")[0]) for line in lines("ops")} == {
        (f"key {number}", "127.0.0.1")
    }
    refused = "refused: 'few' may not register or unregister shared memory; the role 'memory' or 'control' allows it"
    assert [(line["action"], line["outcome"]) for line in lines("few")] == [
        ("/inference.GRPCInferenceService/SystemSharedMemoryUnregister", refused),
        ("POST /v2/systemsharedmemory/unregister", refused),
    ]
    # A client without a key cannot fill the disk.
    assert lines("anonymous") == []


def test_file_is_read_again(guarded: Guarded) -> None:
    key = auth(guarded.folder, "add", "late", "--role=infer")
    headers = {"authorization": f"Bearer {key}"}

    def infers() -> bool:
        with rpc(guarded) as client, contextlib.suppress(InferenceServerException):
            client.infer(MODEL, inputs_of(grpcclient), headers=dict(headers))
            return True
        return False

    guarded.until(infers, "did not take the new key")
    auth(guarded.folder, "remove", "late")
    guarded.until(lambda: not infers(), "did not forget the key")


def test_keys_are_in_no_log(guarded: Guarded) -> None:
    with rpc(guarded) as client, pytest.raises(InferenceServerException):
        client.infer(MODEL, inputs_of(grpcclient), headers={"authorization": f"Bearer {guarded.keys['app']}x"})
    guarded.serving.until_logged("was refused: the key is unknown")
    text = guarded.serving.log_text() + (guarded.folder / "audit").read_text()
    assert not [name for name, key in guarded.keys.items() if key.split("_", 2)[2] in text]


def test_commands_send_the_key_of_their_environment(guarded: Guarded) -> None:
    command = [sys.executable, "-m", "halimede", "graph", MODEL, f"--url={guarded.serving.http_url}"]

    def graph(key: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "HALIMEDE_KEY": key}
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment)

    assert graph(guarded.keys["grafana"]).returncode == 0
    refused = graph("")
    assert (refused.returncode, "HALIMEDE_KEY" in refused.stderr) == (1, True)


def test_certificate_shows_who_calls(tmp_path: Path, made: Certificates) -> None:
    write_model(tmp_path / "models", MODEL, "INT32", max_batch_size=8)
    auth(tmp_path, "add", "client", "--role=infer", "--subject=CN=client", "--no-key")
    auth(tmp_path, "add", "anonymous", "--role=health")
    flags = (
        f"--auth={tmp_path}/auth.toml",
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={made.server.certificate}",
        f"--grpc-server-key={made.server.key}",
        f"--grpc-root-cert={made.authority.certificate}",
    )
    with Serving(tmp_path / "models", tmp_path / "log", *flags) as serving:
        serving.wait_until_live()
        with grpcclient.InferenceServerClient(
            f"localhost:{serving.grpc_port}",
            ssl=True,
            root_certificates=str(made.authority.certificate),
            private_key=str(made.client.key),
            certificate_chain=str(made.client.certificate),
        ) as client:
            assert client.infer(MODEL, inputs_of(grpcclient)).as_numpy("OUTPUT0").tolist() == [[1, 2, 3]]
            with pytest.raises(InferenceServerException, match="'client' may not load"):
                client.load_model(MODEL)


def test_health_that_is_closed(tmp_path: Path) -> None:
    write_model(tmp_path / "models", MODEL, "INT32")
    key = auth(tmp_path, "add", "kubelet", "--role=health")
    with Serving(tmp_path / "models", tmp_path / "log", f"--auth={tmp_path}/auth.toml") as serving:
        serving.until_logged("Started Metrics Service")
        assert serving.status("/v2/health/ready") == 401
        with grpc.insecure_channel(serving.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                stub.ServerReady(pb.ServerReadyRequest(), timeout=SECONDS)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            metadata = [("authorization", f"Bearer {key}")]
            assert stub.ServerReady(pb.ServerReadyRequest(), timeout=SECONDS, metadata=metadata).ready
        assert serving.stop() == 0


def test_audit_without_identities(tmp_path: Path) -> None:
    write_model(tmp_path / "models", MODEL, "INT32")
    flags = ("--model-control-mode=explicit", "--load-model=*", f"--audit-file={tmp_path}/audit")
    with Serving(tmp_path / "models", tmp_path / "log", *flags) as serving:
        serving.wait_until_live()
        assert serving.ask(f"/v2/repository/models/{MODEL}/unload", b"{}")[0] == 200
        assert serving.stop() == 0
    (line,) = map(json.loads, (tmp_path / "audit").read_text().splitlines())
    assert (line["identity"], line["action"], line["outcome"]) == ("everyone", f"unload model '{MODEL}'", "done")


def test_server_with_a_wrong_file_does_not_start(tmp_path: Path) -> None:
    write_model(tmp_path / "models", MODEL, "INT32")
    (tmp_path / "auth.toml").write_text("[alice]\n")
    with Serving(tmp_path / "models", tmp_path / "log", f"--auth={tmp_path}/auth.toml") as serving:
        assert serving.wait() == 1
        assert "creating server: Invalid argument - --auth: " in serving.log_text()
        assert "['alice']: 'roles' is missing" in serving.log_text()
