"""Stores without a network for the couriers."""

from collections.abc import Sequence
from queue import SimpleQueue
from threading import Event

from halimede.cache.couriers import Errand
from tests.fakes import PATIENCE


class FakeStore:
    """Keeps what it is brought. `journeys` are the keys of each; while `gate` is shut it is as a server that hangs.
    `errors` are raised, one a journey; `refuses` is what insertions come to."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.journeys: list[list[bytes]] = []
        self.gate = Event()
        self.gate.set()
        self.asked: SimpleQueue[int] = SimpleQueue()
        self.errors: list[Exception] = []
        self.refuses: Exception | None = None
        self.closed = Event()

    def carry(self, errands: Sequence[Errand]) -> Sequence[bytes | Exception | None]:
        self.asked.put(len(errands))
        assert self.gate.wait(PATIENCE)
        self.journeys.append([errand.key for errand in errands])
        if self.errors:
            raise self.errors.pop(0)
        return [self._carried(errand) for errand in errands]

    def _carried(self, errand: Errand) -> bytes | Exception | None:
        if errand.entry is None:
            return self.kept.get(errand.key)
        if self.refuses is None:
            self.kept[errand.key] = errand.entry
        return self.refuses

    def close(self) -> None:
        self.closed.set()
