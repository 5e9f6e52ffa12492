"""A store without a network for the worker threads of a cache."""

from collections.abc import Sequence
from queue import SimpleQueue
from threading import Event

from halimede.cache.store_threads import CacheTask, Result
from tests.fakes import PATIENCE


class FakeStore:
    """Keeps entries in a dict.

    `batches` has the keys of each batch that was run. While `gate` is not set, the store hangs. `asked` gets the size
    of each batch before that. Each of `errors` fails one batch. `refuses` is the result of insertions.
    """

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.batches: list[list[bytes]] = []
        self.gate = Event()
        self.gate.set()
        self.asked: SimpleQueue[int] = SimpleQueue()
        self.errors: list[Exception] = []
        self.refuses: Exception | None = None
        self.closed = Event()

    def run(self, tasks: Sequence[CacheTask]) -> Sequence[Result]:
        self.asked.put(len(tasks))
        assert self.gate.wait(PATIENCE)
        self.batches.append([task.key for task in tasks])
        if self.errors:
            raise self.errors.pop(0)
        return [self._run_one(task) for task in tasks]

    def _run_one(self, task: CacheTask) -> Result:
        if task.entry is None:
            return self.kept.get(task.key)
        if self.refuses is None:
            self.kept[task.key] = task.entry
        return self.refuses

    def close(self) -> None:
        self.closed.set()
