"""Attacks over TLS: records that cost the server's library much and bring no data, or one byte each.

Each test has the form of the attack, and checks the longest turn of the event loop, the delay of others, and memory.
"""

import ctypes
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from tests.compat.measured import LIMIT, Measured, attack
from tests.compat.serving import write_model
from tests.transport.certificates import certificates
from tests.transport.http2_wire import PREFACE, frame, settings

CLIENTS = 60
KEY_UPDATES = 4000
"""Of a client: 108 kB. 60 clients held the loop for two seconds."""
RECORDS = 20_000
"""Of a client: 460 kB. 60 clients held the loop for 0.4 s."""
READ_SECONDS = 3.0
MORE_BYTES = 64 << 20


class Library:
    """OpenSSL, for what Python's module does not send."""

    def __init__(self) -> None:
        try:
            self._ssl, crypto = ctypes.CDLL("libssl.so.3"), ctypes.CDLL("libcrypto.so.3")
        except OSError:
            pytest.skip("no OpenSSL 3")
        self._crypto = crypto
        self._context = self._call(self._ssl.SSL_CTX_new, self._call(self._ssl.TLS_client_method))
        self._ssl.SSL_CTX_set_alpn_protos(self._context, b"\x02h2", 3)

    @staticmethod
    def _call(function: Any, *values: Any) -> ctypes.c_void_p:
        function.restype = ctypes.c_void_p
        return ctypes.c_void_p(function(*values))

    def key_updates(self, client: socket.socket, count: int) -> bytes:
        """Does the handshake. Returns `count` records of KeyUpdate."""
        library, crypto = self._ssl, self._crypto
        connection = self._call(library.SSL_new, self._context)
        received, sent = (self._call(crypto.BIO_new, self._call(crypto.BIO_s_mem)) for _ in range(2))
        library.SSL_set_bio(connection, received, sent)
        library.SSL_set_connect_state(connection)
        done = False
        while not done:
            done = library.SSL_do_handshake(connection) == 1
            client.sendall(self._read(sent))
            if not done:
                answer = client.recv(1 << 16)
                assert answer
                crypto.BIO_write(received, answer, len(answer))
        for _ in range(count):
            assert library.SSL_key_update(connection, 0) == 1
            assert library.SSL_do_handshake(connection) == 1
        records = self._read(sent)
        library.SSL_free(connection)
        return records

    def _read(self, sent: ctypes.c_void_p) -> bytes:
        parts, part = [], ctypes.create_string_buffer(1 << 16)
        while (size := self._crypto.BIO_read(sent, part, len(part))) > 0:
            parts.append(part.raw[:size])
        return b"".join(parts)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("tls")
    write_model(folder / "models", "uint8", "UINT8")
    server = certificates(folder).server
    files = f"--grpc-server-cert={server.certificate}", f"--grpc-server-key={server.key}"
    with Measured(folder / "models", folder / "server.log", "--grpc-use-ssl=true", *files) as made:
        yield made.wait_until_live()
        assert made.stop() == 0


def send_together(clients: Sequence[tuple[socket.socket, bytes]]) -> None:
    """Sends what each client has, as fast as the server takes it."""
    left = {client: memoryview(sent) for client, sent in clients}
    while left:
        _, ready, _ = select.select([], list(left), [], LIMIT)
        assert ready
        for client in ready:
            left[client] = left[client][client.send(left[client]) :]
            if not left[client]:
                del left[client]


def flood(serving: Measured, records_of: Callable[[socket.socket], bytes]) -> None:
    """Prepares the records of all clients, and sends them in one moment."""
    with ExitStack() as stack:
        clients = []
        for _ in range(CLIENTS):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", serving.grpc_port), LIMIT))
            clients.append((client, records_of(client)))
            client.setblocking(False)

        def send() -> None:
            send_together(clients)
            # The sockets take all at once. The server still has to read it.
            time.sleep(READ_SECONDS)

        attacked = attack(serving, send)
    assert attacked.kept < MORE_BYTES


def test_key_updates(serving: Measured) -> None:
    """Each takes OpenSSL 6 us, and yields nothing that a limit of HTTP/2 could count."""
    library = Library()
    flood(serving, lambda client: library.key_updates(client, KEY_UPDATES))


def test_records_of_one_byte(serving: Measured) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    # Frames of a kind that the server does not know, which it skips.
    unknown = frame(0xFE, 0, 0, bytes(1 << 12))

    def records(client: socket.socket) -> bytes:
        received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(received, sent, server_hostname="localhost")
        done = False
        while not done:
            try:
                tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                client.sendall(sent.read())
                received.write(client.recv(1 << 16))
        tls.write(PREFACE + settings())
        client.sendall(sent.read())
        for at in range(RECORDS):
            tls.write(unknown[at % len(unknown) :][:1])
        return sent.read()

    flood(serving, records)
