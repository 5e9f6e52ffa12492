"""What a server sees of `halimede perf`: sequences, parameters, formats, TLS, shared memory, trace settings."""

import csv
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.compat.serving import Serving, write_model
from tests.perf.stand_in import ANSWERS, RESULT
from tests.transport.certificates import Certificates, certificates

LIMIT = 60.0
SEEN = """import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        seen = [request.correlation_id(), request.flags(), json.loads(request.parameters() or "{}")]
        text = np.array([json.dumps(seen)], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", text)])
"""
PAIR = """platform: "ensemble"
max_batch_size: 4
input [ { name: "A" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "B" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "floor" model_version: -1
    input_map { key: "INPUT0" value: "A" } output_map { key: "OUTPUT0" value: "x" } },
  { model_name: "floor" model_version: -1
    input_map { key: "INPUT0" value: "x" } output_map { key: "OUTPUT0" value: "B" } }
] }
"""
SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 5000000 }\n"
START, END = 1, 2


def write_seen(repository: Path, name: str, more: str = "") -> None:
    """A model that answers with what it sees of a request."""
    version = write_model(repository, name, "BYTES", backend="python", more=more)
    (version / "model.py").write_text(SEEN)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("seen") / "models"
    write_seen(repository, "plain")
    write_seen(repository, "sequences", SEQUENCES)
    write_model(repository, "floor", "FP32", max_batch_size=4)
    (repository / "pair" / "1").mkdir(parents=True)
    (repository / "pair" / "config.pbtxt").write_text(PAIR)
    flags = ["--allow-client-shm=true", f"--trace-config=triton,file={repository.parent / 'trace'}"]
    with Serving(repository, repository.parent / "log", *flags) as serving:
        yield serving.wait_until_live()


def perf(model: str, url: str, *words: str) -> str:
    command = [sys.executable, "-m", "halimede", "perf", "-m", model, "-u", url, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seen(model: str, url: str, folder: Path, *words: str) -> list[Any]:
    """What the model saw of each request, in the order of the answers."""
    export = folder / "export.json"
    perf(model, url, "--shape", "INPUT0:1", *words, "--profile-export-file", str(export))
    (experiment,) = json.loads(export.read_text())["experiments"]
    answered = sorted(experiment["requests"], key=lambda request: int(request["response_timestamps"][0]))
    return [json.loads(request["response_outputs"][0]["OUTPUT0"]) for request in answered]


@pytest.mark.rows("X9")
@pytest.mark.parametrize("protocol", ["http", "grpc", "streams"])
def test_sequences_have_ids_in_their_range_a_start_and_an_end(served: Serving, protocol: str, tmp_path: Path) -> None:
    url = served.http_url if protocol == "http" else served.grpc_url
    how = {"http": ["-i", "http"], "grpc": ["-i", "grpc"], "streams": ["-i", "grpc", "--streaming"]}[protocol]
    words = ["--concurrency-range", "2", "--sequence-length", "4", "--sequence-length-variation", "0"]
    found = seen("sequences", url, tmp_path, *how, *words, "--sequence-id-range", "10:16", "--request-count", "40")
    assert len(found) == 40
    assert {identifier for identifier, _, _ in found} <= set(range(10, 16))
    open_ones: dict[int, int] = {}
    for identifier, flags, _ in found:
        assert bool(flags & START) == (identifier not in open_ones)
        open_ones[identifier] = open_ones.get(identifier, 0) + 1
        assert bool(flags & END) == (open_ones[identifier] == 4)
        if flags & END:
            del open_ones[identifier]
    assert len(open_ones) <= 2


@pytest.mark.rows("X14")
def test_parameters_reach_the_model(served: Serving, tmp_path: Path) -> None:
    words = ["--request-parameter", "tokens:256:int", "--request-parameter", "a:b:string"]
    found = seen("plain", served.grpc_url, tmp_path, "-i", "grpc", *words, "--request-count", "3")
    assert [parameters for _, _, parameters in found] == [{"tokens": 256, "a": "b"}] * 3


@pytest.mark.rows("X15")
@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_requests_are_compressed_and_secure(tmp_path: Path, algorithm: str) -> None:
    made = certificates(tmp_path)
    write_model(tmp_path / "models", "floor", "FP32")
    flags = [
        *("--grpc-use-ssl=true", "--grpc-use-ssl-mutual=true", f"--grpc-root-cert={made.authority.certificate}"),
        *(f"--grpc-server-cert={made.server.certificate}", f"--grpc-server-key={made.server.key}"),
    ]
    words = [
        *("-i", "grpc", "--ssl-grpc-use-ssl", "--shape", "INPUT0:1000", "--request-count", "20"),
        *("--ssl-grpc-root-certifications-file", str(made.authority.certificate)),
        *("--ssl-grpc-certificate-chain-file", str(made.client.certificate)),
        *("--ssl-grpc-private-key-file", str(made.client.key), "--grpc-compression-algorithm", algorithm),
    ]
    with Serving(tmp_path / "models", tmp_path / "log", *flags) as serving:
        serving.wait_until_live()
        assert "    Request count: 20\n" in perf("floor", serving.grpc_url, *words)


class Handler(BaseHTTPRequestHandler):
    """Answers as a server of Triton's protocol, and keeps what it gets."""

    protocol_version = "HTTP/1.1"
    server: "Recorder"

    def do_GET(self) -> None:
        self._answer(ANSWERS[f"GET {self.path.replace('/versions/1', '')}"])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, dict(self.headers), body))
        self._answer(RESULT)

    def _answer(self, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Recorder(ThreadingHTTPServer):
    """A server on a thread of its own. `got` has the path, the headers and the body of each request."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self._thread.join(LIMIT)
        self.server_close()


@pytest.mark.rows("X1")
def test_model_version_headers_and_url_are_those_of_the_command_line(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    with Recorder() as server:
        words = ["-x", "1", "-H", "X-Who: me", "-H", "X-Key:a:b", "-i", "HTTP", "-a", "-v", "-f", str(table)]
        said = perf("m", server.url, *words, "--request-count", "3")
    assert [path for path, _, _ in server.got] == ["/v2/models/m/versions/1/infer"] * 3
    assert all((headers["X-Who"], headers["X-Key"]) == ("me", "a:b") for _, headers, _ in server.got)
    assert "  Using asynchronous calls for inference\n" in said
    assert table.exists()
    command = [sys.executable, "-m", "halimede", "perf"]
    for words, expected in ((["--help"], "--concurrency-range"), (["--version"], "Perf Analyzer Version ")):
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 0
        assert expected in done.stdout + done.stderr


@pytest.mark.rows("X13")
@pytest.mark.parametrize("format_in", ["binary", "json"])
@pytest.mark.parametrize("format_out", ["binary", "json"])
def test_tensors_have_the_formats_of_the_command_line(format_in: str, format_out: str, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text('{"data": [{"A": [7]}]}')
    words = ["--input-tensor-format", format_in, "--output-tensor-format", format_out, "--input-data", str(data)]
    with Recorder() as server:
        perf("m", server.url, *words, "--request-count", "2")
    for _, headers, body in server.got:
        size = int(headers.get("Inference-Header-Content-Length", len(body)))
        document = json.loads(body[:size])
        (tensor,) = document["inputs"]
        assert document["outputs"] == [{"name": "O", "parameters": {"binary_data": format_out == "binary"}}]
        if format_in == "binary":
            assert (tensor["parameters"], body[size:]) == ({"binary_data_size": 4}, (7).to_bytes(4, "little"))
        else:
            assert (tensor["data"], body[size:]) == ([7], b"")


@pytest.mark.rows("X15")
def test_https_checks_the_server_unless_it_is_told_not_to(tmp_path: Path) -> None:
    made: Certificates = certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server.certificate, made.server.key)
    with Recorder(context) as server:
        url = f"https://{server.url}"
        known = ["--ssl-https-ca-certificates-file", str(made.authority.certificate)]
        for trusting in (known, ["--ssl-https-verify-peer", "0"]):
            assert "    Request count: 9\n" in perf("m", url, *trusting, "--request-count", "9")
        command = [sys.executable, "-m", "halimede", "perf", "-m", "m", "-u", url]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert refused.returncode == 99
        assert "certificate verify failed" in refused.stderr


@pytest.mark.rows("X12")
def test_tensors_are_in_shared_memory_while_it_runs(served: Serving) -> None:
    words = ["--shape", "INPUT0:4", "--shared-memory", "system", "--output-shared-memory-size", "64", "-b", "2"]
    command = [sys.executable, "-m", "halimede", "perf", "-m", "floor", "-u", served.http_url, *words, "-p", "1000"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("Request concurrency"):
            break
    _, regions = served.ask("/v2/systemsharedmemory/status")
    said, _ = running.communicate(timeout=LIMIT)
    assert running.returncode in (0, 2), said
    sizes = {region["name"].rpartition("_")[2]: region["byte_size"] for region in regions}
    assert sizes == {"inputs": 2 * 4 * 4, "OUTPUT0": 2 * 64}
    assert not list(Path("/dev/shm").glob(f"halimede_perf_{running.pid}_*"))


@pytest.mark.rows("X16")
def test_trace_settings_are_those_of_the_command_line(served: Serving) -> None:
    words = ["--trace-level", "TIMESTAMPS", "--trace-rate", "7", "--trace-count", "9", "--log-frequency", "3"]
    perf("floor", served.http_url, "--shape", "INPUT0:4", *words, "--request-count", "2")
    _, settings = served.ask("/v2/trace/setting")
    wanted = {"trace_level": ["TIMESTAMPS"], "trace_rate": "7", "trace_count": "9", "log_frequency": "3"}
    assert {name: settings[name] for name in wanted} == wanted


@pytest.mark.rows("X28")
def test_ensemble_has_a_file_for_each_of_its_models(served: Serving, tmp_path: Path) -> None:
    words = ["--shape", "A:4", "--concurrency-range", "1:2", "-p", "300", "-s", "999", "-f", str(tmp_path / "out.csv")]
    perf("pair", served.grpc_url, "-i", "grpc", *words)
    rows, parts = (list(csv.DictReader((tmp_path / name).open())) for name in ("out.csv", "floor_v1.out.csv"))
    rates = [float(row["Inferences/Second"]) for row in rows]
    assert rates == sorted(rates)
    assert [row["Concurrency"] for row in parts] == [row["Concurrency"] for row in rows]
    # The model has two requests for each one of the ensemble.
    for rate, row in zip(rates, parts, strict=True):
        assert float(row["Inferences/Second"]) == pytest.approx(2 * rate, rel=0.05)
    assert all(int(row["Network+Server Send/Recv"]) >= 0 for row in rows)
