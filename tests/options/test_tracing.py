from collections.abc import Mapping

import pytest

from halimede.errors import Invalid
from halimede.options import TraceOptions, parse


def read(*args: str, environment: Mapping[str, str] | None = None) -> TraceOptions:
    return parse(args, environment or {}).trace


def refusal(*args: str) -> str:
    with pytest.raises(Invalid) as caught:
        read(*args)
    return str(caught.value)


@pytest.mark.rows("C42")
def test_settings_of_both_modes_are_read() -> None:
    assert read() == TraceOptions()
    options = read(
        *("--trace-config=level=TENSORS", "--trace-config", "level=min", "--trace-config=rate=5"),
        *("--trace-config=count=7", "--trace-config=triton,file=a,b=c", "--trace-config=triton,log-frequency=3"),
    )
    assert options == TraceOptions(level=("TIMESTAMPS", "TENSORS"), rate=5, count=7, file="a,b=c", log_frequency=3)


@pytest.mark.rows("C42")
def test_settings_of_opentelemetry_are_read() -> None:
    options = read(
        *("--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,url=http://c:1/x?a=b"),
        *("--trace-config=opentelemetry,resource=a=b", "--trace-config=opentelemetry,resource=c=d=e"),
        "--trace-config=opentelemetry,bsp_schedule_delay=10",
        environment={"OTEL_BSP_MAX_QUEUE_SIZE": "9", "OTEL_BSP_SCHEDULE_DELAY": "8"},
    )
    assert (options.mode, options.url, options.resource) == (
        "opentelemetry",
        "http://c:1/x?a=b",
        {"a": "b", "c": "d=e"},
    )
    assert options.batching == {
        "bsp_schedule_delay": 10,
        "bsp_max_export_batch_size": 512,
        "bsp_max_queue_size": 9,
    }


def test_protocol_chooses_the_default_collector() -> None:
    assert read("--trace-config=opentelemetry,protocol=grpc").url == "http://localhost:4317"


@pytest.mark.parametrize("word", ["off", "FALSE"])
def test_level_off_adds_nothing(word: str) -> None:
    """Contract C43."""
    assert read(f"--trace-config=level={word}").level == ()
    assert read(f"--trace-config=level={word}", "--trace-config=level=TENSORS").level == ("TENSORS",)


_FORM = "--trace-config option format is '<trace mode>,<setting>=<value>'. Got "
_MODES = 'Available options are "triton" and "opentelemetry"'


@pytest.mark.rows("C42")
@pytest.mark.parametrize(
    ("setting", "text"),
    [
        *((word, f'Bad option: "--trace-config".\n{_FORM}{word}') for word in ("foo", "=1", "rate=", "triton,file=")),
        ("mode=x", f'Bad option: "--trace-config mode".\ninvalid value for trace mode option: x. {_MODES}'),
        ("bogus,file=x", f'Bad option: "--trace-config".\ninvalid value for trace mode option: bogus. {_MODES}'),
        ("level=bad", 'Bad option: "--trace-config level".\ninvalid value for trace level option: bad'),
        ("rate=x", 'Bad option: "--trace-config rate".\nInvalid option value. Got x'),
        ("count=x", 'Bad option: "--trace-config count".\nInvalid option value. Got x'),
        (
            "rate=99999999999",
            'Bad option: "--trace-config rate".\nProvided option value is out of bound. Got 99999999999',
        ),
        ("triton,log-frequency=x", 'Bad option: "--trace-config triton,log-frequency".\nInvalid option value. Got x'),
        (
            ",file=x",
            'Bad option: "--trace-config".\nNo trace mode specified. --trace-config option format is '
            "<trace mode>,<setting>=<value> or <setting>=<value>. Got ,file=x",
        ),
        ("count=-2", 'Bad option: "--trace-config count".\nProvided option value is out of bound. Got -2'),
        ("opentelemetry,resource=a", None),
        ("opentelemetry,protocol=x", None),
        ("opentelemetry,bsp_max_queue_size=0", None),
    ],
)
def test_invalid_trace_setting_is_refused(setting: str, text: str | None) -> None:
    """The texts are those of the real server; it takes the last four."""
    said = refusal(f"--trace-config={setting}")
    assert said.startswith('Bad option: "--trace-config') if text is None else said == text


@pytest.mark.rows("C43")
def test_old_flags_act_and_warn() -> None:
    options = parse(["--trace-file=f", "--trace-level=TIMESTAMPS", "--trace-rate=5", "--trace-count=6"], {})
    assert options.trace == TraceOptions(level=("TIMESTAMPS",), rate=5, count=6, file="f")
    assert sum("has been deprecated" in warning for warning in options.warnings) == 4


@pytest.mark.rows("C43")
def test_old_flags_are_overridden_by_new_ones() -> None:
    names = {"level": "MIN", "rate": "7", "count": "4", "triton,file": "y", "triton,log-frequency": "4"}
    old = ("--trace-level=OFF", "--trace-rate=5", "--trace-count=3", "--trace-file=x", "--trace-log-frequency=3")
    options = parse([*old, *(f"--trace-config={name}={value}" for name, value in names.items())], {})
    assert options.trace == TraceOptions(level=("TIMESTAMPS",), rate=7, count=4, file="y", log_frequency=4)
    assert [warning for warning in options.warnings if warning.startswith("Overriding")] == [
        f"Overriding deprecated '--trace-{flag}' in favor of provided {called} in --trace-config!"
        for flag, called in (
            ("level", "level"),
            ("rate", "rate value"),
            ("count", "count"),
            ("file", "file"),
            ("log-frequency", "log-frequency"),
        )
    ]


@pytest.mark.rows("C43")
def test_old_level_off_overrides_other_old_levels() -> None:
    assert read("--trace-level=TENSORS", "--trace-level=OFF").level == ()
    assert read("--trace-level=false", "--trace-level=TENSORS").level == ()


@pytest.mark.rows("C43")
@pytest.mark.parametrize("word", ["MIN", "max", "on", "TRUE"])
def test_old_words_for_the_old_level(word: str) -> None:
    assert read(f"--trace-level={word}").level == ("TIMESTAMPS",)


def test_unknown_trace_setting_warns() -> None:
    assert any("triton,foo" in warning for warning in parse(["--trace-config=triton,foo=1"], {}).warnings)
