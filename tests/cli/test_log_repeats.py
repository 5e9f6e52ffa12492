import logging

from halimede.cli.log_lines import LEFT_OUT
from halimede.cli.logging import MAX_KNOWN, PERIOD, Repeats


def record(message: str = "broke", level: int = logging.ERROR, line: int = 1, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("halimede.x", level, "x.py", line, message, (), None)
    made.__dict__.update(more)
    return made


def left_out(made: logging.LogRecord) -> int:
    number = getattr(made, LEFT_OUT, None)
    assert number is None or isinstance(number, int)
    return number or 0


def test_repeated_error_is_admitted_once_a_second_with_the_number_left_out() -> None:
    repeats = Repeats()
    said = [(now, one) for now in (0.0, 0.1, 0.9, 1.0, 1.5, 2.1) if repeats.admits(one := record(), now)]
    assert [(now, left_out(one)) for now, one in said] == [(0.0, 0), (1.0, 2), (2.1, 1)]
    assert repeats.waiting == 0


def test_repetitions_that_no_line_follows_are_due_after_a_period() -> None:
    repeats = Repeats()
    for now in (0.0, 0.1, 0.2, 0.3):
        repeats.admits(record(), now)
    assert repeats.waiting == 1
    assert repeats.due(0.9) == []
    (told,) = repeats.due(PERIOD)
    assert (told.getMessage(), left_out(told)) == ("broke", 2)  # itself, and two more
    assert (repeats.waiting, repeats.due(PERIOD), repeats.due(3 * PERIOD)) == (0, [], [])


def test_lines_with_another_place_level_or_text_are_different() -> None:
    repeats = Repeats()
    lines = [record(), record("else"), record(line=2), record(level=logging.WARNING), record(table="| x |")]
    assert all(repeats.admits(one, 0.0) for one in lines)
    assert not any(repeats.admits(one, 0.5) for one in lines)


def test_lines_of_different_requests_are_the_same() -> None:
    repeats = Repeats()
    assert repeats.admits(record(request_id="1"), 0.0)
    assert not repeats.admits(record(request_id="2"), 0.0)


def test_lines_of_different_models_and_instances_are_different() -> None:
    repeats = Repeats()
    lines = [record(model="m", version=1), record(model="n", version=1), record(model="m", version=2)]
    lines += [record(model="m", version=1, instance=name) for name in ("m_0_0", "m_0_1")]
    assert all(repeats.admits(one, 0.0) for one in lines)
    assert not any(repeats.admits(one, 0.5) for one in lines)


def test_information_is_always_admitted() -> None:
    repeats = Repeats()
    assert all(repeats.admits(record(level=logging.INFO), 0.0) for _ in range(5))


def test_number_of_remembered_lines_is_bounded() -> None:
    repeats = Repeats()
    for number in range(3 * MAX_KNOWN):
        assert repeats.admits(record(f"{number}"), 0.0)
        assert len(repeats._written) <= MAX_KNOWN
