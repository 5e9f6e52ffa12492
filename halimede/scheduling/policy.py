"""What a scheduling policy is: an object that has the waiting inferences and decides which of them run next.

A policy does no I/O, reads no clock and starts nothing; the runner does. Loop thread only. Times are monotonic
nanoseconds.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

from halimede.errors import Error
from halimede.scheduling.inference import Inference


@dataclass(slots=True)
class Batch:
    """The inferences to run at once, in order, and the index of the instance to run them on."""

    instance: int
    rows: Sequence[Inference]


@dataclass(frozen=True, slots=True)
class Wake:
    """No batch is due now. Ask again at this time."""

    at: int


Refusals = list[tuple[Inference, Error]]

MAX_EXPIRED_PER_CALL = 256
"""Inferences that `Policy.expire` takes out at once. Their answers take some milliseconds, and clients can choose that
any number of their requests expire in the same moment."""


class Policy(Protocol):
    """Owns the inferences that wait for an instance, until they run."""

    def admit(self, inference: Inference, now: int) -> Error | None:
        """Queues the inference, or returns why it is refused."""
        ...

    def next(self, free: Sequence[int], now: int) -> Batch | Wake | None:
        """The batch that is due, or when to ask again; None if nothing is. Asked only while an instance is free. `free`
        has the indices of these, the longest free first."""
        ...

    def freed(self, instance: int, now: int) -> None:
        """The instance has finished its batch."""
        ...

    def cancel(self, inference: Inference, now: int) -> bool:
        """Takes out a waiting inference. Returns False if it does not wait here."""
        ...

    @property
    def expires_at(self) -> int:
        """When `expire` must be called next, whether an instance is free or not; 0 for never."""
        ...

    def expire(self, now: int) -> Refusals:
        """Takes out waiting inferences whose time has passed, at most `MAX_EXPIRED_PER_CALL`. If more are due,
        `expires_at` is still in the past."""
        ...

    def resize(self, instances: int, now: int) -> None:
        """The number of instances changed."""
        ...

    @property
    def waiting(self) -> int:
        """How many inferences wait."""
        ...


def is_stateful_policy(policy: object) -> TypeGuard["StatefulPolicy"]:
    """Whether the policy is a `StatefulPolicy`."""
    # `isinstance` looks up the members of a protocol dozens of times, for each of a thousand models.
    return hasattr(policy, "change_instances")


class StatefulPolicy(Protocol):
    """A policy with state that outlives a request, such as sequences. Its timers run even if its queue is empty."""

    @property
    def iterative(self) -> bool:
        """Whether a request may run again (S72)."""
        ...

    def released(self, inference: Inference, now: int, again: bool) -> None:
        """An inference that ran is settled, or waits here to run again."""
        ...

    def stop(self) -> None:
        """Rejects only new sequences; requests of those that have begun are still admitted (S3)."""
        ...

    def change_instances(
        self, added: Collection[int], removed: Collection[int], left: Callable[[int], None], now: int
    ) -> None:
        """Adds and removes instances (S73); called instead of `resize`. Sequences on a removed instance stay there to
        their end. Then `left` is called with its index, possibly before this returns."""
        ...

    def wants(self, instance: int) -> bool:
        """Whether something that can only run on this instance waits."""
        ...
