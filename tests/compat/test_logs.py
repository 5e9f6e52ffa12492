"""The log of a running server, on two streams or in a file."""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.compat.serving import Serving, write_model

_TEXT = r'(?:".*"|Try it:|exception in execute of .*|)'
"""A message, or the heading of a table."""
DEFAULT = r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ [\w.]+:\d+\] " + _TEXT
ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [IWE] \d+ [\w.]+:\d+\] " + _TEXT
ROW = r"[+|].*|    .*|curl .*|.*python.* -c .*|"
"""Lines of a table, of a model's traceback, and of the commands to try."""
_MODEL = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info("two\\nlines")
        pb_utils.Logger.log_warn("careful")

    def execute(self, requests):
        raise ValueError("no such luck")
"""


class Streams(Serving):
    """A server whose two output streams are two files."""

    def command(self, repository: Path) -> Sequence[str]:
        return ("sh", "-c", f"exec \"$@\" 2>'{self.errors}'", "sh", *super().command(repository))

    @property
    def errors(self) -> Path:
        return self.log.with_suffix(".err")

    def lines(self) -> tuple[list[str], list[str]]:
        """The lines of each stream, after the server has ended."""
        assert self.stop() == 0
        return self.log_text().splitlines(), self.errors.read_text().splitlines()


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Streams]:
    """Starts a server over `good`, `noisy` (a Python model that fails), and `bad` (which cannot be loaded)."""
    write_model(tmp_path / "models", "good", "INT32")
    (write_model(tmp_path / "models", "noisy", "INT32", backend="python") / "model.py").write_text(_MODEL)
    write_model(tmp_path / "models", "bad", "INT32", backend="nope")

    def start(*flags: str, environment: dict[str, str] | None = None) -> Streams:
        flags = ("--exit-on-error=false", *flags)
        serving = Streams(tmp_path / "models", tmp_path / "server.log", *flags, environment=environment)
        request.addfinalizer(serving.kill)
        serving.wait_until_live()
        return serving

    return start


def post(serving: Serving, path: str, body: Any) -> int:
    data = json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"http://{serving.http_url}{path}", data, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def infer(serving: Serving, name: str, model: str = "noisy") -> int:
    tensor = {"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [1]}
    return post(serving, f"/v2/models/{model}/infer", {"id": name, "inputs": [tensor]})


def messages(lines: list[str]) -> list[str]:
    return [line.partition("] ")[2].strip('"') for line in lines if re.match(DEFAULT, line)]


@pytest.mark.rows("L1", "L3", "L4", "L6", "L7", "L8")
def test_lines_have_the_form_of_the_contract(start: Callable[..., Streams]) -> None:
    serving = start()
    assert infer(serving, "r1") == 500
    out, err = serving.lines()
    assert [line for line in (*out, *err) if not re.fullmatch(f"{DEFAULT}|{ROW}", line)] == []
    assert {line[0] for line in out if re.match(DEFAULT, line)} == {"I"}
    assert {line[0] for line in err if re.match(DEFAULT, line)} == {"W", "E"}
    said = messages(out)
    assert {"loading: good:1", "successfully loaded 'good'", "successfully unloaded 'good' version 1"} <= set(said)
    assert {f"Started HTTPService at {serving.http_url}", f"Started GRPCInferenceService at {serving.grpc_url}"} <= set(
        said
    )
    assert f"Started Metrics Service at 127.0.0.1:{serving.metrics_port}" in said
    assert any(text.startswith("failed to load 'bad' version 1: ") for text in messages(err))
    for row in (
        r"\| Repository Agent \| Path \|",
        r"\| Backend +\| Path +\| Config +\|",
        r"\| identity \| .*identity/backend\.py +\| \{\"cmdline\":\{.*\}\} +\|",
        r"\| Model +\| Version \| Status +\|",
        r"\| bad +\| 1 +\| UNAVAILABLE: .*\|",
        r"\| good +\| 1 +\| READY +\|",
        r"\| Option +\| Value +\|",
        r"\| server_id +\| triton +\|",
    ):
        assert any(re.fullmatch(row, line) for line in out), row
    assert any(re.search(r' model\.py:6\] "two\\nlines"$', line) for line in out)
    assert any(re.search(r' model\.py:7\] "careful"$', line) for line in err)
    failed = next(text for text in messages(err) if "Failed to process the request(s)" in text)
    assert failed.startswith("[request id: r1] Failed to process the request(s) for model 'noisy_0_0'")


@pytest.mark.rows("L2")
def test_lines_of_iso8601(start: Callable[..., Streams]) -> None:
    out, err = start("--log-format=ISO8601").lines()
    assert [line for line in (*out, *err) if not re.fullmatch(f"{ISO}|{ROW}", line)] == []
    assert any(" W " in line for line in err)


@pytest.mark.rows("L3", "C60")
def test_lines_without_escaping(start: Callable[..., Streams]) -> None:
    out, _ = start(environment={"TRITON_SERVER_ESCAPE_LOG_MESSAGES": "0"}).lines()
    at = next(i for i, line in enumerate(out) if line.endswith("] two"))
    assert out[at + 1] == "lines"
    assert any(line.endswith("] loading: good:1") for line in out)


@pytest.mark.rows("L4", "C7")
def test_file_has_all_lines_and_can_be_rotated(start: Callable[..., Streams], tmp_path: Path) -> None:
    file = tmp_path / "logs" / "server.log"
    file.parent.mkdir()
    serving = start(f"--log-file={file}")
    serving.until(lambda: "Started Metrics" in file.read_text(), "did not say that it started")
    file.rename(file.with_suffix(".1"))
    assert infer(serving, "r1") == 500
    serving.until(file.exists, "did not begin a new file")
    out, err = serving.lines()
    assert not any(re.match(DEFAULT, line) for line in (*out, *err))
    assert {"loading: good:1", "careful"} <= set(messages(file.with_suffix(".1").read_text().splitlines()))
    after = messages(file.read_text().splitlines())
    assert any("Failed to process" in text for text in after)
    assert "successfully unloaded 'good' version 1" in after


@pytest.mark.rows("L5")
def test_log_settings_change_at_run_time(start: Callable[..., Streams]) -> None:
    serving = start("--log-info=false")
    assert post(serving, "/v2/logging", {"log_info": True, "log_error": False, "log_format": "json"}) == 200
    assert infer(serving, "r1") == 500
    assert post(serving, "/v2/logging", {"log_format": "ISO8601"}) == 200
    out, err = serving.lines()
    assert not any("loading: good:1" in line for line in out)
    assert not any("Failed to process" in line for line in err)
    assert any(re.fullmatch(ISO, line) and "successfully unloaded" in line for line in out)


def test_lines_of_json(start: Callable[..., Streams]) -> None:
    """The log as JSON objects (D24)."""
    serving = start("--log-format=json")
    assert infer(serving, "r1") == 500
    out, err = ([json.loads(line) for line in lines] for lines in serving.lines())
    about = {one["message"]: (one.get("model"), one.get("version")) for one in (*out, *err)}
    assert about["successfully loaded 'good'"] == ("good", 1)
    assert about["two\nlines"] == ("noisy", 1)
    failed = next(one for one in err if one["message"].startswith("Failed to process"))
    assert (failed["model"], failed["version"], failed["request_id"]) == ("noisy", 1, "r1")
    assert any("| Model" in one.get("table", "") for one in out)


def test_repeated_error_is_logged_once_per_second(start: Callable[..., Streams]) -> None:
    serving = start()
    began = time.monotonic()
    for number in range(50):
        assert infer(serving, f"{number}") == 500
    _, err = serving.lines()
    failed = [text for text in messages(err) if "Failed to process" in text]
    assert len(failed) <= time.monotonic() - began + 2, "the first, one each second, and the rest at the end"
    left_out = sum(int(found[1]) for text in failed if (found := re.search(r"\((\d+) more of this\)$", text)))
    assert len(failed) + left_out == 50
