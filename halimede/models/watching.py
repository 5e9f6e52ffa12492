"""What has changed in the repositories, and when it may be loaded: once it stays as it is (contract R9, D17). Pure.

Told what was seen and the time; remembers what of it was loaded. Event-loop thread only.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from halimede.models.repository import Fingerprint, Look
from halimede.models.resizing import MODEL_FOLDER

LONGEST_WAIT = 16
"""After how many polls at most a model is tried again that could not be loaded and has not changed."""


@dataclass(slots=True)
class _Watched:
    """`seen` is how the folder was at the last look (None: it was not there), and `since` when. `tried` is what the
    last load began with; `failures` counts those since the last one that went well, `again_at` is when to try again.
    `own` are files that the model writes itself while it is loaded, `suspects` those that changed in the last load."""

    seen: Fingerprint | None = None
    since: int = 0
    tried: Fingerprint | None = None
    failures: int = 0
    again_at: int = 0
    own: set[str] = field(default_factory=set)
    suspects: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Todo:
    """By key. `unsettled` are those that still change; `look_at` is when the first of them may be settled."""

    load: tuple[str, ...]
    unload: tuple[str, ...]
    unsettled: tuple[str, ...] = ()
    look_at: int | None = None


class Watch:
    """A folder has settled when it has been the same for `settle`, or nothing in it has changed for so long by the
    clock on the wall. Times are ns; `interval` is that between two polls."""

    def __init__(self, settle: int, interval: int) -> None:
        self._settle = settle
        self._interval = interval
        self._watched: dict[str, _Watched] = {}

    def look(self, found: Mapping[str, Look], busy: Collection[str], now: int, wall: int, took: int = 0) -> Todo:
        """What to do about the folders that were `found`. Those that are `busy` are being loaded: not now.

        `took` is how long ago the looking began, and `wall` the time then: a machine that stalls meanwhile makes no
        folder older than it was seen to be.
        """
        load, unload, unsettled, times = [], [], [], []
        for key in sorted({*found, *self._watched}):
            watched = self._watched.setdefault(key, _Watched(since=now))
            look = found.get(key)
            seen = None if look is None else _without(look.fingerprint, watched.own)
            if seen != watched.seen:
                watched.seen, watched.since = seen, now
            if key in busy or not self._is_due(watched, now):
                continue
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

    @staticmethod
    def _is_due(watched: _Watched, now: int) -> bool:
        return watched.seen != watched.tried or bool(watched.failures and now >= watched.again_at)

    def loaded(self, key: str) -> None:
        watched = self._watched.get(key)
        if watched is not None:
            watched.failures, watched.suspects = 0, frozenset()

    def failed(self, key: str, now: int) -> None:
        """It is tried again after some polls, later each time, and at once when it has changed."""
        watched = self._watched.get(key)
        if watched is not None:
            watched.failures += 1
            watched.again_at = now + self._interval * min(2 ** (watched.failures - 1), LONGEST_WAIT)

    def changed(self, key: str, names: Iterable[str], now: int) -> bool:
        """Files changed while the model was loaded; whether that is no harm, since it writes them itself: they did so
        in the load before, too. Else the model must settle again."""
        watched = self._watched.get(key)
        if watched is None:
            return False
        others = frozenset(names) - watched.own
        if others and (others <= watched.suspects and MODEL_FOLDER not in others):
            watched.own |= others
            watched.tried = None if watched.tried is None else _without(watched.tried, watched.own)
            watched.seen = watched.tried
            return True
        if others:
            watched.suspects = others
            watched.tried, watched.since = None, now
        return not others


def _without(fingerprint: Fingerprint, names: Collection[str]) -> Fingerprint:
    return tuple(entry for entry in fingerprint if entry[0] not in names) if names else fingerprint
