import pytest

from halimede.engine.log_settings import Logging
from halimede.engine_port import LogInfo, LogSettings
from halimede.errors import Error, Unavailable
from halimede.options import LogOptions


class Log:
    """Log settings, and what the log was told."""

    def __init__(self, options: LogOptions | None = None) -> None:
        self.told: list[LogOptions] = []
        self._answer = Logging(options or LogOptions(), self.told.append).answers[LogSettings]

    def ask(self, *changes: tuple[str, bool | int | str], refusal: Error | None = None) -> LogInfo:
        facts = self._answer(LogSettings(changes, refusal))
        assert isinstance(facts, LogInfo)
        return facts


def test_log_settings_are_those_of_the_command_line_first() -> None:
    log = Log(LogOptions(2, False, True, False, "ISO8601", "here", False))
    assert log.ask() == LogInfo("here", False, True, False, 2, "ISO8601")
    assert log.told == []


def test_log_settings_act_and_stay() -> None:
    log = Log(LogOptions(file="here", escape=False))
    assert log.ask(("info", False), ("verbose", 3)) == LogInfo("here", False, True, True, 3, "default")
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
