"""The dynamic batcher of a model, and how its requests wait in the queue: values, checks, and parameters of our own.

Triton has queue policies inside a dynamic batcher only (S26 to S29). A model without a batcher can set the same policy
with four parameters of its configuration (D4). A fifth parameter sets the latency target of adaptive batching.
Knows the protobuf message and nothing of schedulers. Pure, any thread.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from halimede.config.message import Message
from halimede.protocol import model_config_pb2 as pb

LATENCY_TARGET_PARAMETER = "LATENCY_TARGET_MICROSECONDS"
"""The parameter with the latency that an adaptive queue delay must keep."""
_MAX_TARGET_DIGITS = 15
"""A target with more digits would not fit a 64-bit number of nanoseconds."""
_UINT32_MAX = 2**32 - 1
_UINT64_MAX = 2**64 - 1
_MAX_DIGITS = len(str(_UINT64_MAX))
"""Longer numbers are refused unread: `int()` raises ValueError for thousands of digits."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How requests may wait (S27 to S31): at most `max_size` of them, each for `timeout_us`; 0 means no limit.

    `allow_override`: a request may ask for a shorter timeout. `delays`: a request that waited too long is served after
    all others instead of being rejected.
    """

    max_size: int = 0
    timeout_us: int = 0
    allow_override: bool = False
    delays: bool = False


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """The settings of a dynamic batcher (S20).

    `preferred_batch_sizes` are sorted. They are empty only if the model's max_batch_size is 0. Priority levels count
    from 1, the most urgent; `priority_levels` is 0 if there are none (S26). `level_policies` has the levels with a
    policy of their own. `latency_target_us` is the latency that an adaptive queue delay must keep, 0 for none.
    """

    preferred_batch_sizes: tuple[int, ...]
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    level_policies: Mapping[int, QueuePolicy] = field(default_factory=lambda: MappingProxyType({}))
    latency_target_us: int = 0


# ---- checks


def batcher_problems(message: Message) -> Iterator[str]:
    """What is wrong with the dynamic batcher of a configuration that has one, in Triton's words (R45, S33)."""
    name, batcher = message.name, message.dynamic_batching
    for size in batcher.preferred_batch_size:
        if size <= 0:
            yield f"dynamic batching preferred size must be positive for {name}"
        if size > message.max_batch_size:
            yield f"dynamic batching preferred size must be <= max batch size for {name}"
    levels = batcher.priority_levels
    if levels:
        if not 1 <= batcher.default_priority_level <= levels:
            yield f"default priority level must be in range [1, {levels}] for {name}"
        if not all(1 <= level <= levels for level in batcher.priority_queue_policy):
            yield f"priority queue policy must have priority level in range [1, {levels}] for {name}"
    if batcher.preserve_ordering:
        if levels > 1:
            yield f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
        policies = (batcher.default_queue_policy, *batcher.priority_queue_policy.values())
        if any(p.default_timeout_microseconds and p.timeout_action == pb.ModelQueuePolicy.DELAY for p in policies):
            yield f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}"


def queue_parameter_problems(message: Message) -> Iterator[str]:
    """What is wrong with the parameters that make a queue policy (D4)."""
    for name, text in _given(message):
        _, read, allowed = _QUEUE_PARAMETERS[name]
        if read(text) is None:
            yield f"model '{message.name}': the parameter '{name}' must be {allowed}, not '{text}'"
        rival = _rival(message)
        if rival is not None:
            yield f"model '{message.name}': the parameter '{name}' has no effect beside '{rival}'"


def latency_target_problems(message: Message) -> Iterator[str]:
    """What is wrong with the latency target. `missing_batcher_problems` has the check that must wait for completion."""
    if LATENCY_TARGET_PARAMETER not in message.parameters:
        return
    where = f"model '{message.name}': the parameter '{LATENCY_TARGET_PARAMETER}'"
    text = message.parameters[LATENCY_TARGET_PARAMETER].string_value
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_TARGET_DIGITS and int(text)):
        yield f"{where} must be a number of microseconds above 0, not '{text}'"
    scheduler = message.WhichOneof("scheduling_choice")
    if scheduler not in (None, "dynamic_batching"):
        yield f"{where} has no effect beside '{scheduler}'"
    if message.dynamic_batching.max_queue_delay_microseconds:
        yield f"{where} decides instead of 'max_queue_delay_microseconds': only one of them can be set"


def missing_batcher_problems(message: Message) -> Iterator[str]:
    """A latency target in a complete configuration without a dynamic batcher."""
    if LATENCY_TARGET_PARAMETER in message.parameters and not message.HasField("dynamic_batching"):
        yield f"the parameter '{LATENCY_TARGET_PARAMETER}' needs 'dynamic_batching'"


# ---- values


def dynamic_batching_of(message: Message) -> DynamicBatching | None:
    """The dynamic batcher of a message that passed its checks; None if it has none."""
    if not message.HasField("dynamic_batching"):
        return None
    batcher = message.dynamic_batching
    levels = batcher.priority_levels
    return DynamicBatching(
        preferred_batch_sizes=tuple(sorted(set(batcher.preferred_batch_size))),
        max_queue_delay_us=batcher.max_queue_delay_microseconds,
        preserve_ordering=batcher.preserve_ordering,
        priority_levels=levels,
        # Without levels, Triton ignores a default level and the policies of levels.
        default_priority_level=batcher.default_priority_level if levels else 0,
        level_policies=MappingProxyType(
            {level: _policy(policy) for level, policy in batcher.priority_queue_policy.items() if levels}
        ),
        latency_target_us=_latency_target_us(message),
    )


def default_queue_policy_of(message: Message) -> QueuePolicy:
    """How requests wait, unless their priority level has a policy of its own."""
    if message.HasField("dynamic_batching") and message.dynamic_batching.HasField("default_queue_policy"):
        return _policy(message.dynamic_batching.default_queue_policy)
    given = _given(message)
    values: dict[str, Any] = {_QUEUE_PARAMETERS[name][0]: _QUEUE_PARAMETERS[name][1](text) for name, text in given}
    return QueuePolicy(**values)


def _policy(policy: Any) -> QueuePolicy:
    return QueuePolicy(
        max_size=policy.max_queue_size,
        timeout_us=policy.default_timeout_microseconds,
        allow_override=policy.allow_timeout_override,
        delays=policy.timeout_action == pb.ModelQueuePolicy.DELAY,
    )


def _latency_target_us(message: Message) -> int:
    parameters = message.parameters
    # A protobuf map adds a key that is only looked at with [].
    return int(parameters[LATENCY_TARGET_PARAMETER].string_value) if LATENCY_TARGET_PARAMETER in parameters else 0


def _given(message: Message) -> Iterator[tuple[str, str]]:
    """The queue parameters that the configuration has, with their texts."""
    for name in _QUEUE_PARAMETERS:
        if name in message.parameters:
            yield name, message.parameters[name].string_value


def _rival(message: Message) -> str | None:
    """The field that decides instead of the queue parameters."""
    scheduler: str | None = message.WhichOneof("scheduling_choice")
    if scheduler != "dynamic_batching":
        return scheduler
    # A dynamic batcher alone is no rival: completion may have added it.
    return "default_queue_policy" if message.dynamic_batching.HasField("default_queue_policy") else None


def _number_up_to(limit: int) -> Callable[[str], int | None]:
    def read(text: str) -> int | None:
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else -1
        return number if 0 <= number <= limit else None

    return read


_QUEUE_PARAMETERS: Mapping[str, tuple[str, Callable[[str], int | bool | None], str]] = {
    "QUEUE_MAX_SIZE": ("max_size", _number_up_to(_UINT32_MAX), f"a number from 0 to {_UINT32_MAX}"),
    "QUEUE_TIMEOUT_MICROSECONDS": ("timeout_us", _number_up_to(_UINT64_MAX), f"a number from 0 to {_UINT64_MAX}"),
    "QUEUE_ALLOW_TIMEOUT_OVERRIDE": ("allow_override", {"true": True, "false": False}.get, "'true' or 'false'"),
    "QUEUE_TIMEOUT_ACTION": ("delays", {"REJECT": False, "DELAY": True}.get, "'REJECT' or 'DELAY'"),
}
"""By parameter: the field of QueuePolicy, the function that reads its text (None if it cannot), and the allowed values
in words."""
