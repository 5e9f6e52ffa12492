"""An engine that does nothing: it records what a front end asks, and the test answers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from halimede.engine_port import ModelTransaction, Query
from halimede.errors import Error
from halimede.requests import Answer, InferRequest, Reply

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Inference:
    """A request that was accepted, to be answered by `reply.send`."""

    key: int
    request: InferRequest
    reply: Reply


class FakePort:
    """An `EnginePort`.

    `infer` records; when `at_once` is set its result is sent to the reply before `infer` returns (an error as a
    refusal), and the request is not recorded. `ask` answers from `answers` (by query; a ModelTransaction that is not
    there is answered from the sets `decoupled` and `unknown`), or keeps the question in `asked` while `hold` is set.
    """

    def __init__(self) -> None:
        self.inferences: list[Inference] = []
        self.cancelled: list[int] = []
        self.answers: dict[Query[Any], Any] = {}
        self.decoupled: set[str] = set()
        self.unknown: dict[str, Error] = {}
        self.at_once: Callable[[InferRequest], Answer] | None = None
        self.hold = False
        self.asked: list[Callable[[], None]] = []
        self._last_key = 0

    def infer(self, request: InferRequest, reply: Reply) -> int:
        self._last_key += 1
        if self.at_once is not None:
            answer = self.at_once(request)
            if isinstance(answer, Error):
                answer.refused = True
            reply.send(answer, True)
        else:
            self.inferences.append(Inference(self._last_key, request, reply))
        return self._last_key

    def cancel(self, key: int) -> None:
        self.cancelled.append(key)

    def ask(self, query: Query[A], done: Callable[[A | Error], None]) -> None:
        if self.hold:
            self.asked.append(lambda: done(self._answer(query)))
        else:
            done(self._answer(query))

    def answer_held(self) -> None:
        """Answers the oldest question that was held."""
        self.asked.pop(0)()

    def _answer(self, query: Query[Any]) -> Any:
        if isinstance(query, ModelTransaction) and query not in self.answers:
            return self.unknown.get(query.model, query.model in self.decoupled)
        return self.answers[query]
