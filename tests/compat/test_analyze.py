"""`halimede analyze` from outside: the searches, the files, what it leaves behind, and how it fails."""

import csv
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.compat.serving import Serving, servers_of, write_model
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


Step = tuple[int, int, int]
"""Instances, max_batch_size, and clients."""


def steps(done: "subprocess.CompletedProcess[str]") -> list[Step]:
    """What was measured, in order, without what is measured again in the end."""
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^slow_config_\w+ +(\d+):CPU +(\d+).*? (\d+) +[\d,.]+ +[\d,.]+(.*)", done.stdout, re.MULTILINE)
    return [(int(a), int(b), int(c)) for a, b, c, note in found if "final" not in note]


def bounds(instances: str, batches: str, clients: str) -> tuple[str, ...]:
    """Bounds of a search, each as `min:max`, and short measurements."""
    words: list[str] = ["--measurement-seconds", "0.6"]
    for name, both in (("instance-count", instances), ("model-batch-size", batches), ("concurrency", clients)):
        least, most = both.split(":")
        words += [f"--run-config-search-min-{name}", least, f"--run-config-search-max-{name}", most]
    return tuple(words)


def search(folder: Path, repository: Path, mode: str, *words: str) -> "subprocess.CompletedProcess[str]":
    few = ("--num-configs-per-model", "1", "--skip-summary-reports")  # so that it ends soon
    mine = ("profile", "slow", "-m", str(repository), "--run-config-search-mode", mode)
    return analyze(folder, *mine, *few, *words, *SHAPE)


@pytest.mark.rows("X33", "X35")
def test_brute_search_measures_everything_in_order(repository: Path, tmp_path: Path) -> None:
    done = search(tmp_path, repository, "brute", *bounds("1:2", "1:4", "1:4"))
    assert "slow: brute search in 6 configurations: 2 instances x 3 batch sizes\n" in done.stdout
    found = steps(done)
    # The model as it is, which has no dynamic batching; then instances, batch sizes and clients, each ascending.
    places = [(1, 1), *((count, size) for count in (1, 2) for size in (1, 2, 4))]
    assert list(dict.fromkeys(found)) == list(dict.fromkeys((*place, load) for place in places for load in (1, 2, 4)))
    assert len(found) == 3 * len(places)
    assert table(tmp_path)[0]["Max Batch Size"] != "1"


@pytest.mark.rows("X35")
def test_brute_search_ends_where_more_clients_gain_nothing_and_halves_around_a_constraint(
    repository: Path, tmp_path: Path
) -> None:
    done = search(tmp_path, repository, "brute", *bounds("1:1", "1:1", "1:1024"), "--latency-budget", "130")
    found = [clients for _, _, clients in steps(done)]
    # One request at a time takes 20 ms, so no number of clients gains, and at most six of them meet the budget.
    assert found[:4] == [1, 2, 4, 8]
    assert max(found) < 1024
    # On a busy machine fewer of them do, so it is not known between which powers of two the search halves.
    assert any(clients & (clients - 1) and clients < 8 for clients in found)


@pytest.mark.rows("X33", "X37")
def test_quick_search_walks_with_twice_as_many_clients_as_places(repository: Path, tmp_path: Path) -> None:
    words = (*bounds("1:2", "1:8", "1:64"), "--concurrency-sweep-disable")
    found = steps(search(tmp_path, repository, "quick", *words))
    assert found[0] == (1, 1, 2)
    assert found[1] == (1, 1, 2)  # the smallest configuration, with dynamic batching
    assert all(clients == 2 * count * size for count, size, clients in found)
    # Batches help, so the walk goes on to the largest ones.
    assert max(size for _, size, _ in found) == 8
    best = table(tmp_path)[0]
    assert (best["Instance Group"], best["Max Batch Size"]) == ("2:CPU", "8")
    swept = steps(search(tmp_path, repository, "quick", *words[:-1], "--checkpoint-directory", "other"))
    assert 1 in {clients for _, _, clients in swept}  # the walk itself has two at least


@pytest.mark.rows("X34")
def test_search_stays_within_its_bounds(repository: Path, tmp_path: Path) -> None:
    found = steps(search(tmp_path, repository, "brute", *bounds("2:3", "2:4", "4:8")))
    default, *others = dict.fromkeys((count, size) for count, size, _ in found)
    assert default == (1, 1)
    assert others == [(2, 2), (2, 4), (3, 2), (3, 4)]
    assert {clients for _, _, clients in found} == {4, 8}
    words = ("-c", "1", "--measurement-seconds", "0.2", "-s", "other")
    by_default = analyze(tmp_path, "profile", "slow", "-m", str(repository), *words, *SHAPE)
    assert "in 120 configurations: 5 instances x 8 batch sizes x 3 queue delays\n" in by_default.stdout
    wrong = search(tmp_path, repository, "brute", *bounds("3:2", "1:1", "1:1"))
    assert wrong.returncode == 1
    assert wrong.stderr.splitlines()[0] == "error: the bounds of instances must be 1 <= min <= max, and are 3 and 2"


@pytest.mark.rows("X33", "X38")
def test_optuna_search_keeps_to_its_trials_and_repeats_itself(repository: Path, tmp_path: Path) -> None:
    words = (*bounds("1:2", "1:8", "1:8"), "--concurrency-sweep-disable")
    # 2 instances x 4 batch sizes x 4 numbers of clients: 5 to 10 % of 32 are 2 to 4 trials.
    found = steps(search(tmp_path, repository, "optuna", *words))
    assert found[0][:2] == (1, 1)
    assert len(found) <= 1 + 4
    trials = ("--optuna-min-trials", "5", "--optuna-max-trials", "5")
    one, other = (
        steps(search(tmp_path, repository, "optuna", *words, *trials, "--checkpoint-directory", name))
        for name in ("a", "b")
    )
    assert one == other
    assert 1 < len(one) <= 1 + 5
    formula = search(tmp_path, repository, "optuna", *words, "--use-concurrency-formula", "-s", "c")
    assert all(clients == min(8, 2 * count * size) for count, size, clients in steps(formula))


@pytest.mark.rows("X46")
def test_all_keys_of_the_original_are_known_and_those_without_effect_are_named(
    repository: Path, tmp_path: Path
) -> None:
    """What has an effect is used; the rest is one line each."""
    http, grpc, metrics = (f"127.0.0.1:{port}" for port in free_ports(3))
    used = f"""
model_repository: {repository}
triton_launch_mode: local
triton_server_flags: {{log_verbose: 1, id: mine}}
triton_server_environment: {{ANALYZED: "yes"}}
triton_output_path: {tmp_path}/server.log
perf_analyzer_flags: {{shape: ["INPUT0:4"]}}
concurrency: 1
request_rate: []
batch_sizes: 1
request_rate_search_enable: false
concurrency_sweep_disable: true
run_config_search_disable: true
run_config_profile_models_concurrently_enable: false
reload_model_disable: false
bls_composing_models: []
cpu_only_composing_models: []
client_protocol: grpc
triton_http_endpoint: {http}
triton_grpc_endpoint: {grpc}
triton_metrics_url: http://{metrics}/metrics
measurement_seconds: 0.4
monitoring_interval: 0.5
num_configs_per_model: 1
num_top_model_configs: 1
output_formats: html
plots: {{}}
skip_detailed_reports: true
inference_output_fields: [model_name, perf_throughput]
gpu_output_fields: gpu_uuid
filename_model_gpu: none.csv
filename_model_inference: mine.csv
profile_models:
  slow: {{cpu_only: true, weighting: 2, objectives: [perf_latency_p99], parameters: {{batch_sizes: 1}}}}
"""
    unused = {
        "ensemble_composing_models": "[]",
        "client_max_retries": "3",
        "duration_seconds": "3",
        "collect_cpu_metrics": "true",
        "gpus": "all",
        "triton_docker_image": "none",
        "triton_docker_mounts": "[]",
        "triton_docker_labels": "{}",
        "triton_docker_args": "{}",
        "triton_docker_shm_size": "1G",
        "triton_install_path": "/none",
        "perf_analyzer_path": "none",
        "perf_analyzer_timeout": "1",
        "perf_analyzer_cpu_util": "1",
        "perf_analyzer_max_auto_adjusts": "1",
        "perf_output": "true",
        "perf_output_path": "none",
        "model_type": "LLM",
        "genai_perf_flags": "{}",
        "early_exit_enable": "true",
        "server_output_fields": "model_name",
        "filename_server_only": "none.csv",
        "always_report_gpu_metrics": "true",
        "dcgm_disable": "true",
    }
    (tmp_path / "a.yaml").write_text(used + "".join(f"{name}: {value}\n" for name, value in unused.items()))
    done = analyze(tmp_path, "profile", "-f", "a.yaml")
    assert done.returncode == 0, done.stderr
    warned = re.findall(r"^warning: (\w+) has no effect: .+$", done.stderr, re.MULTILINE)
    assert sorted(warned) == sorted(unused)
    assert list(table(tmp_path, "mine.csv")[0]) == ["Model", "Throughput (infer/sec)"]
    assert (tmp_path / "reports/summaries/slow/result_summary.html").exists()
    assert not (tmp_path / "reports/summaries/slow/result_summary.pdf").exists()
    assert not (tmp_path / "reports/detailed").exists()
    assert "slow" in (tmp_path / "server.log").read_text()
    (tmp_path / "b.yaml").write_text("modell_repository: x\n")
    wrong = analyze(tmp_path, "profile", "-f", "b.yaml")
    why = "unknown key 'modell_repository' in the YAML file. Did you mean 'model_repository'?"
    assert wrong.stderr.splitlines()[0] == f"error: {why}"


TOLD = SLOW.replace(
    "        time.sleep(0.02)\n",
    '        with open(os.environ["TOLD"], "a") as file:\n'
    '            file.write(__file__.split("/")[-3] + "\\n")\n'
    "        time.sleep(0.01 * len(requests))\n",
).replace("import time", "import os\nimport time")
"""One request takes 10 ms, so larger batches do not help. Each execution is a line in a file."""


@pytest.mark.rows("X46")
def test_models_get_load_at_the_same_time_and_are_tuned_together(repository: Path, tmp_path: Path) -> None:
    version = write_model(repository, "told", "FP32", backend="python", max_batch_size=1)
    (version / "model.py").write_text(TOLD)
    (repository / "slow" / "1" / "model.py").write_text(TOLD.replace("0.01 * len(requests)", "0.02"))
    (tmp_path / "a.yaml").write_text(f"""
model_repository: {repository}
run_config_profile_models_concurrently_enable: true
perf_analyzer_flags: {{shape: ["INPUT0:4"]}}
triton_server_environment: {{TOLD: {tmp_path}/told}}
run_config_search_max_instance_count: 2
run_config_search_max_model_batch_size: 4
run_config_search_max_concurrency: 8
measurement_seconds: 0.6
concurrency_sweep_disable: true
output_model_repository_path: out
profile_models:
  slow: {{weighting: 2}}
  told: {{constraints: {{perf_latency_p99: {{max: 1000}}}}}}
""")
    done = analyze(tmp_path, "profile", "-f", "a.yaml")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    space = "2 instances of slow x 3 batch sizes of slow x 2 instances of told x 3 batch sizes of told"
    assert f"slow,told: quick search in 36 configurations: {space}\n" in done.stdout
    best = table(tmp_path)[0]
    assert best["Model"] == "slow,told"
    of_slow, of_told = best["Max Batch Size"].split(", ")
    assert int(of_slow) > 1
    rates = [[float(each) for each in row["Throughput (infer/sec)"].split(", ")] for row in table(tmp_path)]
    assert all(len(each) == 2 and min(each) > 0 for each in rates)
    # One model after the other would change places once for each configuration.
    lines = (tmp_path / "told").read_text().split()
    assert sum(a != b for a, b in itertools.pairwise(lines)) > len(lines) / 10
    assert "\nconfig.pbtxt of slow:\n" in done.stdout
    variant = tmp_path / "out" / best["Model Config Path"]
    assert sorted(each.name for each in variant.iterdir()) == ["slow", "told"]
    assert f"max_batch_size: {of_told}" in (variant / "told" / "config.pbtxt").read_text()
    assert "slow:perf_throughput" in done.stdout
    assert (tmp_path / "reports/summaries/slow,told/result_summary.html").exists()


@pytest.mark.parametrize(
    ("own", "text"),
    [
        ("{model_config_parameters: {max_batch_size: [1, 2]}}", "'told' has model_config_parameters"),
        ("{parameters: {concurrency: 3}}", "their bounds and loads must be equal"),
    ],
)
def test_models_that_cannot_be_tuned_together_are_refused(
    repository: Path, tmp_path: Path, own: str, text: str
) -> None:
    (tmp_path / "a.yaml").write_text(f"""
model_repository: {repository}
run_config_profile_models_concurrently_enable: true
profile_models:
  slow: {{}}
  told: {own}
""")
    done = analyze(tmp_path, "profile", "-f", "a.yaml")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert text in done.stderr


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
    assert line.endswith("requests fail: it fails")
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


def test_file_that_cannot_be_written_in_the_end_loses_only_itself(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "metrics-model-inference.csv").symlink_to("/dev/full")
    words = ("profile", "slow", "-m", str(repository), "-c", "1", "--run-config-search-disable", *SHAPE)
    done = analyze(tmp_path, *words)
    assert done.returncode == 1
    assert done.stderr == "error: cannot write 'results/metrics-model-inference.csv': No space left on device\n"
    assert "slow: it is best as it is" in done.stdout
    assert len(kept(tmp_path)["models"]["slow"]["measurements"]) >= 1
    assert (tmp_path / "reports/summaries/slow/result_summary.pdf").exists()
    # A checkpoint is tried after each measurement.
    (tmp_path / "checkpoints" / "1.new").mkdir()
    done = analyze(tmp_path, *words[: -len(SHAPE)], "-c", "2", *SHAPE)
    assert done.returncode == 1
    assert "error: slow: cannot write 'checkpoints/1.ckpt': Is a directory\n" in done.stderr
    assert "slow: it is best as it is" in done.stdout


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


def test_own_server_that_dies_ends_the_search_with_its_reason(repository: Path, tmp_path: Path) -> None:
    words = ("profile", "slow", "-m", str(repository), "--run-config-search-mode", "brute", *SHAPE)
    running = started(tmp_path, *words)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    (server,) = {*map(int, children)} & {*servers_of(repository)}
    os.kill(server, signal.SIGKILL)
    said, complained = running.communicate(timeout=LIMIT)
    assert running.returncode == 1, complained
    assert len(complained.splitlines()) == 1
    assert complained.startswith("error: slow: the server has ended by signal 9: ")
    assert len(table(tmp_path)) >= 2
    assert "slow: it is best as it is" in said


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


def test_second_interrupt_ends_the_wait_for_a_server_that_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        words = ("profile", "slow", "--triton-launch-mode", "remote", "--triton-grpc-endpoint", address)
        running = subprocess.Popen(command(*words), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        mute.settimeout(LIMIT)
        connection, _ = mute.accept()
        with connection:
            connection.settimeout(LIMIT)
            connection.recv(1)  # the first question
            assert running.stderr is not None
            for _ in range(2):
                running.send_signal(signal.SIGINT)
                assert running.stderr.readline().startswith("Interrupted: ")
            assert running.wait(LIMIT / 4) == 130
            assert running.stderr.read() == ""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_server_does_not_outlive_the_search(repository: Path, tmp_path: Path, number: int, status: int) -> None:
    words = ("profile", "slow", "-m", str(repository), "--run-config-search-mode", "brute", *SHAPE)
    running = started(tmp_path, *words)
    assert servers_of(repository)
    os.killpg(running.pid, number)  # the load process gets it too
    said, complained = running.communicate(timeout=LIMIT)
    assert running.returncode == status, complained
    assert len(kept(tmp_path)["models"]["slow"]["measurements"]) >= 2
    if number == signal.SIGTERM:
        assert len(complained.splitlines()) == 1
        assert "slow: it is best as it is" in said
        assert len(table(tmp_path)) >= 2
    until = time.monotonic() + LIMIT
    while servers_of(repository):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_running_server_is_left_as_it_was_after_a_signal(served: Serving, tmp_path: Path) -> None:
    _, before = served.ask("/v2/models/slow/config")
    words = (*SMALL, "-c", "4", "--run-config-search-mode", "brute")
    running = started(tmp_path, "profile", "slow", *remote(served), *words, *SHAPE)
    os.kill(running.pid, signal.SIGTERM)
    _, complained = running.communicate(timeout=LIMIT)
    assert running.returncode == 143, complained
    assert served.ask("/v2/models/slow/config")[1] == before
