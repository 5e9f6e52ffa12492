"""The parts of the script that need no server, and its error without one."""

import socket

import embed
import numpy as np
import pytest


def test_nearest_other_is_never_the_row_itself() -> None:
    angles = np.radians([0, 10, 90, 95])
    nearest, similarities = embed.nearest_others(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    assert nearest.tolist() == [1, 0, 3, 2]
    assert similarities == pytest.approx(np.cos(np.radians([10, 10, 5, 5])))


def test_table_names_both_sentences_and_shortens_a_long_one() -> None:
    lines = embed.table(["short", "long " * 40], [1, 0], [0.5, 0.25]).splitlines()
    assert [line.split()[0] for line in lines] == ["similarity", "0.50", "0.25"]
    assert lines[1].endswith("long long ...")
    assert lines[2].endswith("...  short")
    assert max(map(len, lines)) <= 12 + 72 + 2 + 72


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_no_server_is_one_line_and_exit_status_1(protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:  # bound and not listening: no other process gets the port, and nothing answers
        bound.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{bound.getsockname()[1]}"
        assert embed.main(["--protocol", protocol, "--url", url]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"embed: no server answers at {url} over {protocol}; `make serve` starts one\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["alone"], "one sentence has no other to be near to: give two or more"),
        (["--url", "http://localhost:8000"], "'http://localhost:8000' is not host:port"),
        (["--url", "localhost"], "'localhost' is not host:port"),
        (["--url", "localhost:65536"], "'localhost:65536' is not host:port"),
        (["--protocol", "https"], "invalid choice: 'https'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        embed.main(arguments)
    assert reason in capsys.readouterr().err
