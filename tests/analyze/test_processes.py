"""What the server's processes use, asked about processes of this test."""

import os
import socket
import subprocess
import sys

import pytest

from halimede.analyze import processes
from halimede.analyze.launch import flags_of, free_ports, is_used


def test_listener_of_a_port_is_found() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        assert processes.listener(port) is None
        listening.listen()
        assert processes.listener(port) == os.getpid()
        assert is_used(f"127.0.0.1:{port}")
    assert not is_used(f"127.0.0.1:{port}")


def test_children_count_too() -> None:
    command = [sys.executable, "-c", "block = bytearray(50_000_000); print(len(block), flush=True); input()"]
    before = processes.memory(os.getpid())
    assert before is not None
    assert before > 1
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            assert child.pid in processes.tree(os.getpid())
            assert processes.tree(child.pid) == [child.pid]
            after = processes.memory(os.getpid())
            assert after is not None
            assert after > before + 45
        finally:
            child.kill()


def test_time_of_cores_grows_with_work() -> None:
    before = processes.seconds_used(os.getpid())
    while processes.seconds_used(os.getpid()) < before + 0.05:
        sum(range(100_000))


def test_process_that_is_gone_uses_nothing() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert processes.memory(done.pid) is None
    assert processes.seconds_used(done.pid) == 0


def test_free_ports_differ() -> None:
    assert len(set(free_ports(5))) == 5


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (None, []),
        ({"log_verbose": True, "exit-timeout-secs": 9}, ["--log-verbose=true", "--exit-timeout-secs=9"]),
    ],
)
def test_flags_of_the_server_are_words(values: dict[str, object] | None, expected: list[str]) -> None:
    assert flags_of(values) == expected
