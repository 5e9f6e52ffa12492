"""HTTP with `--auth`: finds the caller of each request, and hands the request to the front end of that caller.

Event-loop thread only.
"""

from collections.abc import Callable
from typing import Protocol

from halimede.errors import Error
from halimede.front.http.handling import HttpExchange, refuse
from halimede.identities.guard import Caller, Guard

AUTHORIZATION = b"authorization"


class FrontEnd(Protocol):
    """Handles requests."""

    def handle(self, exchange: HttpExchange) -> None: ...


class HttpOfCallers:
    """The handler of a port that serves each caller by a front end of its own, which `make` makes. So what a caller may
    do is decided once, and not for each request."""

    def __init__(self, guard: Guard, make: Callable[[Caller], FrontEnd]) -> None:
        self._guard = guard
        self._make = make
        self._fronts: dict[Caller, FrontEnd] = {}

    def handle(self, exchange: HttpExchange) -> None:
        try:
            caller = self._guard.admit(exchange.headers.get(AUTHORIZATION))
        except Error as error:
            self._guard.note_refusal(error, exchange.peer)
            refuse(exchange, error)
            return
        front = self._fronts.get(caller) or self._front_of(caller)
        front.handle(exchange)

    def _front_of(self, caller: Caller) -> FrontEnd:
        self._fronts = {one: front for one, front in self._fronts.items() if not one.revoked}
        front = self._fronts[caller] = self._make(caller)
        return front
