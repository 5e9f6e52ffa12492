"""Rights, and the roles that bundle them. Data and pure functions; any thread."""

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class Right(Enum):
    """Something that can be allowed. The value completes the sentence "'alice' may not ..."."""

    HEALTH = "ask for health"
    METADATA = "read metadata and configurations"
    INFERENCE = "send inferences"
    STATE = "read the repository index, statistics and settings"
    METRICS = "read metrics"
    REGIONS = "list shared memory"
    MEMORY = "register or unregister shared memory"
    CONTROL = "load or unload models, or change settings"


_READ: Final = frozenset({Right.HEALTH, Right.METADATA, Right.STATE, Right.METRICS, Right.REGIONS})

ROLES: Mapping[str, frozenset[Right]] = MappingProxyType(
    {
        "health": frozenset({Right.HEALTH}),
        "metrics": frozenset({Right.METRICS}),
        "infer": frozenset({Right.HEALTH, Right.METADATA, Right.INFERENCE}),
        "read": _READ,
        "memory": frozenset({Right.REGIONS, Right.MEMORY}),
        "control": _READ | {Right.MEMORY, Right.CONTROL},
    }
)
"""The rights of each role."""

EVERYTHING: Final = frozenset(Right)


def rights_of(roles: Iterable[str]) -> frozenset[Right]:
    """Returns the rights of all these roles together."""
    return frozenset().union(*(ROLES[role] for role in roles))


def roles_with(right: Right) -> list[str]:
    """Returns the roles that have a right, the one with the fewest rights first."""
    return sorted((role for role, rights in ROLES.items() if right in rights), key=lambda role: len(ROLES[role]))
