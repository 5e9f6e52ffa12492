"""The graph of ensembles and their members, by key: in which order to load them, and which ensembles a change of a
model concerns (S83).

Knows names only; pure. `loading.ensembles` keeps one on the event loop, so each question takes a time that grows with
the ensembles it is about, and a long chain of ensembles is no deep recursion.
"""

from collections.abc import Collection, Iterable, Iterator


class Dependencies:
    """The members of each known ensemble. A member may be unknown, or may be no ensemble."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[str, ...]] = {}
        self._users: dict[str, set[str]] = {}
        """By member, the ensembles that have it among their direct members."""

    def __contains__(self, ensemble: str) -> bool:
        return ensemble in self._members

    def learn(self, ensemble: str, members: Iterable[str]) -> None:
        """Adds an ensemble, or replaces its members."""
        self.forget(ensemble)
        self._members[ensemble] = known = tuple(members)
        for member in known:
            self._users.setdefault(member, set()).add(ensemble)

    def forget(self, ensemble: str) -> None:
        for member in self._members.pop(ensemble, ()):
            users = self._users.get(member, set())
            users.discard(ensemble)
            if not users:
                self._users.pop(member, None)

    def members(self, ensemble: str) -> tuple[str, ...]:
        """The direct members."""
        return self._members.get(ensemble, ())

    def circle(self, ensemble: str) -> list[str]:
        """A path from an ensemble to itself, with both ends. Empty if there is none."""
        came_from: dict[str, str] = {}
        waiting = [ensemble]
        while waiting:
            each = waiting.pop()
            for member in self.members(each):
                if member == ensemble:
                    path = [ensemble, each]
                    while path[-1] != ensemble:
                        path.append(came_from[path[-1]])
                    return path[::-1]
                # Two ensembles may share a member: one path through it is enough.
                if member not in came_from:
                    came_from[member] = each
                    waiting.append(member)
        return []

    def dependents(self, model: str) -> list[str]:
        """The ensembles that are made of this model, directly or not. Each comes after the ensembles it is made of."""
        concerned: set[str] = set()
        waiting = [model]
        while waiting:
            more = self._users.get(waiting.pop(), set()) - concerned
            concerned |= more
            waiting += more
        # A circle leads back to the model.
        concerned.discard(model)
        return self._ordered(concerned)

    def order(self) -> list[str]:
        """All ensembles, each after the ensembles that it is made of. Those of a circle come once, in any order."""
        return self._ordered(self._members)

    def _ordered(self, ensembles: Collection[str]) -> list[str]:
        """These ensembles, each after those of them that it is made of."""
        ordered: list[str] = []
        seen: set[str] = set()
        for first in sorted(ensembles):
            if first in seen:
                continue
            seen.add(first)
            # The ensembles from the first one down to the one that is looked at, with the members yet to look at.
            path: list[tuple[str, Iterator[str]]] = [(first, iter(self.members(first)))]
            while path:
                ensemble, members = path[-1]
                below = next((each for each in members if each in ensembles and each not in seen), None)
                if below is None:
                    ordered.append(ensemble)
                    path.pop()
                else:
                    seen.add(below)
                    path.append((below, iter(self.members(below))))
        return ordered

    def only_for(self, ensemble: str, kept: Iterable[str]) -> list[str]:
        """The members of an ensemble, direct or not, that are not `kept` and that no ensemble outside of them needs.

        An ensemble among them comes before its members.
        """
        keep = set(kept)
        # It grows while it is read: an ensemble that goes may leave members of its own.
        order, going = [ensemble], {ensemble}
        for each in order:
            for member in self.members(each):
                if member not in keep and member not in going and self._users[member] <= going:
                    order.append(member)
                    going.add(member)
        return order[1:]
