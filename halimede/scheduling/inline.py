"""Decides when a batch may run on the event loop: if batches of its size were quick, and only a little in each turn.

Handing a batch to a thread and back costs more than a small model computes, but a long run on the loop delays every
client. Measurements: docs/decisions/inline-execution.md. Loop thread only.
"""

from collections.abc import Callable

QUICK_NS = 100_000
"""A run on the loop that takes longer is slow."""
PROMISING_NS = 200_000
"""A run on a thread that takes longer is slow: waking and sharing the interpreter are part of it."""
LONG_NS = 1_000_000
"""A run on the loop of this length starts a cooldown."""
TURN_NS = 200_000
"""Inline work in one turn of the loop."""
SLOW_SHARE = 0.25
"""A size with fewer slow runs than this on the loop is quick. If clients share the cores with the server, the operating
system makes more than one run in twenty slow."""
SLOW_THREAD_SHARE = 0.5
"""A size with fewer slow runs than this on threads is tried on the loop."""
WINDOW = 512
"""Runs that the share of slow ones is averaged over."""
ENOUGH = 16
"""Runs after which a size is judged."""
TRIAL_EVERY = 512
"""Runs on threads between two trials on the loop."""
RUNS_PER_LONG = 5
"""Quick runs on a thread that make up for a run of `LONG_NS` on the loop."""
PLACED_BYTES = 4 << 20
"""Bytes of a batch's outputs that the loop writes to their destinations: 0.4 ms at 10 GB/s, as long as sending them
takes. This time is not the model's, so `InlineEligibility` does not count it."""


_ROW_BITS = 6
"""Bits of a key that are for the number of bits of the rows."""


def cooldown_after(ns: int) -> int:
    """Quick runs on a thread before the loop is tried again after a run of `ns` there. Grows with the square: hiccups
    of the system last a few milliseconds, a model that blocks the loop may take much longer."""
    return RUNS_PER_LONG * ns * ns // LONG_NS**2


class _Place:
    """Batches of one size on the loop, or on the threads: their number and a moving share of slow ones. A share, so
    that one interruption by the operating system does not count as the model's."""

    __slots__ = ("runs", "slow_share")

    def __init__(self) -> None:
        self.runs = 0
        self.slow_share = 0.0

    def ran(self, slow: bool) -> None:
        self.runs = runs = self.runs + 1
        if slow or self.slow_share:
            self.slow_share += (slow - self.slow_share) / (runs if runs < WINDOW else WINDOW)  # `min` is slower


class _Size:
    """What is known of batches of one size. `runs_since_loop`: runs on threads since the last one on the loop.
    `allowed`: whether the next one may run on the loop."""

    __slots__ = ("allowed", "loop", "runs_since_loop", "threads")

    def __init__(self) -> None:
        self.loop = _Place()
        self.threads = _Place()
        self.runs_since_loop = 0
        self.allowed = False

    def decide(self) -> None:
        loop = self.loop
        quick = loop.runs >= ENOUGH and loop.slow_share < SLOW_SHARE
        self.allowed = quick or self._on_trial()

    def _on_trial(self) -> bool:
        """Whether to measure it on the loop."""
        if self.threads.runs < ENOUGH or self.threads.slow_share >= SLOW_THREAD_SHARE:
            return False
        # A trial is ENOUGH runs in a row, since the first have cold caches.
        return self.loop.runs % ENOUGH != 0 or not self.loop.runs or self.runs_since_loop >= TRIAL_EVERY


class InlineEligibility:
    """Which batches of one model version may run on the loop, by the powers of two of their rows and of their bytes.

    Without the bytes, a client could make a size quick with small requests, and then hold the loop with a large one.

        state of a size   next state
        ---------------   --------------------------------------------------------------------------------------
        on threads        trial: after ENOUGH runs of which half took less than 200 us, and again every TRIAL_EVERY
        trial on loop     quick: if after ENOUGH runs less than one in four took over 100 us; else on threads
        quick             on threads: when more take longer

    A run of over 1 ms on the loop puts the whole version on its threads for a cooldown, which ends after a number of
    quick runs there. A long run during the cooldown makes it longer.
    """

    __slots__ = ("_cooldown", "_safe", "_sizes", "inline_runs")

    def __init__(self, inline_safe: bool) -> None:
        self._safe = inline_safe
        self._sizes: dict[int, _Size] = {}
        """By the numbers of bits of the rows and of the bytes of the inputs."""
        self._cooldown = 0
        self.inline_runs = 0

    def allows(self, rows: int, input_bytes: int = 0) -> bool:
        size = self._sizes.get(input_bytes.bit_length() << _ROW_BITS | rows.bit_length())
        return size is not None and size.allowed and not self._cooldown and self._safe

    def ran(self, rows: int, ns: int, on_loop: bool, input_bytes: int = 0) -> None:
        """A batch of `rows` rows and `input_bytes` took `ns`."""
        key = input_bytes.bit_length() << _ROW_BITS | rows.bit_length()
        size = self._sizes.get(key)
        if size is None:
            size = self._sizes[key] = _Size()
        if on_loop:
            self.inline_runs += 1
            size.runs_since_loop = 0
            size.loop.ran(ns >= QUICK_NS)
        else:
            size.runs_since_loop += 1
            size.threads.ran(ns >= PROMISING_NS)
        size.decide()
        if ns >= LONG_NS and (on_loop or self._cooldown):
            self._cooldown = max(self._cooldown, cooldown_after(ns))
        elif self._cooldown and ns < PROMISING_NS:
            self._cooldown -= 1


class TurnBudget:
    """The inline work of one engine in the present turn of its loop; `left` says whether more is allowed.

    `call_soon` runs a callback in the next turn, which resets the budget. No callback is set before half of the budget
    is spent, since most turns spend little; that work counts in the next turn too. So a turn has 100 to 200 us.
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
