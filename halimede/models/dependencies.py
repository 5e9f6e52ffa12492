"""The graph of ensembles and their members, by key: in which order to load them, and which ensembles a change of a
model concerns (S83).

Knows names only; pure. `loading.ensembles` keeps one on the event loop.
"""

from collections.abc import Iterable, Iterator


class Dependencies:
    """The members of each known ensemble. A member may be unknown, or may be no ensemble."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[str, ...]] = {}

    def __contains__(self, ensemble: str) -> bool:
        return ensemble in self._members

    def learn(self, ensemble: str, members: Iterable[str]) -> None:
        """Adds an ensemble, or replaces its members."""
        self._members[ensemble] = tuple(members)

    def forget(self, ensemble: str) -> None:
        self._members.pop(ensemble, None)

    def members(self, ensemble: str) -> tuple[str, ...]:
        """The direct members."""
        return self._members.get(ensemble, ())

    def circle(self, ensemble: str) -> list[str]:
        """A path from an ensemble to itself, with both ends. Empty if there is none."""
        paths = [[ensemble]]
        seen: set[str] = set()
        while paths:
            path = paths.pop()
            for member in self.members(path[-1]):
                if member == ensemble:
                    return [*path, ensemble]
                # Two ensembles may share a member: one path through it is enough.
                if member not in seen:
                    seen.add(member)
                    paths.append([*path, member])
        return []

    def dependents(self, model: str) -> list[str]:
        """The ensembles that are made of this model, directly or not. Each comes after the ensembles it is made of."""
        concerned: set[str] = set()
        waiting = [model]
        while waiting:
            member = waiting.pop()
            more = {ensemble for ensemble, members in self._members.items() if member in members} - concerned
            concerned |= more
            waiting += more
        # A circle leads back to the model.
        concerned.discard(model)
        return [each for each in self.order() if each in concerned]

    def order(self) -> list[str]:
        """All ensembles, each after the ensembles that it is made of. Those of a circle come once, in any order."""
        ordered: dict[str, None] = {}
        for ensemble in sorted(self._members):
            ordered.update(dict.fromkeys(self._below(ensemble, {ensemble})))
        return list(ordered)

    def _below(self, ensemble: str, above: set[str]) -> Iterator[str]:
        for member in self.members(ensemble):
            if member in self._members and member not in above:
                above.add(member)
                yield from self._below(member, above)
        yield ensemble

    def only_for(self, ensemble: str, kept: Iterable[str]) -> list[str]:
        """The members of an ensemble, direct or not, that are not `kept` and that no ensemble outside of them needs.

        An ensemble among them comes before its members.
        """
        keep = set(kept)
        # The list grows while it is read: an ensemble that goes may leave members of its own.
        going = [ensemble]
        for each in going:
            for member in self.members(each):
                users = {other for other, members in self._members.items() if member in members}
                if member not in keep and member not in going and users <= set(going):
                    going.append(member)
        return going[1:]
