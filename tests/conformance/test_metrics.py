"""Metrics, compared with the real server (contract chapter 8): equal traffic on both, then families, types, help texts,
labels and counts.

Each server has its own repository, as models are loaded again. Durations differ from run to run, so only their presence
is compared.
"""

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.conformance import servers
from tests.conformance.servers import Server
from tests.model_sources import COUNTS_UP

LIMIT = 30.0
LATE = 0.15  # seconds after which a request for `slow` has waited too long

_CODE = """import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        data = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        {body}
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", data.as_numpy())])
"""
_BEGUN, _GO = "begun", "go"
_HOLDS = f"""folder = os.path.dirname(__file__)
        open(os.path.join(folder, "{_BEGUN}"), "w").close()
        limit = time.monotonic() + {LIMIT}
        while not os.path.exists(os.path.join(folder, "{_GO}")) and time.monotonic() < limit:
            time.sleep(0.005)"""
_CALLS = (
    'pb_utils.InferenceRequest(model_name="plain", requested_output_names=["OUTPUT0"], '
    'inputs=[pb_utils.Tensor("INPUT0", data.as_numpy())]).exec()'
)
_QUEUE = """max_batch_size: 8
dynamic_batching { preferred_batch_size: [ 1 ]
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: MICROSECONDS } }
"""
_WARMUP = """model_warmup { name: "w" batch_size: 1 count: 2
  inputs { key: "INPUT0" value { data_type: TYPE_INT32 dims: 1 zero_data: true } } }
"""
_TAGS = 'metric_tags { key: "b" value: "say \\"hi\\" \\\\ ä" } metric_tags { key: "A" value: "two\\nlines" }'
MODELS: Mapping[str, tuple[str, str]] = {
    "plain": ("", ""),
    "batched": ("max_batch_size: 8 dynamic_batching { }", ""),
    "cached": ("response_cache { enable: true }", ""),
    "tagged": (
        'metric_tags { key: "b" value: "say \\"hi\\" \\\\ ä" } metric_tags { key: "A" value: "two\\nlines" }',
        "",
    ),
    "raises": ("", _CODE.format(body='raise ValueError("no")')),
    "left": (_QUEUE.replace("MICROSECONDS", "60000000"), _CODE.format(body=_HOLDS)),
    "slow": (_QUEUE.replace("MICROSECONDS", str(round(LATE * 1e6))), _CODE.format(body=_HOLDS)),
    "calls": ("", _CODE.format(body=_CALLS)),
    "many": ("model_transaction_policy { decoupled: true }", COUNTS_UP),
    "warm": (_WARMUP, _CODE.format(body="pass")),
}
FLAGS = (
    "--cache-config=local,size=1000000",
    "--model-control-mode=explicit",
    "--load-model=*",
    "--metrics-interval-ms=100",
)


def _write(folder: Path, names: Iterable[str]) -> Path:
    for name in names:
        more, code = MODELS[name]
        version = folder / name / "1"
        version.mkdir(parents=True)
        tensor = "data_type: TYPE_INT32 dims: [ -1 ]"
        (version.parent / "config.pbtxt").write_text(
            f'backend: "{"python" if code else "identity"}"\n'
            f'input {{ name: "INPUT0" {tensor} }}\noutput {{ name: "OUTPUT0" {tensor} }}\n'
            f"instance_group {{ kind: KIND_CPU }}\n{more}\n"
        )
        if code:
            (version / "model.py").write_text(code)
    return folder


class Client:
    """A client of one server."""

    def __init__(self, server: Server, models: Path) -> None:
        self.url = f"http://127.0.0.1:{server.http}"
        self.server = server
        self.models = models

    def post(self, path: str, document: object) -> int:
        request = urllib.request.Request(self.url + path, json.dumps(document).encode())
        try:
            with urllib.request.urlopen(request, timeout=LIMIT) as answer:
                answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def infer(self, model: str, rows: int = 0, **tensor: Any) -> int:
        """The status of an inference. `rows` is for a model with batches."""
        shape, data = ([rows, 1], [1] * rows) if rows else ([1], [2])
        sent = {"name": "INPUT0", "datatype": "INT32", "shape": shape, "data": data, **tensor}
        return self.post(f"/v2/models/{model}/infer", {"inputs": [sent]})

    def scrape(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.metrics}/metrics", timeout=LIMIT) as answer:
            return str(answer.read().decode())

    def statistics(self, model: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/v2/models/{model}/stats", timeout=LIMIT) as answer:
            (found,) = json.loads(answer.read())["model_stats"]
        return dict(found)

    def until(self, holds: Callable[[str], bool]) -> str:
        """The scraped text when it holds, or at the limit."""
        limit = time.monotonic() + LIMIT
        while not holds(text := self.scrape()) and time.monotonic() < limit:
            time.sleep(0.05)
        return text


def _traffic(client: Client) -> dict[str, list[int]]:
    """Sends the traffic. Returns the statuses by its name."""
    said = {name: [client.infer(name), client.infer(name)] for name in ("plain", "tagged", "calls", "warm", "raises")}
    said["cached"] = [client.infer("cached") for _ in range(3)]
    said["batched"] = [client.infer("batched", rows) for rows in (3, 8)]
    said["wrong"] = [
        client.infer("plain", datatype="FP32"),
        client.infer("plain", name="OTHER"),
        client.infer("batched", 9),
        client.infer("nobody"),
    ]
    said["many"] = [client.post("/v2/models/many/generate_stream", {"INPUT0": count}) for count in (2, 0)]
    said["slow"] = _late(client)
    said["left"] = [_cancelled(client), client.infer("left", 1)]
    return said


@contextmanager
def _running(client: Client, model: str) -> Iterator[Future[int]]:
    """A running inference, which continues after the body. Yields its status."""
    folder = client.models / model / "1"
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(client.infer, model, 1)
        try:
            limit = time.monotonic() + LIMIT
            while not (folder / _BEGUN).exists():
                assert time.monotonic() < limit
                time.sleep(0.005)
            yield running
        finally:
            (folder / _GO).touch()


def _late(client: Client) -> list[int]:
    """Runs an inference while two wait until their timeout. Returns the status of each."""
    with ThreadPoolExecutor(2) as threads:
        with _running(client, "slow") as running:
            late = [threads.submit(client.infer, "slow", 1) for _ in range(2)]
            client.until(lambda text: _pending(text, "slow") + sum(one.done() for one in late) == len(late))
            time.sleep(2 * LATE)
        return [one.result() for one in (running, *late)]


def _cancelled(client: Client) -> int:
    """Runs an inference while another one waits and is cancelled. Returns the status of the first."""
    tensor = grpcclient.InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.zeros((1, 1), np.int32))
    with grpcclient.InferenceServerClient(f"127.0.0.1:{client.server.grpc}") as stub:
        with _running(client, "left") as running:
            call = stub.async_infer("left", [tensor], lambda result, error: None)
            client.until(lambda text: _pending(text, "left") == 1)
            call.cancel()
            assert stub.is_server_live()  # asked behind the end of the call, on the same connection
            time.sleep(0.1)  # the real server notes that end on another thread
        return running.result()


def _pending(text: str, model: str) -> int:
    found = re.search(rf'^nv_inference_pending_request_count{{model="{model}",version="1"}} (\d+)$', text, re.MULTILINE)
    return int(found[1]) if found else 0


def _reload(client: Client) -> tuple[str, dict[str, Any]]:
    """Loads a changed model, uses it once, unloads another. Returns the metrics, and the statistics of the first."""
    config = client.models / "plain" / "config.pbtxt"
    config.write_text(config.read_text() + 'parameters { key: "a" value { string_value: "b" } }\n')
    assert client.post("/v2/repository/models/plain/load", {}) == 200
    assert client.infer("plain") == 200
    assert client.post("/v2/repository/models/tagged/unload", {}) == 200
    left = re.compile(r'^(?!nv_inference_request_failure).*model="tagged"', re.MULTILINE)
    over = 'nv_inference_exec_count{model="plain",version="1"} 5'
    return client.until(lambda text: over in text and left.search(text) is None), client.statistics("plain")


@dataclass(frozen=True, slots=True)
class Seen:
    """The results of the traffic on one server."""

    said: dict[str, list[int]]
    metrics: str
    reloaded: str
    statistics: dict[str, Any]


_TRAFFIC = {"nv_inference_request_success": 20, "nv_inference_request_failure": 5, "nv_inference_exec_count": 20}
"""The totals of the traffic and of the warm-up of `warm`. The real server answers first, and then counts one after the
other."""
_POLLED = ("nv_cache_num_entries 1", "nv_cache_num_lookups 3", "nv_cache_num_hits 2", "nv_cache_num_misses 1")
"""What the real server reads only from time to time, with the values that show that it has."""


def _story(client: Client) -> Seen:
    said = _traffic(client)
    metrics = client.until(_has_all)
    return Seen(said, metrics, *_reload(client))


def _has_all(text: str) -> bool:
    lines = text.splitlines()
    counts = {name: sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{")) for name in _TRAFFIC}
    polled = set(_POLLED) <= set(lines) and any(line.startswith("nv_cpu_utilization") for line in lines)
    return polled and counts == _TRAFFIC


def _on_both(
    folder: Path, flags: Sequence[str], story: Callable[[Client], Any], names: Iterable[str] = MODELS
) -> Iterator[Any]:
    commands = {"ours": servers.our_command(), "the real server": servers.real_command()}
    with ExitStack() as stack:
        clients = []
        for name, command in commands.items():
            models = _write(folder / name.split()[-1], names)
            server = stack.enter_context(Server(name, (*command, *flags), models, folder / f"{models.name}.log"))
            clients.append(Client(server, models))
        for client in clients:
            client.server.wait()
        with ThreadPoolExecutor(2) as threads:
            yield tuple(threads.map(story, clients))


@pytest.fixture(scope="module")
def seen(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Seen, Seen]]:
    """Our results and the real server's."""
    yield from _on_both(tmp_path_factory.mktemp("metrics"), FLAGS, _story)


Series = dict[str, str]
"""Name and labels to the value."""

_MASKED = {
    "nv_model_load_duration_secs": "since 2.73 (M11)",
    "nv_cache_util": "an entry has other bytes here",
}
_VARIES = re.compile(
    r"_duration|_us(_sum)?{|_utilization|^nv_cpu_memory_used_bytes|^nv_cache_(hit|miss)_summary_per_model(_sum)?{"
)


def families(text: str) -> dict[str, tuple[str, str, Series]]:
    """Type, help text and series of every family of the contract. The values of durations are omitted."""
    found: dict[str, tuple[str, str, Series]] = {}
    for part in re.split(r"^(?=# HELP )", text, flags=re.MULTILINE):
        head, *lines = part.splitlines() or [""]
        name, _, description = head.removeprefix("# HELP ").partition(" ")
        if not name.startswith("nv_") or name in _MASKED:
            continue
        series = dict(line.rpartition(" ")[::2] for line in lines[1:])
        found[name] = (description, lines[0], {key: _value(key, value) for key, value in series.items()})
    return found


def _value(series: str, value: str) -> str:
    if _VARIES.search(series):
        return "<n>"
    return value


def test_statuses_are_equal(seen: tuple[Seen, Seen]) -> None:
    ours, real = seen
    assert ours.said == real.said
    assert (ours.said["slow"], ours.said["left"]) == ([200, 503, 503], [200, 200])
    assert ours.said["wrong"] == [400, 400, 400, 404]


@pytest.mark.rows(
    "M1", "M2", "M3", "M4", "M5", "M6", "M7", "M8", "M9", "M10", "M15", "M16", "M17b", "M18", "M19", "M20", "M24"
)
def test_families_types_labels_and_counts_are_those_of_the_real_server(seen: tuple[Seen, Seen]) -> None:
    ours, real = (families(one.metrics) for one in seen)
    assert set(ours) == set(real)
    for name in real:
        assert ours[name] == real[name], name
    failures = real["nv_inference_request_failure"][2]
    counted = {key: int(number) for key, number in failures.items() if number.isdigit() and number != "0"}
    assert sorted(counted.values()) == [1, 2, 2], "cancelled, rejected, failed in the backend"


@pytest.mark.rows("R55")
def test_tags_are_labels(seen: tuple[Seen, Seen]) -> None:
    line = r'nv_inference_count{_A="two\nlines",_b="say \"hi\" \\ ä",model="tagged",version="1"} 2'
    assert [line in one.metrics.splitlines() for one in seen] == [True, True]


@pytest.mark.rows("M26")
def test_metrics_survive_a_reload_and_end_with_their_model(seen: tuple[Seen, Seen]) -> None:
    ours, real = (families(one.reloaded) for one in seen)
    left = [key for family in real.values() for key in family[2] if 'model="tagged"' in key]
    assert all(key.startswith("nv_inference_request_failure") for key in left), (
        "which the real server forgets to remove"
    )
    for key in left:
        del real["nv_inference_request_failure"][2][key]
    assert ours == real
    assert ours["nv_inference_request_success"][2]['nv_inference_request_success{model="plain",version="1"}'] == "5"
    assert [one.statistics["inference_stats"]["success"]["count"] for one in seen] == [1, 1]
    assert 'model="tagged"' not in seen[0].reloaded


_SECONDS = 0.5
"""Seconds between the two scrapes of `halimede top`."""


def _top(client: Client) -> dict[str, Any]:
    """The models in the output of `halimede top`, after some requests to `plain`."""
    place = (client.url, f"--metrics-url=127.0.0.1:{client.server.metrics}/metrics", f"--interval={_SECONDS}")
    command = (sys.executable, "-m", "halimede", "top", *place, "--once", "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        while process.poll() is None:
            assert client.infer("plain") == 200
        assert process.stdout is not None
        said = json.loads(process.stdout.read())
    assert (process.returncode, said["metrics"]) == (0, True)
    assert 0 <= said["machine"]["cpu_utilization"] <= 1
    return {model["name"]: model for model in said["models"]}


_QUANTILES = ("--metrics-config=summary_latencies=true", "--metrics-config=summary_quantiles=0.5:0.05,0.9:0.01")


@pytest.mark.rows("M13", "M14", "M17", "M25", "C41")
def test_summaries_without_counters_and_the_view_of_the_terminal(oracle: None, tmp_path: Path) -> None:
    flags = (*FLAGS, *_QUANTILES, "--metrics-config=counter_latencies=false")

    def story(client: Client) -> tuple[str, dict[str, Any]]:
        for name, count in (("plain", 2), ("cached", 3)):
            for _ in range(count):
                assert client.infer(name) == 200
        over = (
            'nv_cache_hit_summary_per_model_count{model="cached",version="1"} 2',
            'nv_inference_compute_output_summary_us_count{model="plain",version="1"} 2',
            'nv_inference_request_summary_us_count{model="plain",version="1"} 2',
            "\nnv_cpu_utilization",
        )
        text = client.until(lambda text: all(line in text for line in over))
        return text, _top(client)

    for (our_text, our_view), (real_text, real_view) in _on_both(tmp_path, flags, story, ("plain", "cached")):
        for view in (our_view, real_view):
            assert set(view) == {"plain", "cached"}
            assert view["plain"]["requests"] > 0
            assert view["plain"]["instances"] == 1
            assert view["plain"]["pending"] is not None
        assert our_view["plain"]["batch"] == 1
        inferences, executions = (real_view["plain"][name] * _SECONDS for name in ("inferences", "executions"))
        assert inferences == pytest.approx(executions, abs=1.5)  # it counts one after the other: a look falls between
        ours, real = families(our_text), families(real_text)
        assert set(ours) == set(real)
        for name in real:
            assert ours[name][:2] == real[name][:2]
            assert set(ours[name][2]) == set(real[name][2]), name
            if "summary" in name:
                assert ours[name][2] == real[name][2]
