"""Kinds of flag values: how the text after `--flag=` is read, and the error text if it is wrong.

Knows no flag by name. Pure. Raises Invalid with Triton's texts.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from halimede.errors import Invalid, Unsupported
from halimede.options.patterns import search_of

Value = bool | int | float | str | tuple[str, str, str]

_INTEGER = re.compile(r"\s*[+-]?\d+")
_REAL = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to read a value. `label` is its name in the usage text; it is empty if the flag takes no value."""

    label: str
    read: Callable[[str], Value]


def _read_boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise Invalid(f"invalid value for bool option: {text}\nUse true or false.")
    return value


def _number(pattern: re.Pattern[str], text: str) -> str:
    # std::stoi takes the longest number at the start. The parser warns about the rest.
    match = pattern.match(text)
    if match is None:
        raise Invalid(f"Invalid option value. Got {text}")
    return match[0]


def _read_real(text: str) -> float:
    return float(_number(_REAL, text))


def integer(bits: int = 32, low: int | None = None, high: int | None = None, message: str = "") -> Kind:
    """A signed integer of `bits` bits from `low` to `high`. `message` is the error text for one outside these."""
    lowest, highest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def read(text: str) -> int:
        # Triton has one text for what is no number, and another one for a number that is too large.
        value = int(_number(_INTEGER, text))
        out_of_bound = f"Provided option value is out of bound. Got {text}"
        if not lowest <= value <= highest:
            raise Invalid(out_of_bound)
        if (low is not None and value < low) or (high is not None and value > high):
            raise Invalid(message or out_of_bound)
        return value

    return Kind("integer", read)


def _read_verbosity(text: str) -> Value:
    # Triton also takes these two words, for this flag only (C4).
    words = {"true": 1, "false": 0}
    word = words.get(text.lower())
    return INTEGER.read(text) if word is None else word


def choice(message: str, *words: str, any_case: bool = True, also: tuple[str, ...] = ()) -> Kind:
    """One of `words`. `message` is the error text for others, with {} for the given text. The words in `also` are valid
    too, but no text mentions them."""

    def read(text: str) -> str:
        word = text.lower() if any_case else text
        if word not in words and word not in also:
            raise Invalid(f"{message.format(text)}\nUse {', '.join(words[:-1])} or {words[-1]}.")
        return word

    return Kind("|".join(words), read)


def filled(message: str) -> Kind:
    """Any text but the empty one."""

    def read(text: str) -> str:
        if not text:
            raise Invalid(message)
        return text

    return Kind("string", read)


def text(label: str = "string") -> Kind:
    """Any text."""
    return Kind(label, str)


def pair(label: str, separator: str, first: Kind, second: Kind) -> Kind:
    """Two numbers with `separator` between them."""

    def read(text: str) -> Value:
        one, found, other = text.partition(separator)
        if not found:
            raise Invalid(
                "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires format "
                f"<first>{separator}<second>. Found: {text}"
            )
        # Read only to refuse what is no number: no flag of this kind has an effect.
        first.read(one)
        second.read(other)
        return text

    return Kind(label, read)


def _read_backend_setting(text: str) -> tuple[str, str, str]:
    form = "--backend-config option format is"
    # Without a comma the setting is for all backends (C45).
    backend, comma, assignment = text.partition(",") if "," in text else ("", "", text)
    if comma and not backend:
        raise Invalid(f"No backend specified. {form} <backend name>,<setting>=<value> or <setting>=<value>. Got {text}")
    setting, _, value = assignment.partition("=")
    if not setting or not value:
        raise Invalid(f"{form} '<backend name>,<setting>=<value>'. Got {text}")
    return backend, setting, value


def _read_resource(text: str) -> tuple[str, str, str]:
    """Name, count and device. An empty device stands for each device (C51)."""
    name, *numbers = text.split(":")
    if not 1 <= len(numbers) <= 2:
        raise Invalid(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
            f"Got {text}"
        )
    count = _COUNT.read(numbers[0])
    device = INTEGER.read(numbers[1]) if len(numbers) > 1 else ""
    return name, str(count), str(device)


HOST_SETTINGS = ("numa-node", "cpu-cores")


def _read_host_policy(text: str) -> tuple[str, str, str]:
    name, _, assignment = text.partition(",")
    setting, _, value = assignment.partition("=")
    if not (name and setting and value):
        raise Invalid(f"--host-policy option format is '<policy name>,<setting>=<value>'. Got {text}")
    if setting not in HOST_SETTINGS:
        raise Unsupported(
            f"Unsupported host policy setting '{setting}' is specified, supported settings are "
            + ", ".join(f"'{known}'" for known in HOST_SETTINGS)
        )
    return name, setting, value


def _read_cache_setting(text: str) -> tuple[str, str, str]:
    form = "--cache-config option format is"
    cache, comma, assignment = text.partition(",")
    if not cache or not comma:
        raise Invalid(f"No cache specified. {form} <cache name>,<setting>=<value>. Got {text}")
    setting, _, value = assignment.partition("=")
    if not setting or not value:
        raise Invalid(f"{form} '<cache name>,<setting>=<value>'. Got {text}")
    return cache, setting, value


def _read_metrics_setting(text: str) -> tuple[str, str, str]:
    setting, _, value = text.partition("=")
    # A comma would be a name before the setting, as other flags have it (C41).
    if "," in setting or not setting or not value:
        raise Invalid(f"--metrics-config option format is <setting>=<value>. Got {text}")
    return "", setting, value


def _read_trace_setting(text: str) -> tuple[str, str, str]:
    """Mode, setting and value. The mode is empty for a setting of both modes (C42)."""
    # A comma after the `=` belongs to the value, such as a list of attributes.
    mode, comma, assignment = text.partition(",") if "," in text.partition("=")[0] else ("", "", text)
    if comma and not mode:
        raise Invalid(
            "No trace mode specified. --trace-config option format is <trace mode>,<setting>=<value> or "
            f"<setting>=<value>. Got {text}"
        )
    setting, _, value = assignment.partition("=")
    if not setting or not value:
        raise Invalid(f"--trace-config option format is '<trace mode>,<setting>=<value>'. Got {text}")
    return mode, setting, value


CATEGORIES = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
"""What can be restricted (H24, G13)."""


def restriction(flag: str, word: str) -> Kind:
    """`<name>[,<name>]:<key>=<value>`. `word` is what the error text calls a name (C26, C35)."""

    def read(text: str) -> Value:
        names, _, setting = text.partition(":")
        key, _, value = setting.partition("=")
        if not (names and key and value):
            raise Invalid(f"--{flag} option format is '<config name>:<setting>=<value>'. Got {text}")
        for name in names.split(","):
            if name not in CATEGORIES:
                raise Invalid(f"unknown restricted {word} '{name}' \nUse {', '.join(CATEGORIES)}.")
        return names, key, value

    return Kind(f"{word}s:key=value", read)


def _read_pattern(text: str) -> Value:
    search_of(text)  # raises for a wrong one; the front ends compile it again
    return text


SWITCH = Kind("", str)
PATTERN = Kind("pattern", _read_pattern)
BOOLEAN = Kind("boolean", _read_boolean)
INTEGER = integer()
INTEGER64 = integer(bits=64)
REAL = Kind("float", _read_real)
TEXT = text()
VERBOSITY = Kind("integer", _read_verbosity)
_COUNT = integer(low=0)
RATE_LIMIT_RESOURCE = Kind("name:count[:device]", _read_resource)
HOST_POLICY = Kind("policy,setting=value", _read_host_policy)
BACKEND_SETTING = Kind("[backend,]setting=value", _read_backend_setting)
METRICS_SETTING = Kind("setting=value", _read_metrics_setting)
TRACE_SETTING = Kind("[mode,]setting=value", _read_trace_setting)
CACHE_SETTING = Kind("cache,setting=value", _read_cache_setting)
