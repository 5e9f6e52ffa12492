"""Traces of a running server: which requests are traced, their files, and a collector of spans."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

from tests.compat.serving import Serving, write_model
from tests.tracing.collector import SLOW_SECONDS, attributes_of, collecting, events_of

PATIENCE = 30.0
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_CALLER = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0")]
        inner = pb_utils.InferenceRequest(
            model_name="m", requested_output_names=["OUTPUT0"], inputs=inputs, trace=request.trace()
        )
        assert not inner.exec().has_error()
        context = str(request.trace().get_context())
        return pb_utils.InferenceResponse([pb_utils.Tensor("CONTEXT", np.array([context], object))])
"""
_IN_PROCESS = 'parameters { key: "EXECUTION" value { string_value: "in_process" } }'
_CALLER_CONFIG = """
backend: "python"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "CONTEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Serving]:
    """Starts a server with these trace settings, over `m` and `other`."""
    for model in ("m", "other"):
        write_model(tmp_path / "models", model, "INT32")

    def start(*settings: str) -> Serving:
        flags = (f"--trace-config={setting}" for setting in settings)
        serving = Serving(tmp_path / "models", tmp_path / "server.log", *flags)
        request.addfinalizer(serving.kill)
        return serving.wait_until_live()

    return start


class Client:
    def __init__(self, serving: Serving) -> None:
        self.http = over_http.InferenceServerClient(serving.http_url)
        self.grpc = over_grpc.InferenceServerClient(serving.grpc_url)

    def infer(self, *names: str, model: str = "m", **more: Any) -> Any:
        for name in names:
            tensor = over_http.InferInput("INPUT0", [2], "INT32").set_data_from_numpy(np.array([1, 2], np.int32))
            result = self.http.infer(model, [tensor], request_id=name, **more)
        return result

    def infer_over_grpc(self, name: str, model: str = "m", **more: Any) -> Any:
        tensor = over_grpc.InferInput("INPUT0", [2], "INT32").set_data_from_numpy(np.array([1, 2], np.int32))
        return self.grpc.infer(model, [tensor], request_id=name, **more)

    def set(self, model: str = "", **settings: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.http.update_trace_settings(model or None, settings)
        return found


def requests_in(path: Path) -> list[str]:
    """The ids of the requests whose traces are in a file."""
    return [one["request_id"] for one in json.loads(path.read_text()) if "model_name" in one]


def until_written(path: Path, *names: str) -> None:
    """Waits until the file exists and is complete."""

    def is_written() -> bool:
        with suppress(OSError, json.JSONDecodeError):
            return requests_in(path) == list(names)
        return False

    until(is_written)


def until(holds: Callable[[], object]) -> None:
    limit = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.mark.rows("T1", "T2", "T6", "C42")
def test_files_of_traces(start: Callable[..., Serving], tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    serving = start("level=TIMESTAMPS", "rate=2", f"triton,file={file}", "triton,log-frequency=2")
    client = Client(serving)
    client.infer("1", "2", "3", "4", "5", "6")
    client.set("other", trace_rate="1")
    client.infer("o1", "o2", model="other")  # the third file, as the sixth request waits for another
    until_written(tmp_path / "trace.json.1", "o1", "o2")
    assert requests_in(tmp_path / "trace.json.0") == ["2", "4"]
    assert client.set(log_frequency="0", trace_count="2")["trace_count"] == "2"
    until_written(tmp_path / "trace.json.2", "6")
    client.infer("7", "8", "9", "10", "11", "12")
    until_written(tmp_path / "trace.json.3", "8", "10")
    assert client.http.get_trace_settings()["trace_count"] == "0"
    client.set(trace_rate="1", trace_count=None)
    client.infer("13")
    client.infer_over_grpc("14")
    assert not file.exists()
    assert serving.stop() == 0
    assert requests_in(file) == ["13", "14"]


_ORDER = ("REQUEST_START", "QUEUE_START", *(f"COMPUTE_{end}" for end in ("START", "INPUT_END", "OUTPUT_START", "END")))


def test_no_trace_is_lost_or_written_twice_while_settings_change(start: Callable[..., Serving], tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    serving = start("level=TIMESTAMPS", "rate=1", f"triton,file={tmp_path}/traces/t", "triton,log-frequency=7")
    names = {client: [f"{client} {number}" for number in range(250)] for client in ("http", "grpc", "both")}

    def ask(kind: str) -> None:
        client = Client(serving)
        for number, name in enumerate(names[kind]):
            asks = client.infer if kind == "http" or (kind == "both" and number % 2) else client.infer_over_grpc
            asks(name, model=("m", "other")[number % 3 == 0])

    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(ask, kind) for kind in names]
        setting = Client(serving)
        while not all(each.done() for each in asked):
            for model, frequency in (("m", "1"), ("", "50"), ("other", "3"), ("m", None), ("", "2")):
                setting.set(model, log_frequency=frequency)
        assert [each.result() for each in asked] == [None] * 3
    assert serving.stop() == 0
    found = [name for path in (tmp_path / "traces").iterdir() for name in requests_in(path)]
    assert sorted(found) == sorted(name for each in names.values() for name in each)
    for path in (tmp_path / "traces").iterdir():
        moments: dict[int, dict[str, int]] = {}
        for one in json.loads(path.read_text()):
            moments.setdefault(one["id"], {}).update((each["name"], each["ns"]) for each in one.get("timestamps", ()))
        for stamps in moments.values():
            front = "HTTP_RECV" if "HTTP_RECV_END" in stamps else "GRPC_WAITREAD"
            send = f"{front.split('_')[0]}_SEND"
            names_in_order = (f"{front}_START", f"{front}_END", *_ORDER, "REQUEST_END", f"{send}_START", f"{send}_END")
            in_order = [stamps[name] for name in names_in_order]
            assert in_order == sorted(in_order)
            assert in_order[0] > 0


def test_path_that_cannot_be_written_delays_nothing(start: Callable[..., Serving], tmp_path: Path) -> None:
    serving = start("level=TIMESTAMPS", "rate=1", f"triton,file={tmp_path}/not/there", "triton,log-frequency=1")
    Client(serving).infer(*map(str, range(10)))
    assert serving.stop() == 0
    assert serving.log_text().count("failed creating trace file") == 1


def test_full_disk_delays_nothing(start: Callable[..., Serving], tmp_path: Path) -> None:
    (tmp_path / "trace").symlink_to("/dev/full")
    serving = start("level=TIMESTAMPS", "rate=1", f"triton,file={tmp_path}/trace")
    client = Client(serving)
    client.infer(*map(str, range(10)))
    client.set(trace_rate="2")
    until(lambda: "No space left on device" in serving.log_text())
    client.infer("after", "that")
    assert serving.stop() == 0
    assert serving.log_text().count("failed creating trace file") == 1


@pytest.mark.rows("T8", "T9", "T10", "T11", "P55", "H121")
def test_traces_of_opentelemetry_are_one_tree(start: Callable[..., Serving], tmp_path: Path) -> None:
    """client -> server -> queue -> compute -> the model that it calls."""
    for name, more in (("caller", ""), ("caller_inside", _IN_PROCESS)):
        version = tmp_path / "models" / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(_CALLER)
        (version.parent / "config.pbtxt").write_text(_CALLER_CONFIG + more)
    with collecting() as collector:
        serving = start(
            *("mode=opentelemetry", "level=TIMESTAMPS", "rate=0", f"opentelemetry,url={collector.url}"),
            *("opentelemetry,resource=zone=here", "opentelemetry,bsp_schedule_delay=50"),
        )
        client = Client(serving)
        sent = {"traceparent": PARENT, "tracestate": "a=b"}
        client.infer("without", model="caller")  # at rate 0 only those with a context are traced
        for ask, model in (
            (client.infer, "caller"),
            (client.infer_over_grpc, "caller"),
            (client.infer, "caller_inside"),
        ):
            said = ask("r", model=model, headers=dict(sent)).as_numpy("CONTEXT")[0].decode()
            until(lambda: collector.named("InferRequest"))
            (root,), (caller,), (called,) = (collector.named(name) for name in ("InferRequest", model, "m"))
            assert {span.trace_id.hex() for span in collector.spans} == {PARENT.split("-")[1]}
            assert root.parent_span_id.hex() == PARENT.split("-")[2]
            assert (caller.parent_span_id, called.parent_span_id) == (root.span_id, caller.span_id)
            computed = {span.parent_span_id for span in collector.named("compute")}
            assert computed == {caller.span_id, called.span_id}
            assert "QUEUE_START" in events_of(caller)
            assert attributes_of(caller)["triton.request_id"] == "r"
            own = f"00-{PARENT.split('-')[1]}-{caller.span_id.hex()}-01"
            assert json.loads(said) == {"traceparent": own, "tracestate": "a=b"}
            collector.spans.clear()
        assert collector.resource["zone"] == "here"
        settings = client.set(trace_rate="1", log_frequency="4", trace_level=["TIMESTAMPS", "TENSORS"])
        assert (settings["trace_rate"], settings["trace_mode"]) == ("1", "opentelemetry")
        assert settings["bsp_schedule_delay"] == "50"
        assert not {"log_frequency", "trace_file"} & set(settings)
        assert client.grpc.get_trace_settings(as_json=True)["settings"]["url"] == {"value": [collector.url]}
        client.infer("at rate 1", "and another")
        until(lambda: len(collector.named("InferRequest")) == 2)
        assert serving.stop() == 0
    assert serving.log_text().count("Tensor level tracing is not supported by the mode: opentelemetry") == 1


def test_collector_that_is_gone_or_slow_delays_nothing(start: Callable[..., Serving]) -> None:
    with collecting() as collector:
        collector.status = 0
        serving = start(
            *("mode=opentelemetry", "level=TIMESTAMPS", "rate=1", f"opentelemetry,url={collector.url}"),
            *("opentelemetry,bsp_schedule_delay=20", "opentelemetry,bsp_max_queue_size=16"),
        )
        client = Client(serving)
        client.infer("first")
        until(collector.was_asked)
        began = time.monotonic()
        client.infer(*map(str, range(30)))
        assert time.monotonic() - began < SLOW_SECONDS
        until(lambda: "spans are dropped" in serving.log_text())
        assert serving.stop() == 0
    assert serving.log_text().count("spans are dropped") == 1


@pytest.mark.rows("H123")
def test_bad_trace_settings_are_refused(start: Callable[..., Serving]) -> None:
    client = Client(start())
    with pytest.raises(
        InferenceServerException, match="Attempting to set invalid trace setting :trace file name is not"
    ):
        client.set(trace_level=["TIMESTAMPS"])
