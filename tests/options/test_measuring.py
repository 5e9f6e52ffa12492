"""The flags of what is measured (contract C39 to C41), and what is said of those that make no sense."""

import pytest

from halimede.errors import Invalid
from halimede.options import MetricsOptions, parse


def parsed(*words: str) -> tuple[MetricsOptions, tuple[str, ...]]:
    options = parse(list(words), {})
    return options.measuring, options.warnings


@pytest.mark.rows("C39", "C40")
def test_default_metrics() -> None:
    assert parsed() == (MetricsOptions(gpu=True, cpu=True, interval_ms=2000), ())


@pytest.mark.rows("C39", "C40")
def test_metrics_can_be_switched_off() -> None:
    measuring, _ = parsed("--allow-gpu-metrics=false", "--allow-cpu-metrics=0", "--metrics-interval-ms=10")
    assert (measuring.gpu, measuring.cpu, measuring.interval_ms) == (False, False, 10)


@pytest.mark.rows("C39")
def test_without_metrics_nothing_is_measured() -> None:
    measuring, _ = parsed("--allow-metrics=false", "--allow-gpu-metrics=true", "--allow-cpu-metrics=true")
    assert (measuring.gpu, measuring.cpu) == (False, False)
    measuring, _ = parsed("--allow-metrics=false", "--http-metrics=true")
    assert (measuring.gpu, measuring.cpu, measuring.on_http) == (True, True, True)


@pytest.mark.parametrize("number", ["0", "-5"])
def test_interval_is_at_least_a_millisecond(number: str) -> None:
    assert parsed(f"--metrics-interval-ms={number}")[0].interval_ms == 1


@pytest.mark.rows("C41")
def test_settings_of_metrics() -> None:
    words = ("counter_latencies=false", "summary_latencies=true", "histogram_latencies=true")
    measuring, warnings = parsed(*(f"--metrics-config={word}" for word in words))
    assert (measuring.counters, measuring.summaries, measuring.histograms) == (False, True, True)
    assert warnings == ()


@pytest.mark.rows("C41")
def test_last_of_equal_settings_counts() -> None:
    words = ("summary_latencies=true", "summary_quantiles=0.5:1", "summary_latencies=false", "summary_quantiles=0.9:0")
    measuring, _ = parsed(*(f"--metrics-config={word}" for word in words))
    assert (measuring.summaries, measuring.quantiles) == (False, (0.9,))


@pytest.mark.rows("C41")
@pytest.mark.parametrize("text", ["x", "a,b=c", "=x", "summary_quantiles=", "local,summary_latencies=true", ""])
def test_malformed_metrics_setting_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(["--metrics-config", text], {})
    assert caught.value.message == (
        f'Bad option: "--metrics-config".\n--metrics-config option format is <setting>=<value>. Got {text}'
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x=y", "has no effect: there is no such setting."),
        ("summary_latencies=yes", "has no effect: the value must be 'true' or 'false'."),
        ("histogram_latencies=1", "has no effect: the value must be 'true' or 'false'."),
        ("summary_quantiles=0.5", ": '0.5' has no effect, it is not of the form <quantile>:<error>."),
        ("summary_quantiles=a:b", ": 'a:b' has no effect, it is not of the form <quantile>:<error>."),
        ("summary_quantiles=0.5:x", ": '0.5:x' has no effect, it is not of the form <quantile>:<error>."),
        ("summary_quantiles=2:0.1", ": '2:0.1' has no effect, it is not of the form <quantile>:<error>."),
        ("summary_quantiles=nan:0.1", ": 'nan:0.1' has no effect, it is not of the form <quantile>:<error>."),
    ],
)
def test_unknown_metrics_setting_warns_and_has_no_effect(text: str, said: str) -> None:
    measuring, warnings = parsed(f"--metrics-config={text}")
    assert measuring == MetricsOptions()
    (warning,) = warnings
    assert warning.startswith(f"'--metrics-config={text}'")
    assert warning.endswith(said)


@pytest.mark.parametrize(
    ("text", "quantiles", "read"),
    [
        ("0.1:0.0.1,0.7:0.01", (0.1, 0.7), ["'0.1:0.0.1' is read as '0.1:0.0'"]),
        ("0.5x:0.1y", (0.5,), ["'0.5x:0.1y' is read as '0.5:0.1'"]),
        ("0.5:0.1:3", (0.5,), ["'0.5:0.1:3' is read as '0.5:0.1'"]),
        (" 0.5: 1e-1", (0.5,), []),
        ("0.5:2", (0.5,), []),
    ],
)
def test_quantile_is_read_as_far_as_it_is_a_number(text: str, quantiles: tuple[float, ...], read: list[str]) -> None:
    """As the real server reads it."""
    measuring, warnings = parsed(f"--metrics-config=summary_quantiles={text}")
    assert measuring.quantiles == quantiles
    assert len(warnings) == len(read)
    assert all(words in warning for words, warning in zip(read, warnings, strict=True))


def test_valid_quantiles_are_taken() -> None:
    measuring, warnings = parsed("--metrics-config=summary_quantiles=0.99:0.001,x,0.5:0.05,0.5:0.1,")
    assert measuring.quantiles == (0.99, 0.5)
    assert len(warnings) == 2
