"""The load processes, as their parent has them. One thread; no call blocks longer than it says."""

import os
import pickle
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from halimede.errors import Internal
from halimede.perf.generator import start
from halimede.perf.loads import FLUSH, FRAME, Detail, Load
from halimede.perf.statistics import FLAGS, Records, no_records, records_of

DRAIN_SECONDS = 60.0
"""How long requests in flight may take at the end of a load."""
RECEIVE_BYTES = 1 << 20


@dataclass(slots=True)
class Member:
    """A load process."""

    number: int
    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    until: int = 0
    idle: int = 0
    sent: int = 0
    in_flight: int = 0
    is_drained: bool = True


class Fleet:
    """Starts and stops load processes, and gathers what they tell.

    `records` are those that no window has taken yet; `failures` counts failed requests since the load began, and
    `failure` is the reason of the last one.
    """

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._chunks: list[Records] = []
        self.details: list[Detail] = []
        self.failures = 0
        self.failure = ""
        self.last_success = 0.0
        self.total = 0

    def __len__(self) -> int:
        return len(self._members)

    def add(self, serve: Callable[[socket.socket], None]) -> None:
        """Starts one more process."""
        number, ours = start(serve)
        ours.setblocking(False)
        self._members.append(Member(number, ours))

    # ---- orders

    def begin(self, loads: Sequence[Load]) -> None:
        """Gives each process its load, and forgets what was told before."""
        self._chunks.clear()
        self.details.clear()
        self.failures, self.failure, self.total = 0, "", 0
        self.last_success = time.monotonic()
        for member, load in zip(self._members, loads, strict=True):
            member.is_drained = False
            self._order(member, b"L", pickle.dumps(load))

    def stop(self, seconds: float = DRAIN_SECONDS) -> bool:
        """Ends the load and waits for the answers. Returns whether all have come."""
        for member in self._members:
            self._order(member, b"S", b"")
        limit = time.monotonic() + seconds
        while not self.is_drained and time.monotonic() < limit:
            self.gather(0.05)
        return self.is_drained

    def catch_up(self, until: int, seconds: float = 2.0) -> None:
        """Waits until everything that ended before a time was told."""
        for member in self._members:
            self._order(member, b"F", b"")
        limit = time.monotonic() + seconds
        while any(member.until < until for member in self._members) and time.monotonic() < limit:
            self.gather(0.02)

    def _order(self, member: Member, kind: bytes, content: bytes) -> None:
        member.socket.setblocking(True)
        try:
            member.socket.sendall(FRAME.pack(kind, len(content)) + content)
        except OSError:
            raise self._death() from None
        finally:
            member.socket.setblocking(False)

    @property
    def is_drained(self) -> bool:
        return all(member.is_drained for member in self._members)

    @property
    def idle(self) -> int:
        """Nanoseconds that the processes waited, all together."""
        return sum(member.idle for member in self._members)

    @property
    def sent(self) -> int:
        return sum(member.sent for member in self._members)

    @property
    def in_flight(self) -> int:
        return sum(member.in_flight for member in self._members)

    # ---- what they tell

    def gather(self, seconds: float) -> None:
        """Reads what the processes tell, for at most so long. Raises Internal if one has ended."""
        sockets = {member.socket: member for member in self._members}
        ready, _, _ = select.select(list(sockets), [], [], max(0.0, seconds))
        for each in ready:
            self._read(sockets[each])

    def _read(self, member: Member) -> None:
        try:
            data = member.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise self._death()
        received = member.received
        received += data
        while len(received) >= FRAME.size:
            kind, size = FRAME.unpack_from(received, 0)
            end = FRAME.size + size
            if len(received) < end:
                return
            self._take(member, kind, bytes(received[FRAME.size : end]))
            del received[:end]

    def _take(self, member: Member, kind: bytes, content: bytes) -> None:
        if kind == b"R":
            member.until, member.idle, member.sent, member.in_flight = FLUSH.unpack_from(content)
            records = records_of(content[FLUSH.size :])
            if len(records):
                self._chunks.append(records)
                self.total += len(records)
                if np.count_nonzero(records[:, FLAGS] & 1) < len(records):
                    self.last_success = time.monotonic()
        elif kind == b"E":
            count, self.failure = pickle.loads(content)
            self.failures += count
        elif kind == b"X":
            self.details += pickle.loads(content)
        elif kind == b"D":
            member.is_drained = True

    def take(self) -> Records:
        """All records that were told since the last call."""
        chunks, self._chunks = self._chunks, []
        return np.concatenate(chunks) if chunks else no_records()

    def recent(self) -> Records:
        """The records that the next `take` gives, to look at."""
        return np.concatenate(self._chunks) if self._chunks else no_records()

    def _death(self) -> Internal:
        return Internal("a load process ended; see above for the reason")

    def close(self) -> None:
        """Ends the processes."""
        for member in self._members:
            with suppress(OSError):  # the process has ended
                member.socket.shutdown(socket.SHUT_RDWR)  # processes that were forked later have this socket too
            member.socket.close()
        limit = time.monotonic() + 2.0
        for member in self._members:
            _reap(member.number, limit)
        self._members.clear()


def _reap(number: int, limit: float) -> None:
    with suppress(ChildProcessError):
        while time.monotonic() < limit:
            if os.waitpid(number, os.WNOHANG)[0]:
                return
            time.sleep(0.005)
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
