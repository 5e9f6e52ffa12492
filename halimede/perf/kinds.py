"""Services other than Triton's (X2). Reads files; otherwise pure.

OpenAI's API (X30) and TorchServe are here; `tensorflow_serving` and `dynamic_grpc` have the others. All but TensorFlow
Serving describe no models. Their requests have one input, which is the body of the request or a file with it.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from halimede.errors import Invalid
from halimede.perf import dynamic_grpc, tensorflow_serving
from halimede.perf.data import Step, Value, document_of
from halimede.perf.model import Model, TensorInfo
from halimede.perf.options import Options
from halimede.perf.requests import Encoder, Places, Tensor, Whole, grpc_outputs, outputs_of
from halimede.tensors import BYTES

BODIES = ("openai", "torchserve", "dynamic_grpc")
"""Services whose requests have a body instead of tensors."""
PAYLOAD = TensorInfo("payload", BYTES, (1,))
RESPONSE = TensorInfo("response", BYTES, (1,))
TORCHSERVE_INPUT = TensorInfo("TORCHSERVE_INPUT", BYTES, (1,))


def model_of_kind(options: Options, ask: tensorflow_serving.Ask) -> Model:
    """What is known of a model of such a service. Raises Invalid, and what `ask` raises."""
    if options.kind == "tfserving":
        return tensorflow_serving.describe(options, ask)
    if options.kind == "dynamic_grpc":
        return dynamic_grpc.model_of_method(options)
    if options.kind == "openai":
        return Model(options.model, options.version, {"payload": PAYLOAD}, {"response": RESPONSE}, 1)
    return Model(options.model, options.version, {"TORCHSERVE_INPUT": TORCHSERVE_INPUT}, {}, options.batch_size)


def read_bodies(options: Options) -> list[list[Step]]:
    """The bodies of the files of `--input-data`, one stream. Raises Invalid."""
    if options.kind == "dynamic_grpc":
        return dynamic_grpc.read_calls(options)
    steps = [step for path in options.data_paths for step in _steps(Path(path), options.kind)]
    if not steps:
        raise Invalid("The data of the json file have no request")
    return [steps]


def _steps(path: Path, kind: str) -> Iterator[Step]:
    name = "payload" if kind == "openai" else "TORCHSERVE_INPUT"
    for number, entry in enumerate(document_of(path)["data"]):
        if not isinstance(entry, dict) or not isinstance(entry.get(name), list) or not entry[name]:
            raise Invalid(f"missing tensor {name} ( Location stream id: 0, step id: {number})")
        first = entry[name][0]
        content = _file(str(first)) if kind == "torchserve" else _body(first)
        more = {key: _first(value) for key, value in entry.items() if key != name}
        yield Step({name: Value((1,), content)}, {}, more)


def _body(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _file(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise Invalid(f"failed to open file '{name}': {error.strerror}") from None


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


@dataclass(frozen=True, slots=True)
class BodyEncoder:
    """Makes requests whose body is the only input."""

    head: bytes

    def prepare(self, tensors: Sequence[Tensor], inputs: Places, outputs: Places) -> Whole:
        return self.of(tensors[0].content)

    def of(self, body: bytes) -> Whole:
        return Whole(self.head + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def encoder_of_kind(options: Options, authority: str) -> Encoder:
    if options.kind == "tfserving":
        return tensorflow_serving.PredictEncoder(options)
    if options.kind == "dynamic_grpc":
        return dynamic_grpc.CallEncoder()
    return body_encoder(options, authority)


def body_encoder(options: Options, authority: str) -> BodyEncoder:
    if options.kind == "openai":
        path, content = options.endpoint.lstrip("/"), "application/json"
    else:
        version = f"/{quote(options.version, safe='')}" if options.version else ""
        path, content = f"predictions/{quote(options.model, safe='')}{version}", "application/octet-stream"
    fields = [("Host", authority), ("Accept", "*/*"), *options.headers]
    if not any(name.lower() == "content-type" for name, _ in options.headers):
        fields.append(("Content-Type", content))
    lines = [f"POST /{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    return BodyEncoder(("\r\n".join(lines) + "\r\n").encode("latin-1"))


# ---- answers

Outputs = Mapping[str, tuple[str, bytes]]
"""The outputs of an answer by name: the name of the datatype, and the content."""


def reader_of(options: Options) -> Callable[[bytes], Outputs]:
    """What reads the outputs in an answer with tensors."""
    if options.kind == "tfserving":
        return tensorflow_serving.outputs_of
    if options.protocol == "grpc":
        return lambda body: grpc_outputs(body, options.streaming)
    return outputs_of


def body_text(body: bytes, options: Options) -> str:
    """A body without tensors as text: messages of gRPC in base 64."""
    if options.kind == "dynamic_grpc":
        return base64.b64encode(body).decode()
    return body.decode("utf-8", "replace")


# ---- times and sessions in the data


def fixed_times(streams: Sequence[Sequence[Step]]) -> tuple[list[Step], tuple[int, ...]]:
    """The steps in the order of their timestamps, and these in nanoseconds (X3). Raises Invalid if one has none."""
    steps = [step for stream in streams for step in stream]
    for number, step in enumerate(steps):
        if not isinstance(step.more.get("timestamp"), int | float):
            raise Invalid(f"missing tensor timestamp ( Location stream id: 0, step id: {number})")
    steps.sort(key=lambda step: float(step.more["timestamp"]))
    return steps, tuple(round(float(step.more["timestamp"]) * 1_000_000) for step in steps)


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """A turn of a conversation: the body without its history, and the pause before it in seconds."""

    body: dict[str, Any]
    pause: float


def sessions_of(steps: Sequence[Step]) -> list[tuple[str, list[SessionTurn]]]:
    """The conversations in the data, by their `session_id`, in the order of their first turns. Raises Invalid."""
    found: dict[str, list[SessionTurn]] = {}
    for number, step in enumerate(steps):
        session = step.more.get("session_id")
        try:
            body = json.loads(step.inputs["payload"].content)
        except ValueError:
            body = None
        if session is None or not isinstance(body, dict):
            raise Invalid(f"missing session_id or payload ( Location stream id: 0, step id: {number})")
        # The delay of a turn passes after its answer, before the next one.
        found.setdefault(str(session), []).append(SessionTurn(body, float(step.more.get("delay") or 0) / 1000))
    return list(found.items())


def with_history(turn: SessionTurn, history: Sequence[Any]) -> dict[str, Any]:
    """The body of a turn after what was said before."""
    return {**turn.body, "messages": [*history, *turn.body.get("messages", ())]}


def answer_of(bodies: Sequence[bytes]) -> dict[str, Any] | None:
    """The message of the assistant in an answer, or in the events of one; None if there is none."""
    role, text = "assistant", ""
    is_there = False
    for body in bodies:
        try:
            choice = json.loads(body)["choices"][0]
        except (ValueError, LookupError, TypeError):
            continue
        message = choice.get("message") or choice.get("delta") or {}
        role = message.get("role") or role
        text += message.get("content") or ""
        is_there = True
    return {"role": role, "content": text} if is_there else None
