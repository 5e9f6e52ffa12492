"""The file of `--auth`: read at the start, and again when it changes. Event-loop thread only; other threads read it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from halimede.errors import Error, Invalid
from halimede.front.offload import Offload
from halimede.identities.guard import Guard
from halimede.identities.values import Identities
from halimede.options import ServerOptions
from halimede.platform.slices import run_in_slices

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the file."""

State = tuple[int, int, int, int]
"""What changes if a file or its mode changes: its inode, times of change and size."""


@dataclass(frozen=True, slots=True)
class _Change:
    """What the file says now, and in words what has changed; no words if nothing has."""

    identities: Identities
    text: str


def open_guard(options: ServerOptions) -> Guard | None:
    """Returns the guard of the server; None without `--auth`. Raises Invalid if the file cannot be used."""
    if not options.auth:
        return None
    # Most servers have no such file, and start sooner without it.
    from halimede.identities.file import read_identities

    try:
        identities = read_identities(Path(options.auth))
    except Invalid as error:
        raise Invalid(f"--auth: {error}") from None
    if not identities:
        log.warning(
            "--auth: '%s' has no identities, so every request is refused; 'halimede auth add' makes one", options.auth
        )
    return Guard(identities)


class IdentityWatch:
    """Reads the file again when it changes, and gives the guard what it says. A file that cannot be used changes
    nothing."""

    def __init__(
        self, path: Path, guard: Guard, offload: Offload, call_later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._path = path
        self._guard = guard
        self._offload = offload
        self._call_later = call_later
        self._state: State | None = None
        """Of the file that was read last."""
        self._seen: State | None = None
        """At the last look."""
        self._problem = ""
        self._ended = False

    def begin(self) -> None:
        """Looks at once, because the file may have changed since the guard was made."""
        self._look()

    def end(self) -> None:
        self._ended = True

    def _look(self) -> None:
        if not self._ended:
            self._offload(self._read, self._taken)

    def _read(self) -> _Change | None:
        """Any thread. Returns what has changed, if anything has. The file may be on a disk that hangs."""
        try:
            state = self._path.stat()
        except OSError as error:
            raise Invalid(f"cannot read '{self._path}': {error.strerror or error}") from None
        now = state.st_ino, state.st_mtime_ns, state.st_ctime_ns, state.st_size
        seen, self._seen = self._seen, now
        # A file that is being written may lack the end of a table, with its limits or the day on which it expires. So a
        # change is read if the next look finds it as it was. The first look has to find what changed during the start.
        if now == self._state or (seen is not None and now != seen):
            return None
        # Before it is read: a later change is then seen by the next look. A file that is wrong is not read again.
        self._state = now
        from halimede.identities.file import read_identities  # `open_guard` has imported it

        identities = read_identities(self._path)
        # Nothing else replaces the identities of the guard, and not while this thread looks at them.
        return _Change(identities, changes(self._guard.identities, identities))

    def _taken(self, change: _Change | Error | None) -> None:
        if isinstance(change, Error):
            self._say(str(change))
        elif change is not None:
            self._problem = ""
            if change.text:
                log.info("--auth: '%s' was read again: %s", self._path, change.text)
                # Tens of thousands of identities take longer than a turn of the loop may take.
                call_soon = partial(self._call_later, 0)
                run_in_slices(self._guard.replacing(change.identities), self._look_later, call_soon)
                return
        self._look_later()

    def _look_later(self, result: Error | None = None) -> None:
        if result is not None:
            self._say(str(result))
        if not self._ended:
            self._call_later(LOOK_SECONDS, self._look)

    def _say(self, problem: str) -> None:
        # Once, and not with each look.
        if problem != self._problem:
            log.error("--auth: %s; the identities stay as they were", problem)
        self._problem = problem


def changes(old: Identities, new: Identities) -> str:
    """Returns in words what a change of the file has changed."""
    parts = {
        "added": [name for name in new if name not in old],
        "changed": [name for name in new if name in old and new[name] != old[name]],
        "removed": [name for name in old if name not in new],
    }
    texts = [f"{word} {_some(names)}" for word, names in parts.items() if names]
    return ", ".join(texts)


def _some(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"
