"""A batch on its way through a worker process. Event-loop thread only."""

from collections.abc import Collection, Sequence

from halimede.backends.api import BatchedRequest, Responses
from halimede.backends.python.orders import not_iterative
from halimede.errors import Error
from halimede.workers.calls import Call
from halimede.workers.messages import Answer


class InFlightBatch:
    """A batch that the worker has: its requests, where the answers go, and which requests have not had their last.

    `running` until the worker can take the next batch. Senders may answer after that. `taken` is how much the readers
    of requests with many responses took, `due` from where on the worker shall be told. `places` are where the requests
    stood in the batch that the responses belong to: some of it may have been left out. `unread` counts the
    credits that wait for a reader to take what was sent; `waits` says that one had to, and the worker perhaps with it.
    `iterative`: requests may run once more.
    """

    __slots__ = (
        "calls",
        "due",
        "iterative",
        "missing",
        "places",
        "requests",
        "responses",
        "running",
        "taken",
        "unread",
        "waits",
    )

    def __init__(
        self, requests: Sequence[BatchedRequest], responses: Responses, places: Sequence[int], iterative: bool
    ) -> None:
        self.iterative = iterative
        self.requests = requests
        self.responses = responses
        self.places = places
        self.missing = set(range(len(requests)))
        self.running = True
        self.taken: list[int] | None = None
        self.due: list[int] = []
        self.unread = 0
        self.waits = False
        self.calls: dict[int, Call] | None = None

    @property
    def waits_for(self) -> Collection[Call]:
        return self.calls.values() if self.calls else ()

    def answer(self, answer: Answer) -> None:
        index, final, outputs, error, parameters, again = answer
        if final:
            self.missing.discard(index)
        place = self.places[index]
        if again and self.iterative:
            self.responses.again(place)
        elif again:
            self.responses.fail(place, not_iterative())
        elif error is None:
            self.responses.send(place, outputs, final, parameters)
        else:
            self.responses.fail(place, error, final)

    def fail(self, error: Error) -> None:
        for i in sorted(self.missing):
            self.responses.fail(self.places[i], error)
        self.missing.clear()

    def finish(self) -> None:
        """The worker says for itself whom nobody will answer, so that the others get their answers later."""
        self.running = False
        self.responses.finished([self.places[i] for i in self.missing])
