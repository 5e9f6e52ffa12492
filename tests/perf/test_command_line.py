from collections.abc import Sequence

import pytest

from halimede.perf.command_line import help_text, parse
from halimede.perf.flags import ROWS
from halimede.perf.options import HelpRequested, Options, Parameter, Range, UsageError, VersionRequested


def options(*words: str) -> Options:
    return parse(words)[0]


def test_model_alone_asks_for_a_search() -> None:
    found = options("resnet")
    assert found.model == "resnet"
    assert found.automatic


@pytest.mark.parametrize(
    "words", [["-m", "resnet"], ["resnet", "--concurrency-range", "4"], ["resnet", "--request-count", "9"]]
)
def test_chosen_load_or_the_old_form_is_no_search(words: Sequence[str]) -> None:
    assert not options(*words).automatic


def test_names_may_be_shortened_as_in_getopt() -> None:
    assert options("-m", "x", "--conc", "2:8:2").concurrency == Range(2, 8, 2)


def test_old_options_are_a_range() -> None:
    assert options("-m", "x", "-t", "4").concurrency == Range(4, 4)
    assert options("-m", "x", "-t", "2", "-c", "9", "-d").concurrency == Range(2, 9)


def test_request_count_is_a_counted_window() -> None:
    found = options("-m", "x", "--request-count", "70")
    assert (found.mode, found.window_requests) == ("count_windows", 70)


def test_values_are_read() -> None:
    found = options(
        *("-m", "x", "-i", "GRPC", "-b", "3", "-H", "a:b", "-H", "c:d", "-s", "5", "-v", "-v", "--streaming"),
        *("--shape", "A:2,3", "--shape", "B:c:4", "--request-parameter", "n:7:INT"),
        *("--sequence-id-range", "10:30", "--bls-composing-models", "a:1,"),
        "--request-rate-range=10.5:20",
    )
    assert found.protocol == "grpc"
    assert (found.batch_size, found.batch_size_given, found.verbose) == (3, True, 2)
    assert found.headers == (("a", "b"), ("c", "d"))
    assert found.shapes == {"A": (2, 3), "B:c": (4,)}
    assert found.stability == pytest.approx(0.05)
    assert found.parameters == {"n": Parameter("7", "int")}
    assert (found.sequence_id_start, found.sequence_ids) == (10, 20)
    assert found.composing == (("a", "1"), ("", ""))
    assert found.rate == Range(10.5, 20, 1)
    assert found.asynchronous


def test_two_loads_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"Cannot use both --concurrency-range and --request-rate-range inference load"
    ):
        options("-m", "x", "--concurrency-range", "1", "--request-rate-range", "1")


@pytest.mark.parametrize(
    ("word", "text"),
    [("--nosuch", "Invalid long option '--nosuch'"), ("-q", "Invalid short option '-q'")],
)
def test_unknown_option_is_named(word: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        options("-m", "x", word)


def test_misspelt_option_has_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"Did you mean '--concurrency-range'\?"):
        options("-m", "x", "--concurency-range", "1")


def test_second_word_is_refused() -> None:
    with pytest.raises(UsageError, match="unexpected argument: y"):
        options("x", "y")


def test_compare_takes_two_files() -> None:
    assert options("--compare", "a.json", "b.json").compare == ("a.json", "b.json")
    with pytest.raises(UsageError, match="two files"):
        options("--compare", "a.json")


def test_help_and_version_end_the_reading() -> None:
    with pytest.raises(HelpRequested):
        options("--help")
    with pytest.raises(VersionRequested):
        options("-m", "x", "--version")


def test_help_names_every_option_and_keeps_its_width() -> None:
    text = help_text(90)
    assert all(f"--{row.name}" in text for row in ROWS if row.name)
    assert max(map(len, text.splitlines())) <= 90


def test_sequence_length_of_zero_is_a_warning() -> None:
    found, warnings = parse(["-m", "x", "--sequence-length", "0"])
    assert found.sequence_length == 20
    assert len(warnings) == 1
