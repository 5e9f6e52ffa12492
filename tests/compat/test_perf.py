"""`halimede perf` from outside, against a server of ours: its runs, its files, and how it fails."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.serving import Serving, write_model
from tests.ports import free_ports

pytestmark = pytest.mark.perf

LIMIT = 60.0
FAILING = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        self.count += 1
        if self.count % 2 == 0:
            return pb_utils.InferenceResponse([], pb_utils.TritonError("every second request fails"))
        tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())])
"""
ENDLESS_SECONDS = 10
ENDLESS = f"""import time


class TritonPythonModel:
    def execute(self, requests):
        time.sleep({ENDLESS_SECONDS})
"""
SHAPE = ("--shape", "INPUT0:16")
LEVELS = ("--concurrency-range", "1:99", "-p500", "-s999")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("perf") / "models"
    write_model(repository, "floor", "FP32", max_batch_size=8)
    version = write_model(repository, "failing", "FP32", backend="python")
    (version / "model.py").write_text(FAILING)
    version = write_model(repository, "endless", "FP32", backend="python")
    (version / "model.py").write_text(ENDLESS)
    with Serving(repository, repository.parent / "log") as serving:
        yield serving.wait_until_live()


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "halimede", "perf", *words]


def perf(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=LIMIT, check=False)


def test_model_alone_ends_in_a_sentence(served: Serving) -> None:
    done = perf("floor", "-u", served.http_url, *SHAPE, "--seconds", "3")
    assert done.returncode == 0, done.stderr
    last = done.stdout.rstrip().splitlines()[-1]
    assert re.fullmatch(r"floor serves [\d,]+ inferences/s with \d+ clients? \(p50 .* ms, p99 .* ms\).*\.", last), last
    assert done.stderr == ""


@pytest.mark.rows("X8")
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_counted_run_sends_exactly_so_many_requests(served: Serving, protocol: str, tmp_path: Path) -> None:
    url = served.http_url if protocol == "http" else served.grpc_url
    before = _successes(served)
    words = ["--request-count", "37", "--warmup-request-count", "5", "--concurrency-range", "4", "--processes", "2"]
    done = perf("-m", "floor", "-i", protocol, "-u", url, *SHAPE, *words, "-f", str(tmp_path / "a.csv"))
    assert done.returncode == 0, done.stderr
    assert _successes(served) - before == 37 + 5
    assert "    Request count: 37\n" in done.stdout
    with (tmp_path / "a.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["Concurrency"] == "4"


def _successes(served: Serving) -> int:
    _, statistics = served.ask("/v2/models/floor/stats")
    return int(statistics["model_stats"][0]["inference_stats"]["success"]["count"])


@pytest.mark.rows("X3")
@pytest.mark.parametrize("distribution", ["constant", "poisson"])
def test_server_sees_the_rate_that_was_asked_for(served: Serving, distribution: str) -> None:
    words = ["--request-rate-range", "200", "--request-distribution", distribution, "-p", "1000", "-s", "999"]
    done = perf("-m", "floor", "-u", served.http_url, *SHAPE, *words)
    assert done.returncode == 0, done.stderr
    found = re.search(r"Throughput: ([\d.]+) infer/sec", done.stdout)
    assert found is not None
    assert float(found[1]) == pytest.approx(200, rel=0.15)


@pytest.mark.rows("X4")
def test_requests_that_are_sent_late_are_reported(served: Serving) -> None:
    words = ("--request-rate-range", "200", "--request-count", "600")
    running = subprocess.Popen(
        command("-m", "floor", "-u", served.http_url, *SHAPE, *words), stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("Request Rate: 200 "):
            break
    (load,) = map(int, Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split())
    time.sleep(0.5)
    os.kill(load, signal.SIGSTOP)  # no request is sent while it is stopped
    time.sleep(0.5)
    os.kill(load, signal.SIGCONT)
    said, _ = running.communicate(timeout=LIMIT)
    late = re.search(r"able to keep up with the desired request rate. ([\d.]+)% of the requests were delayed", said)
    assert late is not None, said
    assert float(late[1]) > 3
    # Their latency counts from the time when they were due.
    p99 = re.search(r"p99 latency: (\d+) usec", said)
    assert p99 is not None
    assert int(p99[1]) > 200_000


@pytest.mark.rows("X41", "X42")
def test_command_line_of_model_analyzer_gives_the_columns_that_it_reads(served: Serving, tmp_path: Path) -> None:
    table = tmp_path / "floor-results.csv"
    words = ["-b", "2", "-u", served.grpc_url, "-i", "grpc", "-f", str(table), "--verbose-csv"]
    words += ["--measurement-mode", "count_windows", "--concurrency-range", "4", "--measurement-request-count", "50"]
    done = perf("-m", "floor", *SHAPE, *words, "-s", "999")
    assert done.returncode == 0, done.stderr
    with table.open(newline="") as file:
        (row,) = csv.DictReader(file)
    read = [f"p{each} latency" for each in (90, 95, 99)] + [f"Server Compute {each}" for each in ("Input", "Infer")]
    read += ["Avg latency", "Inferences/Second", "request/response", "response wait", "Server Queue"]
    assert all(float(row[name]) >= 0 for name in [*read, "Server Compute Output"])
    assert float(row["Inferences/Second"]) > 0


def test_intervals_of_a_file_repeat(served: Serving, tmp_path: Path) -> None:
    (tmp_path / "gaps").write_text("5000\n15000\n")
    done = perf(
        "-m",
        "floor",
        "-u",
        served.http_url,
        *SHAPE,
        "--request-intervals",
        str(tmp_path / "gaps"),
        "-p",
        "1000",
        "-s",
        "999",
    )
    assert done.returncode == 0, done.stderr
    assert "Request Rate: 100, throughput: " in done.stdout


@pytest.mark.rows("X29")
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_export_has_every_request_with_its_data(served: Serving, protocol: str, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text(
        json.dumps(
            {"data": [{"INPUT0": {"content": [1.5, 2.5], "shape": [2]}}, {"INPUT0": {"content": [3], "shape": [1]}}]}
        )
    )
    url = served.http_url if protocol == "http" else served.grpc_url
    export = tmp_path / "export.json"
    words = ["--input-data", str(data), "--request-count", "6", "--profile-export-file", str(export)]
    began = time.time_ns()
    done = perf("-m", "floor", "-i", protocol, "-u", url, *words)
    assert done.returncode == 0, done.stderr
    document = json.loads(export.read_text())
    assert (document["service_kind"], document["endpoint"]) == ("triton", "")
    (experiment,) = document["experiments"]
    assert experiment["experiment"] == {"mode": "concurrency", "value": 1}
    assert len(experiment["requests"]) == 6
    for request in experiment["requests"]:
        assert request["request_inputs"]["INPUT0"] in ([1.5, 2.5], 3.0)
        assert request["response_outputs"] == [{"OUTPUT0": request["request_inputs"]["INPUT0"]}]
        (response,) = request["response_timestamps"]
        assert began < request["timestamp"] < response < time.time_ns()
    assert len(experiment["window_boundaries"]) == 2
    again = perf("-m", "floor", "-u", served.http_url, "--profile-export-file", str(export))
    assert (again.returncode, again.stderr.splitlines()[0]) == (
        99,
        "Error: Failed to parse --profile-export-file. Path must not already exist.",
    )


def test_no_server_is_one_line() -> None:
    (port,) = free_ports(1)
    done = perf("-m", "floor", "-u", f"127.0.0.1:{port}")
    assert done.returncode == 99
    assert (
        done.stderr.split()
        == f"error: failed to get model metadata: failed to connect to 127.0.0.1:{port}: Connection refused".split()
    )


@pytest.mark.parametrize("option", ["-f", "--json", "--plot", "--profile-export-file"])
def test_unwritable_output_is_known_before_the_measurement(served: Serving, tmp_path: Path, option: str) -> None:
    done = perf("-m", "floor", "-u", served.http_url, *SHAPE, option, str(tmp_path / "no" / "a.svg"))
    assert done.returncode == 99
    assert done.stderr.strip() == f"error: cannot write '{tmp_path}/no/a.svg': No such file or directory"
    assert done.stdout == ""


def test_disk_that_is_full_in_the_end_loses_only_its_file(served: Serving, tmp_path: Path) -> None:
    kept = tmp_path / "a.json"
    words = ("--request-count", "5", "-f", "/dev/full", "--json", str(kept))
    done = perf("-m", "floor", "-u", served.http_url, *SHAPE, *words)
    assert done.returncode == 99
    # Before it, there may be a remark about so few requests (X28).
    assert done.stderr.splitlines()[-1] == "error: cannot write '/dev/full': No space left on device"
    assert "    Request count: 5\n" in done.stdout
    assert json.loads(kept.read_text())["model"] == "floor"


def test_unknown_input_is_named(served: Serving, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('{"data": [{"INPUT": [1]}]}')
    done = perf("-m", "floor", "-u", served.http_url, "--input-data", str(tmp_path / "data.json"))
    assert done.returncode == 99
    assert "The input or output 'INPUT' is not found in the model configuration" in done.stderr
    done = perf("-m", "floor", "-u", served.http_url, "--shape", "INPUT:4")
    warning, error = done.stderr.strip().splitlines()
    assert warning == "warning: the model has no input 'INPUT' that --shape could be about"
    assert error.endswith(": input INPUT0 contains dynamic shape, provide shapes to send along with the request")


@pytest.mark.rows("X25")
def test_model_that_fails_now_and_then_ends_the_run_and_its_figures_are_kept(served: Serving, tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    done = perf("-m", "failing", "-u", served.http_url, *SHAPE, "-p", "300", "-f", str(table))
    assert done.returncode == 99
    # A remark may follow (X28): a busy machine answers while the client still counts its time as sending.
    assert done.stderr.splitlines()[1] == "Thread [0] had error: every second request fails"
    counts = re.search(r"    Request count: (\d+)\n    Failed request count: (\d+)\n", done.stdout)
    assert counts is not None
    assert abs(int(counts[1]) - int(counts[2])) <= 1
    assert table.exists()


def test_server_that_dies_ends_the_run_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "floor", "FP32")
    with Serving(tmp_path / "models", tmp_path / "log") as serving:
        serving.wait_until_live()
        running = subprocess.Popen(
            command("-m", "floor", "-u", serving.http_url, *SHAPE, *LEVELS, "-f", str(tmp_path / "a.csv")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("Request concurrency: 2"):
                break
        serving.kill()
        said, complained = running.communicate(timeout=LIMIT)
    assert running.returncode == 99
    # Requests may fail first, or a question about statistics.
    assert complained.startswith("Failed to maintain requested inference load.") or serving.http_url in complained
    assert "Concurrency: 1, throughput: " in said
    with (tmp_path / "a.csv").open(newline="") as file:
        assert "1" in [row["Concurrency"] for row in csv.DictReader(file)]


def interrupted(*words: str, number: int = signal.SIGINT) -> "subprocess.Popen[str]":
    """A run that was interrupted once, after it had begun to measure."""
    running = subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("Request concurrency: 1"):
            break
    time.sleep(0.5)  # some requests
    os.killpg(running.pid, number)  # its load process gets the signal too, as from a terminal or `timeout`
    return running


@pytest.mark.rows("X26")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_first_interrupt_ends_the_measurement_and_reports(
    served: Serving, tmp_path: Path, number: int, status: int
) -> None:
    table = tmp_path / "a.csv"
    words = ("-m", "floor", "-u", served.http_url, *SHAPE, "-p", "60000", "-f", str(table))
    running = interrupted(*words, number=number)
    said, _ = running.communicate(timeout=LIMIT)
    assert running.returncode == status
    assert f"Interrupt signal ({number}) received." in said
    assert "Concurrency: 1, throughput: " in said
    with table.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert float(row["Inferences/Second"]) > 0


def test_interrupted_search_keeps_its_levels(served: Serving, tmp_path: Path) -> None:
    running = subprocess.Popen(
        command("floor", "-u", served.http_url, *SHAPE, "--json", str(tmp_path / "a.json")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    for line in running.stdout:
        if line.split()[:1] == ["2"]:
            break
    os.kill(running.pid, signal.SIGINT)
    _, complained = running.communicate(timeout=LIMIT)
    assert (running.returncode, complained) == (0, "Received exit signal.\n")
    levels = json.loads((tmp_path / "a.json").read_text())["levels"]
    assert [level["value"] for level in levels][:2] == [1, 2]


@pytest.mark.rows("X26")
def test_second_interrupt_ends_the_program_while_requests_are_in_flight(served: Serving) -> None:
    running = interrupted("-m", "endless", "-u", served.http_url, *SHAPE, "-p", "60000")
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("Waiting for in-flight inferences"):
            break
    began = time.monotonic()
    os.kill(running.pid, signal.SIGINT)
    said, _ = running.communicate(timeout=LIMIT)
    assert time.monotonic() - began < ENDLESS_SECONDS / 2
    assert running.returncode == 0
    assert "Exiting immediately...\n" in said
    assert "throughput" not in said
