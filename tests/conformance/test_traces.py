"""Traces of equal requests on both servers: the same tree, the same names in the same order, the same keys.

In the real server, front ends and models write their stamps on different threads. So stamps of one kind may come before
or after those of the other. Each kind keeps its order, and is compared by itself. The real server runs a request that
is cancelled in its queue (S14), and ours does so in these traces.
"""

import json
import queue
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

from tests.conformance import servers
from tests.conformance.servers import MODELS, Server
from tests.tracing.collector import Collector, attributes_of, collecting, events_of

PATIENCE = 30.0  # seconds for a file or a response
_FRONT = ("HTTP_", "GRPC_", "INFER_RESPONSE_COMPLETE")
_SENT = ("HTTP_SEND_START", "HTTP_SEND_END")
_ENSEMBLE = """
platform: "ensemble"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "int32" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "between" } },
  { model_name: "slow" model_version: -1
    input_map { key: "INPUT0" value: "between" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
] }
"""
_BEGUN, _GO = "begun", "go"
_HELD = f"""import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        folder = os.path.dirname(__file__)
        open(os.path.join(folder, "{_BEGUN}"), "w").close()
        limit = time.monotonic() + {PATIENCE}
        while not os.path.exists(os.path.join(folder, "{_GO}")) and time.monotonic() < limit:
            time.sleep(0.005)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())]) for r in requests]
"""
_CALL = "found = len(told(call('int32', [1, 2], trace=request.trace(), request_id='{}').exec()))"
_SERVED = ("bls", "bool", "bytes", "decoupled", "fp16", "fp32", "fp64", "int32", "raises", "slow", "uint64")
_FLAGS = ("level=TIMESTAMPS", "level=TENSORS", "rate=1", "triton,log-frequency=1")


@dataclass(frozen=True, slots=True)
class Seen:
    """A trace. `parent` is the request id of its parent."""

    model: str
    keys: tuple[str, ...]
    parent: str | None
    core: tuple[str, ...]
    front: tuple[str, ...]
    tensors: tuple[str, ...]


class Traffic:
    """Requests to one server. Each has its own id, by which its trace is found."""

    def __init__(self, server: Server) -> None:
        self._url = f"127.0.0.1:{server.http}"
        self._http = over_http.InferenceServerClient(self._url)
        self._grpc = over_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}")

    def send(self, held: Path) -> None:
        two = np.array([1, 2], np.int32)
        for name, ask in (("http", self.http), ("grpc", self.grpc)):
            ask("int32", two, f"success {name}")
            ask("raises", two, f"failure {name}")
            ask("int32", two.reshape(1, 2), f"refused {name}")
            ask("nope", two, f"unknown {name}")
            ask("bls", _source(_CALL.format(f"inner {name}")), f"bls {name}", "SOURCE")
            ask("bls", _source(_CALL.replace("trace=request.trace(), ", "").format("x")), f"without {name}", "SOURCE")
            ask("ensemble", two, f"ensemble {name}")
            ask("cached", two + ord(name[0]), f"cached {name}")
            ask("cached", two + ord(name[0]), f"again {name}")
        for kind, array in (
            ("bool", np.array([True, False])),
            ("bytes", np.array([b"a", b""], object)),
            ("fp16", np.array([1.5], np.float16)),
            ("fp32", np.array([1.5, 1e-7, np.pi], np.float32)),
            ("fp64", np.array([1e300])),
            ("uint64", np.array([2**64 - 1], np.uint64)),
        ):
            self.http(kind, array, f"data {kind}")
        self.stream("int32", True)
        self.stream("decoupled", True)
        self.stream("decoupled", False)
        self.http("decoupled", two, "single of many")
        for model in ("int32", "raises"):
            self.generate(model, "generate_stream")
        self.generate("int32", "generate")
        self.cancelled(held)
        self.samples(two)

    def samples(self, two: Any) -> None:
        """Every other request is traced: the second of each pair, if the first one counts."""
        good = '{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}'
        firsts: dict[str, Callable[[], None]] = {
            "without JSON": lambda: self.post("int32/infer", "{no"),
            "with an element that is none": lambda: self.post("int32/infer", good.replace("1,", '"x",')),
            "coded": lambda: self.post("int32/infer", good, {"Content-Encoding": "br"}),
            "cut": lambda: self.post("int32/infer", good, {"Inference-Header-Content-Length": "999"}),
            "of no version": lambda: self.post("int32/versions/x/infer", good),
            "for nobody": lambda: self.post("nobody/infer", good),
            "for many answers": lambda: self.post("decoupled/infer", good),
            "generate without JSON": lambda: self.post("int32/generate", "{no"),
            "generate coded": lambda: self.post("int32/generate", "{}", {"Content-Encoding": "gzip"}),
            "grpc for nobody": lambda: self.grpc("nobody", two, ""),
            "grpc for many answers": lambda: self.grpc("decoupled", two, ""),
            "grpc of another shape": lambda: self.grpc("int32", two.reshape(1, 2), ""),
        }
        for name, first in firsts.items():
            self._http.update_trace_settings(None, {"trace_rate": "2"})
            first()
            self.http("int32", two, f"after one {name}")

    def generate(self, model: str, kind: str) -> None:
        body = json.dumps({"id": f"{kind} {model}", "INPUT0": [1, 2]}).encode()
        asked = urllib.request.Request(f"http://{self._url}/v2/models/{model}/{kind}", body)
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(asked, timeout=PATIENCE).read()

    def post(self, path: str, body: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        asked = urllib.request.Request(f"http://{self._url}/v2/models/{path}", body.encode(), dict(headers))
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(asked, timeout=PATIENCE)

    def http(self, model: str, array: Any, name: str, tensor: str = "INPUT0", **more: Any) -> None:
        with suppress(InferenceServerException):
            self._http.infer(model, [_input(over_http, tensor, array)], request_id=name, **more)

    def grpc(self, model: str, array: Any, name: str, tensor: str = "INPUT0", **more: Any) -> None:
        with suppress(InferenceServerException):
            self._grpc.infer(model, [_input(over_grpc, tensor, array)], request_id=name, **more)

    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = self._http.get_trace_settings()
        return found

    def levels(self) -> list[Any]:
        """What is traced after each of some changes, not all of which are valid."""
        changes: list[list[str]] = [["TENSORS"], [], ["x"], ["x", "TIMESTAMPS"], ["off"], ["OFF"], ["timestamps"]]
        over_both = [self._http.update_trace_settings(None, {"trace_level": one})["trace_level"] for one in changes]
        for one in changes:
            answer = self._grpc.update_trace_settings("int32", {"trace_level": one or ["y"]}, as_json=True)
            over_both.append(answer["settings"]["trace_level"])
        return over_both

    def stream(self, model: str, told: bool) -> None:
        answers: queue.Queue[Any] = queue.Queue()
        self._grpc.start_stream(lambda result, error: answers.put(error or result))
        self._grpc.async_stream_infer(
            model,
            [_input(over_grpc, "INPUT0", np.array([1, 2], np.int32))],
            request_id=f"stream {model} {told}",
            enable_empty_final_response=told,
        )
        for _ in range({("int32", True): 1, ("decoupled", True): 3}.get((model, told), 2)):
            answers.get(timeout=PATIENCE)
        self._grpc.stop_stream()

    def cancelled(self, model: Path) -> None:
        """Calls a held model, and cancels the call when it has begun."""
        begun, go = model / "1" / _BEGUN, model / "1" / _GO
        for file in (begun, go):
            file.unlink(missing_ok=True)
        tensor = _input(over_grpc, "INPUT0", np.array([1, 2], np.int32))
        call = self._grpc.async_infer(model.name, [tensor], lambda result, error: None, request_id="cancelled")
        _wait_until(begun.exists, f"'{model.name}' does not begin")
        call.cancel()
        assert self._grpc.is_server_live()  # asked behind the end of the call, on the same connection
        time.sleep(0.1)  # the real server notes that end on another thread
        go.touch()

    def close(self) -> None:
        self._http.close()
        self._grpc.close()


def _source(text: str) -> Any:
    return np.array([text.encode()], object)


def _input(client: Any, name: str, array: Any) -> Any:
    kinds = {"int32": "INT32", "bool": "BOOL", "object": "BYTES", "float16": "FP16", "float32": "FP32"}
    kind = {**kinds, "float64": "FP64", "uint64": "UINT64"}[array.dtype.name]
    tensor = client.InferInput(name, list(array.shape), kind)
    tensor.set_data_from_numpy(array)
    return tensor


@pytest.fixture(scope="module")
def seen(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], dict[str, Seen]]:
    """The traces of one server by request id and model, after the same traffic."""
    folder = tmp_path_factory.mktemp("traces")
    repository = folder / "models"
    for model in _SERVED:
        servers.copy_models(repository / model, MODELS / model)
    config = servers.copy_models(repository / "cached", MODELS / "int32") / "config.pbtxt"
    config.write_text(f"{config.read_text()}response_cache {{ enable: true }}")
    held = servers.copy_models(repository / "held", MODELS / "slow")
    (held / "1" / "model.py").write_text(_HELD)
    (repository / "ensemble" / "1").mkdir(parents=True)
    (repository / "ensemble" / "config.pbtxt").write_text(_ENSEMBLE)
    found: dict[bool, dict[str, Seen]] = {}
    with ExitStack() as stack:
        both = {}
        for ours, command in ((True, servers.our_command()), (False, servers.real_command())):
            file = folder / ("ours" if ours else "real") / "trace.json"
            file.parent.mkdir()
            flags = [f"--trace-config={flag}" for flag in (*_FLAGS, f"triton,file={file}")]
            words = [*command, *flags, "--cache-config=local,size=1048576"]
            server = Server("ours" if ours else "real", words, repository, folder / f"{ours}.log")
            both[ours] = stack.enter_context(server), file.parent
        for ours, (server, traces) in both.items():
            server.wait()
            traffic = Traffic(server)
            traffic.send(held)
            traffic.close()
            _wait_until(partial(_is_traced, "cancelled", traces), f"no trace in {traces}")
            server.stop(60)  # all that it writes until it ends of itself
            found[ours] = read_traces(traces)
    return lambda ours: found[ours]


def _wait_until(holds: Callable[[], bool], otherwise: str) -> None:
    limit = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < limit, otherwise
        time.sleep(0.02)


def _is_traced(name: str, folder: Path) -> bool:
    return any(f'"request_id":"{name}"' in path.read_text(errors="replace") for path in folder.iterdir())


def read_traces(folder: Path) -> dict[str, Seen]:
    objects: dict[int, list[dict[str, Any]]] = {}
    for path in sorted(folder.iterdir()):
        for one in json.loads(path.read_text()):
            objects.setdefault(one["id"], []).append(one)
    heads = {number: next(one for one in parts if "model_name" in one) for number, parts in objects.items()}
    return {
        f"{head.get('request_id')} at {head['model_name']}": Seen(
            head["model_name"],
            tuple(head),
            heads[head["parent_id"]]["request_id"] if "parent_id" in head else None,
            tuple(name for name in _names(objects[number]) if not name.startswith(_FRONT)),
            tuple(name for name in _names(objects[number]) if name.startswith(_FRONT)),
            tuple(json.dumps(one) for one in _without_ids(objects[number]) if "activity" in one),
        )
        for number, head in heads.items()
    }


def _names(objects: list[dict[str, Any]]) -> Iterator[str]:
    for one in objects:
        for stamp in one.get("timestamps", ()):
            assert list(stamp) == ["name", "ns"]
            assert isinstance(stamp["ns"], int)
            yield stamp["name"]


def _without_ids(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield from ({key: value for key, value in one.items() if key != "id"} for one in objects)


@pytest.mark.rows("T1", "T3", "T4", "T5", "T7", "P53")
def test_traces_are_those_of_the_real_server(seen: Callable[[bool], dict[str, Seen]]) -> None:
    ours, real = seen(True), seen(False)
    assert set(ours) == set(real)
    assert {"inner http at int32", "ensemble grpc at slow", "cancelled at held"} <= set(ours)
    assert {"generate_stream int32 at int32", "generate int32 at int32"} <= set(ours)
    assert {"after one without JSON at int32", "after one grpc of another shape at int32"} <= set(ours)
    assert "after one for nobody at int32" not in ours
    assert "COMPUTE_START" in ours["cached http at cached"].core
    assert "COMPUTE_START" not in ours["again http at cached"].core
    for name, trace in real.items():
        if name.startswith("cached"):  # it writes what it puts in the cache twice
            assert len(trace.tensors) == 3
            trace = replace(trace, tensors=tuple(dict.fromkeys(trace.tensors)))
        if name == "generate_stream raises at raises":  # 1 of 100 times it lets go of the trace before it answers
            trace = replace(trace, front=tuple(dict.fromkeys((*trace.front, *_SENT))))
        assert ours[name] == trace, name


def test_requests_that_no_model_took_have_no_trace(seen: Callable[[bool], dict[str, Seen]]) -> None:
    assert not any(name.startswith(("refused", "unknown")) for name in (*seen(True), *seen(False)))


def test_call_of_an_untraced_request_has_no_trace(seen: Callable[[bool], dict[str, Seen]]) -> None:
    for ours in (True, False):
        assert seen(ours)["inner http at int32"].parent == "bls http"
        assert not any(name.startswith("x ") for name in seen(ours))


@dataclass(frozen=True, slots=True)
class Shown:
    """A span. `above` is the name of its parent, and `far` tells whether that is the client's."""

    name: str
    above: str
    far: bool
    kind: int
    events: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...]
    state: str


def _shown(collector: Collector) -> list[Shown]:
    names = {span.span_id: span.name for span in collector.spans}
    found = [
        Shown(
            span.name,
            names.get(span.parent_span_id, ""),
            bool(span.parent_span_id) and span.parent_span_id not in names,
            span.kind,
            tuple(events_of(span)),
            tuple(sorted(attributes_of(span).items())),
            span.trace_state,
        )
        for span in collector.spans
    ]
    return sorted(found, key=lambda span: repr(_near(span)))


def _near(span: Shown) -> Shown:
    """The span without `far` for a gRPC call: in the real server it varies whether that has the client's parent."""
    return replace(span, far=False) if span.events[0].startswith("GRPC_") else span


@pytest.mark.rows("T8", "T9")
def test_spans_are_those_of_the_real_server(oracle: None, tmp_path: Path) -> None:
    """With and without a context of the client, over both protocols, and for a request that cannot be decoded. The real
    server takes no `tracestate` over gRPC."""
    for model in ("bls", "int32", "raises"):
        servers.copy_models(tmp_path / "models" / model, MODELS / model)
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    seen, settings, resources, levels = {}, {}, {}, {}
    for ours, command in ((True, servers.our_command()), (False, servers.real_command())):
        with collecting() as collector:
            flags = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=1", "opentelemetry,resource=zone=here")
            more = (f"opentelemetry,url={collector.url}", "opentelemetry,bsp_schedule_delay=100")
            words = [*command, *(f"--trace-config={flag}" for flag in (*flags, *more))]
            with Server(f"{ours}", words, tmp_path / "models", tmp_path / f"{ours}.log") as server:
                server.wait()
                traffic = Traffic(server)
                for ask, client, state in ((traffic.http, "http", {"tracestate": "a=b"}), (traffic.grpc, "grpc", {})):
                    ask("bls", _source(_CALL.format("inner")), f"bls {client}", "SOURCE", headers={**parent, **state})
                    ask("bls", _source(_CALL.format("inner")), f"alone {client}", "SOURCE")
                    ask("raises", np.array([1], np.int32), f"fails {client}")
                traffic.post("int32/infer", "{no")
                settings[ours] = traffic.settings()
                levels[ours] = traffic.levels()
                traffic.close()
                _wait_until(lambda: len(collector.named("InferRequest")) >= 7, "spans are missing")
                server.stop(60)  # all that it sends until it ends of itself
            seen[ours], resources[ours] = _shown(collector), dict(collector.resource)
            settings[ours]["url"] = "the collector"
    assert [_near(one) for one in seen[True]] == [_near(one) for one in seen[False]]
    assert [one.events[0][:4] for one in seen[True] if one.far] == ["GRPC", "HTTP"]
    assert [one.events[0][:4] for one in seen[False] if one.far][-1:] == ["HTTP"]
    assert len(seen[True]) == 4 * 5 + 2 * 3 + 1
    assert settings[True] == settings[False]
    assert levels[True] == levels[False]
    for name in ("service.name", "zone"):
        assert resources[True][name] == resources[False][name]
