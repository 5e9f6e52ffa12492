"""Very many connections to one server, over HTTP and gRPC: opening and closing, idle, and more than there are
descriptors.

Connections are raw sockets. Over gRPC they begin with a SETTINGS frame that the server acknowledged. An ordinary client
beside them must not notice.
"""

import resource
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests.compat.serving import Serving, write_model

LIMIT = 60.0
WAVE = 100
"""Connections that are opened before the first of them is used: far below any backlog."""
COMING_AND_GOING = 1_000
IDLE = 5_000
LEAST_IDLE = 1_000
SPARE = 200
"""Descriptors that a process needs besides those of the connections."""
FEW = 100
"""The limit of descriptors of the server that has too few."""
MOST_BYTES = {"http": 8 << 10, "grpc": 16 << 10}
"""Bytes of memory that an idle connection may cost the server."""
RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Wire:
    """The first bytes on a connection, and the later ones. Both end with `answer`."""

    name: str
    first: bytes
    later: bytes
    answer: bytes

    def port(self, serving: Serving) -> int:
        return serving.http_port if self.name == "http" else serving.grpc_port


_LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
HTTP = Wire("http", _LIVE, _LIVE, b"HTTP/1.1 200 OK\r\n")
GRPC = Wire("grpc", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS, _SETTINGS, b"\0\0\0\4\1\0\0\0\0")
BOTH = pytest.mark.parametrize("wire", [HTTP, GRPC], ids=["http", "grpc"])


@pytest.fixture(scope="module")
def descriptors() -> Iterator[int]:
    """The limit of descriptors that the system permits, up to what is needed. Servers of these tests inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE + SPARE
    allowed = max(soft, wanted if hard == resource.RLIM_INFINITY else min(hard, wanted))
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    yield allowed
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def serving(descriptors: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("many")
    write_model(folder / "models", "m", "INT32")
    with Serving(folder / "models", folder / "server.log") as made:
        yield made.wait_until_live()
        assert made.stop() == 0


class FewDescriptors(Serving):
    """A server with a low limit of descriptors."""

    def command(self, repository: Path) -> Sequence[str]:
        return ("sh", "-c", f'ulimit -n {FEW}; exec "$@"', "sh", *super().command(repository))


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("few")
    write_model(folder / "models", "m", "INT32")
    with FewDescriptors(folder / "models", folder / "server.log") as made:
        yield made.wait_until_live()
        assert made.stop() == 0


def open_files(serving: Serving) -> int:
    return len(list(Path(f"/proc/{serving.process.pid}/fd").iterdir()))


def memory(serving: Serving) -> int:
    """Resident bytes of the server."""
    return int(Path(f"/proc/{serving.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def opened(wire: Wire, serving: Serving, count: int, stack: ExitStack) -> list[socket.socket]:
    """New connections that have each sent their first bytes. Nothing is read yet."""
    made = [
        stack.enter_context(socket.create_connection(("127.0.0.1", wire.port(serving)), LIMIT)) for _ in range(count)
    ]
    for each in made:
        say(each, wire.first)
    return made


def say(connection: socket.socket, words: bytes) -> None:
    """Sends bytes. If the server has closed the connection, `is_answered` shows it later."""
    try:
        connection.sendall(words)
    except OSError:
        return


def is_answered(wire: Wire, connection: socket.socket) -> bool:
    """Whether an answer comes; False if the server ends the connection. One of the two must happen."""
    received = b""
    while wire.answer not in received:
        try:
            more = connection.recv(65536)
        except ConnectionError:
            return False
        if not more:
            return False
        received += more
    return True


def hold(wire: Wire, serving: Serving, count: int, stack: ExitStack) -> list[socket.socket]:
    """Connections that were each answered once and stay open."""
    held: list[socket.socket] = []
    while len(held) < count:
        wave = opened(wire, serving, min(WAVE, count - len(held)), stack)
        assert all(is_answered(wire, each) for each in wave)
        held += wave
    return held


def close_with_reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()


@contextmanager
def client(serving: Serving, name: str) -> Iterator[Callable[[], None]]:
    """An ordinary client with one connection. Each call is an inference whose answer is checked."""
    library, url = (httpclient, serving.http_url) if name == "http" else (grpcclient, serving.grpc_url)
    values = np.arange(5, dtype=np.int32)
    tensor = library.InferInput("INPUT0", [5], "INT32")
    tensor.set_data_from_numpy(values)
    with library.InferenceServerClient(url) as made:

        def infer() -> None:
            np.testing.assert_array_equal(made.infer("m", [tensor]).as_numpy("OUTPUT0"), values)

        infer()
        yield infer


def until_files_are(serving: Serving, most: int) -> None:
    serving.until(lambda: open_files(serving) <= most, f"keeps {open_files(serving)} files open, of {most}")


@BOTH
def test_a_thousand_connections_come_and_go(serving: Serving, wire: Wire) -> None:
    """Clients leave in all ways: answered or not, in the middle of a request, with or without a reset."""
    with client(serving, wire.name) as infer:
        before = open_files(serving)
        for first in range(0, COMING_AND_GOING, WAVE):
            with ExitStack() as stack:
                wave = opened(wire, serving, WAVE, stack)
                for number, each in enumerate(wave, first):
                    if number % 2:
                        assert is_answered(wire, each)
                    if number % 3 == 0:
                        say(each, wire.later[: number % len(wire.later)])
                    if number % 5 == 0:
                        close_with_reset(each)
            infer()
        until_files_are(serving, before)
    assert "Traceback" not in serving.log_text()


@BOTH
def test_thousands_of_idle_connections_are_held(
    serving: Serving, wire: Wire, descriptors: int, capsys: pytest.CaptureFixture[str]
) -> None:
    count = min(IDLE, descriptors - SPARE)
    assert count >= LEAST_IDLE, f"a process may have {descriptors} descriptors only"
    with client(serving, wire.name) as infer:
        files = open_files(serving)
        with ExitStack() as stack:
            hold(wire, serving, WAVE, stack)  # what the server needs once is there
        until_files_are(serving, files)
        before = memory(serving)
        with ExitStack() as stack:
            held = hold(wire, serving, count, stack)
            each = (memory(serving) - before) / count
            with capsys.disabled():
                print(
                    f"\n{count} idle {wire.name} connections: {each / 1024:.1f} KiB of the server's memory each",
                    end=" ",
                )
            assert each < MOST_BYTES[wire.name]
            assert open_files(serving) >= count
            infer()
            for some in held[:: count // 100]:
                say(some, wire.later)
                assert is_answered(wire, some)
        until_files_are(serving, files)
        infer()


@BOTH
def test_server_without_descriptors_sheds_new_connections_and_keeps_the_old(crowded: Serving, wire: Wire) -> None:
    """Each new connection is answered or closed at once. When others close, new ones are served again."""
    with client(crowded, "http") as infer_http, client(crowded, "grpc") as infer_grpc, ExitStack() as stack:
        old = hold(wire, crowded, 10, stack)
        before = open_files(crowded)
        with ExitStack() as newcomers:
            fates = [is_answered(wire, each) for each in opened(wire, crowded, 2 * FEW, newcomers)]
            assert any(fates)
            assert not all(fates)
            assert fates.count(False) >= FEW
            for each in old:
                say(each, wire.later)
                assert is_answered(wire, each)
            infer_http()
            infer_grpc()
        until_files_are(crowded, before)
        assert is_answered(wire, opened(wire, crowded, 1, stack)[0])
        infer_http()
        infer_grpc()
    assert "Traceback" not in crowded.log_text()


def test_both_ports_accept_again_after_a_lack_of_descriptors(crowded: Serving) -> None:
    """A flood on one port sheds connections on the other too. Both ports accept again afterwards."""
    until_files_are(crowded, FEW // 2)  # those of earlier clients are closed
    with ExitStack() as stack:
        for each in opened(HTTP, crowded, 2 * FEW, stack):
            is_answered(HTTP, each)
        # A file that the server had open for a moment leaves room for one more, which then stays.
        for wire in (GRPC, HTTP):
            assert not all(is_answered(wire, opened(wire, crowded, 1, stack)[0]) for _ in range(10))
    crowded.until(lambda: crowded.status("/v2/health/live") == 200, "does not answer over HTTP")
    with client(crowded, "grpc") as infer:
        infer()
