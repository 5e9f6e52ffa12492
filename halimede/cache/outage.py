"""Whether it is worth asking a server that may be gone: all the time while it answers, once a second while it does not.

Pure, told the time (monotonic nanoseconds).
"""

PAUSE_NS = 1_000_000_000


class Outage:
    """While it lasts a single question is let through now and then, to see whether it is over."""

    def __init__(self) -> None:
        self._lasts = self._probing = False
        self._ask_at = 0

    @property
    def lasts(self) -> bool:
        return self._lasts

    def may_ask(self, now: int) -> bool:
        """Whoever is told True must say later what came of it."""
        if not self._lasts:
            return True
        if self._probing or now < self._ask_at:
            return False
        self._probing = True
        return True

    def failed(self, now: int) -> bool:
        """There was no answer, or none in time; True where an outage begins with that."""
        begins, self._lasts = not self._lasts, True
        self._probing = False
        self._ask_at = now + PAUSE_NS
        return begins

    def answered(self) -> bool:
        """True where an outage is over with that."""
        was, self._lasts = self._lasts, False
        self._probing = False
        return was
