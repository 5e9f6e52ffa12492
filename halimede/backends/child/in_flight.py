"""A batch that a child process has. Event-loop thread only."""

from collections.abc import Sequence

from halimede.backends.api import BatchedRequest, Responses
from halimede.errors import Error
from halimede.workers.messages import Answer


class InFlightBatch:
    """The requests of a batch, where their answers go, and which of them have not had their last answer (`missing`).

    `running` is True until the child can take the next batch; answers may come after that. `positions` say where the
    requests stood in the batch of `responses`, as some of it may have been left out.

    Credit, for requests with many answers: `taken` is how many bytes the reader of each request took. The child gets a
    CREDIT when that reaches `due`. `unread` counts answers that wait for their reader; `waits` is True if one had to
    wait, so that the child may wait too.
    """

    __slots__ = (
        *("due", "missing", "positions", "requests", "responses"),
        *("running", "taken", "unread", "waits"),
    )

    def __init__(self, requests: Sequence[BatchedRequest], responses: Responses, positions: Sequence[int]) -> None:
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
        if final:  # of a model with many answers each request has several
            self.missing.discard(index)
        position = self.positions[index]
        if again:
            self.responses.again(position)
        elif error is None:
            self.responses.send(position, outputs, final, parameters)
        else:
            self.responses.fail(position, error, final)

    def fail(self, error: Error) -> None:
        """Fails the requests without their last answer: the child, or its batch, has come to nothing."""
        for i in sorted(self.missing):
            self.responses.fail(self.positions[i], error)
        self.missing.clear()

    def finish(self) -> None:
        """The child can take the next batch. Requests without their last answer get it later: the child has sent an
        answer for each request that its model will not answer."""
        self.running = False
        self.responses.finished([self.positions[i] for i in self.missing])
