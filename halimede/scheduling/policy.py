"""What a scheduling policy is: a pure object that is told the time and decides who is served next.

A policy does no I/O, reads no clock and starts nothing; the runner is the one impure part. Loop thread only; times are
monotonic nanoseconds.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

from halimede.errors import Error
from halimede.scheduling.inference import Inference


@dataclass(slots=True)
class Batch:
    """The inferences to run at once, in their order, and the instance (by index) to run them on."""

    instance: int
    rows: Sequence[Inference]


@dataclass(frozen=True, slots=True)
class Wake:
    """Nothing is due now; ask again at this time."""

    at: int


Refusals = list[tuple[Inference, Error]]


class Policy(Protocol):
    """Owns the inferences that wait. Requests stay here until they run."""

    def admit(self, inference: Inference, now: int) -> Error | None:
        """Takes the inference into the queue, or says why not."""
        ...

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        """What is due, asked only while an instance is free: `free` are their indices, the longest free first."""
        ...

    def freed(self, instance: int, now: int) -> None:
        """The instance finished its batch."""
        ...

    def released(self, inference: Inference, now: int, again: bool) -> None:
        """An inference that ran is over, or shall run once more."""
        ...

    def cancel(self, inference: Inference, now: int) -> bool:
        """Takes a waiting inference out; False if it does not wait here."""
        ...

    @property
    def expires_at(self) -> int:
        """When `expire` is wanted next, be an instance free or not; 0 for never. Also asked before each `next`."""
        ...

    def expire(self, now: int) -> Refusals:
        """The waiting inferences whose time has passed, taken out."""
        ...

    def resize(self, instances: int, now: int) -> None:
        """The number of instances changed."""
        ...

    @property
    def waiting(self) -> int:
        """How many inferences wait."""
        ...


def is_stateful_policy(policy: object) -> TypeGuard["StatefulPolicy"]:
    """As `isinstance`, which looks up the members of a protocol dozens of times: a thousand models ask."""
    return hasattr(policy, "exchange")


class StatefulPolicy(Protocol):
    """A policy of which something lasts beyond a request. Its `expires_at` counts also where nothing waits."""

    def stop(self) -> None:
        """It begins nothing more and says so when it is asked to; what was begun goes on (contract S3)."""
        ...

    def exchange(self, added: Collection[int], removed: Collection[int], left: Callable[[int], None], now: int) -> None:
        """Instances come and go (contract S73). What was begun on one that goes stays there; `left` is told when
        nothing of it is there any more, perhaps before this returns. Instead of `resize`."""
        ...

    def wants(self, instance: int) -> bool:
        """Whether something waits that can only run on this instance."""
        ...
