"""Which replica gets a request: the replica of its sequence, else one of those that have its model.

Serve makes a router in each process that sends requests, and calls it on the event loop of that router.
"""

import random
from collections import OrderedDict
from hashlib import blake2b
from typing import Any

from ray.serve.request_router import LocalityMixin, MultiplexMixin, RequestRouter

MAX_SEQUENCES = 100_000
"""Sequences whose replicas a router remembers. A forgotten one is found again by its hash."""


class Router(LocalityMixin, MultiplexMixin, RequestRouter):
    """Chooses the less busy of two replicas that have the model, as Serve does by default. All requests with the same
    session id go to one replica, or wait for it.

    That replica is a hash of the session and of the replicas that there are, so several ingresses choose the same. A
    router remembers its choice, so a new replica takes over no sequence that has begun.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._homes: OrderedDict[str, Any] = OrderedDict()

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        replicas = self.curr_replicas
        if pending_request is None or not pending_request.metadata.session_id:
            found = self._with_model(pending_request)
            return [[replicas[each] for each in random.sample(found, min(2, len(found)))]] if found else []
        if not replicas:
            return []
        # Waits before it asks the replica again, if that one is busy.
        pending_request.routing_context.should_backoff = True
        session = pending_request.metadata.session_id
        home = self._homes.get(session)
        if home not in replicas:
            home = self._homes[session] = max(replicas, key=lambda replica: _weight(session, replica.unique_id))
            if len(self._homes) > MAX_SEQUENCES:
                self._homes.popitem(last=False)
        self._homes.move_to_end(session)
        return [[replicas[home]]]

    def _with_model(self, request: Any) -> list[Any]:
        """The replicas that have the model of the request, or are the first to get it."""
        multiplexed = request is not None and request.metadata.multiplexed_model_id
        found = self.apply_multiplex_routing(request) if multiplexed else self.apply_locality_routing(request)
        return [each for each in found if each in self.curr_replicas]


def _weight(session: str, replica: str) -> bytes:
    """The replica with the greatest weight is the one of the session (rendezvous hashing)."""
    return blake2b(f"{session}\0{replica}".encode(errors="surrogatepass"), digest_size=8).digest()
