"""The poll of one process, the connections that wait in it, and what a request in flight is to them.

Compiled with the hot modules. One thread.
"""

import os
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Protocol

RECEIVE_BYTES = 1 << 18
"""Bytes that are received at once."""
READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
MAX_FINE_DESCRIPTOR = 1024
"""`select` takes no descriptor from here on."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where connections go. `family` and `address` are those of the first address that the name resolves to; for a
    Unix socket the address is its path."""

    host: str
    port: int
    family: int
    address: tuple[object, ...] | str
    tls: ssl.SSLContext | None = None

    @property
    def authority(self) -> str:
        if self.family == socket.AF_UNIX:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Owner(Protocol):
    """Who sends requests."""

    def finished(self, slot: "Slot", end: int, error: str) -> None:
        """The request of a slot is answered, or has failed for the reason `error`. `end` is the time."""
        ...


class Slot:
    """A place for one request in flight. Times are nanoseconds of a monotonic clock.

    `due` is when the request should have been sent, `start` when it was, `sent` when the system had taken all of it,
    and `first` when the first bytes of the answer came. `is_broken` says that there was no connection. With `keeps`,
    `bodies` has each response, and `stamps` its time. `on_period` is called with the response number `period`.
    """

    def __init__(self, owner: Owner, index: int, keeps: bool) -> None:
        self.owner = owner
        self.index = index
        self.keeps = keeps
        self.busy = False
        self.is_broken = False
        self.due = 0
        self.start = 0
        self.sent = 0
        self.first = 0
        self.responses = 0
        self.stream = 0
        self.step = 0
        self.sequence = 0
        self.ends = False
        self.request_id = 0
        self.null_last = False
        self.stamps: list[int] = []
        self.bodies: list[bytes] = []
        self.period = 0
        self.on_period: Callable[[], None] | None = None

    def begin(self) -> None:
        """Notes that a request starts now."""
        self.busy = True
        self.is_broken = False
        self.responses = 0
        self.first = 0
        self.null_last = False
        if self.keeps:
            self.stamps = []
            self.bodies = []
        self.start = perf_counter_ns()
        self.sent = self.start

    def send(self, request: bytes) -> None:
        """Sends a request."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes what the slot alone has."""
        raise NotImplementedError

    def finish(self, end: int, error: str) -> None:
        self.busy = False
        self.owner.finished(self, end, error)


class Connection:
    """A socket in the poll. Subclasses handle what arrives."""

    def __init__(self, io: "Io", target: Target) -> None:
        self.io = io
        self.target = target
        self.socket: socket.socket | None = None
        self.number = -1
        self.is_open = False
        self._is_wrapped = False
        self._refusal = 0
        """The error of a Unix socket, whose connection is there or not when `connect` returns."""
        self._unsent = deque[memoryview]()

    # ---- what subclasses do

    def received(self, count: int, now: int) -> None:
        """Handles `count` bytes at the beginning of the buffer."""
        raise NotImplementedError

    def lost(self, why: str) -> None:
        """Handles the end of the connection, which is closed."""
        raise NotImplementedError

    def all_sent(self, now: int) -> None:
        """Everything that was written is with the system."""
        raise NotImplementedError

    # ---- opening and closing

    def connect(self) -> None:
        """Begins to connect."""
        target = self.target
        sock = socket.socket(target.family, socket.SOCK_STREAM)
        if target.family == socket.AF_UNIX:
            # If the server's queue is full, a socket that does not block would have to try again.
            self._refusal = sock.connect_ex(target.address)
            sock.setblocking(False)
        else:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        self.number = sock.fileno()
        self.is_open = False
        self._is_wrapped = False
        self._unsent.clear()
        self.io.add(self)
        if target.family != socket.AF_UNIX:
            sock.connect_ex(target.address)

    def close(self) -> None:
        if self.socket is not None:
            self.io.remove(self.number)
            self.socket.close()
            self.socket = None
            self.is_open = False

    def _fail(self, why: str) -> None:
        self.close()
        self.lost(why)

    # ---- events

    def ready(self, events: int) -> None:
        if self.socket is None:
            return
        if not self.is_open:
            self._open()
            if not self.is_open:
                return
        if events & WRITABLE and self._unsent:
            self._write_rest()
        if events & ~WRITABLE and self.socket is not None:
            self._read()

    def _open(self) -> None:
        """Goes on with connecting: the result of the connection, then the handshake."""
        sock = self.socket
        assert sock is not None
        try:
            if not self._is_wrapped:
                number = self._refusal or sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if number:
                    self._fail(f"failed to connect to {self.target.authority}: {os.strerror(number)}")
                    return
                if self.target.tls is not None:
                    sock = self._wrap(sock, self.target.tls)
            if self.target.tls is not None:
                assert isinstance(sock, ssl.SSLSocket)
                sock.do_handshake()
        except ssl.SSLWantReadError:
            self.io.change(self.number, READABLE)
            return
        except ssl.SSLWantWriteError:
            self.io.change(self.number, READABLE | WRITABLE)
            return
        except OSError as error:
            self._fail(f"failed to connect to {self.target.authority}: {error}")
            return
        self.is_open = True
        self.io.change(self.number, READABLE)
        if self._unsent:
            self._write_rest()

    def _wrap(self, sock: socket.socket, tls: ssl.SSLContext) -> ssl.SSLSocket:
        wrapped = tls.wrap_socket(sock, server_hostname=self.target.host, do_handshake_on_connect=False)
        self.socket = wrapped
        self._is_wrapped = True
        return wrapped

    def _read(self) -> None:
        io = self.io
        while self.socket is not None:
            try:
                count = self.socket.recv_into(io.buffer)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            except OSError as error:
                self._fail(f"the connection to {self.target.authority} broke: {error.strerror or error}")
                return
            if not count:
                self._fail(f"the server at {self.target.authority} closed the connection")
                return
            self.received(count, perf_counter_ns())
            # A plain socket that gave less than there was room for is empty. TLS may have decrypted more.
            if count < RECEIVE_BYTES and not self._is_wrapped:
                return

    def write(self, data: bytes) -> None:
        """Sends as much as the system takes, and the rest later."""
        if self._unsent or not self.is_open:
            self._unsent.append(memoryview(data))
            return
        count = self._send(data)
        if count == len(data):
            self.all_sent(perf_counter_ns())
        elif count >= 0:
            self._unsent.append(memoryview(data)[count:])
            self.io.change(self.number, READABLE | WRITABLE)

    def _write_rest(self) -> None:
        unsent = self._unsent
        while unsent:
            count = self._send(unsent[0])
            if count < 0:
                return
            if count < len(unsent[0]):
                unsent[0] = unsent[0][count:]
                self.io.change(self.number, READABLE | WRITABLE)
                return
            unsent.popleft()
        self.io.change(self.number, READABLE)
        self.all_sent(perf_counter_ns())

    def _send(self, data: bytes | memoryview) -> int:
        """Returns how many bytes the system has taken; -1 if the connection is lost."""
        assert self.socket is not None
        try:
            return self.socket.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            self._fail(f"the connection to {self.target.authority} broke: {error.strerror or error}")
            return -1


class Watcher(Protocol):
    """Something in the poll besides connections."""

    def ready(self, events: int) -> None: ...


class Io:
    """The poll. `idle` are the nanoseconds that it waited for something to happen."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Connection | Watcher] = {}
        self.buffer = bytearray(RECEIVE_BYTES)
        self.view = memoryview(self.buffer)
        self.idle = 0
        # `select` waits with a precision of microseconds; the poll itself in whole milliseconds.
        self._number = self._epoll.fileno()
        self._is_fine = self._number < MAX_FINE_DESCRIPTOR

    def add(self, connection: Connection) -> None:
        """Waits until a connection is open."""
        self._handlers[connection.number] = connection
        self._epoll.register(connection.number, READABLE | WRITABLE)

    def watch(self, number: int, watcher: Watcher) -> None:
        """Waits until something can be read from a descriptor."""
        self._handlers[number] = watcher
        self._epoll.register(number, READABLE)

    def change(self, number: int, events: int) -> None:
        self._epoll.modify(number, events)

    def remove(self, number: int) -> None:
        if self._handlers.pop(number, None) is not None:
            self._epoll.unregister(number)

    def turn(self, nanoseconds: int, is_fine: bool) -> None:
        """Handles what is ready, after at most so many nanoseconds. `is_fine`: to the microsecond."""
        began = perf_counter_ns()
        if nanoseconds <= 0:
            found = self._epoll.poll(0)
        elif is_fine and self._is_fine:
            select.select([self._number], [], [], nanoseconds / 1e9)
            found = self._epoll.poll(0)
        else:
            found = self._epoll.poll(nanoseconds / 1e9)
        if nanoseconds > 0:
            self.idle += perf_counter_ns() - began
        handlers = self._handlers
        for number, events in found:
            # An event of this turn may have closed it.
            handler = handlers.get(number)
            if handler is None:
                continue
            handler.ready(events)

    def close(self) -> None:
        self._epoll.close()
