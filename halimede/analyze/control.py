"""Asks a server for configurations, and loads and unloads models. Blocks for as long as a load takes. One thread."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from halimede.config.rendering import json_text
from halimede.errors import Unavailable
from halimede.perf.clients.io import Target
from halimede.perf.server import SERVICE, Asker, Refused
from halimede.protocol import inference_pb2 as pb

LOAD_SECONDS = 600.0
"""How long a load may take."""
READY_SECONDS = 10.0
"""How long an ensemble may take until it has the new members."""
_STEP = 0.02


class Control(Protocol):
    """What the analysis asks of a server. Each call raises Refused with the server's text, Unavailable, and Interrupted
    if it is to stop."""

    def load(self, model: str, config: str | None) -> None: ...
    def unload(self, model: str) -> None: ...
    def config(self, model: str) -> Mapping[str, Any]: ...
    def states(self) -> Mapping[str, str]: ...
    def is_ready(self, model: str) -> bool: ...
    def close(self) -> None: ...


class HttpControl:
    """Asks over HTTP."""

    def __init__(self, target: Target, stops: Callable[[], bool] = lambda: False) -> None:
        self._ask = Asker(target, False, limit=LOAD_SECONDS, stops=stops)

    def load(self, model: str, config: str | None) -> None:
        body = {"parameters": {"config": config}} if config is not None else {}
        self._ask.http("POST", f"/v2/repository/models/{quote(model, safe='')}/load", json.dumps(body).encode())

    def unload(self, model: str) -> None:
        self._ask.http("POST", f"/v2/repository/models/{quote(model, safe='')}/unload", b"{}")

    def config(self, model: str) -> Mapping[str, Any]:
        answer = self._ask.http("GET", f"/v2/models/{quote(model, safe='')}/config")
        found: Mapping[str, Any] = json.loads(answer)
        return found

    def states(self) -> Mapping[str, str]:
        answer = self._ask.http("POST", "/v2/repository/index", b"{}")
        return _states([(each["name"], each.get("state", "")) for each in json.loads(answer)])

    def is_ready(self, model: str) -> bool:
        try:
            self._ask.http("GET", f"/v2/models/{quote(model, safe='')}/ready")
        except Refused:
            return False
        return True

    def close(self) -> None:
        self._ask.close()


class GrpcControl:
    """Asks over gRPC."""

    def __init__(self, target: Target, stops: Callable[[], bool] = lambda: False) -> None:
        self._ask = Asker(target, True, limit=LOAD_SECONDS, stops=stops)

    def _call(self, method: str, request: Any) -> bytes:
        return self._ask.grpc(SERVICE + method, request.SerializeToString())

    def load(self, model: str, config: str | None) -> None:
        request = pb.RepositoryModelLoadRequest(model_name=model)
        if config is not None:
            request.parameters["config"].string_param = config
        self._call("RepositoryModelLoad", request)

    def unload(self, model: str) -> None:
        self._call("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name=model))

    def config(self, model: str) -> Mapping[str, Any]:
        answer = self._call("ModelConfig", pb.ModelConfigRequest(name=model))
        found: Mapping[str, Any] = json.loads(json_text(pb.ModelConfigResponse.FromString(answer).config))
        return found

    def states(self) -> Mapping[str, str]:
        answer = self._call("RepositoryIndex", pb.RepositoryIndexRequest())
        return _states([(each.name, each.state) for each in pb.RepositoryIndexResponse.FromString(answer).models])

    def is_ready(self, model: str) -> bool:
        answer = self._call("ModelReady", pb.ModelReadyRequest(name=model))
        return bool(pb.ModelReadyResponse.FromString(answer).ready)

    def close(self) -> None:
        self._ask.close()


def _states(entries: list[tuple[str, str]]) -> Mapping[str, str]:
    """The state of each model: READY if any of its versions is."""
    found: dict[str, str] = {}
    for name, state in entries:
        if found.get(name) != "READY":
            found[name] = state
    return found


class NotReady(Unavailable):
    """A model that was loaded is not ready."""


def wait_until_ready(control: Control, model: str, seconds: float = READY_SECONDS) -> None:
    """Raises NotReady if the model is not ready in time."""
    until = time.monotonic() + seconds
    while not control.is_ready(model):
        if time.monotonic() > until:
            raise NotReady(f"the model '{model}' is not ready {seconds:g} seconds after a load")
        time.sleep(_STEP)
