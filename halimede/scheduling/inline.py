"""When a batch may run on the event loop itself: only where it was measured to be quick, and only a little per turn.

Handing a batch to a thread and back costs more than a small model does; a long run on the loop delays everybody. The
rule and its numbers: docs/decisions/inline-execution.md. Loop thread only.
"""

from collections.abc import Callable

QUICK_NS = 50_000
LONG_NS = 1_000_000
TURN_NS = 200_000
SLOW_SHARE = 0.01
WINDOW = 512
ENOUGH = 16
PENANCE = 64


class _Size:
    """What is known of batches of one size."""

    __slots__ = ("runs", "slow_share")

    def __init__(self) -> None:
        self.runs = 0
        self.slow_share = 0.0


class Quickness:
    """How long the batches of one model version took, per power of two of their rows.

    A size is quick when it was seen often enough and less than one run in a hundred took longer than 50 us (a moving
    share, so that one interruption by the operating system is not taken for the model's fault). A run of over 1 ms on
    the loop sends the whole version back to its threads for 64 quick runs, then 128, 256 and so on.
    """

    __slots__ = ("_penance", "_safe", "_sizes", "_strikes")

    def __init__(self, inline_safe: bool) -> None:
        self._safe = inline_safe
        self._sizes: dict[int, _Size] = {}
        self._penance = 0
        self._strikes = 0

    def allows(self, rows: int) -> bool:
        if not self._safe or self._penance:
            return False
        size = self._sizes.get(rows.bit_length())
        return size is not None and size.runs >= ENOUGH and size.slow_share < SLOW_SHARE

    def ran(self, rows: int, ns: int, on_loop: bool) -> None:
        """A batch of so many rows took `ns`."""
        size = self._sizes.get(rows.bit_length())
        if size is None:
            size = self._sizes[rows.bit_length()] = _Size()
        size.runs += 1
        slow = ns >= QUICK_NS
        size.slow_share += (slow - size.slow_share) / min(size.runs, WINDOW)
        if not slow:
            self._penance = max(0, self._penance - 1)
        elif on_loop and ns >= LONG_NS:
            self._penance = PENANCE << self._strikes
            self._strikes += 1


class TurnBudget:
    """The inline work of one engine in the present turn of its loop.

    `call_soon` runs a callback in the next turn.
    """

    __slots__ = ("_armed", "_call_soon", "_spent")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._spent = 0
        self._armed = False

    @property
    def left(self) -> bool:
        return self._spent < TURN_NS

    def spend(self, ns: int) -> None:
        self._spent += ns
        if not self._armed:
            self._armed = True
            self._call_soon(self._turned)

    def _turned(self) -> None:
        self._armed = False
        self._spent = 0
