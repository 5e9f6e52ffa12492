"""Flags of the gRPC port on running servers, with the official client: TLS, Unix sockets, compression, keep-alive."""

import json
import queue
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hpack
import numpy as np
import pytest
import tritonclient.grpc as client_module
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from tests.compat.serving import Serving, write_model
from tests.transport.certificates import Certificates, certificates
from tests.transport.http2_wire import PREFACE, Type, data, frames, headers, message, settings

WAIT = 60
TENSOR = np.arange(4000, dtype=np.float32)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "flat_fp32", "FP32")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("certificates"))


@contextmanager
def serving(repository: Path, log: Path, *flags: str) -> Iterator[Serving]:
    """A running server, which must end with status 0."""
    with Serving(repository, log / "server.log", *flags) as server:
        server.until(lambda: "Started Metrics Service at " in server.log_text(), "did not come up", 60)
        yield server
        assert server.stop() == 0


def inputs() -> list[Any]:
    tensor = client_module.InferInput("INPUT0", [len(TENSOR)], "FP32")
    tensor.set_data_from_numpy(TENSOR)
    return [tensor]


def check_infer(client: Any, **how: Any) -> None:
    result = client.infer("flat_fp32", inputs(), client_timeout=WAIT, **how)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), TENSOR)


# TLS


def tls_flags(made: Certificates, *more: str) -> list[str]:
    files = {"server-cert": made.server.certificate, "server-key": made.server.key}
    return [*(f"--grpc-{name}={path}" for name, path in files.items()), *more]


def secure(server: Serving, made: Certificates, identity: Any = None) -> Any:
    return client_module.InferenceServerClient(
        f"localhost:{server.grpc_port}",
        ssl=True,
        root_certificates=str(made.authority.certificate),
        private_key=identity and str(identity.key),
        certificate_chain=identity and str(identity.certificate),
    )


def check_refused(client: Any) -> None:
    with client, pytest.raises(InferenceServerException) as caught:
        client.is_server_live(client_timeout=WAIT)
    assert caught.value.status() == "StatusCode.UNAVAILABLE"


@pytest.mark.rows("G37", "C32")
@pytest.mark.parametrize("flag", ["--grpc-use-ssl=true", "--grpc-use-ssl-mutual=false"])
def test_tls(repository: Path, tmp_path: Path, made: Certificates, flag: str) -> None:
    """Each of the two flags requires TLS."""
    with serving(repository, tmp_path, *tls_flags(made, flag)) as server:
        with secure(server, made) as client:
            assert client.is_server_live()
            check_infer(client)
        check_refused(client_module.InferenceServerClient(server.grpc_url))


@pytest.mark.rows("G37", "C32")
def test_mutual_tls(repository: Path, tmp_path: Path, made: Certificates) -> None:
    root = f"--grpc-root-cert={made.authority.certificate}"
    with (
        serving(repository, tmp_path, *tls_flags(made, root, "--grpc-use-ssl-mutual=true")) as server,
        secure(server, made, made.client) as client,
    ):
        check_infer(client)
        check_refused(secure(server, made))
        check_refused(secure(server, made, made.stranger))
        check_infer(client)


def test_tls_with_a_file_that_is_missing(repository: Path, tmp_path: Path, made: Certificates) -> None:
    """The start fails. Triton would start, and fail every handshake."""
    flags = ["--grpc-use-ssl=true", f"--grpc-server-cert={tmp_path}/none", f"--grpc-server-key={made.server.key}"]
    with Serving(repository, tmp_path / "server.log", *flags) as server:
        assert server.wait(60) == 1
        assert "error: cannot use the gRPC server's TLS files: " in server.log_text()


# Unix sockets


def test_unix_sockets(repository: Path, tmp_path: Path) -> None:
    """gRPC and HTTP use sockets; the metrics keep their port. The socket files are removed when the server ends."""
    with TemporaryDirectory(prefix="h") as folder:  # a short path: that of a socket has at most 107 bytes
        grpc_path, http_path = Path(folder, "grpc"), Path(folder, "http")
        flags = [f"--grpc-address=unix:{grpc_path}", f"--http-address=unix:{http_path}"]
        with serving(repository, tmp_path, *flags) as server:
            for url in (f"unix:{grpc_path}", f"unix://{grpc_path}"):
                with client_module.InferenceServerClient(url) as client:
                    assert client.is_server_ready()
                    check_infer(client)
            curl = ["curl", "-sS", "--max-time", str(WAIT), "--unix-socket", str(http_path)]
            done = subprocess.run([*curl, "http://localhost/v2"], capture_output=True, check=True, timeout=2 * WAIT)
            assert json.loads(done.stdout)["name"] == "triton"
            assert f"Started HTTPService at unix:{http_path}" in server.log_text()
        assert not grpc_path.exists()
        assert not http_path.exists()


# Compression


def _request() -> bytes:
    request = pb.ModelInferRequest(model_name="flat_fp32")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[len(TENSOR)])
    request.raw_input_contents.append(TENSOR.tobytes())
    return bytes(request.SerializeToString())


def answer_on_the_wire(server: Serving, rpc: str, accept: str, payload: bytes) -> tuple[str, int, int]:
    """The encoding in the headers of an answer, and the compressed flag and size of its message."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/inference.GRPCInferenceService/{rpc}",
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
        "grpc-accept-encoding": accept,
    }
    body = message(payload)
    parts = [data(1, body[at : at + 16_000], end=at + 16_000 >= len(body)) for at in range(0, len(body), 16_000)]
    with socket.create_connection(("127.0.0.1", server.grpc_port), WAIT) as connection:
        connection.sendall(PREFACE + settings() + headers(1, hpack.Encoder().encode(list(fields.items()))))
        connection.sendall(b"".join(parts))
        received = b""
        while not any(frame.stream == 1 and frame.ends_stream for frame in frames(received)):
            more = connection.recv(1 << 16)
            assert more, "the server closed the connection"
            received += more
    answer = [frame for frame in frames(received) if frame.stream == 1]
    head: dict[Any, Any] = dict(
        hpack.Decoder().decode(next(frame.body for frame in answer if frame.type == Type.HEADERS))
    )
    flag, size = struct.unpack_from(">BL", b"".join(frame.body for frame in answer if frame.type == Type.DATA))
    return str(head.get("grpc-encoding", "identity")), flag, size


ALL = "identity, deflate, gzip"


@pytest.mark.rows("G36", "C33")
@pytest.mark.parametrize(("level", "chosen"), [("none", "identity"), ("low", "gzip"), ("high", "deflate")])
def test_response_compression(repository: Path, tmp_path: Path, level: str, chosen: str) -> None:
    """Responses of both inference RPCs are compressed, and no others. The choice is Triton's."""
    with serving(repository, tmp_path, f"--grpc-infer-response-compression-level={level}") as server:
        for rpc in ("ModelInfer", "ModelStreamInfer"):
            for accept, encoding in ((ALL, chosen), ("identity", "identity")):
                found, flag, size = answer_on_the_wire(server, rpc, accept, _request())
                assert (found, flag) == (encoding, int(encoding != "identity"))
                assert (size < TENSOR.nbytes / 2) == bool(flag)
        assert answer_on_the_wire(server, "ServerMetadata", ALL, b"")[:2] == ("identity", 0)
        with client_module.InferenceServerClient(server.grpc_url) as client:
            for algorithm in (None, "gzip", "deflate"):
                check_infer(client, compression_algorithm=algorithm)


# Keep-alive and age

AGED = ("StatusCode.UNAVAILABLE", "StatusCode.CANCELLED")
TRIES = 10


@contextmanager
def idle_stream(server: Serving, options: Any = None) -> Iterator["queue.SimpleQueue[tuple[Any, Any]]"]:
    """An open stream that is idle after one answer. Its end is put into the queue.

    If the machine stalls, the connection may reach its age before that answer. Then another stream is opened.
    """
    with client_module.InferenceServerClient(server.grpc_url, keepalive_options=options) as client:
        for _ in range(TRIES):
            ends: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
            client.start_stream(lambda result, error, ends=ends: ends.put((result, error)))
            client.async_stream_infer("flat_fp32", inputs())
            result, error = ends.get(timeout=WAIT)
            if error is None:
                break
            assert error.status() in AGED
            client.stop_stream()
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), TENSOR)
        yield ends


@pytest.mark.rows("G38", "C34")
def test_keep_alive_of_the_client(repository: Path, tmp_path: Path) -> None:
    """A client that pings every second is disconnected, unless the flags permit it."""
    often = client_module.KeepAliveOptions(keepalive_time_ms=1000, http2_max_pings_without_data=0)
    strict, lax = tmp_path / "strict", tmp_path / "lax"
    strict.mkdir()
    lax.mkdir()
    with (
        serving(repository, strict, "--grpc-http2-max-ping-strikes=1") as one,
        serving(
            repository,
            lax,
            "--grpc-http2-max-ping-strikes=1",
            "--grpc-http2-min-recv-ping-interval-without-data=500",
        ) as other,
        idle_stream(other, often) as kept,
        idle_stream(one, often) as ended,
    ):
        _, error = ended.get(timeout=WAIT)
        assert error.status() == "StatusCode.UNAVAILABLE"
        assert "too_many_pings" in error.message()
        assert kept.empty()


@pytest.mark.rows("G38", "C34")
def test_age_of_connections(repository: Path, tmp_path: Path) -> None:
    """Unary calls continue on new connections. The stream of an old connection ends after the grace period."""
    age = ["--grpc-max-connection-age=300", "--grpc-max-connection-age-grace=200"]
    with (
        serving(repository, tmp_path, *age) as server,
        idle_stream(server) as ended,
        client_module.InferenceServerClient(server.grpc_url) as client,
    ):
        begun = time.monotonic()
        while ended.empty():
            check_infer(client)
            assert time.monotonic() - begun < WAIT
        _, error = ended.get()
        assert error.status() in AGED
        check_infer(client)


def test_age_without_grace_lets_streams_live(repository: Path, tmp_path: Path) -> None:
    with (
        serving(repository, tmp_path, "--grpc-max-connection-age=100") as server,
        idle_stream(server) as ended,
        pytest.raises(queue.Empty),
    ):
        ended.get(timeout=0.5)
