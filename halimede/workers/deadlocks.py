"""Whether a batch can ever end if models call models (D14).

A running batch waits for the calls made in it. A call waits for the batch that answers it; while it is queued, for one
of the batches that occupy the instances. A batch is deadlocked if every path from it leads back to a batch that waits:
a model that calls itself with its only instance, two models that call each other, or any longer ring.

Pure. Called on the event loop.
"""

from collections.abc import Collection
from typing import Protocol


class WaitingCall(Protocol):
    """A call without its last answer."""

    @property
    def guessed(self) -> bool:
        """Whether the batch only probably waits for it: a thread of the model made it."""
        ...

    def blockers(self) -> Collection["HeldBatch"] | None:
        """The batches of which one must go on for this call to go on; None if the call can go on by itself."""
        ...


class HeldBatch(Protocol):
    """A batch that a worker has. While it is `running`, it occupies its instance."""

    @property
    def running(self) -> bool: ...
    @property
    def waits_for(self) -> Collection[WaitingCall]: ...


def is_deadlocked(batch: HeldBatch, guesses: bool) -> bool:
    """Whether neither this batch nor any batch that it waits for can go on. With `guesses`, guessed calls count too."""
    return _is_deadlocked(batch, guesses, set())


def _is_deadlocked(batch: HeldBatch, guesses: bool, seen: set[int]) -> bool:
    """`seen` are the batches on the path so far, and those that were found to be deadlocked."""
    if id(batch) in seen:  # a ring: only the other paths can still lead to a batch that ends
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
