"""What `--metrics-config` says (contract C41). What is not understood is passed over with a word, by the real server
without one. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from halimede.options.values import MetricsOptions

_SWITCHES: Mapping[str, Callable[[MetricsOptions, bool], MetricsOptions]] = {
    "counter_latencies": lambda options, on: replace(options, counters=on),
    "summary_latencies": lambda options, on: replace(options, summaries=on),
    "histogram_latencies": lambda options, on: replace(options, histograms=on),
}
_WORDS = {"true": True, "false": False}


def metrics_options(settings: Iterable[tuple[str, str]], warn: Callable[[str], None]) -> MetricsOptions:
    """Of a setting that is given twice, the last counts. `warn` is told what has no effect."""
    options = MetricsOptions()
    for setting, value in settings:
        said = f"'--metrics-config={setting}={value}'"
        if setting == "summary_quantiles":
            quantiles = []
            for part in value.split(","):
                quantile = _quantile(part)
                if quantile is None:
                    warn(f"{said}: '{part}' has no effect, it is no <quantile>:<error>.")
                elif quantile not in quantiles:
                    quantiles.append(quantile)
            options = replace(options, quantiles=tuple(quantiles) or options.quantiles)
        elif setting not in _SWITCHES:
            warn(f"{said} has no effect: there is no such setting.")
        elif value not in _WORDS:
            warn(f"{said} has no effect: it is 'true' or 'false'.")
        else:
            options = _SWITCHES[setting](options, _WORDS[value])
    return options


def _quantile(text: str) -> float | None:
    """The error is read and not needed: quantiles here are as near as `service.latencies` says, whatever was asked."""
    quantile, colon, error = text.partition(":")
    try:
        number, allowed = float(quantile), float(error)
    except ValueError:
        return None
    return number if colon and 0 <= number <= 1 and 0 <= allowed <= 1 else None
