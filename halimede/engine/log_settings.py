"""What clients can set of the log while the server runs (contract H124, G12); what is traced is `tracing`'s business.

What each value may be, the protocols have checked. Event-loop thread only.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from halimede.engine_port import LogInfo, LogSettings, Query
from halimede.options import LogOptions

Answers = Mapping[type[Query[Any]], Callable[[Any], Any]]


class Logging:
    """`apply` makes the log follow its settings."""

    def __init__(self, options: LogOptions, apply: Callable[[LogOptions], None]) -> None:
        self._options = options
        self._apply = apply
        self.answers: Answers = {LogSettings: self._answer}

    def _answer(self, query: LogSettings) -> LogInfo:
        """Raises the refusal that the question carries, after the changes before it."""
        changes: dict[str, Any] = dict(query.changes)
        if "verbose" in changes:
            changes["verbose"] = _verbosity(changes["verbose"])
        if changes:
            self._options = replace(self._options, **changes)
            self._apply(self._options)
        if query.refusal is not None:
            raise query.refusal
        now = self._options
        return LogInfo(now.file, now.info, now.warning, now.error, max(now.verbose, 0), now.format)


def _verbosity(value: int) -> int:
    """The level is a signed number of 32 bits in the real server, and what is below zero counts as none."""
    low = value & 0xFFFFFFFF
    return low if low < 1 << 31 else 0
