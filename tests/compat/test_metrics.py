"""Metrics of a running server: they equal the statistics; where they are served; which can be chosen; scrapers do not
delay inferences."""

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
from prometheus_client import parser

from tests.compat.serving import Serving, write_held_model, write_model
from tests.model_sources import COUNTS_UP
from tests.ports import free_ports

LIMIT = 60.0

_LOADED = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.family = blocks = pb_utils.MetricFamily(
            name="nv_trt_llm_kv_cache_block_metrics", description="KV cache", kind=pb_utils.MetricFamily.GAUGE
        )
        self.metrics = []
        for kind, value in (("tokens_per", 10), ("used", 50), ("max", 100), ("free", 50)):
            metric = blocks.Metric(labels={"kv_cache_block_type": kind, "model": args["model_name"], "version": "1"})
            metric.set(value)
            self.metrics.append(metric)

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())]
            )
            for request in requests
        ]
"""
_BUCKETS = """model_transaction_policy { decoupled: true }
model_metrics { metric_control { metric_identifier { family: "nv_inference_first_response_histogram_ms" }
  histogram_options { buckets: [ 0.001, 60000 ] } } }
"""
_FEW = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }\n"


def _models(folder: Path) -> Path:
    write_model(folder, "batched", "INT32", max_batch_size=8, more="dynamic_batching { }\n")
    write_model(folder, "plain", "INT32")
    (write_model(folder, "many", "INT32", backend="python", more=_BUCKETS) / "model.py").write_text(COUNTS_UP)
    (write_model(folder, "loaded", "INT32", backend="python") / "model.py").write_text(_LOADED)
    held = write_held_model(folder)
    config = held / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 0", "max_batch_size: 1") + _FEW)
    return folder


class Client:
    def __init__(self, serving: Serving, models: Path) -> None:
        self.serving = serving
        self.models = models

    def get(self, path: str, port: int | None = None, **headers: str) -> tuple[int, Any, bytes]:
        return self._open(f"http://127.0.0.1:{port or self.serving.http_port}{path}", None, headers)

    def post(self, path: str, document: object, **headers: str) -> tuple[int, Any, bytes]:
        return self._open(f"http://{self.serving.http_url}{path}", json.dumps(document).encode(), headers)

    def _open(self, url: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, Any, bytes]:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, names), timeout=LIMIT) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def infer(self, model: str, rows: int = 0, **headers: str) -> tuple[int, Any, bytes]:
        shape, data = ([rows, 1], [1] * rows) if rows else ([1], [2])
        tensor = {"name": "INPUT0", "datatype": "INT32", "shape": shape, "data": data}
        return self.post(f"/v2/models/{model}/infer", {"inputs": [tensor]}, **headers)

    def samples(self) -> dict[tuple[str, ...], float]:
        """The values by name and by the values of the labels, without the version."""
        text = self.get("/metrics", self.serving.metrics_port)[2].decode()
        return {
            (
                sample.name.removesuffix("_total"),
                *(v for k, v in sorted(sample.labels.items()) if k != "version"),
            ): sample.value
            for family in parser.text_string_to_metric_families(text)
            for sample in family.samples
        }

    def until(self, holds: Callable[[dict[tuple[str, ...], float]], bool]) -> dict[tuple[str, ...], float]:
        limit = time.monotonic() + LIMIT
        while not holds(samples := self.samples()):
            assert time.monotonic() < limit, samples
            time.sleep(0.02)
        return samples


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("metrics")
    models = _models(folder / "models")
    flags = (
        "--http-metrics=true",
        "--metrics-interval-ms=50",
        "--metrics-config=histogram_latencies=true",
        "--metrics-config=summary_latencies=true",
    )
    with Serving(models, folder / "server.log", *flags) as serving:
        yield Client(serving.wait_until_live(), models)


_PHASES = ("compute_input", "compute_infer", "compute_output", "queue")


@pytest.mark.rows("M1", "M3", "M4", "M5", "M6", "M7", "M8", "M9")
def test_metrics_are_the_statistics_to_the_last_digit(client: Client) -> None:
    for _ in range(20):
        client.infer("batched", 3)
    for count in (3, 1, 0):
        assert client.post("/v2/models/many/generate_stream", {"INPUT0": count})[0] == 200
    client.until(lambda now: now["nv_inference_exec_count", "many"] == 3)  # which is after its last response
    for grpc in (False, True):
        for model in ("batched", "many"):
            stats, samples = _statistics(client, model, grpc), client.samples()
            inference = stats["inference_stats"]
            assert samples["nv_inference_count", model] == int(stats["inference_count"])
            assert samples["nv_inference_exec_count", model] == int(stats["execution_count"])
            assert samples["nv_inference_request_success", model] == int(inference["success"]["count"])
            assert samples["nv_inference_request_duration_us", model] == int(inference["success"]["ns"]) // 1000
            for phase in _PHASES:
                micros = int(inference[phase].get("ns", 0)) // 1000
                assert samples[f"nv_inference_{phase}_duration_us", model] == micros, phase
                assert samples[f"nv_inference_{phase}_summary_us_sum", model] == micros, phase
                assert samples[f"nv_inference_{phase}_summary_us_count", model] == int(inference[phase]["count"]), phase
            sizes = {int(each["batch_size"]): int(each["compute_infer"]["count"]) for each in stats["batch_stats"]}
            assert samples["halimede_batch_size_sum", model] == sum(size * count for size, count in sizes.items())
    responses = _statistics(client, "many", False)["response_stats"]
    assert {
        index: (each["success"]["count"], each["empty_response"]["count"]) for index, each in responses.items()
    } == {
        "0": (2, 1),
        "1": (1, 1),
        "2": (1, 0),
        "3": (0, 1),
    }


def _statistics(client: Client, model: str, grpc: bool) -> dict[str, Any]:
    if grpc:
        with grpcclient.InferenceServerClient(client.serving.grpc_url) as stub:
            return dict(stub.get_inference_statistics(model, as_json=True)["model_stats"][0])
    return dict(json.loads(client.get(f"/v2/models/{model}/stats")[2])["model_stats"][0])


@pytest.mark.rows("M12", "R61")
def test_histogram_of_first_responses_has_the_buckets_of_the_model(client: Client) -> None:
    client.infer("plain")
    samples = client.until(lambda now: now.get(("nv_inference_first_response_histogram_ms_count", "plain"), 0) > 0)
    name = "nv_inference_first_response_histogram_ms_bucket"
    bounds = {key[1:] for key in samples if key[0] == name}
    assert {bound for bound, model in bounds if model == "many"} == {"0.001", "60000", "+Inf"}
    assert {bound for bound, model in bounds if model == "plain"} == {"100", "500", "2000", "5000", "+Inf"}
    assert client.post("/v2/models/many/generate_stream", {"INPUT0": 2})[0] == 200
    now = client.samples()
    before = samples.get((name, "60000", "many"), 0)
    assert now[name, "60000", "many"] == before + 1, "a request has one first response"
    assert now["nv_inference_first_response_histogram_ms_sum", "many"] % 1 == 0, "in whole milliseconds"


@pytest.mark.rows("M10")
def test_waiting_requests_are_in_the_metrics(client: Client) -> None:
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(client.infer, "held", 1)]
        client.until(lambda now: now["halimede_instances_busy", "held"] == 1)
        waiting += [threads.submit(client.infer, "held", 1) for _ in range(2)]
        samples = client.until(lambda now: now["nv_inference_pending_request_count", "held"] == 2)
        assert samples["halimede_instances", "held"] == 1
        older = client.until(lambda now: now["halimede_queue_oldest_seconds", "held"] > 0.2)
        assert older["halimede_queue_oldest_seconds", "held"] < LIMIT
        assert client.infer("held", 1)[0] == 503
        (client.models / "held" / "go").touch()
        assert [each.result()[0] for each in waiting] == [200] * 3
    samples = client.samples()
    assert samples["nv_inference_pending_request_count", "held"] == 0
    assert samples["halimede_queue_oldest_seconds", "held"] == samples["halimede_instances_busy", "held"] == 0
    assert samples["halimede_instance_busy_seconds", "held"] > 0.2
    assert samples["nv_inference_request_failure", "held", "REJECTED"] == 1


@pytest.mark.rows("M18", "M19", "M11")
def test_machine_and_loads_are_measured(client: Client) -> None:
    samples = client.until(lambda now: ("nv_cpu_utilization",) in now)
    assert 0 <= samples["nv_cpu_utilization",] <= 1
    assert 0 < samples["nv_cpu_memory_used_bytes",] < samples["nv_cpu_memory_total_bytes",]
    assert samples["nv_model_load_duration_secs", "many"] > 0.01
    assert samples["halimede_event_loop_lag_seconds_count",] > 0


@pytest.mark.rows("H138")
@pytest.mark.parametrize("compressed", [False, True])
def test_load_of_a_model_is_in_the_headers_of_its_answer(client: Client, compressed: bool) -> None:
    accept = {"accept_encoding": "gzip"} if compressed else {}
    tells = {"endpoint_load_metrics_format": "text", **accept}
    text = "TEXT named_metrics.kv_cache_utilization=0.5, named_metrics.max_token_capacity=1000"
    status, headers, _ = client.infer("loaded", 0, **tells)
    assert (status, headers["endpoint-load-metrics"]) == (200, text)
    assert (headers["content-encoding"] == "gzip") == compressed
    for kind in ("generate", "generate_stream"):
        status, headers, _ = client.post(
            f"/v2/models/loaded/{kind}", {"INPUT0": 1}, endpoint_load_metrics_format="json"
        )
        report = 'JSON {"named_metrics":{"kv_cache_utilization":0.5,"max_token_capacity":1000}}'
        assert (status, headers["endpoint-load-metrics"]) == (200, report)


@pytest.mark.rows("H138")
def test_load_is_not_in_the_headers_unless_asked_for_or_if_the_answer_is_an_error(client: Client) -> None:
    asks = {"endpoint_load_metrics_format": "text"}
    for headers in (
        client.infer("loaded")[1],
        client.infer("loaded", endpoint_load_metrics_format="xml")[1],
        client.infer("nobody", 0, **asks)[1],
        client.post("/v2/models/loaded/generate", {}, **asks)[1],
    ):
        assert "endpoint-load-metrics" not in headers


def test_metrics_on_the_http_port_are_the_same(client: Client) -> None:
    status, headers, text = client.get("/metrics")
    assert (status, headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert b"\n# TYPE nv_inference_count counter\n" in text
    status, headers, text = client.get("/metrics", accept="application/openmetrics-text;version=1.0.0")
    assert headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert text.endswith(b"# EOF\n")


def test_scrapers_that_read_nothing_delay_no_other_request(client: Client) -> None:
    with ExitStack() as stack:
        for _ in range(50):
            peer = stack.enter_context(socket.socket())
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.settimeout(LIMIT)
            peer.connect(("127.0.0.1", client.serving.metrics_port))
            peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        assert all(client.infer("plain")[0] == 200 for _ in range(50))
        client.until(lambda now: now["nv_inference_request_success", "plain"] >= 50)


def test_a_hundred_scrapes_a_second_leave_time_for_inferences(client: Client) -> None:
    """Each scrape is answered, and the values grow."""
    before = client.samples()["nv_inference_request_success", "plain"]
    with ThreadPoolExecutor(8) as threads:
        scrapes = [threads.submit(client.samples) for _ in range(200)]
        assert all(client.infer("plain")[0] == 200 for _ in range(50))
        assert all(scrape.result()["nv_inference_request_success", "plain"] >= before for scrape in scrapes)
    client.until(lambda now: now["nv_inference_request_success", "plain"] == before + 50)


@pytest.mark.rows("M28", "C39", "H138")
def test_without_metrics_there_is_no_port_and_no_load(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "plain", "INT32")
    with Serving(models, tmp_path / "server.log", "--allow-metrics=false") as serving:
        client = Client(serving.wait_until_live(), models)
        assert "endpoint-load-metrics" not in client.infer("plain", endpoint_load_metrics_format="text")[1]
        with pytest.raises(urllib.error.URLError):
            client.get("/metrics", serving.metrics_port)
        assert client.get("/metrics")[0] == 404
        assert serving.stop() == 0
        assert "Metrics Service" not in serving.log_text()


@pytest.mark.rows("C39", "C40")
def test_metrics_that_are_switched_off_are_missing(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "plain", "INT32")
    (other,) = free_ports(1)
    flags = (
        "--allow-cpu-metrics=false",
        "--allow-gpu-metrics=false",
        "--metrics-address=localhost",
        f"--metrics-port={other}",
    )
    with Serving(models, tmp_path / "server.log", *flags) as serving:
        client = Client(serving.wait_until_live(), models)
        serving.until_logged("Started Metrics Service")
        text = client.get("/metrics", other)[2].decode()
        assert "nv_inference_count{" in text
        assert "nv_cpu" not in text
        assert "nv_gpu" not in text
        assert "summary" not in text
        assert "first_response" not in text


@pytest.mark.rows("M24")
def test_families_of_models_exist_with_the_first_model(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "plain", "INT32")
    with Serving(models, tmp_path / "server.log", "--model-control-mode=explicit") as serving:
        client = Client(serving.wait_until_live(), models)
        heads = client.get("/metrics", serving.metrics_port)[2].decode().splitlines()
        assert "# TYPE nv_cpu_memory_total_bytes gauge" in heads
        assert not any("nv_inference" in line or "nv_cache" in line or "halimede_worker" in line for line in heads)
        assert client.post("/v2/repository/models/plain/load", {})[0] == 200
        reasons = {
            key[-1]: value for key, value in client.samples().items() if key[0] == "nv_inference_request_failure"
        }
        assert reasons == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 0}
        assert client.post("/v2/repository/models/plain/unload", {})[0] == 200
        client.until(lambda now: not any("plain" in key for key in now))


def test_namespace_is_a_label(tmp_path: Path) -> None:
    """The label has the repository's path, as in Triton."""
    models = tmp_path / "models"
    write_model(models, "plain", "INT32")
    with Serving(models, tmp_path / "server.log", "--model-namespacing=true") as serving:
        client = Client(serving.wait_until_live(), models)
        text = client.get("/metrics", serving.metrics_port)[2].decode()
        assert f'nv_inference_count{{model="plain",namespace="{models}",version="1"}} 0' in text.splitlines()
