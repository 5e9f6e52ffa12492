"""The response cache on the way of a request: between the engine and a model version that has its responses kept.

Looks up before an inference is queued (contract K4), keeps the response when it was answered (K5), and with
`single_flight` lets equal requests wait for the first of them instead of running all. Inferences of other versions
never come here. Event-loop thread; large inputs and outputs are gone through on others.
"""

import logging
import os
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Protocol

from halimede.backends.runtimes import PYTHON_BASED
from halimede.cache.api import Cache, CacheCounts
from halimede.cache.entries import Entry, decoded, encoded, size_of
from halimede.cache.keys import key_of, make_private, on_host
from halimede.config import ModelConfig
from halimede.engine.offload import Offload
from halimede.errors import Cancelled, Error, Internal, Invalid
from halimede.requests import Answer, InferRequest, InferResponse, Moment, Reply, Resume
from halimede.scheduling.assembly import place
from halimede.scheduling.inference import Inference
from halimede.scheduling.inline import PLACED_BYTES

log = logging.getLogger(__name__)

LOOKED_AT_BYTES = 128 << 10
"""Inputs that are still hashed on the event loop: less than 0.1 ms."""
COPIED_BYTES = 1 << 20
"""Outputs that are still copied on it: 0.1 ms."""
TOLD_EVERY_NS = 60_000_000_000
MOST_IN_A_TURN = 64
"""Requests that go on at once when the one that they waited for is over."""

_COMPUTE_START = int(Moment.COMPUTE_START)
_QUEUE_START = int(Moment.QUEUE_START)
_TENSORS_ONLY = frozenset({"identity", "onnxruntime"})
"""Backends whose models see nothing of a request but its tensors."""


class Version(Protocol):
    """What stands behind the cache."""

    @property
    def name(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def config(self) -> ModelConfig: ...
    @property
    def contents(self) -> bytes: ...
    def enter(self, inference: Inference) -> None:
        """It is about to be run or settled; its reply slot stays as it is from now on."""
        ...

    def run(self, inference: Inference) -> None:
        """Queues it."""
        ...

    def settle(self, inference: Inference, answer: InferResponse | Error) -> None:
        """Ends an inference that never ran."""
        ...


class Counts(Protocol):
    """Told what a lookup came to; hits count themselves, as inferences that never ran."""

    def missed(self, lookup_ns: int, insertion_ns: int) -> None: ...


class ResponseCache:
    """One for all models. `single_flight`: equal requests do not run at the same time."""

    def __init__(
        self, cache: Cache, offload: Offload, call_soon: Callable[[Callable[[], None]], object], single_flight: bool
    ) -> None:
        self._call_soon = call_soon
        self.cache = cache
        self.offload = offload
        self.single_flight = single_flight
        self.flights: dict[bytes, list[CachedCall]] = {}
        """The first of equal requests and those that wait for it, by their key."""
        self._tell_at = self._untold = 0

    @property
    def counts(self) -> CacheCounts | None:
        return self.cache.counts

    def close(self) -> None:
        self.cache.close()

    def go_on(self, waiting: "deque[CachedCall]", entry: Entry | None) -> None:
        """They do, so many in a turn of the loop."""
        for _ in range(min(len(waiting), MOST_IN_A_TURN)):
            call = waiting.popleft()
            call.guarded(partial(call.go_on, entry))
        if waiting:
            self._call_soon(partial(self.go_on, waiting, entry))

    def not_kept(self, key: bytes, size: int, now: int) -> None:
        """Logs that an entry is larger than the cache, now and then (contract K7)."""
        self._untold += 1
        counts = self.cache.counts
        if counts is not None and now >= self._tell_at:
            self._tell_at = now + TOLD_EVERY_NS
            log.error(
                "Failed to insert key [%s] into response cache: Requested byte_size: %d is greater than total cache "
                "size: %d (%d since the last such message)",
                *(key.hex(), size, counts.size, self._untold),
            )
            self._untold = 0


class CacheInterceptor:
    """Where the inferences of one version come in. In keys the version is what it is made of, where other servers find
    the responses too; else it is itself, so that nothing is found that the version before it said."""

    def __init__(self, shared: ResponseCache, version: Version, counts: Counts) -> None:
        self.shared = shared
        self.version = version
        self.counts = counts
        self._identity = version.contents if shared.cache.shared else os.urandom(32)
        config = version.config
        self._seen = config.backend not in _TENSORS_ONLY or config.runtime == PYTHON_BASED

    def submit(self, inference: Inference) -> None:
        """In place of the version's own: the inference is settled, or on its way, or will be."""
        if on_host(inference.request.inputs.values()):
            inference.reply = call = CachedCall(self, inference)
            self.version.enter(inference)
            call.guarded(call.begin)
        else:
            self.version.enter(inference)
            self.version.run(inference)

    def key_of(self, inference: Inference) -> bytes:
        """Any thread."""
        request = inference.request
        make_private(request)
        return key_of(self._identity, request, inference.outputs, self._seen)


class CachedCall:
    """One inference and what the cache makes of it. It stands before the client's reply slot, `slot`, to see the
    answer."""

    __slots__ = (
        "_began",
        "_destinations",
        "_inference",
        "_interceptor",
        "_key",
        "_lookup_ns",
        "_places",
        "_runs",
        "_shared",
        "_waits",
        "slot",
    )

    def __init__(self, interceptor: CacheInterceptor, inference: Inference) -> None:
        self._interceptor = interceptor
        self._shared = interceptor.shared
        self._inference = inference
        self.slot: Reply = inference.reply
        self._key = b""
        self._lookup_ns = 0
        self._waits = self._runs = False
        """At the door; and then run, so that the answer shall be kept."""
        self._destinations = inference.destinations
        self._places = False
        """Whether it is here that outputs are written to memory of the client, after they were kept."""

    # Before it runs.

    def guarded(self, step: Callable[[], None]) -> None:
        """The guard of each entry from the loop: whatever breaks at the door, the request runs."""
        try:
            step()
        except Exception:
            log.exception("the response cache broke for a request to model '%s'", self._interceptor.version.name)
            if self._waits:
                self._run()
            self._release(None)

    def begin(self) -> None:
        inference = self._inference
        self._began = inference.times[_QUEUE_START] = monotonic_ns()
        self._waits = True
        inference.when_cancelled(self._gone)
        if _bytes_of(inference.request) > LOOKED_AT_BYTES:
            hashed = partial(self._interceptor.key_of, inference)
            self._shared.offload(hashed, lambda key: self.guarded(partial(self._hashed, key)))
            return
        key: bytes | Error
        try:
            key = self._interceptor.key_of(inference)
        except Error as error:
            key = error
        self._hashed(key)

    def _hashed(self, key: bytes | Error) -> None:
        if not self._waits:
            return
        if isinstance(key, Error):
            self._run()  # what is wrong with its memory is said when the model reads it
            return
        self._key = key
        shared = self._shared
        if shared.single_flight:
            flight = shared.flights.setdefault(key, [self])
            if flight[0] is not self and self._may_wait_for(flight[0]):
                flight.append(self)
                return
        shared.cache.lookup(key, lambda found: self.guarded(partial(self._found, found)))

    def _may_wait_for(self, first: "CachedCall") -> bool:
        """Not where a model calls, maybe for the sake of `first`, and not for one that came later and was only hashed
        sooner: where answers keep the order of requests, that one's waits for this one's."""
        return not self._inference.request.inner and first._began <= self._began

    def _found(self, found: bytes | None) -> None:
        entry = None if found is None else self._entry(found)
        if entry is not None:
            self.answer(entry)
            self._release(entry)
        elif self._waits:
            self.run_kept()
        else:
            self._release(None)

    def _entry(self, found: bytes) -> Entry | None:
        try:
            return decoded(found)
        except Invalid as error:
            log.warning("What was found for model '%s' is left alone: %s", self._interceptor.version.name, error)
            return None

    def run_kept(self) -> None:
        """Runs, unless the client has gone; the answer passes here."""
        if not self._waits:
            return
        self._lookup_ns = monotonic_ns() - self._began
        inference = self._inference
        if self._destinations and sum(each.byte_size for each in self._destinations.values()) <= PLACED_BYTES:
            self._places, inference.destinations = True, None
        self._runs = True
        self._run()

    def _run(self) -> None:
        self._waits = False
        self._interceptor.version.run(self._inference)

    def _gone(self) -> None:
        """The client has. From the moment that it runs that is not ours to answer."""
        if self._waits:
            self._waits = False
            cancelled = Cancelled(self._inference.request.log_prefix + "Cancelled")
            self._interceptor.version.settle(self._inference, cancelled)

    def answer(self, entry: Entry) -> None:
        """Answers with what is there, without running."""
        if not self._waits:
            return
        self._waits = False
        if self._destinations and size_of(entry.outputs) > PLACED_BYTES:
            self._shared.offload(partial(self._response, entry), self._settle)
        else:
            self._settle(self._response(entry))

    def _settle(self, answer: InferResponse | Error) -> None:
        self._interceptor.version.settle(self._inference, answer)

    def _response(self, entry: Entry) -> InferResponse | Error:
        """Any thread."""
        outputs, destinations = entry.outputs, self._destinations
        try:
            placed = place(outputs, destinations) if destinations else list(outputs)
        except Error as error:
            return error
        except Exception as error:
            log.exception(
                "writing a response of model '%s' where its client wants it broke", self._interceptor.version.name
            )
            return Internal(f"{type(error).__name__}: {error}")
        version, parameters = self._interceptor.version, entry.parameters
        return InferResponse(self._inference.request.id, version.name, version.number, placed, parameters)

    def _release(self, entry: Entry | None) -> None:
        """Those who wait for this one get the same; or each runs, where it has no answer for others."""
        if self._shared.single_flight:
            self._shared.go_on(deque(self._shared.flights.pop(self._key, [])[1:]), entry)

    def go_on(self, entry: Entry | None) -> None:
        """The one that this waited for is over."""
        if entry is None:
            self.run_kept()
        else:
            self.answer(entry)

    # When it has run: the reply slot.

    def send(self, answer: Answer, final: bool) -> bool:
        if not final or not self._runs:
            return self.slot.send(answer, final)
        inference, entry = self._inference, None
        if isinstance(answer, InferResponse):
            given = Entry(answer.outputs, answer.parameters)
            if inference.destinations is None and on_host(answer.outputs):  # else the client may write to them
                entry = given
            if self._places:
                answer = self._response(given)
        if inference.times[_COMPUTE_START]:
            self._keep(entry)
        writable = self.slot.send(answer, True)
        self._release(entry)
        return writable

    def on_writable(self, resume: Resume) -> None:
        self.slot.on_writable(resume)

    def _keep(self, entry: Entry | None) -> None:
        """Counted as a miss unless an equal request was answered meanwhile (contract K5)."""
        began = monotonic_ns()
        try:
            new = entry is None or self._insert(entry, began)
        except Exception:
            log.exception("keeping a response of model '%s' broke", self._interceptor.version.name)
            return
        if new:
            self._interceptor.counts.missed(self._lookup_ns, monotonic_ns() - began if entry is not None else 0)

    def _insert(self, entry: Entry, now: int) -> bool:
        shared, size = self._shared, size_of(entry.outputs)
        if not shared.cache.room_for(size):
            shared.not_kept(self._key, size, now)
            return True
        if size > COPIED_BYTES:
            shared.offload(partial(_encoded, entry), partial(_insert_later, shared.cache, self._key))
            return True
        made = _encoded(entry)
        return made is None or shared.cache.insert(self._key, made)


def _encoded(entry: Entry) -> bytes | None:
    """None where it cannot be kept. Any thread."""
    try:
        return encoded(entry.outputs, entry.parameters)
    except (Error, struct.error, OverflowError, TypeError, ValueError):
        log.exception("a response cannot be kept")
        return None


def _insert_later(cache: Cache, key: bytes, made: bytes | Error | None) -> None:
    if isinstance(made, bytes):
        cache.insert(key, made)


def _bytes_of(request: InferRequest) -> int:
    return sum(tensor.memory.byte_size for tensor in request.inputs.values())
