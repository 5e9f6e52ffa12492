from typing import Any

import pytest

from halimede.errors import Error, Invalid, NotFound, Unavailable, Unsupported
from halimede.models.lifecycle import ModelTable
from halimede.models.version import ModelVersion
from halimede.options import LogOptions
from halimede.service.port import LogFacts, LogSettings, TraceFacts, TraceSettings
from halimede.service.settings import Logging, Tracing
from tests.fakes import ManualLoop, RecordingObserver
from tests.models.configs import config_of, spec
from tests.models.fakes import loaded

DEFAULT = TraceFacts((), 1000, -1, 0, "", "triton")


class Log:
    """Log settings, and what the log was told."""

    def __init__(self, options: LogOptions | None = None) -> None:
        self.told: list[LogOptions] = []
        self._answer = Logging(options or LogOptions(), self.told.append).answers[LogSettings]

    def ask(self, *changes: tuple[str, bool | int | str], refusal: Error | None = None) -> LogFacts:
        facts = self._answer(LogSettings(changes, refusal))
        assert isinstance(facts, LogFacts)
        return facts


def test_log_settings_are_those_of_the_command_line_first() -> None:
    log = Log(LogOptions(2, False, True, False, "ISO8601", "here", False))
    assert log.ask() == LogFacts("here", False, True, False, 2, "ISO8601")
    assert log.told == []


def test_log_settings_act_and_stay() -> None:
    log = Log(LogOptions(file="here", escape=False))
    assert log.ask(("info", False), ("verbose", 3)) == LogFacts("here", False, True, True, 3, "default")
    assert log.told == [LogOptions(3, False, True, True, "default", "here", False)]
    assert log.ask(("format", "ISO8601")).info is False


def test_log_settings_before_a_refusal_stay_changed() -> None:
    """Contract H124."""
    log = Log()
    with pytest.raises(Unavailable, match="wrong"):
        log.ask(("error", False), refusal=Unavailable("wrong"))
    assert log.told == [LogOptions(error=False)]
    assert log.ask().error is False


@pytest.mark.parametrize(
    ("given", "kept"), [(2**31 - 1, 2**31 - 1), (2**31, 0), (2**32 - 1, 0), (2**32, 0), (2**32 + 1, 1)]
)
def test_log_level_is_a_signed_number_of_32_bits(given: int, kept: int) -> None:
    assert Log().ask(("verbose", given)).verbose == kept


class Traces:
    """Trace settings beside a table with the model `m`, which serves, and `unready`, which does not."""

    def __init__(self) -> None:
        table = ModelTable()
        config = config_of(spec("INPUT0", "INT32", [1]), outputs=[spec("INPUT0", "INT32", [1])])
        version = ModelVersion(loaded(config), ManualLoop(), RecordingObserver(), lambda one: None)
        table.publish("m", [version], lambda one: None)
        table.refuse("unready", 1, "Internal: broke")
        self._answer = Tracing(table).answers[TraceSettings]

    def ask(self, model: str = "", refusal: Error | None = None, **changes: Any) -> TraceFacts:
        facts = self._answer(TraceSettings(model, tuple(changes.items()), refusal))
        assert isinstance(facts, TraceFacts)
        return facts


def test_trace_settings_have_three_layers() -> None:
    """Contract T2: a model has what was set for it, else what was set for all, else the server's own."""
    traces = Traces()
    assert (traces.ask(), traces.ask("m")) == (DEFAULT, DEFAULT)
    assert traces.ask(rate=7, log_frequency=3) == TraceFacts((), 7, -1, 3, "", "triton")
    assert traces.ask("m", rate=9) == TraceFacts((), 9, -1, 3, "", "triton")
    assert traces.ask(rate=None).rate == 1000
    assert traces.ask("m") == TraceFacts((), 9, -1, 3, "", "triton")
    assert traces.ask("m", rate=None) == TraceFacts((), 1000, -1, 3, "", "triton")
    assert traces.ask(log_frequency=None) == traces.ask("m") == DEFAULT


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"level": ("TIMESTAMPS",)}, "trace file name is not given"),
        ({"level": ("TENSORS",), "rate": 0}, "sample rate must be non-zero"),
    ],
)
def test_trace_settings_that_cannot_be_change_nothing(changes: dict[str, Any], reason: str) -> None:
    """Contract H123."""
    traces = Traces()
    with pytest.raises(Invalid) as raised:
        traces.ask("m", **changes)
    assert str(raised.value) == f"Attempting to set invalid trace setting :{reason}"
    assert traces.ask("m") == DEFAULT


def test_trace_settings_may_be_anything_while_tracing_is_off() -> None:
    assert Traces().ask(rate=0, count=0, level=()).rate == 0


def test_trace_settings_of_a_model_that_is_not_there_come_before_what_is_wrong() -> None:
    traces, wrong = Traces(), Unsupported("wrong")
    with pytest.raises(NotFound, match="Request for unknown model: 'nope' is not found"):
        traces.ask("nope", wrong)
    with pytest.raises(Invalid, match="Request for unknown model : unready"):
        traces.ask("unready", wrong)
    with pytest.raises(Unsupported, match="wrong"):
        traces.ask("m", wrong, rate=3)
    assert traces.ask("m") == DEFAULT
