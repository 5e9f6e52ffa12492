"""How long requests may wait for a model, and how many: the queue policies of a configuration (contract S26 to S29).

Triton has them within a dynamic batcher only. For a model without one, four parameters of the configuration say the
same (contract D4). Pure, any thread.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from halimede.config.message import Message
from halimede.config.model_config import QueuePolicy
from halimede.protocol import model_config_pb2 as pb

_UINT32_MAX, _UINT64_MAX = 2**32 - 1, 2**64 - 1


_MOST_DIGITS = len(str(_UINT64_MAX))
"""Python refuses to read a number of thousands of them."""


def _number(limit: int) -> Callable[[str], int | None]:
    def read(text: str) -> int | None:
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else -1
        return number if 0 <= number <= limit else None

    return read


_PARAMETERS: Mapping[str, tuple[str, Callable[[str], int | bool | None], str]] = {
    "QUEUE_MAX_SIZE": ("max_size", _number(_UINT32_MAX), f"a number from 0 to {_UINT32_MAX}"),
    "QUEUE_TIMEOUT_MICROSECONDS": ("timeout_us", _number(_UINT64_MAX), f"a number from 0 to {_UINT64_MAX}"),
    "QUEUE_ALLOW_TIMEOUT_OVERRIDE": ("allow_override", {"true": True, "false": False}.get, "'true' or 'false'"),
    "QUEUE_TIMEOUT_ACTION": ("delays", {"REJECT": False, "DELAY": True}.get, "'REJECT' or 'DELAY'"),
}
"""Name to the field of a QueuePolicy, what reads it (None for what it cannot be), and what it can be in words."""


def parameter_problems(message: Message) -> Iterator[str]:
    """What is wrong with the parameters that make a queue policy."""
    for name, text in _given(message):
        _, read, allowed = _PARAMETERS[name]
        if read(text) is None:
            yield f"model '{message.name}': the parameter '{name}' must be {allowed}, not '{text}'"
        rival = _rival(message)
        if rival is not None:
            yield f"model '{message.name}': the parameter '{name}' has no effect beside '{rival}'"


def _rival(message: Message) -> str | None:
    """What decides instead of the parameters. A dynamic batcher alone does not: completion may have put it there."""
    scheduler: str | None = message.WhichOneof("scheduling_choice")
    if scheduler != "dynamic_batching":
        return scheduler
    return "default_queue_policy" if message.dynamic_batching.HasField("default_queue_policy") else None


def default_policy(message: Message) -> QueuePolicy:
    """How requests wait where no priority level says otherwise."""
    if message.HasField("dynamic_batching") and message.dynamic_batching.HasField("default_queue_policy"):
        return policy_of(message.dynamic_batching.default_queue_policy)
    values: dict[str, Any] = {_PARAMETERS[name][0]: _PARAMETERS[name][1](text) for name, text in _given(message)}
    return QueuePolicy(**values)


def policy_of(policy: Any) -> QueuePolicy:
    """A `ModelQueuePolicy` as a value."""
    return QueuePolicy(
        max_size=policy.max_queue_size,
        timeout_us=policy.default_timeout_microseconds,
        allow_override=policy.allow_timeout_override,
        delays=policy.timeout_action == pb.ModelQueuePolicy.DELAY,
    )


def _given(message: Message) -> Iterator[tuple[str, str]]:
    for name in _PARAMETERS:
        if name in message.parameters:
            yield name, message.parameters[name].string_value
