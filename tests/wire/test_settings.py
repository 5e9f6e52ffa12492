import pytest

from halimede.errors import Invalid
from halimede.wire.settings import read_levels, read_number


@pytest.mark.parametrize(
    ("names", "levels"),
    [
        ([], None),
        (["OFF"], ()),
        (["x"], None),
        (["off"], None),
        (["TIMESTAMPS"], ("TIMESTAMPS",)),
        (["TENSORS", "TIMESTAMPS"], ("TIMESTAMPS", "TENSORS")),
        (["TENSORS", "x", "TENSORS"], ("TENSORS",)),
    ],
)
def test_levels_are_read_in_one_order(names: list[str], levels: tuple[str, ...] | None) -> None:
    assert read_levels(names) == levels


@pytest.mark.parametrize("names", [["OFF", "OFF"], ["OFF", "TENSORS"], ["TIMESTAMPS", "OFF"]])
def test_off_stands_alone(names: list[str]) -> None:
    with pytest.raises(Invalid, match="Expect only one trace level 'OFF' is specified"):
        read_levels(names)


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        ("trace_rate", "0", 0),
        ("trace_rate", " \t+12abc", 12),
        ("trace_rate", "0x10", 0),
        ("trace_rate", "2147483647", 2147483647),
        ("trace_count", "-1", -1),
        ("log_frequency", "00000000000000000007", 7),
    ],
)
def test_number_is_read_as_far_as_it_goes(setting: str, text: str, value: int) -> None:
    assert read_number(setting, text, "got: ") == value


_RANGE = "Unable to parse '{}', value is out of range {}, got: {}"
_UNSIGNED, _COUNT = "[ 0, 4294967295 ]", "[ -1, 2147483647 ]"
_NINES = "9" * 5000


@pytest.mark.parametrize(
    ("setting", "text", "words"),
    [
        ("trace_rate", "", "Unable to parse 'trace_rate', got: "),
        ("trace_rate", "- 1", "Unable to parse 'trace_rate', got: - 1"),
        ("trace_rate", "\u0661", "Unable to parse 'trace_rate', got: \u0661"),
        ("trace_rate", "-1", _RANGE.format("trace_rate", _UNSIGNED, "-1")),
        ("log_frequency", "2147483648", _RANGE.format("log_frequency", _UNSIGNED, "2147483648")),
        ("trace_count", "-2", "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        ("trace_count", "-2147483649", _RANGE.format("trace_count", _COUNT, "-2147483649")),
        ("trace_count", _NINES, _RANGE.format("trace_count", _COUNT, _NINES)),
    ],
)
def test_number_that_cannot_be_is_refused(setting: str, text: str, words: str) -> None:
    with pytest.raises(Invalid) as raised:
        read_number(setting, text, "got:")
    assert str(raised.value) == words
