"""What `--metrics-config` (C41) and `--trace-config` with its older flags (C42, C43) mean. Pure.

Unknown settings have no effect, as in Triton; here a warning says so. Raises Invalid with Triton's texts.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from halimede.errors import Invalid
from halimede.options.values import SPAN_BATCHING, MetricsOptions, TraceOptions

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
"""The older flags, in the order of the warnings: the setting, and its name in the warning."""
DEFAULT_URL = {"http/protobuf": "http://localhost:4318/v1/traces", "grpc": "http://localhost:4317"}


def trace_options(
    settings: Iterable[tuple[str, str, str]],
    old: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    warn: Callable[[str], None],
) -> TraceOptions:
    """The options of tracing.

    `settings` are mode ("" for none), setting and value in the order given. `old` are the values of the older flags, by
    flag. The last value of a setting counts, except that levels and resources add up.
    """
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
            elif setting == "level" and not {"off", "false"}.isdisjoint(old[flag]):  # one `off` overrides all levels
                given[key] = ["off"]
            else:
                given[key] = list(old[flag])
    # The loop above has checked the mode before a comma; this is the setting of that name.
    mode = _last(given, "", "mode", "triton")
    if mode not in MODES:
        raise _bad(
            "mode", f'invalid value for trace mode option: {mode}. Available options are "triton" and "opentelemetry"'
        )
    protocol = _last(given, "opentelemetry", "protocol", "http/protobuf")
    if protocol not in PROTOCOLS:
        raise _bad("opentelemetry,protocol", f"invalid value for protocol: {protocol}. Use {' or '.join(PROTOCOLS)}.")
    # Triton ignores such settings, so they must not stop the server.
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
    # -1 stands for any number of traces.
    if not (-1 if setting == "count" else 0) <= value <= _INT32_MAX:
        raise _bad(shown, f"Provided option value is out of bound. Got {text}")
    return value


def _levels(names: Iterable[str]) -> tuple[str, ...]:
    """The named levels, in a fixed order. OFF adds none (C43)."""
    for name in names:
        if name.lower() not in _LEVELS:
            raise _bad("level", f"invalid value for trace level option: {name}")
    wanted = {_LEVELS[name.lower()] for name in names}
    return tuple(level for level in _ORDER if level in wanted)


def _resource(settings: Iterable[str]) -> Mapping[str, str]:
    """The attributes of the resource, by name. Raises Invalid for one without a value."""
    found: dict[str, str] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if not name or not value:
            raise _bad("opentelemetry,resource", f"resource is given as <attribute>=<value>. Got {setting}")
        found[name] = value
    return MappingProxyType(found)


def _batching(given: Mapping[tuple[str, str], Sequence[str]], name: str, environment: Mapping[str, str]) -> int:
    """A setting of the batch processor: from the flag, else the environment, else the default (C42)."""
    # OpenTelemetry's own variables. A malformed one is ignored.
    said = environment.get(f"OTEL_{name.upper()}", "").strip()
    text = _last(given, "opentelemetry", name, said if said.isdecimal() else str(SPAN_BATCHING[name]))
    if not text.isdecimal() or not 0 < int(text) <= _INT32_MAX:
        raise _bad(f"opentelemetry,{name}", f"Invalid option value. Got {text}")
    return int(text)


# ---- metrics


_SWITCHES: Mapping[str, Callable[[MetricsOptions, bool], MetricsOptions]] = {
    "counter_latencies": lambda options, on: replace(options, counters=on),
    "summary_latencies": lambda options, on: replace(options, summaries=on),
    "histogram_latencies": lambda options, on: replace(options, histograms=on),
}
_WORDS = {"true": True, "false": False}


def metrics_options(settings: Iterable[tuple[str, str]], warn: Callable[[str], None]) -> MetricsOptions:
    """The options of the metrics. The last value of a setting counts. `warn` takes a text for what has no effect."""
    options = MetricsOptions()
    for setting, value in settings:
        said = f"'--metrics-config={setting}={value}'"
        if setting == "summary_quantiles":
            quantiles = []
            for part in value.split(","):
                found = _quantile(part)
                if found is None:
                    warn(f"{said}: '{part}' has no effect, it is not of the form <quantile>:<error>.")
                    continue
                quantile, read = found
                if read != part:
                    warn(f"{said}: '{part}' is read as '{read}', the rest is no number.")
                # A quantile that is given twice would be two lines of one metric.
                if quantile not in quantiles:
                    quantiles.append(quantile)
            options = replace(options, quantiles=tuple(quantiles) or options.quantiles)
        elif setting not in _SWITCHES:
            warn(f"{said} has no effect: there is no such setting.")
        elif value not in _WORDS:
            warn(f"{said} has no effect: the value must be 'true' or 'false'.")
        else:
            options = _SWITCHES[setting](options, _WORDS[value])
    return options


_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")


def _quantile(text: str) -> tuple[float, str] | None:
    """The quantile in `<quantile>:<error>`, and what was read. The error is not used: the accuracy here is fixed.

    Both numbers are read as far as they are numbers, as in Triton: `0.1:0.0.1` is `0.1:0.0`.
    """
    quantile, colon, error = text.partition(":")
    number, allowed = _NUMBER.match(quantile), _NUMBER.match(error)
    if not colon or number is None or allowed is None or not 0 <= float(number[1]) <= 1:
        return None
    return float(number[1]), f"{number[0]}:{allowed[0]}"
