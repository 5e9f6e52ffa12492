"""What all example clients have in common: their flags, and one sentence without a server."""

import importlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPTS = ("embed", "keypad", "shapes", "write")
SMALL = {"keypad": ["--streams", "2", "--seconds", "1", "--hurry"], "write": ["a", "b"]}


@pytest.fixture
def nobody() -> Iterator[str]:
    """A port that is bound and not listening: no other process gets it, and nothing answers."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_these_are_the_clients() -> None:
    examples = Path(__file__).parents[2] / "examples"
    assert sorted(path.stem for path in examples.glob("*.py") if "import clients" in path.read_text()) == sorted(
        SCRIPTS
    )


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_no_server_is_one_line_and_exit_status_1(
    script: str, protocol: str, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--protocol", protocol, "--url", nobody, *SMALL.get(script, [])]
    assert importlib.import_module(script).main(words) == 1
    assert capsys.readouterr().err == (
        f"{script}: no server answers at {nobody} over {protocol}; `make serve` starts one\n"
    )


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--url", "http://localhost:8000"], "'http://localhost:8000' is not host:port"),
        (["--url", "localhost"], "'localhost' is not host:port"),
        (["--url", "localhost:65536"], "'localhost:65536' is not host:port"),
        (["--protocol", "https"], "invalid choice: 'https'"),
    ],
)
def test_wrong_arguments_are_refused(
    script: str, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module(script).main(arguments)
    assert reason in capsys.readouterr().err
