"""A batch that a child process has. Event-loop thread only."""

from collections.abc import Sequence

from halimede.backends.api import BatchedRequest, Responses
from halimede.errors import Error, Invalid
from halimede.workers.messages import Answer


class InFlightBatch:
    """The requests of a batch, where their answers go, and which of them have not had their last answer (`missing`).

    `running` is True until the child can take the next batch; answers may come after that. `positions` say where the
    requests stood in the batch of `responses`, as some of it may have been left out. `iterative`: requests may run
    once more (S72).

    Credit, for requests with many answers: `taken` is how many bytes the reader of each request took, `due` the sum
    from which on the child gets a CREDIT. `unread` counts answers that wait for their reader; `waits` is True if one
    had to wait, so that the child may wait too.
    """

    __slots__ = (
        *("due", "iterative", "missing", "positions", "requests", "responses"),
        *("running", "taken", "unread", "waits"),
    )

    def __init__(
        self, requests: Sequence[BatchedRequest], responses: Responses, positions: Sequence[int], iterative: bool
    ) -> None:
        self.iterative = iterative
        self.requests = requests
        self.responses = responses
        self.positions = positions
        self.missing = set(range(len(requests)))
        self.running = True
        self.taken: list[int] | None = None
        self.due: list[int] = []
        self.unread = 0
        self.waits = False

    def answer(self, answer: Answer) -> None:
        index, final, outputs, error, parameters, again = answer
        if final:
            self.missing.discard(index)
        position = self.positions[index]
        if again and self.iterative:
            self.responses.again(position)
        elif again:
            self.responses.fail(position, not_iterative())
        elif error is None:
            self.responses.send(position, outputs, final, parameters)
        else:
            self.responses.fail(position, error, final)

    def fail(self, error: Error) -> None:
        for i in sorted(self.missing):
            self.responses.fail(self.positions[i], error)
        self.missing.clear()

    def finish(self) -> None:
        """The child can take the next batch. Requests without their last answer get it later: the child says which
        requests nobody will answer."""
        self.running = False
        self.responses.finished([self.positions[i] for i in self.missing])


def not_iterative() -> Invalid:
    """For a request that the model wants to run once more although its scheduler cannot do that (S72)."""
    return Invalid(
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
        "such a flag."
    )
