"""The response cache in the path of a request, between the engine and a model version with `response_cache` enabled.

It looks a request up before it is queued (K4) and inserts the response after it ran (K5). With `single_flight`, equal
requests wait for the first of them instead of running too. Inferences of other versions never pass here. Event-loop
thread only; large inputs are hashed and large outputs copied on other threads.
"""

import logging
import os
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Protocol

from halimede.backends.registry import traits_of
from halimede.backends.runtimes import PYTHON_BASED
from halimede.cache.api import Cache, CacheCounts
from halimede.cache.entries import Entry, decoded, encoded, size_of
from halimede.cache.keys import key_of, make_private, on_host
from halimede.config import ModelConfig
from halimede.engine.offload import Offload
from halimede.errors import Cancelled, Error, Internal, Invalid
from halimede.requests import Answer, InferRequest, InferResponse, Reply, Resume, Stamp
from halimede.scheduling.assembly import place
from halimede.scheduling.inference import Inference
from halimede.scheduling.inline import PLACED_BYTES

log = logging.getLogger(__name__)

MAX_HASHED_ON_LOOP_BYTES = 128 << 10
"""Larger inputs are hashed on another thread: this many take less than 0.1 ms."""
MAX_COPIED_ON_LOOP_BYTES = 1 << 20
"""Larger outputs are copied on another thread: this many take 0.1 ms."""
LOG_INTERVAL_NS = 60_000_000_000
"""Time between two log lines about entries that do not fit."""
MAX_RESUMED_PER_TURN = 64
"""Requests that continue in one turn of the loop after the request that they waited for."""

_COMPUTE_START = int(Stamp.COMPUTE_START)
_QUEUE_START = int(Stamp.QUEUE_START)


class Version(Protocol):
    """The model version behind the cache."""

    @property
    def name(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def config(self) -> ModelConfig: ...
    @property
    def contents(self) -> bytes: ...
    def enter(self, inference: Inference) -> None:
        """Registers an inference that will be run or settled. Its reply slot must not change after this."""
        ...

    def run(self, inference: Inference) -> None:
        """Queues the inference."""
        ...

    def settle(self, inference: Inference, answer: InferResponse | Error) -> None:
        """Ends an inference that was never queued."""
        ...


class Counts(Protocol):
    """Counts cache misses. A hit is counted as an inference that succeeded without running."""

    def missed(self, lookup_ns: int, insertion_ns: int) -> None: ...


class ResponseCache:
    """One for all models. With `single_flight`, equal requests do not run at the same time."""

    def __init__(
        self, cache: Cache, offload: Offload, call_soon: Callable[[Callable[[], None]], object], single_flight: bool
    ) -> None:
        self._call_soon = call_soon
        self.cache = cache
        self.offload = offload
        self.single_flight = single_flight
        self.in_flight: dict[bytes, list[CachedCall]] = {}
        """By cache key: the first of equal requests, followed by those that wait for it."""
        self._log_at = self._unlogged = 0

    @property
    def counts(self) -> CacheCounts | None:
        return self.cache.counts

    def close(self) -> None:
        self.cache.close()

    def resume(self, waiting: "deque[CachedCall]", entry: Entry | None) -> None:
        """Continues the waiting requests, at most `MAX_RESUMED_PER_TURN` in one turn of the loop."""
        for _ in range(min(len(waiting), MAX_RESUMED_PER_TURN)):
            call = waiting.popleft()
            call.guarded(partial(call.resume, entry))
        if waiting:
            self._call_soon(partial(self.resume, waiting, entry))

    def not_kept(self, key: bytes, size: int, now: int) -> None:
        """Logs that an entry is larger than the cache (K7), at most once per `LOG_INTERVAL_NS`."""
        self._unlogged += 1
        counts = self.cache.counts
        if counts is not None and now >= self._log_at:
            self._log_at = now + LOG_INTERVAL_NS
            log.error(
                "Failed to insert key [%s] into response cache: Requested byte_size: %d is greater than total cache "
                "size: %d (%d since the last such message)",
                *(key.hex(), size, counts.size, self._unlogged),
            )
            self._unlogged = 0


class CacheInterceptor:
    """Takes the inferences of one model version in the version's place.

    Cache keys contain the version. If other servers share the cache, it stands there as a digest of its files. Else it
    is a random number, so that a reloaded version never finds responses of the version before it.
    """

    def __init__(self, shared: ResponseCache, version: Version, counts: Counts) -> None:
        self.shared = shared
        self.version = version
        self.counts = counts
        self._identity = version.contents if shared.cache.shared else os.urandom(32)
        config = version.config
        traits = traits_of(config.backend)
        self._seen = traits is None or not traits.tensors_only or config.runtime == PYTHON_BASED

    def submit(self, inference: Inference) -> None:
        """Looks the inference up, or queues it directly if a device holds its inputs: a device is not read to hash
        them."""
        if on_host(inference.request.inputs.values()):
            inference.reply = call = CachedCall(self, inference)
            self.version.enter(inference)
            call.guarded(call.begin)
        else:
            self.version.enter(inference)
            self.version.run(inference)

    def key_of(self, inference: Inference) -> bytes:
        """The cache key of a request. Raises Error if its inputs cannot be read. Any thread."""
        request = inference.request
        make_private(request)
        return key_of(self._identity, request, inference.outputs, self._seen)


class CachedCall:
    """One inference on its way through the cache. It is the inference's reply slot, in front of the client's (`slot`).

    Life: `begin` computes the key; a lookup follows, or waiting for an equal request that runs already (`in_flight`);
    then either `answer` from the cache, or `run_and_keep`, whose response passes `send` and is inserted.
    """

    __slots__ = (
        "_began",
        "_destinations",
        "_inference",
        "_interceptor",
        "_keeps",
        "_key",
        "_lookup_ns",
        "_places",
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
        self._waits = self._keeps = False
        """Whether it has not been queued or answered yet; and whether the response is to be inserted."""
        self._destinations = inference.destinations
        self._places = False
        """Whether this object copies the outputs to the client's shared memory, after it inserted them."""

    # Before it runs.

    def guarded(self, step: Callable[[], None]) -> None:
        """Runs a step that the event loop calls. If it fails, the request runs without the cache."""
        try:
            step()
        except Exception:
            log.exception(
                "model '%s': response cache lookup failed; the request runs without the cache",
                self._interceptor.version.name,
            )
            if self._waits:
                self._run()
            self._release(None)

    def begin(self) -> None:
        inference = self._inference
        self._began = inference.times[_QUEUE_START] = monotonic_ns()
        self._waits = True
        inference.when_cancelled(self._gone)
        if _bytes_of(inference.request) > MAX_HASHED_ON_LOOP_BYTES:
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
            self._run()  # the model reports what is wrong with the memory when it reads it
            return
        self._key = key
        shared = self._shared
        if shared.single_flight:
            equal = shared.in_flight.setdefault(key, [self])
            if equal[0] is not self and self._may_wait_for(equal[0]):
                equal.append(self)
                return
        shared.cache.lookup(key, lambda found: self.guarded(partial(self._found, found)))

    def _may_wait_for(self, first: "CachedCall") -> bool:
        """Whether waiting for `first` cannot deadlock.

        A call of a model must not wait: it may be made to answer `first`. Nor may a request wait for one that arrived
        later and was hashed sooner: if answers keep the order of requests, that one's answer waits for this one's.
        """
        return not self._inference.request.inner and first._began <= self._began

    def _found(self, found: bytes | None) -> None:
        entry = None if found is None else self._entry(found)
        if entry is not None:
            self.answer(entry)
            self._release(entry)
        elif self._waits:
            self.run_and_keep()
        else:
            self._release(None)

    def _entry(self, found: bytes) -> Entry | None:
        try:
            return decoded(found)
        except Invalid as error:
            log.warning(
                "model '%s': ignored a cache entry that cannot be read: %s", self._interceptor.version.name, error
            )
            return None

    def run_and_keep(self) -> None:
        """Queues the inference and inserts its response later, unless the client has gone."""
        if not self._waits:
            return
        self._lookup_ns = monotonic_ns() - self._began
        inference = self._inference
        # What is written straight to the client's memory may change before it is inserted: small outputs are copied
        # here.
        if self._destinations and sum(each.byte_size for each in self._destinations.values()) <= PLACED_BYTES:
            self._places, inference.destinations = True, None
        self._keeps = True
        self._run()

    def _run(self) -> None:
        self._waits = False
        self._interceptor.version.run(self._inference)

    def _gone(self) -> None:
        """The client has gone. After it is queued, the runner answers that."""
        if self._waits:
            self._waits = False
            cancelled = Cancelled(self._inference.request.log_prefix + "Cancelled")
            self._interceptor.version.settle(self._inference, cancelled)

    def answer(self, entry: Entry) -> None:
        """Answers from the cache."""
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
        """The response that an entry makes, its outputs copied to the client's memory if it asked for that. Any
        thread."""
        outputs, destinations = entry.outputs, self._destinations
        try:
            placed = place(outputs, destinations) if destinations else list(outputs)
        except Error as error:
            return error
        except Exception as error:
            log.exception(
                "model '%s': failed to copy a cached response to the client's shared memory",
                self._interceptor.version.name,
            )
            return Internal(f"{type(error).__name__}: {error}")
        version, parameters = self._interceptor.version, entry.parameters
        return InferResponse(self._inference.request.id, version.name, version.number, placed, parameters)

    def _release(self, entry: Entry | None) -> None:
        """Continues the requests that wait for this one: with its entry, or by running them if it has none."""
        in_flight = self._shared.in_flight
        equal = in_flight.get(self._key)
        if equal is not None and equal[0] is self:  # else they wait for another call, as this one may not wait
            del in_flight[self._key]
            self._shared.resume(deque(equal[1:]), entry)

    def resume(self, entry: Entry | None) -> None:
        """The request that this one waited for is over."""
        if entry is None:
            self.run_and_keep()
        else:
            self.answer(entry)

    # After it ran: the reply slot.

    def send(self, answer: Answer, final: bool) -> bool:
        if final:
            # This object and the inference refer to each other, which would keep the request until the garbage
            # collector runs.
            self._inference.reply = self.slot
            self._inference.when_cancelled(_nothing)
        if not final or not self._keeps:
            return self.slot.send(answer, final)
        inference, entry = self._inference, None
        if isinstance(answer, InferResponse):
            given = Entry(answer.outputs, answer.parameters)
            # Outputs in the client's memory cannot be inserted: the client may write to them meanwhile.
            if inference.destinations is None and on_host(answer.outputs):
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
        """Inserts the entry and counts a miss, unless an equal request was inserted meanwhile (K5)."""
        began = monotonic_ns()
        try:
            new = entry is None or self._insert(entry, began)
        except Exception:
            log.exception("model '%s': failed to insert a response into the cache", self._interceptor.version.name)
            return
        if new:
            self._interceptor.counts.missed(self._lookup_ns, monotonic_ns() - began if entry is not None else 0)

    def _insert(self, entry: Entry, now: int) -> bool:
        shared, size = self._shared, size_of(entry.outputs)
        if not shared.cache.room_for(size):
            shared.not_kept(self._key, size, now)
            return True
        if size > MAX_COPIED_ON_LOOP_BYTES:
            shared.offload(partial(_encoded, entry), partial(_insert_later, shared.cache, self._key))
            return True
        made = _encoded(entry)
        return made is None or shared.cache.insert(self._key, made)


def _nothing() -> None:
    """What a cancel after the last answer does."""


def _encoded(entry: Entry) -> bytes | None:
    """The entry as bytes, or None if it has no such form. Any thread."""
    try:
        return encoded(entry.outputs, entry.parameters)
    except (Error, struct.error, OverflowError, TypeError, ValueError):
        log.exception("failed to insert a response into the cache")
        return None


def _insert_later(cache: Cache, key: bytes, made: bytes | Error | None) -> None:
    if isinstance(made, bytes):
        cache.insert(key, made)


def _bytes_of(request: InferRequest) -> int:
    return sum(tensor.memory.byte_size for tensor in request.inputs.values())
