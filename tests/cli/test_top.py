"""`halimede top` as a command, against a server that is a fake."""

import json
import sys
import time
from collections.abc import Iterator

import pytest

from halimede.cli.main import main
from tests.top.test_server import CONFIG, FACTS, STATS, Fake

PLACE = ("--metrics-url=http://127.0.0.1:1/metrics", "--interval=0.1")


@pytest.fixture
def fake() -> Iterator[Fake]:
    made = Fake({"/v2": FACTS, "/v2/models/stats": STATS, "/v2/models/a%20b/versions/3/config": CONFIG})
    yield made
    made.close()


def test_once_prints_one_table(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", fake.url, *PLACE, "--once"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"triton 2.51.0  http://{fake.url}  1 model ")
    assert "a b:3" in said
    assert "no metrics found" in said


def test_table_in_a_pipe_has_all_columns(
    fake: Fake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["top", fake.url, *PLACE, "--once"]) == 0
    head, row = (line for line in capsys.readouterr().out.splitlines() if line.startswith((" model", " a b:3")))
    assert head.split()[-4:] == ["s", "busy", "use", "cache"]
    assert len(row) < 150
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["top", fake.url, *PLACE, "--once"]) == 0
    assert "cache" not in capsys.readouterr().out


def test_once_with_json_needs_no_library(
    fake: Fake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert main(["top", fake.url, *PLACE, "--once", "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert (model["name"], model["version"], model["total_requests"], model["instances"]) == ("a b", "3", 4, 8)


def test_missing_library_is_named(
    fake: Fake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert main(["top", fake.url, *PLACE, "--once"]) == 1
    assert "pip install 'halimede[top]'" in capsys.readouterr().err


def test_missing_server_is_an_error(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.close()
    assert main(["top", fake.url, "--once"]) == 1
    assert capsys.readouterr().err.startswith(f"error: http://{fake.url} cannot be reached: ")


def test_url_that_is_none_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "http://[", "--once"]) == 1
    assert capsys.readouterr().err == "error: 'http://[' is not a URL: Invalid IPv6 URL\n"


def test_wrong_line_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--onec"]) == 1
    assert "Did you mean '--once'?" in capsys.readouterr().err
    assert main(["top", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: halimede top [URL] [options]")


@pytest.mark.parametrize("terminal", ["0", "1"])
def test_view_is_refreshed_until_interrupted(
    fake: Fake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: str
) -> None:
    """Also while the server is away: the last numbers stay, and why there are no newer ones."""
    monkeypatch.setenv("TTY_COMPATIBLE", terminal)

    def interrupt() -> None:
        raise KeyboardInterrupt

    happens = iter([lambda: None, fake.close, interrupt])
    monkeypatch.setattr(time, "sleep", lambda seconds: next(happens)())
    assert main(["top", fake.url, *PLACE]) == 0
    assert fake.asked.count("/v2/models/stats") > 1
    assert "cannot be reached" in capsys.readouterr().out
