"""Responses in a real Redis server that two servers share, and what clients see when it hangs or is gone (K8)."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis as Client

from halimede.cache.entries import encoded
from halimede.requests import Parameters
from halimede.tensors import INT32, HostMemory, Tensor
from tests.compat.serving import STOP_SECONDS, Serving, write_model
from tests.ports import free_ports
from tests.transport.certificates import Certificates, Identity, certificates

PATIENCE = 30.0
LATE = ("connect_timeout", "socket_timeout", "wait_timeout")
MINUTE = "60000"
"""Milliseconds, for tests about what Redis answers and not about how fast it is."""
_ADDS = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy() + {})])
"""


class Redis:
    """A Redis server on a port of 127.0.0.1 that keeps nothing on disk."""

    def __init__(self, folder: Path, *flags: str) -> None:
        program = shutil.which("redis-server")
        if program is None:
            if os.environ.get("CI") == "true":
                pytest.fail("redis-server is missing (.ci/apt.txt)")
            pytest.skip("redis-server is missing")
        (self.port,) = free_ports(1)
        self._command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        self._command += flags
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        limit = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < limit, "Redis did not come up"
                time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def secure(self, certificates: Certificates) -> None:
        """Restarts it with TLS only, and with client certificates required."""
        self.kill()
        server = certificates.server
        files = ("--tls-cert-file", server.certificate, "--tls-key-file", server.key)
        self._command += ["--port", "0", "--tls-port", str(self.port), *map(str, files)]
        self._command += ["--tls-ca-cert-file", str(certificates.authority.certificate)]
        self.start()

    def flags(self, **more: str) -> list[str]:
        settings = {"host": "127.0.0.1", "port": str(self.port), **more}
        return [f"--cache-config=redis,{name}={value}" for name, value in settings.items()]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    made = Redis(tmp_path)
    yield made
    made.kill()


@pytest.fixture
def start(tmp_path: Path, redis: Redis) -> Iterator[Callable[..., Serving]]:
    """Starts a server over the repository with that name, by default `models`.

    If it is `patient`, it waits for Redis as long as that takes. Otherwise a lookup waits for a tenth of a second, and
    the connection times out after a minute.
    """
    with ExitStack() as stack:

        def serve(*flags: str, name: str = "models", at: Redis = redis, patient: bool = True) -> Serving:
            log = tmp_path / f"server{len(list(tmp_path.glob('*.log')))}.log"
            waits = dict.fromkeys(LATE if patient else LATE[:2], MINUTE)
            flags = ("--model-control-mode=explicit", "--load-model=*", *at.flags(**waits), *flags)
            return stack.enter_context(Serving(a_repository(tmp_path / name), log, *flags)).wait_until_live()

        yield serve


def a_repository(folder: Path) -> Path:
    if not folder.exists():
        write_model(folder, "m", "INT32", more="response_cache { enable: true }\n")
    return folder


def write_code(folder: Path, adds: int) -> None:
    """Writes the code of the Python model `adds`."""
    path = folder / "adds" / "1" / "model.py"
    if not path.exists():
        write_model(folder, "adds", "INT32", backend="python", more="response_cache { enable: true }\n")
    path.write_text(_ADDS.format(adds))


def ask(serving: Serving, *values: int, model: str = "m", classes: int = 0) -> list[int | str]:
    body: dict[str, Any] = {"inputs": [{"name": "INPUT0", "shape": [len(values)], "datatype": "INT32", "data": values}]}
    if classes:
        body["outputs"] = [{"name": "OUTPUT0", "parameters": {"classification": classes}}]
    url = f"http://{serving.http_url}/v2/models/{model}/infer"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=PATIENCE) as answer:
        outputs = json.load(answer)["outputs"]
    data: list[int | str] = outputs[0]["data"]
    return data


def numbers(serving: Serving, model: str = "m") -> tuple[int, int]:
    """Hits and misses."""
    with urllib.request.urlopen(f"http://{serving.http_url}/v2/models/{model}/stats", timeout=PATIENCE) as answer:
        (one,) = json.load(answer)["model_stats"]
    phases = one["inference_stats"]
    return phases["cache_hit"]["count"], phases["cache_miss"]["count"]


def hits_again(serving: Serving, *values: int) -> bool:
    """Whether the answer to this request comes from Redis now."""
    before = numbers(serving)[0]
    assert ask(serving, *values) == list(values)
    return numbers(serving)[0] > before


@pytest.mark.rows("K8")
def test_two_servers_share_what_they_answered(start: Callable[..., Serving]) -> None:
    one, other = start(), start(name="copy")
    assert ask(one, 1, 2) == ask(one, 1, 2) == ask(other, 1, 2) == [1, 2]
    assert (numbers(one), numbers(other)) == ((1, 1), (1, 0))
    assert ask(other, 2, 1) == [2, 1]
    one.until(lambda: hits_again(one, 2, 1), "never found what the other server said")
    assert numbers(other) == (1, 1)
    assert one.stop() == other.stop() == 0


def test_models_of_other_contents_share_nothing_and_a_reload_is_seen(
    start: Callable[..., Serving], tmp_path: Path
) -> None:
    for name, adds in (("a", 1), ("b", 2)):
        write_code(a_repository(tmp_path / name), adds)
    one, other = start(name="a"), start(name="b")
    for _ in range(2):
        assert ask(one, 1, model="adds") == [2]
        assert ask(other, 1, model="adds") == [3]
    assert numbers(one, "adds") == numbers(other, "adds") == (1, 1)
    write_code(tmp_path / "a", 2)
    path = tmp_path / "a" / "adds" / "1" / "model.py"
    os.utime(path, (path.stat().st_mtime + 10,) * 2)
    load = urllib.request.Request(f"http://{one.http_url}/v2/repository/models/adds/load", b"{}")
    urllib.request.urlopen(load, timeout=PATIENCE).close()
    assert ask(one, 1, model="adds") == [3], "what the other server says of the same contents"
    assert numbers(one, "adds") == (1, 0)


@pytest.mark.rows("K8")
def test_redis_that_hangs_or_is_gone_counts_as_empty(start: Callable[..., Serving], redis: Redis) -> None:
    serving = start(patient=False)
    serving.until(lambda: hits_again(serving, 1), "never asked Redis", PATIENCE)
    redis.process.send_signal(signal.SIGSTOP)
    assert [ask(serving, n) for n in range(20)] == [[n] for n in range(20)]
    redis.process.send_signal(signal.SIGCONT)
    serving.until(lambda: hits_again(serving, 1), "never asked Redis again", PATIENCE)
    redis.kill()
    assert [ask(serving, n) for n in range(20)] == [[n] for n in range(20)]
    redis.start()
    serving.until(lambda: hits_again(serving, 2), "never asked Redis again", PATIENCE)
    assert serving.stop() == 0
    text = serving.log_text()
    told = re.findall("run without it until it answers|is available again", text)
    assert len(told) >= 4, "on a busy machine Redis may be late by itself"
    assert told == ["run without it until it answers", "is available again"] * (len(told) // 2)
    assert "Traceback" not in text


def test_server_starts_without_redis_and_uses_it_later(start: Callable[..., Serving], redis: Redis) -> None:
    redis.kill()
    serving = start()
    assert ask(serving, 1) == [1]
    redis.start()
    serving.until(lambda: hits_again(serving, 1), "never asked Redis", PATIENCE)


def test_entries_of_other_programs_are_ignored(start: Callable[..., Serving], redis: Redis) -> None:
    serving = start()
    assert ask(serving, 1) == [1]
    with Client(port=redis.port) as client:
        serving.until(lambda: bool(client.keys()), "never kept the answer")
        (key,) = client.keys()
        for tensor, parameters in (
            (Tensor("OUTPUT0", INT32, (-1, -1), HostMemory(bytes(4))), None),
            (Tensor("OUTPUT0", INT32, (1,) * 100, HostMemory(bytes(4))), None),
            (Tensor("OUTPUT0", INT32, (1,), HostMemory(bytes(4))), cast(Parameters, {"p": []})),
        ):
            client.set(key, encoded([tensor], parameters))
            assert ask(serving, 1, classes=1) == ["1:0"]
        client.set(key, b"nothing like it")
        assert ask(serving, 1) == [1]
    assert serving.stop() == 0
    assert "ignored a cache entry that cannot be read: not an entry of a response cache" in serving.log_text()
    assert "Traceback" not in serving.log_text()


def test_redis_with_a_password_and_another_database(start: Callable[..., Serving], tmp_path: Path) -> None:
    guarded = Redis(tmp_path, "--requirepass", "secret")
    try:
        serving = start("--cache-config=redis,password=secret", "--cache-config=redis,db=3", at=guarded)
        assert ask(serving, 1) == ask(serving, 1) == [1]
        assert numbers(serving) == (1, 1)
        stranger = start(at=guarded)
        assert ask(stranger, 1) == [1]
        assert numbers(stranger) == (0, 1)
        assert stranger.stop() == 0
        assert "run without it until it answers: AuthenticationError" in stranger.log_text()
    finally:
        guarded.kill()


def tls_flags(made: Certificates, identity: Identity, **more: str) -> list[str]:
    """Flags with a client's certificate and its trusted authority."""
    files = {"cert": identity.certificate, "key": identity.key, "cacert": made.authority.certificate}
    settings = {"tls_enabled": "true", **files, **more}
    return [f"--cache-config=redis,{name}={value}" for name, value in settings.items()]


@pytest.mark.rows("K8")
def test_redis_over_tls_with_certificates_on_both_sides(
    start: Callable[..., Serving], redis: Redis, tmp_path: Path
) -> None:
    """A server that Redis does not trust, or that does not trust Redis, caches nothing and serves on."""
    made = certificates(tmp_path)
    redis.secure(made)
    serving = start(*tls_flags(made, made.client, sni="localhost"))
    assert ask(serving, 1) == ask(serving, 1) == [1]
    assert numbers(serving) == (1, 1)
    assert serving.stop() == 0
    for reason, flags in {
        "alert unknown ca|EOF|reset|pipe": tls_flags(made, made.stranger),  # refused after its first words
        "CERTIFICATE_VERIFY_FAILED": ["--cache-config=redis,tls_enabled=true"],
        "Hostname mismatch": tls_flags(made, made.client, sni="another.example"),
        "ConnectionError": [],
    }.items():
        stranger = start(*flags)
        assert ask(stranger, 1) == ask(stranger, 1) == [1]
        assert numbers(stranger) == (0, 2), reason
        assert stranger.stop() == 0
        (told,) = re.findall("run without it until it answers: (.*)", stranger.log_text()) or [stranger.log_text()]
        assert re.search(reason, told)
        assert "Traceback" not in stranger.log_text()
