"""The log settings that clients can change while the server runs (H124, G12). The protocols have checked the values.

Event-loop thread only.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from halimede.engine_port import LogInfo, LogSettings, Query
from halimede.options import LogOptions

Answers = Mapping[type[Query[Any]], Callable[[Any], Any]]


class Logging:
    """The settings in force. `apply` makes the log follow them."""

    def __init__(self, options: LogOptions, apply: Callable[[LogOptions], None]) -> None:
        self._options = options
        self._apply = apply
        self.answers: Answers = {LogSettings: self._answer}

    def _answer(self, query: LogSettings) -> LogInfo:
        """Applies the changes, then raises the refusal that the query carries, if any: what precedes a wrong value
        stays changed (G12)."""
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
    """The real server keeps the level as a signed number of 32 bits; negative levels mean none."""
    low = value & 0xFFFFFFFF
    return low if low < 1 << 31 else 0
