"""Whether a batch can ever end, where models call models: who waits for whom (contract D14).

A batch that runs waits for the calls made in it. A call waits for the batch that answers it, or, while it is queued,
for one of those that have the instances. From a batch whose every way leads back into waiting nothing comes any more:
that is the model that calls itself with its only instance, two that call each other, and every longer ring. Pure; on
the event loop.
"""

from collections.abc import Collection
from typing import Protocol


class WaitingCall(Protocol):
    """A call that has not had its last answer."""

    @property
    def guessed(self) -> bool:
        """Whether it is only likely that the batch waits for it: a thread of the model made it."""
        ...

    def blockers(self) -> Collection["HeldBatch"] | None:
        """The batches of which one must go on for this call to go on; None where something else can see to that."""
        ...


class HeldBatch(Protocol):
    """A batch that a worker has. `running`: it keeps its instance from other batches."""

    @property
    def running(self) -> bool: ...
    @property
    def waits_for(self) -> Collection[WaitingCall]: ...


def is_deadlocked(batch: HeldBatch, guesses: bool) -> bool:
    """Whether neither this batch nor any that it waits for can go on. `guesses`: what only is likely counts too."""
    return _is_deadlocked(batch, guesses, set())


def _is_deadlocked(batch: HeldBatch, guesses: bool, seen: set[int]) -> bool:
    """A way back to a batch that was seen leads nowhere new: it is the other ways that matter then."""
    if id(batch) in seen:
        return True
    seen.add(id(batch))
    waits = False
    for call in batch.waits_for if batch.running else ():
        if guesses or not call.guessed:
            if not _leads_nowhere(call, guesses, seen):
                return False
            waits = True
    return waits


def _leads_nowhere(call: WaitingCall, guesses: bool, seen: set[int]) -> bool:
    blockers = call.blockers()
    return blockers is not None and all(_is_deadlocked(batch, guesses, seen) for batch in blockers)
