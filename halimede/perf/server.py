"""Asks the server: metadata, configuration, statistics, trace settings and shared memory, over HTTP or gRPC.

Blocks, for at most `limit` seconds each. One thread.
"""

import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from halimede.errors import Unavailable
from halimede.perf.clients.grpc import Channel, GrpcSlot, grpc_head
from halimede.perf.clients.http1 import HttpSlot
from halimede.perf.clients.io import Io, Slot, Target
from halimede.perf.options import UNIX, Options, Tls
from halimede.perf.requests import framed_message
from halimede.perf.statistics import Snapshot, snapshot_of
from halimede.perf.watch import Interrupted
from halimede.protocol import inference_pb2 as pb

LOOK_SECONDS = 0.1
"""Between two looks at whether the user wants to stop."""
LIMIT = 20.0
"""Seconds for one answer, unless the caller says otherwise."""
SERVICE = "/inference.GRPCInferenceService/"


class Refused(Unavailable):
    """The server answered with an error. The text is the server's."""


# ---- where the server is


def target_of(options: Options) -> Target:
    """The server's address. Raises Unavailable if its name has none, or if TLS files cannot be used."""
    if options.where().startswith(UNIX):
        return Target("localhost", 0, socket.AF_UNIX, options.where().removeprefix(UNIX))
    host, port, is_https = split_url(options.where(), 8001 if options.protocol == "grpc" else 8000)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"the host '{host}' is unknown: {getattr(error, 'strerror', error)}") from None
    address = _reachable(host, port, family, address)[1] if host == "localhost" else address
    family = socket.AF_INET6 if ":" in str(address[0]) else socket.AF_INET
    try:
        tls = _tls(options, is_https)
    except (OSError, ssl.SSLError) as error:
        raise Unavailable(f"the TLS files cannot be used: {error}") from None
    return Target(host, port, family, address, tls)


def _reachable(host: str, port: int, family: int, address: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
    """The address of `localhost` at which something listens: servers often have only one of the two."""
    for each, _, _, _, other in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(each, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(other) == 0:
                return each, other
    return family, address


def split_url(url: str, default: int) -> tuple[str, int, bool]:
    """Host, port, and whether it is HTTPS. Raises Unavailable."""
    is_https = url.startswith("https://")
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise Unavailable(f"'{url}' is no address; it must be host:port") from None
    if not host:
        raise Unavailable(f"'{url}' is no address; it must be host:port")
    return host, port or (443 if is_https else default), is_https


def _tls(options: Options, is_https: bool) -> ssl.SSLContext | None:
    tls = options.tls
    if options.protocol == "grpc":
        return grpc_context(tls) if tls.grpc else None
    return https_context(tls) if is_https else None


def grpc_context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.grpc_root or None)
    context.set_alpn_protocols(["h2"])
    if tls.grpc_chain:
        context.load_cert_chain(tls.grpc_chain, tls.grpc_key or None)
    return context


def https_context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.https_root or None)
    context.set_alpn_protocols(["http/1.1"])
    context.check_hostname = bool(tls.verify_peer and tls.verify_host)
    if not tls.verify_peer:
        context.verify_mode = ssl.CERT_NONE
    if tls.https_certificate:
        context.load_cert_chain(tls.https_certificate, tls.https_key or None)
    return context


# ---- questions


class Asker:
    """Sends one request at a time and waits for the answer. Raises Interrupted meanwhile if `stops()`."""

    def __init__(
        self,
        target: Target,
        is_grpc: bool,
        headers: Sequence[tuple[str, str]] = (),
        limit: float = LIMIT,
        stops: Callable[[], bool] = lambda: False,
    ) -> None:
        self._io, self._limit, self._stops = Io(), limit, stops
        self._target = target
        self._headers = headers
        self._done = False
        self._error = ""
        self._http = None if is_grpc else HttpSlot(self, 0, True, self._io, target, {})
        self._channel = Channel(self._io, target) if is_grpc else None

    def finished(self, slot: Slot, end: int, error: str) -> None:
        self._done, self._error = True, error

    def _wait(self, slot: Slot) -> bytes:
        limit = time.monotonic() + self._limit
        while not self._done:
            left = limit - time.monotonic()
            if left <= 0:
                slot.close()
                raise Unavailable(f"{self._target.authority} does not answer")
            if self._stops():
                slot.close()
                raise Interrupted
            self._io.turn(int(min(left, LOOK_SECONDS) * 1e9), False)
        if slot.is_broken:
            raise Unavailable(self._error)
        if self._error:
            raise Refused(self._error.partition("] ")[2] if self._error.startswith("[") else self._error)
        return slot.bodies[-1] if slot.bodies else b""

    def http(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of an answer over HTTP. Raises Unavailable, or Refused with the server's text."""
        assert self._http is not None
        self._done = False
        fields = [
            ("Host", self._target.authority),
            ("Accept", "*/*"),
            *self._headers,
            ("Content-Length", str(len(body))),
        ]
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields), "", ""]
        self._http.send("\r\n".join(lines).encode("latin-1") + body)
        return self._wait(self._http)

    def grpc(self, path: str, message: bytes) -> bytes:
        """The message of an answer over gRPC. Raises Unavailable, or Refused with the server's text."""
        assert self._channel is not None
        self._done = False
        metadata = tuple((name.lower().encode(), value.encode()) for name, value in self._headers)
        head = grpc_head(path, self._target.authority, metadata, "identity", self._target.tls is not None)
        slot = GrpcSlot(self, 0, True, self._channel, head, False, False)
        slot.send(framed_message(message))
        return self._wait(slot)

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
        if self._channel is not None:
            self._channel.close()
        self._io.close()


class Server(Protocol):
    """What a measurement asks a server that has Triton's protocol."""

    def extensions(self) -> set[str]: ...
    def metadata(self, model: str, version: str) -> Mapping[str, Any]: ...
    def config(self, model: str, version: str) -> Mapping[str, Any]: ...
    def statistics(self, model: str, version: str) -> Snapshot: ...
    def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None: ...
    def register(self, name: str, key: str, size: int) -> None: ...
    def unregister_all(self) -> None: ...


def _model_path(model: str, version: str) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


class HttpServer:
    """Asks over HTTP."""

    def __init__(self, asker: Asker) -> None:
        self._ask = asker

    def _json(self, method: str, path: str, body: bytes = b"") -> Any:
        answer = self._ask.http(method, path, body)
        try:
            return json.loads(answer) if answer else {}
        except ValueError:
            raise Unavailable(f"{path} is answered without JSON: this is no inference server") from None

    def extensions(self) -> set[str]:
        return set(self._json("GET", "/v2").get("extensions", ()))

    def metadata(self, model: str, version: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._json("GET", _model_path(model, version))
        return found

    def config(self, model: str, version: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._json("GET", _model_path(model, version) + "/config")
        return found

    def statistics(self, model: str, version: str) -> Snapshot:
        path = _model_path(model, version) if model else "/v2/models"
        try:
            return snapshot_of(self._json("GET", f"{path}/stats"))
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable(f"the statistics of the server cannot be read: {error!r}") from None

    def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:
        plain = {name: list(values) if name == "trace_level" else values[0] for name, values in settings.items()}
        self._json("POST", "/v2/trace/setting", json.dumps(plain).encode())

    def register(self, name: str, key: str, size: int) -> None:
        body = json.dumps({"key": key, "offset": 0, "byte_size": size}).encode()
        self._ask.http("POST", f"/v2/systemsharedmemory/region/{quote(name, safe='')}/register", body)

    def unregister_all(self) -> None:
        self._ask.http("POST", "/v2/systemsharedmemory/unregister")


class GrpcServer:
    """Asks over gRPC. Answers have the form of the HTTP protocol."""

    def __init__(self, asker: Asker) -> None:
        self._ask = asker

    def _call(self, method: str, request: Any) -> bytes:
        return self._ask.grpc(SERVICE + method, request.SerializeToString())

    def extensions(self) -> set[str]:
        answer = self._call("ServerMetadata", pb.ServerMetadataRequest())
        return set(pb.ServerMetadataResponse.FromString(answer).extensions)

    def metadata(self, model: str, version: str) -> Mapping[str, Any]:
        answer = self._call("ModelMetadata", pb.ModelMetadataRequest(name=model, version=version))
        found = pb.ModelMetadataResponse.FromString(answer)

        def tensors(of: Any) -> list[dict[str, Any]]:
            return [{"name": each.name, "datatype": each.datatype, "shape": list(each.shape)} for each in of]

        return {"name": found.name, "inputs": tensors(found.inputs), "outputs": tensors(found.outputs)}

    def config(self, model: str, version: str) -> Mapping[str, Any]:
        answer = self._call("ModelConfig", pb.ModelConfigRequest(name=model, version=version))
        return config_of(pb.ModelConfigResponse.FromString(answer).config)

    def statistics(self, model: str, version: str) -> Snapshot:
        answer = self._call("ModelStatistics", pb.ModelStatisticsRequest(name=model, version=version))
        entries = []
        for each in pb.ModelStatisticsResponse.FromString(answer).model_stats:
            phases = {
                phase.name: {"count": value.count, "ns": value.ns} for phase, value in each.inference_stats.ListFields()
            }
            entries.append(
                {
                    "name": each.name,
                    "version": each.version,
                    "inference_count": each.inference_count,
                    "execution_count": each.execution_count,
                    "inference_stats": phases,
                }
            )
        return snapshot_of({"model_stats": entries})

    def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:
        request = pb.TraceSettingRequest()
        for name, values in settings.items():
            request.settings[name].value.extend(values)
        self._call("TraceSetting", request)

    def register(self, name: str, key: str, size: int) -> None:
        self._call(
            "SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name=name, key=key, byte_size=size)
        )

    def unregister_all(self) -> None:
        self._call("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest())


def config_of(config: Any) -> dict[str, Any]:
    """What `model_of` reads of a configuration, in the form of the HTTP protocol."""
    found: dict[str, Any] = {
        "name": config.name,
        "platform": config.platform,
        "max_batch_size": config.max_batch_size,
        "input": [
            {"name": each.name, "is_shape_tensor": each.is_shape_tensor, "optional": each.optional}
            for each in config.input
        ],
        "output": [{"name": each.name, "is_shape_tensor": each.is_shape_tensor} for each in config.output],
        "model_transaction_policy": {"decoupled": config.model_transaction_policy.decoupled},
        "response_cache": {"enable": config.response_cache.enable},
        "ensemble_scheduling": {
            "step": [
                {"model_name": step.model_name, "model_version": step.model_version}
                for step in config.ensemble_scheduling.step
            ]
        },
    }
    for name in ("sequence_batching", "dynamic_batching"):
        if config.HasField(name):
            found[name] = {}
    return found
