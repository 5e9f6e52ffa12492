import pytest

from halimede.errors import Invalid
from halimede.options import HelpRequested, Top, parse_top, top_usage


def test_nothing_said_is_the_server_of_this_machine() -> None:
    assert parse_top([]) == Top("localhost:8000", "", 1.0, False, False)


def test_everything_said() -> None:
    words = ["http://h:1", "--metrics-url", "h:2/m", "--interval=0.5", "--once", "--json"]
    assert parse_top(words) == Top("http://h:1", "h:2/m", 0.5, True, True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a", "b"], "Unexpected argument: b"),
        (["--onec"], "unrecognized option '--onec'\nDid you mean '--once'?"),
        (["--once=1"], "option '--once' doesn't allow an argument"),
        (["--interval"], "option '--interval' requires an argument"),
        (["--interval=0"], 'Bad option: "--interval".\nIt is 0.1 seconds at least.'),
        (["--interval=x"], 'Bad option: "--interval".\nInvalid option value. Got x'),
        (["--json"], "--json is for --once"),
    ],
)
def test_wrong_line(words: list[str], text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_top(words)
    assert caught.value.message == text


def test_help() -> None:
    with pytest.raises(HelpRequested):
        parse_top(["--help"])
    assert top_usage().startswith("Usage: halimede top [URL] [options]")
    assert "--metrics-url <string>" in top_usage()
