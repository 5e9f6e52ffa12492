"""When a batch may run on the event loop itself: only where it was measured to be quick, and only a little per turn.

Handing a batch to a thread and back costs more than a small model does; a long run on the loop delays everybody. The
rule and its numbers: docs/decisions/inline-execution.md. Loop thread only.
"""

from collections.abc import Callable

QUICK_NS = 100_000
PROMISING_NS = 200_000
LONG_NS = 1_000_000
TURN_NS = 200_000
SLOW_SHARE = 0.05
WINDOW = 512
ENOUGH = 16
TRIAL_EVERY = 512
RUNS_PER_LONG = 5
PLACED_BYTES = 4 << 20
"""How much of a batch's outputs the loop writes to where they are wanted: 0.4 ms at the usual 10 GB/s, which is what
sending as much would take. That is no time of the model, so `InlineEligibility` is not told of it."""


def cooldown_after(ns: int) -> int:
    """The quick runs on a thread that pay for a long one on the loop: with the square of its length, since hiccups of
    the system last a few milliseconds, and what a model does to everybody may last much longer."""
    return RUNS_PER_LONG * ns * ns // LONG_NS**2


class _Place:
    """Batches of one size in one place, the loop or the threads: how many ran there, and a moving share of slow ones
    (a share, so that one interruption by the operating system is not taken for the model's fault)."""

    __slots__ = ("runs", "slow_share")

    def __init__(self) -> None:
        self.runs = 0
        self.slow_share = 0.0

    def ran(self, slow: bool) -> None:
        self.runs = runs = self.runs + 1
        if slow or self.slow_share:
            self.slow_share += (slow - self.slow_share) / (runs if runs < WINDOW else WINDOW)  # `min` takes longer


class _Size:
    """What is known of batches of one size. `rests`: the runs on threads since the last one on the loop. `allowed`:
    whether the next one may be there, as `decide` has found."""

    __slots__ = ("allowed", "loop", "rests", "threads")

    def __init__(self) -> None:
        self.loop = _Place()
        self.threads = _Place()
        self.rests = 0
        self.allowed = False

    def decide(self) -> None:
        loop = self.loop
        quick = loop.runs >= ENOUGH and loop.slow_share < SLOW_SHARE
        self.allowed = quick or self._on_trial()

    def _on_trial(self) -> bool:
        """Whether to find out what it takes on the loop. So many runs in a row, since the first have cold caches."""
        if self.threads.runs < ENOUGH or self.threads.slow_share >= SLOW_SHARE:
            return False
        return self.loop.runs % ENOUGH != 0 or not self.loop.runs or self.rests >= TRIAL_EVERY


class InlineEligibility:
    """How long the batches of one model version took, per power of two of their rows.

    A size is quick when enough of its runs on the loop were seen and less than one in twenty took longer than 100 us.
    What a run takes on a thread says little of that, since it is waking and sharing the interpreter that make it slow
    there; so a size that rarely takes over 200 us on its threads is tried on the loop now and then.
    A run of over 1 ms on the loop sends the whole version back to its threads until it has paid (`cooldown_after`).
    A long run meanwhile, though it delayed nobody, has its own price.
    """

    __slots__ = ("_cooldown", "_safe", "_sizes", "inline_runs")

    def __init__(self, inline_safe: bool) -> None:
        self._safe = inline_safe
        self._sizes: dict[int, _Size] = {}
        self._cooldown = 0
        self.inline_runs = 0

    def allows(self, rows: int) -> bool:
        size = self._sizes.get(rows.bit_length())
        return size is not None and size.allowed and not self._cooldown and self._safe

    def ran(self, rows: int, ns: int, on_loop: bool) -> None:
        """A batch of so many rows took `ns`."""
        size = self._sizes.get(rows.bit_length())
        if size is None:
            size = self._sizes[rows.bit_length()] = _Size()
        if on_loop:
            self.inline_runs += 1
            size.rests = 0
            size.loop.ran(ns >= QUICK_NS)
        else:
            size.rests += 1
            size.threads.ran(ns >= PROMISING_NS)
        size.decide()
        if ns >= LONG_NS and (on_loop or self._cooldown):
            self._cooldown = max(self._cooldown, cooldown_after(ns))
        elif self._cooldown and ns < PROMISING_NS:
            self._cooldown -= 1


class TurnBudget:
    """The inline work of one engine in the present turn of its loop; `left` says whether there may be more.

    `call_soon` runs a callback in the next turn. What little was done counts on in the next turn, so that a callback is
    not wanted for each: a turn has 100 us at least and 200 us at most.
    """

    __slots__ = ("_armed", "_call_soon", "_spent", "left")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._spent = 0
        self._armed = False
        self.left = True

    def spend(self, ns: int) -> None:
        self._spent = spent = self._spent + ns
        if spent >= TURN_NS // 2:
            self.left = spent < TURN_NS
            if not self._armed:
                self._armed = True
                self._call_soon(self._turned)

    def _turned(self) -> None:
        self._armed = False
        self._spent = 0
        self.left = True
