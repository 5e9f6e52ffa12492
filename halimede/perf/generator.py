"""The process that makes load: sends requests in closed or open loop, and tells its parent when each began and ended.

Compiled with the hot modules. One thread; the parent forks it with everything ready to send, and talks to it through a
socket. A message is a letter, the length of its content, and the content.
"""

import gc
import os
import pickle
import signal
import socket
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns

from halimede.perf.clients.io import Io, Slot
from halimede.perf.loads import FAILED, FLUSH, FRAME, NULL_LAST, RESPONSES_SHIFT, SEQUENCE_END, Detail, Load
from halimede.perf.requests import Prepared
from halimede.perf.sequences import Sequences

FLUSH_NANOSECONDS = 100_000_000
"""How often the parent gets what has ended."""
RETRY_NANOSECONDS = 10_000_000
"""How long a slot waits after it could not connect."""
MAX_SLOTS = 20_000
"""Requests of one process in flight. Beyond, requests wait here, and count from the time when they were due."""
MakeSlot = Callable[["Generator", Io, int], Slot]
MakeTimes = Callable[[tuple[object, ...]], Iterator[int]]
Validate = Callable[[int, int, bytes], str]
"""Says why a body is not the right answer to the request of a stream and step; empty if it is."""


class Generator:
    """Makes the load of one process. `requests` has the requests of each stream of data, by step."""

    def __init__(
        self,
        control: socket.socket,
        make_slot: MakeSlot,
        make_times: MakeTimes,
        requests: Sequence[Sequence[Prepared]],
        sequences: Sequences | None,
        exports: bool,
        validate: Validate | None,
        first_step: int,
        step_stride: int,
    ) -> None:
        self._control = control
        self._make_slot = make_slot
        self._make_times = make_times
        self._requests = requests
        self._plain = [each.plain for each in requests[0]]
        self._sequences = sequences
        self._exports = exports
        self._validate = validate
        self._io = Io()
        self._values = array("q")
        self._details: list[Detail] = []
        self._free: list[Slot] = []
        self._slots = 0
        self._in_flight = 0
        self._sent = 0
        self._step = first_step
        self._stride = step_stride
        self._load = Load()
        self._active = False
        self._draining = False
        self._left = -1
        self._times: Iterator[int] | None = None
        self._next = -1
        self._late: deque[int] = deque()
        self._retry: list[Slot] = []
        self._retry_at = 0
        self._turn = 0
        self._busy_sequences: set[int] = set()
        self._waiting: dict[int, deque[int]] = {}
        self._failures = 0
        self._failure = ""
        self._received = bytearray()
        self._is_over = False
        self._periods = 0

    # ---- the loop

    def run(self) -> None:
        """Serves the parent until it closes the socket."""
        self._control.setblocking(True)
        self._io.watch(self._control.fileno(), self)
        flush_at = perf_counter_ns() + FLUSH_NANOSECONDS
        while not self._is_over:
            now = perf_counter_ns()
            wait = flush_at - now
            is_fine = False
            if self._active and self._next >= 0:
                until = self._next - now
                if until < wait:
                    wait, is_fine = until, True
            if self._retry and self._retry_at - now < wait:
                wait = self._retry_at - now
            self._io.turn(wait, is_fine)
            now = perf_counter_ns()
            if self._active and self._next >= 0 and self._next <= now:
                self._send_due(now)
            if self._retry and self._retry_at <= now:
                self._send_again()
            if now >= flush_at:
                self._flush(now)
                flush_at = now + FLUSH_NANOSECONDS
            if self._draining and not self._in_flight:
                self._draining = False
                self._flush(now)
                self._tell(b"D", b"")

    def ready(self, events: int) -> None:
        """Reads commands of the parent."""
        try:
            data = self._control.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._is_over = True
            return
        received = self._received
        received += data
        while len(received) >= FRAME.size:
            kind, size = FRAME.unpack_from(received, 0)
            end = FRAME.size + size
            if len(received) < end:
                return
            content = bytes(received[FRAME.size : end])
            del received[:end]
            if kind == b"L":
                self._begin(pickle.loads(content))
            elif kind == b"S":
                self._stop()
            elif kind == b"F":
                self._flush(perf_counter_ns())

    def _tell(self, kind: bytes, content: bytes) -> None:
        try:
            self._control.sendall(FRAME.pack(kind, len(content)) + content)
        except OSError:
            self._is_over = True

    def _flush(self, now: int) -> None:
        head = FLUSH.pack(now, self._io.idle, self._sent, self._in_flight)
        values, self._values = self._values, array("q")
        if self._failures:
            self._tell(b"E", pickle.dumps((self._failures, self._failure)))
            self._failures = 0
        if self._details:
            details, self._details = self._details, []
            self._tell(b"X", pickle.dumps(details))
        self._tell(b"R", head + values.tobytes())

    # ---- commands

    def _begin(self, load: Load) -> None:
        self._load = load
        self._active = True
        self._draining = False
        self._left = load.limit or -1
        self._turn = 0
        self._late.clear()
        if load.is_open:
            self._times = self._make_times(load.schedule)
            self._advance()
            return
        self._next = -1
        self._periods = load.concurrency
        for index in range(load.concurrency):
            if not self._left:
                break
            slot = self._slot()
            if self._sequences is not None:
                slot.index = index
            slot.due = 0
            self._send(slot)
        if not self._left and not self._in_flight:
            self._draining = True

    def _grow(self) -> None:
        """Adds requests in flight after all of the last ones have had their period of responses (X3)."""
        self._periods -= 1
        if self._periods:
            return
        self._periods = self._load.grow_by
        for _ in range(self._load.grow_by):
            if not self._left:
                return
            slot = self._slot()
            slot.due = 0
            self._send(slot)

    def _stop(self) -> None:
        """Sends no more, ends the sequences that have begun, and says when everything is answered."""
        self._active = False
        self._draining = True
        self._next = -1
        self._free += self._retry
        self._retry = []
        self._late.clear()
        self._waiting.clear()
        if self._sequences is not None:
            places = self._load.sequences if self._load.is_open else self._load.concurrency
            for index in range(places):
                if self._sequences.is_open(index) and index not in self._busy_sequences:
                    self._end_sequence(index)

    def _end_sequence(self, index: int) -> None:
        slot = self._slot()
        slot.due = 0
        slot.index = index
        self._send_turn(slot, True)

    # ---- sending

    def _slot(self) -> Slot:
        if self._free:
            return self._free.pop()
        slot = self._make_slot(self, self._io, self._slots)
        self._slots += 1
        if self._load.grow_by:
            slot.period = self._load.grow_after
            slot.on_period = self._grow
        return slot

    def _send(self, slot: Slot) -> None:
        """Sends the next request on a slot."""
        if self._left > 0:
            self._left -= 1
        if self._sequences is not None:
            self._send_turn(slot, False)
            return
        plain = self._plain
        step = self._step
        self._step = step + self._stride
        slot.step = step % len(plain)
        self._sent += 1
        slot.request_id = self._sent
        self._in_flight += 1
        slot.send(plain[slot.step])

    def _send_turn(self, slot: Slot, ends: bool) -> None:
        assert self._sequences is not None
        turn = self._sequences.next(slot.index, ends)
        slot.stream, slot.step = turn.stream, turn.step
        slot.sequence, slot.ends = turn.sequence_id, turn.ends
        self._sent += 1
        slot.request_id = self._sent
        self._in_flight += 1
        self._busy_sequences.add(slot.index)
        slot.send(self._requests[turn.stream][turn.step].of(turn))

    def _advance(self) -> None:
        """Finds when the next request is due."""
        assert self._times is not None
        offset = next(self._times, -1)
        self._next = self._load.begin + offset if offset >= 0 and self._left else -1
        if self._next < 0:
            self._draining = True

    def _send_due(self, now: int) -> None:
        """Sends everything that is due."""
        while 0 <= self._next <= now and self._active:
            due = self._next
            if self._sequences is not None:
                self._send_due_turn(due)
            elif self._free or self._slots < MAX_SLOTS:
                slot = self._slot()
                slot.due = due
                self._send(slot)
            else:
                if self._left > 0:
                    self._left -= 1
                self._late.append(due)
            self._advance()

    def _send_due_turn(self, due: int) -> None:
        """A request of the next sequence in turn."""
        index = self._turn % max(1, self._load.sequences)
        self._turn += 1
        if self._load.is_serial and index in self._busy_sequences:
            self._waiting.setdefault(index, deque()).append(due)
            return
        slot = self._slot()
        slot.due, slot.index = due, index
        self._send(slot)

    def _send_again(self) -> None:
        retry, self._retry = self._retry, []
        for slot in retry:
            self._go_on(slot)

    # ---- answers

    def finished(self, slot: Slot, end: int, error: str) -> None:
        """Notes the end of a request, and sends the next one if the load asks for it."""
        self._in_flight -= 1
        if self._validate is not None and not error and slot.bodies:
            error = self._validate(slot.stream, slot.step, slot.bodies[-1])
        flags = slot.responses << RESPONSES_SHIFT
        if error:
            flags |= FAILED
            self._failures += 1
            self._failure = error
        if slot.ends:
            flags |= SEQUENCE_END
        if slot.null_last:
            flags |= NULL_LAST
        start = slot.start
        self._values.extend(
            (slot.due or start, start, slot.sent, slot.first, end, flags, slot.sequence, slot.request_id)
        )
        if self._exports:
            self._details.append(
                Detail(slot.request_id, slot.stream, slot.step, tuple(slot.stamps), tuple(slot.bodies))
            )
        if self._sequences is not None:
            self._busy_sequences.discard(slot.index)
        if error and slot.is_broken:
            self._retry.append(slot)
            self._retry_at = end + RETRY_NANOSECONDS
            return
        self._go_on(slot)

    def _go_on(self, slot: Slot) -> None:
        """Uses a free slot."""
        if self._load.grow_by:
            # Each request is sent once. One that had too few responses has had its period now.
            self._free.append(slot)
            if slot.responses < self._load.grow_after:
                self._grow()
            if not self._left:
                self._draining = True
            return
        if not self._active:
            if self._sequences is not None and self._draining and self._sequences.is_open(slot.index):
                self._send_turn(slot, True)
                return
            self._free.append(slot)
            return
        if self._load.is_open:
            self._go_on_open(slot)
            return
        if not self._left:
            self._free.append(slot)
            self._draining = True
            return
        slot.due = 0
        self._send(slot)

    def _go_on_open(self, slot: Slot) -> None:
        waiting = self._waiting.get(slot.index) if self._waiting else None
        if waiting:
            slot.due = waiting.popleft()
            self._send(slot)
        elif self._late:
            slot.due = self._late.popleft()
            if self._left >= 0:
                self._left += 1  # it was counted when it was due
            self._send(slot)
        else:
            self._free.append(slot)


def start(serve: Callable[[socket.socket], None]) -> tuple[int, socket.socket]:
    """Forks a process that runs `serve` with one end of a socket. Returns its id and the other end."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    number = os.fork()
    if number:
        theirs.close()
        return number, ours
    # A terminal sends Ctrl-C to this process too, and `timeout` SIGTERM. The parent decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ours.close()
    # No cycles are made here, and a collection would delay requests.
    gc.freeze()
    gc.disable()
    status = 1
    try:
        serve(theirs)
        status = 0
    except BaseException as error:
        # The parent sees the end of the socket; this is for whoever looks for the reason.
        os.write(2, f"halimede perf: the load process failed: {error!r}\n".encode())
    finally:
        os._exit(status)
