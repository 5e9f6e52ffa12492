"""Debian's Prometheus with the configuration of `deploy/prometheus/` scrapes three replicas. The alerts have tests with
series, and every query of the dashboard returns data."""

import json
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from halimede.measurement.machine import Seen, machine_families
from halimede.options import MetricsOptions
from halimede.platform.gpu_meters import GpuReading
from halimede.wire.prometheus import encode_metrics
from tests.compat.serving import ANSWER_SECONDS, STOP_SECONDS, write_model
from tests.deploy.replicas import REPLICAS, START_SECONDS, SUMS, Replicas
from tests.deploy.test_chart import COMBINATIONS, objects, rendered
from tests.ports import free_ports

pytestmark = pytest.mark.deploy
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
INTERVAL = 1
FLAGS = (
    "--cache-config=local,size=1000000",
    "--metrics-interval-ms=200",
    "--metrics-config=summary_latencies=true",
    "--metrics-config=histogram_latencies=true",
)


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; make test-deploy installs it as root")
    return found


def promtool(*arguments: str) -> str:
    done = subprocess.run(
        [program("promtool"), *arguments], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_configuration() -> None:
    promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))


def test_alerts_fire_for_the_server_with_the_fault() -> None:
    tests = PROMETHEUS / "halimede.test.yml"
    alerts = set(re.findall(r"- alert: (\w+)", (PROMETHEUS / "halimede.rules.yml").read_text()))
    assert alerts == set(re.findall(r"alertname: (\w+)", tests.read_text())), "an alert has no test"
    assert "SUCCESS" in promtool("test", "rules", str(tests))


class Prometheus:
    """A Prometheus that scrapes some ports of this machine. It stores its data in a folder of the test."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        (self.port,) = free_ports(1)
        text = (PROMETHEUS / "prometheus.yml").read_text()
        targets = json.dumps([f"127.0.0.1:{port}" for port in ports])
        places = {
            "scrape_interval: 5s": f"scrape_interval: {INTERVAL}s",
            "evaluation_interval: 15s": f"evaluation_interval: {INTERVAL}s",
            '["localhost:8002"]': targets,
        }
        for known, other in places.items():
            assert known in text
            text = text.replace(known, other)
        (folder / "prometheus.yml").write_text(text)
        shutil.copy(PROMETHEUS / "halimede.rules.yml", folder)
        self.log = folder / "prometheus.log"
        command = (
            program("prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        )
        with self.log.open("wb") as sink:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        finally:
            self._process.kill()

    def get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Any]:
        result: list[Any] = self.get("query", query=expression)["result"]
        return result

    def has(self, expression: str) -> bool:
        """Whether there is data; False until Prometheus answers."""
        try:
            return bool(self.query(expression))
        except OSError:
            return False

    def until(self, expression: str) -> None:
        """Waits until there is data."""
        limit = time.monotonic() + START_SECONDS
        while not self.has(expression):
            assert time.monotonic() < limit, f"no data for {expression}: {self.log.read_text()[-2000:]}"
            with pytest.raises(subprocess.TimeoutExpired):
                self._process.wait(0.2)


class Gpu(BaseHTTPRequestHandler):
    """The metrics of a GPU as the server writes them, because the machine may have none."""

    def do_GET(self) -> None:  # the library's name
        seen = Seen(gpus=(GpuReading("GPU-1", 0.5, 2, 1, 1.0, 2.0, 1.0),))
        text = encode_metrics(machine_families(seen, MetricsOptions()))
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("replicas")
    with Replicas(folder, *FLAGS) as replicas:
        write_model(folder / "models", "cached", "INT32", more="response_cache { enable: true }\n")
        replicas.start(*range(REPLICAS))
        yield replicas


@pytest.fixture(scope="module")
def prometheus(replicas: Replicas, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    gpu = ThreadingHTTPServer(("127.0.0.1", 0), Gpu)
    threading.Thread(target=gpu.serve_forever, daemon=True).start()
    ports = [metrics for _, _, metrics in replicas.ports] + [gpu.server_address[1]]
    with closing(Prometheus(tmp_path_factory.mktemp("prometheus"), ports)) as prometheus:
        yield prometheus
    gpu.shutdown()
    gpu.server_close()


def panels() -> list[Any]:
    found: list[Any] = json.loads((DEPLOY / "grafana" / "halimede.json").read_text())["panels"]
    return found


@pytest.fixture(scope="module")
def loaded(replicas: Replicas, prometheus: Prometheus) -> Prometheus:
    """A Prometheus that has seen requests to all models of all replicas."""
    stop = threading.Event()
    load = threading.Thread(target=ask_until, args=(replicas, stop))
    load.start()
    try:
        prometheus.until(f"count(up == 1) == {REPLICAS + 1}")
        # Each rate needs two scrapes of a server that was asked before the first of them.
        prometheus.until("nv_inference_first_response_histogram_ms_bucket")
        prometheus.until(f"min(count_over_time(nv_inference_request_success[{10 * INTERVAL}s])) >= 4")
    finally:
        stop.set()
        load.join()
    return prometheus


def test_all_queries_of_the_dashboard_return_data(loaded: Prometheus) -> None:
    empty = [
        (panel["title"], target["expr"])
        for panel in panels()
        for target in panel.get("targets", ())
        if not loaded.query(target["expr"].replace("$__rate_interval", "1m").replace("$model", ".*"))
    ]
    assert empty == []


def test_queries_for_scaling_return_numbers(loaded: Prometheus, tmp_path: Path) -> None:
    """Those of KEDA and of prometheus-adapter. The labels of pods are not there without Kubernetes."""
    (scaled,) = (each for each in rendered(tmp_path, COMBINATIONS["keda"]) if each["kind"] == "ScaledObject")
    queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    of_pods = 'namespace="models",pod=~"release-halimede-.*"'
    for query in queries:
        assert query.count(of_pods) == 2
        (result,) = loaded.query(query.replace(of_pods, 'job="halimede"').replace("or vector(0)", ""))
        assert counts(query, float(result["value"][1]))
        assert loaded.query(query)[0]["value"][1] == "0", "without pods it must be a number too"
    (adapter,) = objects((DEPLOY / "kubernetes" / "prometheus-adapter.yaml").read_text())
    for rule in adapter["rules"]["custom"]:
        query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'job="halimede"').replace("<<.GroupBy>>", "instance")
        numbers = [float(result["value"][1]) for result in loaded.query(query)]
        assert len(numbers) == REPLICAS
        assert all(counts(query, number) for number in numbers)


def counts(query: str, number: float) -> bool:
    """Whether a query gave what it must: the requests of this load need not have waited, but instances were busy."""
    return number >= 0 if "queue" in query else number > 0


def ask_until(replicas: Replicas, stop: threading.Event) -> None:
    """Asks all models of all replicas, again and again."""
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [1]}
    parameters = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    bodies = {
        "good": {"inputs": [tensor]},
        "cached": {"inputs": [{**tensor, "shape": [1]}]},
        SUMS: {"inputs": [tensor], "parameters": parameters},
    }
    while not stop.wait(0.1):
        for server in replicas.servers.values():
            for model, body in bodies.items():
                status, answer = server.ask(f"/v2/models/{model}/infer", json.dumps(body).encode())
                assert status == 200, answer


def test_rules_are_evaluated_and_a_lost_replica_is_noticed(replicas: Replicas, prometheus: Prometheus) -> None:
    prometheus.until(f"count(up == 1) == {REPLICAS + 1}")
    lost = replicas.servers[0]
    lost.process.send_signal(signal.SIGKILL)
    lost.process.wait(STOP_SECONDS)
    prometheus.until("up == 0")
    prometheus.until('ALERTS{alertname="InferenceServerDown"}')
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 5
    assert [rule["lastError"] for rule in rules if rule.get("lastError")] == []
    (alert,) = prometheus.query('ALERTS{alertname="InferenceServerDown"}')
    assert alert["metric"]["instance"] == f"127.0.0.1:{lost.metrics_port}"
