"""What the instances of a loaded version need of the rate limiter (contract S100, S105). Loop thread."""

from halimede.config import InstanceGroup
from halimede.errors import Error
from halimede.models.loader import LoadedVersion, LoadResult, spread
from halimede.scheduling.rate_limiter import Demand, LimiterSlots, RateLimiter, Resource, Slot


def demand(group: InstanceGroup, device: int) -> Demand:
    """What an instance of the group on this device takes while it runs."""
    needs = {Resource.of(need.name, None if need.is_global else device): need.count for need in group.resources}
    return Demand(needs, group.priority)


def slots(version: LoadedVersion) -> dict[int, Slot]:
    """By index, for those instances that are given batches."""
    return {
        index: Slot(demand(group, device), version.instances[index])
        for index, (group, device, _) in enumerate(spread(version.config))
        if not group.passive
    }


def reserve(result: LoadResult, limiter: RateLimiter) -> list[LoadedVersion]:
    """Registers the instances of a load. Those versions whose instances ask for what is not there fail: they are
    returned, to be closed."""
    refused = []
    for number, version in result.versions.items():
        if isinstance(version, LoadedVersion):
            made = slots(version)
            try:
                limiter.register(tuple(made.values()))
            except Error as error:
                result.versions[number] = error
                refused.append(version)
            else:
                version.turns = LimiterSlots(limiter, made)
    return refused
