"""Descriptors that are looked at within a turn of the loop."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from halimede.platform.worker_poller import EVERY_NS, WorkerPoller


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    with ExitStack() as stack:
        made = [socket.socketpair() for _ in range(2)]
        for pair in made:
            for end in pair:
                stack.enter_context(end)
        yield made


def test_nothing_is_due_while_nothing_is_watched(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    worker_poller = WorkerPoller()
    never = worker_poller.due
    assert never > 1 << 62
    worker_poller.look(5)
    assert worker_poller.due == never
    descriptor = pairs[0][0].fileno()
    worker_poller.watch(descriptor, lambda: None)
    assert worker_poller.due == 0
    worker_poller.forget(descriptor)
    assert worker_poller.due == never


def test_look_calls_only_those_with_something_to_read(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    worker_poller = WorkerPoller()
    called: list[int] = []
    for number, (near, _) in enumerate(pairs):
        worker_poller.watch(near.fileno(), partial(called.append, number))
    worker_poller.look(7)
    assert called == []
    assert worker_poller.due == 7 + EVERY_NS
    pairs[1][1].sendall(b"x")
    worker_poller.look(8)
    assert called == [1]


def test_look_within_a_look_does_nothing(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    worker_poller = WorkerPoller()
    called: list[int] = []

    def readable() -> None:
        called.append(1)
        worker_poller.look(1 << 40)

    near, far = pairs[0]
    worker_poller.watch(near.fileno(), readable)
    far.sendall(b"x")
    worker_poller.look(9)
    assert called == [1]


def test_one_that_is_forgotten_during_a_look_is_not_called(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    worker_poller = WorkerPoller()
    called: list[int] = []

    def readable(number: int) -> None:
        called.append(number)
        for near, _ in pairs:
            worker_poller.forget(near.fileno())

    for number, (near, far) in enumerate(pairs):
        worker_poller.watch(near.fileno(), partial(readable, number))
        far.sendall(b"x")
    worker_poller.look(0)
    assert len(called) == 1


def test_what_breaks_is_not_the_trouble_of_whoever_looked(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    worker_poller = WorkerPoller()
    called: list[int] = []

    def readable() -> None:
        called.append(1)
        raise ValueError

    for near, far in pairs:
        worker_poller.watch(near.fileno(), readable)
        far.sendall(b"x")
    worker_poller.look(3)
    assert called == [1, 1]


@pytest.mark.parametrize("name", ["epoll", None])
def test_without_a_way_to_look_nothing_is_ever_due(
    monkeypatch: pytest.MonkeyPatch, pairs: list[tuple[socket.socket, socket.socket]], name: str | None
) -> None:
    """There is none on this system, or no descriptor left for it."""

    def none_left() -> None:
        raise OSError(24, "Too many open files")

    if name is None:
        monkeypatch.delattr("select.epoll")
    else:
        monkeypatch.setattr("select.epoll", none_left)
    worker_poller = WorkerPoller()
    never = worker_poller.due
    descriptor = pairs[0][0].fileno()
    worker_poller.watch(descriptor, lambda: None)
    worker_poller.look(3)
    worker_poller.forget(descriptor)
    assert worker_poller.due == never
