"""Optimization profiles: which ones an instance uses, and which one fits a batch (BR8, BR9). Pure, any thread."""

from collections.abc import Mapping, Sequence

from halimede.backends.tensorrt.plan import Plan
from halimede.errors import Internal, Invalid
from halimede.tensors import Shape

Values = Mapping[str, Shape]
"""The shape of each input; of a shape tensor its values."""


def profiles_of(names: Sequence[str], plan: Plan, instance: str) -> tuple[int, ...]:
    """The profiles that an instance group names, the first of the plan if it names none. Raises Invalid."""
    found = []
    for name in names or ("0",):
        if not name.isdecimal() or int(name) >= plan.profiles:
            raise Invalid(
                f"Can not set the specified optimization profile {name}[{name}] for {instance}. Expected optimization "
                f"profile index range 0-{plan.profiles - 1}"
            )
        found.append(int(name))
    return tuple(found)


def choose(plan: Plan, profiles: Sequence[int], given: Values, instance: str) -> int:
    """The profile for a batch: of those that allow its shapes the one whose best shapes are nearest. Raises Internal if
    there is only one and it does not, Invalid if there are several."""
    if len(profiles) == 1:
        check(plan, profiles[0], given, instance)
        return profiles[0]
    fitting = [(_distance(plan, index, given), index) for index in profiles if not _misfit(plan, index, given)]
    if not fitting:
        told = "".join(f" {index}[{index}]" for index in profiles)
        raise Invalid(
            f"failed to find any Optimization Profile among [{told}] to support the requested dimensions (or shape "
            "values), proceeding with first profile."
        )
    return min(fitting)[1]


def check(plan: Plan, profile: int, given: Values, instance: str) -> None:
    """Raises Internal with Triton's text for the first input whose shape the profile does not allow (BR8)."""
    misfit = _misfit(plan, profile, given)
    if misfit:
        name, text = misfit
        raise Internal(f"request specifies invalid shape for input '{name}' for {instance}. Error details: {text}")


def _misfit(plan: Plan, profile: int, given: Values) -> tuple[str, str] | None:
    for tensor in plan.inputs:
        limits, shape = tensor.limits[profile], given[tensor.name]
        if len(shape) != len(limits.most):
            return tensor.name, f"model expected {len(limits.most)} dimensions but received {len(shape)} dimensions"
        for place, (low, size, high) in enumerate(zip(limits.least, shape, limits.most, strict=True)):
            if not low <= size <= high:
                text = (
                    f"model expected the shape of dimension {place} to be between {low} and {high} but received {size}"
                )
                return tensor.name, text
    return None


def _distance(plan: Plan, profile: int, given: Values) -> int:
    return sum(
        abs(size - best)
        for tensor in plan.inputs
        for size, best in zip(given[tensor.name], tensor.limits[profile].best, strict=True)
    )
