"""`halimede serve` as a process: its output, when it gives up, and how it ends."""

import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.compat.serving import START_SECONDS, Serving, write_held_model, write_model

LIMIT = 60.0
TIMEOUT = 600
"""Seconds that a server may take to end: longer than any test waits."""
INFER = b'{"inputs":[{"name":"INPUT0","shape":[2],"datatype":"INT32","data":[1,2]}]}'
SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])

Start = Callable[..., Serving]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One good model, `good`."""
    folder = tmp_path / "models"
    write_model(folder, "good", "INT32")
    return folder


@pytest.fixture
def start(tmp_path: Path, repository: Path, request: pytest.FixtureRequest) -> Start:
    """Starts a server over the repository. Ends it after the test."""

    def start(*flags: str, at: Path = repository) -> Serving:
        serving = Serving(at, tmp_path / "server.log", *flags)
        request.addfinalizer(serving.kill)
        return serving

    return start


def connect(serving: Serving) -> socket.socket:
    return socket.create_connection(("127.0.0.1", serving.http_port), LIMIT)


def infer(model: str) -> bytes:
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(INFER)}\r\n\r\n"
    return head.encode() + INFER


def read_to_end(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65536), b""))


def refuses(serving: Serving) -> bool:
    try:
        connect(serving).close()
    except ConnectionRefusedError:
        return True
    return False


# Coming up.


def test_start_prints_the_models_the_options_and_the_address(start: Start, repository: Path) -> None:
    serving = start("--id=mine").wait_until_live()
    started = f"Started HTTPService at 127.0.0.1:{serving.http_port}"
    serving.until_logged(started)
    text = serving.log_text()
    assert re.search(r"^\| Model +\| Version +\| Status +\|$", text, re.MULTILINE)
    assert re.search(r"^\| good +\| 1 +\| READY +\|$", text, re.MULTILINE)
    assert re.search(r"^\| server_id +\| mine +\|$", text, re.MULTILINE)
    assert re.search(rf"^\| model_repository_path\[0\] +\| {re.escape(str(repository))} +\|$", text, re.MULTILINE)
    assert serving.stop() == 0


def test_several_repositories_are_served_together(start: Start, tmp_path: Path) -> None:
    write_model(tmp_path / "more", "other", "FP32")
    serving = start(f"--model-repository={tmp_path / 'more'}").wait_until_live()
    assert serving.status("/v2/models/good/ready") == 200
    assert serving.status("/v2/models/other/ready") == 200


@pytest.mark.rows("C9")
def test_broken_model_ends_the_server(start: Start, repository: Path) -> None:
    write_model(repository, "broken", "INT32", backend="nonexistent")
    serving = start()
    assert serving.wait(START_SECONDS) == 1
    text = serving.log_text()
    assert text.rstrip().endswith("error: creating server: Internal - failed to load all models")  # as in Triton
    assert re.search(r"^\| broken +\| 1 +\| UNAVAILABLE: .*nonexistent", text, re.MULTILINE)
    assert re.search(r"^\| good +\| 1 +\| READY +\|$", text, re.MULTILINE)
    assert "Traceback" not in text


@pytest.mark.parametrize("flags", [(), ("--model-control-mode=poll",), ("--model-control-mode=explicit",)])
def test_repository_without_models_is_told(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """A mistyped path is the usual reason. With explicit control a client may upload the first model."""
    empty = tmp_path / "empty"
    empty.mkdir()
    with Serving(empty, tmp_path / "server.log", *flags) as serving:
        serving.wait_until_live()
        assert (f"there is no model in '{empty}'" in serving.log_text()) == ("explicit" not in "".join(flags))


@pytest.mark.rows("C9", "H8")
@pytest.mark.parametrize(("strict", "status"), [("true", 400), ("false", 200)])
def test_broken_model_is_skipped_without_exit_on_error(
    start: Start, repository: Path, strict: str, status: int
) -> None:
    write_model(repository, "broken", "INT32", backend="nonexistent")
    serving = start("--exit-on-error=false", f"--strict-readiness={strict}").wait_until_live()
    assert serving.status("/v2/health/live") == 200
    assert serving.status("/v2/health/ready") == status
    assert serving.status("/v2/models/good/ready") == 200
    assert serving.status("/v2/models/broken/ready") == 400
    with connect(serving) as sock:
        sock.sendall(infer("broken").replace(b"Host: x", b"Connection: close"))
        answer = read_to_end(sock)
    assert answer.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert answer.endswith(b'{"error":"Request for unknown model: \'broken\' has no available versions"}')
    assert serving.stop() == 0


@pytest.mark.parametrize(
    "config",
    [
        "this is no configuration {",
        'name: "another"\nbackend: "identity"',
        'backend: "identity"\nmax_batch_size: -3',
        'backend: "identity"\ninput [ { name: "INPUT0" data_type: TYPE_NONSENSE dims: [ 1 ] } ]',
    ],
    ids=["text", "name", "batch size", "datatype"],
)
def test_wrong_configuration_does_not_take_others_down(start: Start, repository: Path, config: str) -> None:
    broken = write_model(repository, "broken", "INT32").parent
    (broken / "config.pbtxt").write_text(config)
    serving = start("--exit-on-error=false").wait_until_live()
    assert serving.status("/v2/health/ready") == 200
    assert serving.status("/v2/models/good/ready") == 200
    assert serving.status("/v2/models/broken/ready") in (400, 404)
    assert serving.stop() == 0
    text = serving.log_text()
    assert re.search(r"^\| broken +\| \S+ +\| UNAVAILABLE: \S", text, re.MULTILINE)
    assert "Traceback" not in text


@pytest.mark.rows("C47", "K7")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("local,x=y",), "Invalid argument - Failed to initialize LocalCache: config didn't contain a valid 'size'"),
        (("local,size=abc",), "Internal - Failed to initialize LocalCache: stoull"),
        (
            ("local,size=4096", "redis,host=h"),
            "Invalid argument - found multiple cache configurations, but only a single cache is currently supported",
        ),
        (("nope,x=y",), "Invalid argument - unable to find 'libtritoncache_nope.so' for cache. Searched: /opt/"),
    ],
)
def test_bad_cache_settings_end_the_server(start: Start, words: tuple[str, ...], text: str) -> None:
    serving = start(*(f"--cache-config={word}" for word in words))
    assert serving.wait(START_SECONDS) == 1
    assert f"error: creating server: {text}" in serving.log_text()
    assert "Traceback" not in serving.log_text()


def test_server_without_its_cache_is_live_and_not_ready_without_exit_on_error(start: Start) -> None:
    """As in Triton."""
    serving = start("--cache-config=local,size=1", "--exit-on-error=false").wait_until_live()
    assert serving.status("/v2/health/ready") == 400
    assert serving.status("/v2/models/good/ready") in (400, 404)
    assert "no model is loaded, and the server never becomes ready" in serving.log_text()
    assert serving.stop() == 0


def test_missing_repository_ends_the_server(start: Start, tmp_path: Path) -> None:
    serving = start(at=tmp_path / "nowhere")
    assert serving.wait(START_SECONDS) == 1
    text = serving.log_text()
    assert "error: creating server: Internal - " in text
    assert str(tmp_path / "nowhere") in text
    assert "Traceback" not in text


@pytest.mark.rows("H23")
@pytest.mark.parametrize("which", ["http", "grpc", "metrics"])
def test_taken_port_ends_the_server_in_the_contracts_words(start: Start, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        serving = start(f"--{which}-port={port}")
        assert serving.wait(START_SECONDS) == 1
    text = serving.log_text()
    assert f"Socket '127.0.0.1:{port}' already in use " in text
    assert "Traceback" not in text


def test_taken_port_does_not_harm_the_server_that_has_it(start: Start) -> None:
    first = start().wait_until_live()
    second = start(f"--http-port={first.http_port}")
    assert second.wait(START_SECONDS) == 1
    assert first.status("/v2/health/live") == 200


# Going down.


@SIGNALS
def test_signal_ends_an_idle_server(start: Start, number: int) -> None:
    serving = start().wait_until_live()
    assert serving.stop(number) == 0
    assert "Traceback" not in serving.log_text()


@SIGNALS
def test_signal_closes_idle_connections_at_once(start: Start, number: int) -> None:
    """It does not wait for the exit timeout."""
    serving = start(f"--exit-timeout-secs={TIMEOUT}").wait_until_live()
    with connect(serving) as used, connect(serving) as fresh, connect(serving) as halfway:
        used.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert used.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        halfway.sendall(infer("good")[:-5])
        assert serving.stop(number) == 0
        assert read_to_end(used) == b""
        assert read_to_end(fresh) == b""
        assert read_to_end(halfway).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")


@SIGNALS
def test_signal_leaves_no_accepted_request_unanswered(start: Start, repository: Path, number: int) -> None:
    held = write_held_model(repository)
    serving = start().wait_until_live()
    with connect(serving) as sock:
        sock.sendall(infer("held"))
        serving.until((held / "begun").exists, "did not execute the model")
        serving.process.send_signal(number)
        serving.until(lambda: refuses(serving), "still takes connections")
        serving.process.send_signal(number)  # a second one changes nothing
        assert serving.process.poll() is None
        (held / "go").touch()
        answer = read_to_end(sock)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Connection: close\r\n" in answer
    assert answer.endswith(b'"data":[1,2]}]}')
    assert serving.wait() == 0


def test_request_that_outlasts_the_exit_timeout_is_left_behind(start: Start, repository: Path) -> None:
    held = write_held_model(repository)
    serving = start("--exit-timeout-secs=1").wait_until_live()
    with connect(serving) as sock:
        sock.sendall(infer("held"))
        serving.until((held / "begun").exists, "did not execute the model")
        assert serving.stop() == 1
    assert "Exit timeout expired. Exiting immediately." in serving.log_text()


def test_client_that_never_reads_does_not_hold_the_server_beyond_its_timeout(start: Start) -> None:
    serving = start("--exit-timeout-secs=1").wait_until_live()
    size = 50_000_000
    with connect(serving) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw = f"Inference-Header-Content-Length: 0\r\nContent-Length: {size}\r\n\r\n"
        sock.sendall(b"POST /v2/models/good/infer HTTP/1.1\r\n" + raw.encode() + bytes(size))
        assert sock.recv(12) == b"HTTP/1.1 200"
        assert serving.stop() == 0


_ENDLESS = """import time
from pathlib import Path


class TritonPythonModel:
    def initialize(self, args):
        (Path(args["model_repository"]) / "begun").touch()
        time.sleep(1000)
"""


@SIGNALS
def test_signal_ends_a_server_whose_model_never_finishes_to_load(start: Start, repository: Path, number: int) -> None:
    version = write_model(repository, "endless", "INT32", backend="python")
    (version / "model.py").write_text(_ENDLESS)
    serving = start()
    serving.until((version.parent / "begun").exists, "did not load the model", START_SECONDS)
    assert serving.stop(number) == 0


_ENDLESS_WARM_UP = """import time
from pathlib import Path


class TritonPythonModel:
    def initialize(self, args):
        self.folder = Path(args["model_repository"])

    def execute(self, requests):
        (self.folder / "begun").touch()
        time.sleep(1000)
"""


_SAMPLE = 'inputs { key: "INPUT0" value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } }'
_WARM_UP = f'model_warmup [ {{ name: "first" batch_size: 1 {_SAMPLE} }} ]\n'


def test_server_is_ready_only_after_the_warm_up(start: Start, repository: Path) -> None:
    folder = write_held_model(repository)
    with (folder / "config.pbtxt").open("a") as config:
        config.write(_WARM_UP)
    serving = start()
    serving.until((folder / "begun").exists, "did not run the sample", START_SECONDS)
    assert serving.status("/v2/health/ready") is None
    (folder / "go").touch()
    assert serving.wait_until_live().status("/v2/health/ready") == 200


def test_signal_ends_a_server_whose_warm_up_never_ends(start: Start, repository: Path) -> None:
    version = write_model(repository, "endless", "INT32", backend="python", more=_WARM_UP)
    (version / "model.py").write_text(_ENDLESS_WARM_UP)
    serving = start()
    serving.until((version.parent / "begun").exists, "did not run the sample", START_SECONDS)
    assert serving.stop() == 0


def test_slow_model_delays_neither_a_quick_one_nor_a_health_check(start: Start, repository: Path) -> None:
    folder = write_held_model(repository)
    serving = start().wait_until_live()
    with connect(serving) as held:
        held.sendall(infer("held"))
        serving.until((folder / "begun").exists, "did not run the model")
        with connect(serving) as quick:
            for _ in range(20):
                quick.sendall(infer("good"))
                assert quick.recv(65536).startswith(b"HTTP/1.1 200 OK")
        assert serving.status("/v2/health/ready") == 200
        (folder / "go").touch()
        assert held.recv(65536).startswith(b"HTTP/1.1 200 OK")


_RAISES = """class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("no weights today")
"""


def _corrupt(version: Path) -> None:
    (version / "model.onnx").write_bytes(b"no ONNX")


def _nothing(version: Path) -> None:
    """Leaves the version directory empty."""


def _raising(version: Path) -> None:
    (version / "model.py").write_text(_RAISES)


@pytest.mark.parametrize(
    ("backend", "fill", "reason"),
    [
        ("onnxruntime", _corrupt, "UNAVAILABLE: Internal: onnx runtime error"),
        ("onnxruntime", _nothing, "UNAVAILABLE: "),
        ("python", _raising, "ValueError: no weights today"),
        ("nonesuch", _nothing, "UNAVAILABLE: Invalid argument: unable to find backend library for backend 'nonesuch'"),
    ],
    ids=["corrupt file", "missing file", "exception in initialize", "unknown backend"],
)
def test_broken_model_is_listed_with_its_reason(
    start: Start, repository: Path, backend: str, fill: Callable[[Path], None], reason: str
) -> None:
    fill(write_model(repository, "bad", "INT32", backend=backend))
    serving = start("--exit-on-error=false").wait_until_live()
    serving.until_logged(reason)
    assert serving.status("/v2/models/bad/ready") == 400
    assert serving.status("/v2/models/good/ready") == 200


def write_long_load(version: Path) -> None:
    """Writes an ONNX model whose graph the runtime simplifies for a minute, when it is loaded."""
    size = helper.make_tensor("size", TensorProto.INT64, [2], [3000, 3000])
    nodes = [helper.make_node("ConstantOfShape", ["size"], ["product0"])]
    nodes += [helper.make_node("MatMul", [f"product{n}", f"product{n}"], [f"product{n + 1}"]) for n in range(100)]
    nodes += [
        helper.make_node("ReduceSum", ["product100"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["whole"], to=TensorProto.INT32),
        helper.make_node("Add", ["INPUT0", "whole"], ["OUTPUT0"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.INT32, ["n"]) for name in ("INPUT0", "OUTPUT0")]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], [size])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), version / "model.onnx"
    )


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_signal_ends_a_server_whose_load_cannot_be_stopped(start: Start, repository: Path) -> None:
    """The runtime works for a minute and cannot be stopped. The server ends without it after the exit timeout."""
    write_long_load(write_model(repository, "waiting", "INT32", backend="onnxruntime"))
    serving = start("--exit-timeout-secs=1")
    serving.until_logged("loading: waiting:1")
    before = cpu_seconds(serving.process.pid)
    # Less is the import of the runtime, and the load could still be stopped.
    serving.until(lambda: cpu_seconds(serving.process.pid) > before + 2, "does not load the model", START_SECONDS)
    assert serving.stop() == 1
