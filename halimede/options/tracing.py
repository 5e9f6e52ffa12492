"""What `--trace-config` and the older flags say (contract C42, C43). Pure; raises `Invalid` with the contract's
texts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from halimede.errors import Invalid
from halimede.options.values import SPAN_BATCHING, TraceOptions

MODES = ("triton", "opentelemetry")
_INT32_MAX = 2**31 - 1
_LEVELS = {
    **dict.fromkeys(("off", "false"), ""),
    **dict.fromkeys(("on", "true", "min", "max", "timestamps"), "TIMESTAMPS"),
    "tensors": "TENSORS",
}
_ORDER = ("TIMESTAMPS", "TENSORS")
PROTOCOLS = ("http/protobuf", "grpc")
OLD_TRACE_FLAGS = {
    "trace-level": ("level", "level"),
    "trace-rate": ("rate", "rate value"),
    "trace-count": ("count", "count"),
    "trace-file": ("file", "file"),
    "trace-log-frequency": ("log-frequency", "log-frequency"),
}
"""The older flags, in the order of the warnings: the setting, and what it is called there."""

DEFAULT_URL = {"http/protobuf": "http://localhost:4318/v1/traces", "grpc": "http://localhost:4317"}


def trace_options(
    settings: Iterable[tuple[str, str, str]],
    old: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    warn: Callable[[str], None],
) -> TraceOptions:
    """`settings` are mode ("" for none), setting and value in the order given; `old` the values of the older flags that
    were given, by their names. Of a setting that is given twice, the last counts, but levels and resources add up."""
    given: dict[tuple[str, str], list[str]] = {}
    for mode, setting, value in settings:
        if mode and mode not in MODES:
            raise _bad(
                "", f'invalid value for trace mode option: {mode}. Available options are "triton" and "opentelemetry"'
            )
        given.setdefault((mode, setting), []).append(value)
    for flag, (setting, called) in OLD_TRACE_FLAGS.items():
        if flag in old:
            key = ("triton" if setting in ("file", "log-frequency") else "", setting)
            if key in given:
                warn(f"Overriding deprecated '--{flag}' in favor of provided {called} in --trace-config!")
            elif setting == "level" and not {"off", "false"}.isdisjoint(old[flag]):
                given[key] = ["off"]
            else:
                given[key] = list(old[flag])
    mode = _last(given, "", "mode", "triton")
    if mode not in MODES:
        raise _bad(
            "mode", f'invalid value for trace mode option: {mode}. Available options are "triton" and "opentelemetry"'
        )
    protocol = _last(given, "opentelemetry", "protocol", "http/protobuf")
    if protocol not in PROTOCOLS:
        raise _bad("opentelemetry,protocol", f"invalid value for protocol: {protocol}. Use {' or '.join(PROTOCOLS)}.")
    for found in given:
        if found not in _KNOWN:
            warn(f"'--trace-config={','.join(filter(None, found))}' has no effect: there is no such setting.")
    return TraceOptions(
        mode=mode,
        level=_levels(given.get(("", "level"), ())),
        rate=_number(given, "", "rate", 1000),
        count=_number(given, "", "count", -1),
        file=_last(given, "triton", "file", ""),
        log_frequency=_number(given, "triton", "log-frequency", 0),
        url=_last(given, "opentelemetry", "url", DEFAULT_URL[protocol]),
        protocol=protocol,
        resource=_resource(given.get(("opentelemetry", "resource"), ())),
        batching=MappingProxyType({name: _batching(given, name, environment) for name in SPAN_BATCHING}),
    )


_KNOWN = frozenset(
    [*(("", name) for name in ("mode", "level", "rate", "count")), ("triton", "file"), ("triton", "log-frequency")]
    + [("opentelemetry", name) for name in ("url", "protocol", "resource", *SPAN_BATCHING)]
)


def _bad(setting: str, text: str) -> Invalid:
    return Invalid(f'Bad option: "--trace-config{" " + setting if setting else ""}".\n{text}')


def _last(given: Mapping[tuple[str, str], Sequence[str]], mode: str, setting: str, default: str) -> str:
    return given.get((mode, setting), (default,))[-1]


def _number(given: Mapping[tuple[str, str], Sequence[str]], mode: str, setting: str, default: int) -> int:
    text = _last(given, mode, setting, str(default))
    shown = f"{mode},{setting}" if mode else setting
    try:
        value = int(text)
    except ValueError:
        raise _bad(shown, f"Invalid option value. Got {text}") from None
    if not (-1 if setting == "count" else 0) <= value <= _INT32_MAX:
        raise _bad(shown, f"Provided option value is out of bound. Got {text}")
    return value


def _levels(names: Iterable[str]) -> tuple[str, ...]:
    """The levels that are named, in their own order; OFF adds none (C43)."""
    for name in names:
        if name.lower() not in _LEVELS:
            raise _bad("level", f"invalid value for trace level option: {name}")
    wanted = {_LEVELS[name.lower()] for name in names}
    return tuple(level for level in _ORDER if level in wanted)


def _resource(settings: Iterable[str]) -> Mapping[str, str]:
    """Attributes of the resource, by name. Raises Invalid for one without a value."""
    found: dict[str, str] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if not name or not value:
            raise _bad("opentelemetry,resource", f"resource is given as <attribute>=<value>. Got {setting}")
        found[name] = value
    return MappingProxyType(found)


def _batching(given: Mapping[tuple[str, str], Sequence[str]], name: str, environment: Mapping[str, str]) -> int:
    """A setting of the batch processor: the flag, else the environment, else the default (C42)."""
    said = environment.get(f"OTEL_{name.upper()}", "").strip()
    text = _last(given, "opentelemetry", name, said if said.isdecimal() else str(SPAN_BATCHING[name]))
    if not text.isdecimal() or not 0 < int(text) <= _INT32_MAX:
        raise _bad(f"opentelemetry,{name}", f"Invalid option value. Got {text}")
    return int(text)
