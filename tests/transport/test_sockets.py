"""Listening sockets: free ports, taken ports, reuse, IPv6."""

import socket

import pytest

from halimede.errors import Unavailable
from halimede.transport.sockets import listening_socket


def test_port_zero_lets_the_system_choose() -> None:
    with listening_socket("127.0.0.1", 0) as sock:
        host, port = sock.getsockname()
        assert host == "127.0.0.1"
        assert port > 0
        assert sock.getblocking() is False
        with socket.create_connection((host, port), 5):
            pass


def test_taken_port_is_refused_in_the_contracts_words() -> None:
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(Unavailable, match=f"^Socket '127.0.0.1:{port}' already in use $"):
            listening_socket("127.0.0.1", port)


def test_port_is_held_as_soon_as_it_is_opened() -> None:
    """Two servers that start at the same time: the second must not learn it only when it begins to serve."""
    with listening_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(Unavailable, match=r"already in use $"):
            listening_socket("127.0.0.1", port).close()


def test_port_left_a_moment_ago_is_free() -> None:
    """A server that is started again must not wait for the connections of the old one to be forgotten."""
    with listening_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            first.setblocking(True)
            first.settimeout(5)
            accepted, _ = first.accept()
            accepted.close()
            assert client.recv(1) == b""
    with listening_socket("127.0.0.1", port) as second:
        assert second.getsockname()[1] == port


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="the system has no SO_REUSEPORT")
def test_reused_port_is_shared_by_those_that_ask_for_it() -> None:
    with listening_socket("127.0.0.1", 0, reuse_port=True) as first:
        port = first.getsockname()[1]
        with listening_socket("127.0.0.1", port, reuse_port=True) as second:
            assert second.getsockname()[1] == port
        with pytest.raises(Unavailable):
            listening_socket("127.0.0.1", port)


def test_address_that_is_not_ours_is_an_error_of_its_kind() -> None:
    with pytest.raises(Unavailable, match=r"^cannot listen at '203.0.113.1:0': "):
        listening_socket("203.0.113.1", 0)


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="the system has no IPv6")
def test_ipv6_address_is_bound() -> None:
    with listening_socket("::1", 0) as sock:
        assert sock.family is socket.AF_INET6
