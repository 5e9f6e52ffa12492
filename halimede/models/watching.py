"""Decides which models a poll loads and unloads: those whose folders have changed and settled (R9, D17).

Pure: it is given the looks of the folders and the time. Event-loop thread only.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from halimede.models.repository import Fingerprint, Look
from halimede.models.resizing import MODEL_FOLDER

MAX_POLLS_BETWEEN_TRIES = 16
"""The most polls between two loads of a model that fails and has not changed."""


@dataclass(slots=True)
class _Watched:
    """What is known of a model's folder."""

    seen: Fingerprint | None = None
    """At the last look; None if it was not there."""
    since: int = 0
    """The time when it first looked like that."""
    tried: Fingerprint | None = None
    """When the last load began."""
    failures: int = 0
    """Failed loads since the last one that succeeded."""
    again_at: int = 0
    """The time of the next try after a failure."""
    own: set[str] = field(default_factory=set)
    """Files that the model writes itself while it is loaded."""
    suspects: frozenset[str] = frozenset()
    """Files that changed during the last load."""


@dataclass(frozen=True, slots=True)
class Todo:
    """Models by key. `unsettled` still change; `look_at` is the time when the first of them may have settled."""

    load: tuple[str, ...]
    unload: tuple[str, ...]
    unsettled: tuple[str, ...] = ()
    look_at: int | None = None


class Watch:
    """A folder has settled if it looked the same for `settle`, or if its last change is as long ago by the wall clock.

    Times are nanoseconds. `interval` is the time between two polls.
    """

    def __init__(self, settle: int, interval: int) -> None:
        self._settle = settle
        self._interval = interval
        self._watched: dict[str, _Watched] = {}

    def look(self, found: Mapping[str, Look], busy: Collection[str], now: int, wall: int, took: int = 0) -> Todo:
        """What to do about the folders that were `found`. Nothing is done about `busy` models, which are being loaded.

        `took` is how long ago the looks began, and `wall` the wall-clock time then. Without them a machine that stalls
        during the looks would make folders seem older than they were when they were looked at.
        """
        load, unload, unsettled, times = [], [], [], []
        for key in sorted({*found, *self._watched}):
            watched = self._watched.setdefault(key, _Watched(since=now))
            look = found.get(key)
            # Files that the model writes itself do not count, or each of its loads would cause another one.
            seen = None if look is None else _without(look.fingerprint, watched.own)
            if seen != watched.seen:
                watched.seen, watched.since = seen, now
            if key in busy or not self._is_due(watched, now):
                continue
            # A folder in the middle of a copy must not be loaded, and one that is being replaced not be unloaded.
            at = watched.since + self._settle
            if now - took < at and (look is None or wall - look.changed_at < self._settle):
                unsettled.append(key)
                times.append(at)
            elif seen is None:
                unload.append(key)
                del self._watched[key]
            else:
                watched.tried = seen
                load.append(key)
        return Todo(tuple(load), tuple(unload), tuple(unsettled), min(times, default=None))

    @property
    def suspected(self) -> bool:
        """Whether files of a model changed during its last load, so that it must be loaded once more."""
        return any(watched.suspects for watched in self._watched.values())

    @staticmethod
    def _is_due(watched: _Watched, now: int) -> bool:
        return watched.seen != watched.tried or bool(watched.failures and now >= watched.again_at)

    def loaded(self, key: str) -> None:
        """The model was loaded."""
        watched = self._watched.get(key)
        if watched is not None:
            watched.failures, watched.suspects = 0, frozenset()

    def failed(self, key: str, now: int) -> None:
        """The load failed. It is tried again after twice as many polls as before, or once the folder has changed."""
        watched = self._watched.get(key)
        if watched is not None:
            watched.failures += 1
            watched.again_at = now + self._interval * min(2 ** (watched.failures - 1), MAX_POLLS_BETWEEN_TRIES)

    def changed(self, key: str, names: Iterable[str], now: int) -> bool:
        """Files changed while the model was loaded. Returns whether the load counts all the same.

        It does if the same files changed during the load before: then the model writes them itself. Otherwise the
        folder must settle again.
        """
        watched = self._watched.get(key)
        if watched is None:
            return False
        others = frozenset(names) - watched.own
        # The same files changed in two loads in a row: the model writes them. It does not remove its own folder.
        if others and (others <= watched.suspects and MODEL_FOLDER not in others):
            watched.own |= others
            watched.tried = None if watched.tried is None else _without(watched.tried, watched.own)
            watched.seen = watched.tried
            return True
        # Somebody else may have written them: what was loaded may be half of a copy.
        if others:
            watched.suspects = others
            watched.tried, watched.since = None, now
        return not others


def _without(fingerprint: Fingerprint, names: Collection[str]) -> Fingerprint:
    return tuple(entry for entry in fingerprint if entry[0] not in names) if names else fingerprint
