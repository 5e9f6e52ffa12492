"""Which models are made of which: the order in which they are loaded, and whom a change concerns (contract S83).

Names only; pure. Owned by the event-loop thread.
"""

from collections.abc import Iterable, Iterator


class Dependencies:
    """The members of each ensemble that is known, by key. A member may be unknown, or no ensemble itself."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[str, ...]] = {}

    def __contains__(self, ensemble: str) -> bool:
        return ensemble in self._members

    def learn(self, ensemble: str, members: Iterable[str]) -> None:
        self._members[ensemble] = tuple(members)

    def forget(self, ensemble: str) -> None:
        self._members.pop(ensemble, None)

    def members(self, ensemble: str) -> tuple[str, ...]:
        """Those that it is made of itself."""
        return self._members.get(ensemble, ())

    def circle(self, ensemble: str) -> list[str]:
        """A way from an ensemble back to itself, both ends included; empty where there is none."""
        ways = [[ensemble]]
        seen: set[str] = set()
        while ways:
            way = ways.pop()
            for member in self.members(way[-1]):
                if member == ensemble:
                    return [*way, ensemble]
                if member not in seen:
                    seen.add(member)
                    ways.append([*way, member])
        return []

    def dependents(self, model: str) -> list[str]:
        """The ensembles that are made of this model, directly or not, each after those of them that it is made of."""
        concerned: set[str] = set()
        waiting = [model]
        while waiting:
            member = waiting.pop()
            more = {ensemble for ensemble, members in self._members.items() if member in members} - concerned
            concerned |= more
            waiting += more
        concerned.discard(model)
        return [each for each in self.order() if each in concerned]

    def order(self) -> list[str]:
        """All ensembles, each after those that it is made of; where they go in a circle, each once."""
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
        """What an ensemble that goes leaves behind: the models that it is made of, directly or not, that no other
        ensemble needs and that are not among `kept`. Those first that others of them are made of last."""
        keep = set(kept)
        going = [ensemble]
        for each in going:
            for member in self.members(each):
                users = {other for other, members in self._members.items() if member in members}
                if member not in keep and member not in going and users <= set(going):
                    going.append(member)
        return going[1:]
