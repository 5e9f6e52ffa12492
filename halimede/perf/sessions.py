"""Conversations with an OpenAI service: each turn is sent after the answer to the last one, with what was said before
(`--session-concurrency`, X30). One thread; no statistics, only the records for the export.
"""

import heapq
import json
from collections import deque
from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np

from halimede.perf.clients.http1 import HttpSlot
from halimede.perf.clients.io import Io, Slot, Target
from halimede.perf.kinds import BodyEncoder, SessionTurn, answer_of, with_history
from halimede.perf.loads import FAILED, RESPONSES_SHIFT, Detail
from halimede.perf.profiler import LOAD_FAILED, Experiment, Failure, Watcher
from halimede.perf.statistics import no_records

TICK_NANOSECONDS = 100_000_000


class Conversation:
    """One conversation on one slot."""

    def __init__(self, turns: Sequence[SessionTurn], first: int) -> None:
        self.turns, self.first = turns, first
        self.done = 0
        self.history: list[object] = []
        self.body: dict[str, object] = {}


class Sessions:
    """Runs conversations, some at a time. `bodies` has what was sent, by the number of the request."""

    def __init__(
        self, target: Target, encoder: BodyEncoder, sessions: Sequence[Sequence[SessionTurn]], at_once: int
    ) -> None:
        self._io, self._encoder = Io(), encoder
        self._waiting = deque[Conversation]()
        count = 0
        for turns in sessions:
            self._waiting.append(Conversation(turns, count))
            count += len(turns)
        self._target = target
        self._running: dict[int, Conversation] = {}
        self._pauses: list[tuple[int, int, Slot]] = []
        self._rows: list[tuple[int, ...]] = []
        self._details: list[Detail] = []
        self.bodies: dict[int, bytes] = {}
        self._failure = ""
        self._at_once = min(at_once, len(self._waiting))

    def run(self, watcher: Watcher) -> Experiment:
        """Runs all of them. Raises Failure if a request fails."""
        experiment = Experiment(False, self._at_once)
        experiment.boundaries.append(perf_counter_ns())
        for index in range(self._at_once):
            self._begin(HttpSlot(self, index, True, self._io, self._target, {}))
        while self._running and not self._failure and not watcher.is_interrupted():
            wait = TICK_NANOSECONDS
            if self._pauses:
                wait = min(wait, max(0, self._pauses[0][0] - perf_counter_ns()))
            self._io.turn(wait, False)
            while self._pauses and self._pauses[0][0] <= perf_counter_ns():
                self._send(heapq.heappop(self._pauses)[2])
        experiment.boundaries.append(perf_counter_ns())
        experiment.records.append(np.array(self._rows, np.int64) if self._rows else no_records())
        experiment.details = self._details
        if self._failure:
            raise Failure(f"{LOAD_FAILED}\nThread [0] had error: {self._failure}\n")
        return experiment

    def _begin(self, slot: Slot) -> None:
        """Starts the next conversation on a slot, if there is one."""
        self._running.pop(slot.index, None)
        if self._waiting:
            self._running[slot.index] = self._waiting.popleft()
            self._send(slot)
        else:
            slot.close()

    def _send(self, slot: Slot) -> None:
        conversation = self._running[slot.index]
        conversation.body = with_history(conversation.turns[conversation.done], conversation.history)
        body = json.dumps(conversation.body).encode()
        slot.request_id = conversation.first + conversation.done
        self.bodies[slot.request_id] = body
        slot.send(self._encoder.of(body).plain)

    def finished(self, slot: Slot, end: int, error: str) -> None:
        conversation = self._running[slot.index]
        flags = (slot.responses << RESPONSES_SHIFT) | (FAILED if error else 0)
        row = (slot.start, slot.start, slot.sent, slot.first, end, flags, 0, slot.request_id)
        self._rows.append(row)
        self._details.append(Detail(slot.request_id, 0, slot.request_id, tuple(slot.stamps), tuple(slot.bodies)))
        if error:
            self._failure = error
            return
        messages = conversation.body.get("messages")
        answer = answer_of(slot.bodies)
        conversation.history = [*(messages if isinstance(messages, list) else []), *([answer] if answer else [])]
        pause = conversation.turns[conversation.done].pause
        conversation.done += 1
        if conversation.done == len(conversation.turns):
            self._begin(slot)
        else:
            heapq.heappush(self._pauses, (end + round(pause * 1e9), slot.index, slot))
