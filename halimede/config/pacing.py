"""The latency target of adaptive batching: a parameter of a configuration with a dynamic batcher. Pure, any thread."""

from collections.abc import Iterator

from halimede.config.message import Message

PARAMETER = "LATENCY_TARGET_MICROSECONDS"
_MOST_DIGITS = 15
"""So that it is a number of nanoseconds too."""


def latency_target(message: Message) -> int:
    """Microseconds, 0 for none; of a configuration that passed its checks."""
    return int(message.parameters[PARAMETER].string_value) if PARAMETER in message.parameters else 0


def pacing_problems(message: Message) -> Iterator[str]:
    """What is wrong with the parameter, whatever completion may bring yet."""
    if PARAMETER not in message.parameters:
        return
    where = f"model '{message.name}': the parameter '{PARAMETER}'"
    text = message.parameters[PARAMETER].string_value
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS and int(text)):
        yield f"{where} must be a number of microseconds above 0, not '{text}'"
    scheduler = message.WhichOneof("scheduling_choice")
    if scheduler not in (None, "dynamic_batching"):
        yield f"{where} has no effect beside '{scheduler}'"
    if message.dynamic_batching.max_queue_delay_microseconds:
        yield f"{where} decides instead of 'max_queue_delay_microseconds': only one of them can be set"


def missing_batcher(message: Message) -> Iterator[str]:
    """Once a configuration is complete: the parameter is for a dynamic batcher."""
    if PARAMETER in message.parameters and not message.HasField("dynamic_batching"):
        yield f"the parameter '{PARAMETER}' needs 'dynamic_batching'"
