"""`halimede analyze` from outside: the searches, the files, what it leaves behind, and how it fails."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.compat.serving import Serving, write_model
from tests.ports import free_ports

pytestmark = pytest.mark.perf

LIMIT = 240.0
SLOW = """import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())])
"""
"""One execution takes 20 ms, however many requests are in it: batches and instances are what helps."""
FAILING = SLOW.replace(
    "        return [self",
    "        if len(requests) > 0 and time.monotonic_ns() // 10_000 % 2:\n"
    '            return [pb_utils.InferenceResponse([], pb_utils.TritonError("it fails"))] * len(requests)\n'
    "        return [self",
)
SMALL = (
    *("--run-config-search-max-instance-count", "2", "--run-config-search-max-model-batch-size", "8"),
    *("--run-config-search-max-concurrency", "8", "--run-config-search-queue-delays", "0"),
    *("--measurement-seconds", "0.6"),
)
SHAPE = ("--", "--shape", "INPUT0:4")
CONFIG_COMMENT = "# The only one.\n"


def write_repository(folder: Path) -> Path:
    version = write_model(folder, "slow", "FP32", backend="python", max_batch_size=1)
    (version / "model.py").write_text(SLOW)
    config = version.parent / "config.pbtxt"
    config.write_text(CONFIG_COMMENT + config.read_text())
    version = write_model(folder, "failing", "FP32", backend="python")
    (version / "model.py").write_text(FAILING)
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "halimede", "analyze", *words]


def analyze(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(*words), cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)


def table(folder: Path, name: str = "metrics-model-inference.csv") -> list[Mapping[str, str]]:
    with (folder / "results" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def kept(folder: Path, number: int = 0) -> Any:
    return json.loads((folder / "checkpoints" / f"{number}.ckpt").read_bytes())


@pytest.mark.rows("X32", "X39", "X43", "X45")
def test_local_profile_finds_batches_and_instances(repository: Path, tmp_path: Path) -> None:
    words = ("profile", "slow", "-m", str(repository), *SMALL, "--output-model-repository-path", "out")
    done = analyze(tmp_path, *words, *SHAPE)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "slow: slow_config_" in done.stdout
    assert "\nconfig.pbtxt of slow:\n\n# The only one.\n" in done.stdout
    rows = table(tmp_path)
    best = rows[0]
    # Eight clients: one instance answers 50 of them in a second, and more with batches or a second instance.
    default = max(float(row["Throughput (infer/sec)"]) for row in rows if row["Max Batch Size"] == "1")
    assert float(best["Throughput (infer/sec)"]) > 2 * default
    assert best["Satisfies Constraints"] == "Yes"
    assert list(best) == [
        "Model",
        "Batch",
        "Concurrency",
        "Model Config Path",
        "Instance Group",
        "Max Batch Size",
        "Satisfies Constraints",
        "Throughput (infer/sec)",
        "p99 Latency (ms)",
    ]
    assert not (tmp_path / "results" / "metrics-model-gpu.csv").exists()  # a table without rows
    names = {row["Model Config Path"] for row in rows}
    assert "slow_config_default" in names
    assert {each.name for each in (tmp_path / "out").iterdir()} == names
    shown = tmp_path / "out" / best["Model Config Path"]
    assert f'name: "{shown.name}"' in (shown / "config.pbtxt").read_text()
    assert (shown / "1" / "model.py").read_text() == SLOW
    assert (repository / "slow" / "config.pbtxt").read_text().startswith(CONFIG_COMMENT)
    # A second run takes what is known from the checkpoint, in a new file.
    assert (tmp_path / "checkpoints" / "0.ckpt").exists()
    again = analyze(tmp_path, *words, *SHAPE)
    assert again.returncode == 1
    assert "the folder 'out' exists already; --override-output-model-repository replaces it" in again.stderr
    again = analyze(tmp_path, *words, "--override-output-model-repository", *SHAPE)
    assert again.returncode == 0, again.stderr
    assert kept(tmp_path, 1)["models"] == kept(tmp_path, 0)["models"]


def test_apply_writes_the_best_configuration_and_keeps_the_comments(repository: Path, tmp_path: Path) -> None:
    before = (repository / "slow" / "config.pbtxt").read_text()
    done = analyze(tmp_path, "profile", "slow", "-m", str(repository), *SMALL, "--apply", *SHAPE)
    assert done.returncode == 0, done.stderr
    after = (repository / "slow" / "config.pbtxt").read_text()
    assert after != before
    assert after.startswith(CONFIG_COMMENT)
    assert f"Written: {repository}/slow/config.pbtxt" in done.stdout
    checked = subprocess.run(
        [sys.executable, "-m", "halimede", "check", str(repository)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.rows("X36", "X47")
def test_yaml_file_sweeps_what_it_lists(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"""
model_repository: {repository}
client_protocol: http
perf_analyzer_flags: {{shape: ["INPUT0:4"]}}
inference_output_fields: model_config_path, max_batch_size, concurrency, perf_throughput
filename_model_inference: mine.csv
export_path: {tmp_path}/mine
profile_models:
  slow:
    parameters: {{concurrency: [2, 4]}}
    model_config_parameters:
      max_batch_size: [1, 4]
      dynamic_batching: {{}}
""")
    done = analyze(tmp_path, "-q", "profile", "-f", "a.yaml")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "mine" / "results" / "mine.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # The default, and two configurations, each with two loads.
    assert {(row["Model Config Path"], row["Concurrency"]) for row in rows} == {
        (f"slow_config_{name}", load) for name in ("default", "0", "1") for load in ("2", "4")
    }


@pytest.mark.rows("X40")
def test_latency_budget_decides(repository: Path, tmp_path: Path) -> None:
    words = ("profile", "slow", "-m", str(repository), *SMALL, "--latency-budget", "70", *SHAPE)
    done = analyze(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    rows = table(tmp_path)
    satisfied = [row["Satisfies Constraints"] for row in rows]
    assert satisfied == sorted(satisfied, reverse=True)  # those that meet it come first
    for row in rows:
        assert (float(row["p99 Latency (ms)"]) <= 70) == (row["Satisfies Constraints"] == "Yes")
    assert set(satisfied) == {"Yes", "No"}


@pytest.mark.rows("X44")
def test_reports_and_plots_are_files(repository: Path, tmp_path: Path) -> None:
    words = ("profile", "slow", "-m", str(repository), "-c", "1,2", "--run-config-search-disable")
    done = analyze(tmp_path, *words, "--num-top-model-configs", "1", "--measurement-seconds", "0.6", *SHAPE)
    assert done.returncode == 0, done.stderr
    reports = tmp_path / "reports"
    summaries, details = reports / "summaries", reports / "detailed" / "slow_config_default"
    for stem in (summaries / "slow/result_summary", details / "detailed_report"):
        assert stem.with_suffix(".pdf").read_bytes().startswith(b"%PDF-")
        page = stem.with_suffix(".html").read_text()
        assert "<svg" in page
        assert "slow_config_default" in page
    assert (summaries / "Best Configs Across All Models" / "result_summary.pdf").exists()
    assert (tmp_path / "plots/simple/slow/throughput_v_latency.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "plots/detailed/slow_config_default/latency_breakdown.png").exists()
    again = analyze(tmp_path, "report", "--report-model-configs", "slow_config_default", "-o", "html", "-e", "other")
    assert again.returncode == 0, again.stderr
    assert again.stdout == "Written: other/reports/detailed/slow_config_default/detailed_report.html\n"
    wrong = analyze(tmp_path, "report", "slow_config_9")
    assert wrong.returncode == 1
    assert "the checkpoint has no configuration 'slow_config_9'. There are slow_config_default" in wrong.stderr


@pytest.mark.rows("X31")
def test_help_lists_the_commands_and_their_options(tmp_path: Path) -> None:
    for words, expected in (
        (("--help",), "profile"),
        (("profile", "--help"), "--run-config-search-max-instance-count"),
        (("-m", "online", "analyze", "--help"), "--latency-budget"),
        (("report", "--help"), "--report-model-configs"),
    ):
        done = analyze(tmp_path, *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert expected in done.stdout
    assert analyze(tmp_path, "--version").stdout.startswith("halimede analyze ")


@pytest.mark.parametrize("mode", ["quick", "optuna", "brute"])
def test_other_searches_find_batches_too(repository: Path, tmp_path: Path, mode: str) -> None:
    small = (
        *("--run-config-search-max-instance-count", "1", "--run-config-search-max-model-batch-size", "4"),
        *("--run-config-search-max-concurrency", "4", "--optuna-min-trials", "6", "--optuna-max-trials", "8"),
        *("--measurement-seconds", "0.6"),
    )
    words = ("profile", "slow", "-m", str(repository), "--run-config-search-mode", mode, *small, *SHAPE)
    done = analyze(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert f"slow: {mode} search" in done.stdout
    assert table(tmp_path)[0]["Max Batch Size"] != "1"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("analyze")
    repository = write_repository(folder / "models")
    with Serving(repository, folder / "log", "--model-control-mode=explicit", "--load-model=slow") as serving:
        yield serving.wait_until_live()


def remote(serving: Serving, protocol: str = "grpc") -> tuple[str, ...]:
    endpoints = ("--triton-http-endpoint", serving.http_url, "--triton-grpc-endpoint", serving.grpc_url)
    return ("--triton-launch-mode", "remote", "--client-protocol", protocol, *endpoints)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_running_server_is_left_as_it_was(served: Serving, tmp_path: Path, protocol: str) -> None:
    _, before = served.ask("/v2/models/slow/config")
    done = analyze(tmp_path, "profile", "slow", *remote(served, protocol), *SMALL, "-c", "4", *SHAPE)
    assert done.returncode == 0, done.stderr
    assert served.ask("/v2/models/slow/config")[1] == before
    assert len({row["Max Batch Size"] for row in table(tmp_path)}) > 1
    assert "MB" in done.stdout.partition("memory")[2].splitlines()[0]


def test_model_that_fails_now_and_then_is_one_line(served: Serving, tmp_path: Path) -> None:
    done = analyze(tmp_path, "profile", "failing", *remote(served), *SMALL, *SHAPE)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: failing: nothing could be measured: ")
    assert "it fails" in line
    assert served.ask("/v2/models/failing/ready")[0] == 400  # it was not loaded before


def test_unknown_model_and_unknown_input_are_one_line(served: Serving, tmp_path: Path) -> None:
    done = analyze(tmp_path, "profile", "none", *remote(served))
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["error: none: failed to load 'none', failed to poll from model repository"]
    (tmp_path / "data.json").write_text('{"data": [{"OTHER": [1]}]}')
    done = analyze(tmp_path, "profile", "slow", *remote(served), "--", "--input-data", str(tmp_path / "data.json"))
    assert done.returncode == 1
    assert "The input or output 'OTHER' is not found in the model configuration" in done.stderr


def test_server_without_explicit_control_is_explained(tmp_path: Path) -> None:
    repository = write_repository(tmp_path / "models")
    (repository / "failing").rename(tmp_path / "failing")
    with Serving(repository, tmp_path / "log") as serving:
        serving.wait_until_live()
        done = analyze(tmp_path, "profile", "slow", *remote(serving), *SHAPE)
    assert done.returncode == 1
    assert "Start it with --model-control-mode=explicit" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_no_server_is_one_line(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    words = ("--triton-launch-mode", "remote", "--triton-grpc-endpoint", f"127.0.0.1:{port}")
    done = analyze(tmp_path, "profile", "slow", *words)
    assert (done.returncode, done.stderr) == (
        1,
        f"error: slow: failed to connect to 127.0.0.1:{port}: Connection refused\n",
    )


def test_unwritable_outputs_are_known_before_the_measurement(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for option in ("--export-path", "--checkpoint-directory"):
        done = analyze(tmp_path, "profile", "slow", "-m", str(repository), option, "file/x")
        assert done.returncode == 1
        assert done.stderr.startswith("error: cannot write to 'file/x")
        assert "Not a directory" in done.stderr


def test_port_that_is_taken_is_named(served: Serving, tmp_path: Path, repository: Path) -> None:
    words = ("--triton-launch-mode", "local", "--triton-http-endpoint", served.http_url)
    done = analyze(tmp_path, "profile", "slow", "-m", str(repository), *words)
    assert done.returncode == 1
    assert f"something listens at {served.http_url} already" in done.stderr


def started(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """A search that goes on for long, after its first measurements."""
    running = subprocess.Popen(
        command(*words), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert running.stdout is not None
    seen = 0
    for line in running.stdout:
        seen += "slow_config_" in line
        if seen == 2:
            break
    return running


def test_server_that_dies_ends_the_search_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    repository = write_repository(tmp_path / "models")
    with Serving(repository, tmp_path / "log", "--model-control-mode=explicit") as serving:
        serving.wait_until_live()
        running = started(tmp_path, "profile", "slow", *remote(serving), "--run-config-search-mode", "brute", *SHAPE)
        serving.kill()
        said, complained = running.communicate(timeout=LIMIT)
    assert running.returncode == 1, complained
    assert len(complained.splitlines()) == 1
    assert complained.startswith("error: slow: ")
    assert len(table(tmp_path)) >= 2
    assert "slow: it is best as it is" in said


@pytest.mark.rows("X45")
@pytest.mark.parametrize("times", [1, 2, 3])
def test_interrupts_end_the_search(repository: Path, tmp_path: Path, times: int) -> None:
    words = ("profile", "slow", "-m", str(repository), "--run-config-search-mode", "brute", *SHAPE)
    running = started(tmp_path, *words)
    for number in range(times):
        os.kill(running.pid, signal.SIGINT)
        time.sleep(0.01 * (number + 1))  # signals that come at once are one
    said, complained = running.communicate(timeout=LIMIT)
    assert running.returncode == 130, complained
    record = kept(tmp_path)["models"]["slow"]
    assert len(record["measurements"]) >= 2
    if times < 3:
        assert "slow: it is best as it is" in said
        assert len(table(tmp_path)) >= 2
