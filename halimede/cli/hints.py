"""What a newcomer can try right after the start: a line for curl and one for Python that get an answer. Pure.

Only the configurations are known, and not what the code of a model accepts. So models whose requests can be guessed
come first, and those that need a real picture or sound are left out.
"""

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from halimede.config import ModelConfig, TensorSpec
from halimede.config.sequencing import ControlKind
from halimede.tensors import BF16, BOOL, BYTES, FP16, DataType, Shape

MAX_ELEMENTS = 16
"""Of an input that is written out. Nobody reads a line with more numbers."""
MAX_ZERO_BYTES = 16 << 20
"""Of the inputs of a request that are sent as zeros."""

_EXAMPLE = "Hello, world"
_SEQUENCE_ID = 4242
"""Unlikely to be the id of a sequence of somebody else, which the request would end."""
_TEXT_SEQUENCE_ID = "try-it"
_VARIABLES = "abcdefgh"
_PLAIN = re.compile(r"\w[\w.-]*", re.ASCII)
"""A name without characters that a URL, a shell or Python's quotes change."""
_MEDIA = re.compile(
    r"audio|file|frame|image|img|jpe?g|pdf|photo|picture|pixel|png|sound|speech|video|wav", re.IGNORECASE
)
"""In the name of an input that takes neither any text nor any size."""

_EVERYWHERE = ("0.0.0.0", "[::]")
_UNIX = "unix:"


@dataclass(frozen=True, slots=True)
class Clients:
    """How a client on this machine reaches the server.

    `http` and `grpc` are the addresses as the server has them, IPv6 in brackets or `unix:PATH`; empty if the port is
    closed, or if an inference needs a key or TLS there. `python` is how to call an interpreter, and `libraries` are the
    parts of tritonclient that it has: "http", "grpc".
    """

    http: str = ""
    grpc: str = ""
    python: str = ""
    libraries: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Input:
    name: str
    datatype: DataType
    shape: Shape

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def zeros(self) -> bool:
        """Whether the input is sent as zeros, in binary: JSON has no FP16 and BF16, and a long list is unreadable."""
        return self.datatype in (FP16, BF16) or self.elements > MAX_ELEMENTS

    @property
    def byte_size(self) -> int:
        return self.elements * self.datatype.size

    @property
    def data(self) -> list[object]:
        example: object = _EXAMPLE if self.datatype is BYTES else True if self.datatype is BOOL else 1
        return [example] * self.elements


@dataclass(frozen=True, slots=True)
class _Request:
    """A request that a model most likely answers. `sequence_id` is None if it needs none."""

    config: ModelConfig
    inputs: tuple[_Input, ...]
    sequence_id: int | str | None

    @property
    def zero_bytes(self) -> int:
        """The bytes of the inputs that are sent as zeros."""
        return sum(each.byte_size for each in self.inputs if each.zeros)

    @property
    def rank(self) -> tuple[int | str, ...]:
        """The smallest is shown: plain requests before special ones, then fixed sizes, then few numbers to read. The
        name makes the choice stable."""
        config = self.config
        special = 4 * config.decoupled + 2 * bool(self.zero_bytes) + (self.sequence_id is not None)
        varies = any(-1 in spec.dims for spec in config.inputs)
        outputs = sum(prod(_shape(config, _small(spec.dims))) for spec in config.outputs)
        return special, varies, sum(each.elements for each in self.inputs), outputs, config.name


def hints(
    configs: Sequence[ModelConfig], clients: Clients, calls_others: Callable[[str], bool] = lambda name: False
) -> list[str]:
    """The lines for the model whose request is the smallest. None if no model has a request that can be guessed.

    `calls_others` says whether the code of a model calls other models. Such a model is only shown if there is no other.
    """
    # With namespaces, several models may have one name, which is then no address.
    names = Counter(config.name for config in configs)
    models = {config.name: config for config in configs if names[config.name] == 1}
    requests = [request for config in models.values() if (request := _request(config, models)) is not None]
    found: list[list[str]] = []
    for request in sorted(requests, key=lambda each: each.rank):
        lines = [line for line in (_curl(request, clients.http), _python(request, clients)) if line]
        if not lines:
            continue
        # What it calls may not be loaded, or may take another input than this one.
        if not any(calls_others(each.name) for each in _family(request.config, models)):
            return lines
        found.append(lines)
    return found[0] if found else []


# The request.


def _request(config: ModelConfig, models: Mapping[str, ModelConfig]) -> _Request | None:
    # An optional input can be left out, unless nothing is left then.
    specs = [spec for spec in config.inputs if not spec.optional] or config.inputs
    family = list(_family(config, models))
    steps = [step for each in family if each.ensemble is not None for step in each.ensemble.steps]
    if (
        not 0 < len(specs) <= len(_VARIABLES)
        or not all(_PLAIN.fullmatch(name) for name in (config.name, *(spec.name for spec in specs)))
        or not _runs(config)
        or any(step.model not in models for step in steps)
    ):
        return None
    sizes = [_sizes(config, spec) for spec in specs]
    inputs = [
        _Input(spec.name, spec.datatype, _shape(config, dims))
        for spec, dims in zip(specs, sizes, strict=True)
        if dims is not None
    ]
    request = _Request(config, tuple(inputs), _sequence_id(family))
    is_text = any(each.zeros and each.datatype is BYTES for each in inputs)
    return None if None in sizes or is_text or request.zero_bytes > MAX_ZERO_BYTES else request


def _family(config: ModelConfig, models: Mapping[str, ModelConfig]) -> Iterator[ModelConfig]:
    """The model, and the members of an ensemble with their own members."""
    yield config
    for step in config.ensemble.steps if config.ensemble is not None else ():
        if step.model in models:
            yield from _family(models[step.model], models)


def _runs(config: ModelConfig) -> bool:
    """Whether an instance takes requests. An ensemble has no instances."""
    groups = config.instance_groups
    return not groups or not all(group.passive for group in groups)


def _sizes(config: ModelConfig, spec: TensorSpec) -> Shape | None:
    """Dims that the model takes: those of a warm-up sample, or else the smallest. None if nobody can guess them."""
    warmed = next((each.dims for sample in config.warmup[:1] for each in sample.inputs if each.name == spec.name), None)
    steps = config.ensemble.steps if config.ensemble is not None else ()
    names = [spec.name, *(name for step in steps for name, tensor in step.inputs if tensor == spec.name)]
    is_media = any(map(_MEDIA.search, names))
    if spec.datatype is BYTES:
        return None if is_media else warmed or _small(spec.dims)
    if warmed is not None or -1 not in spec.dims:
        return warmed or spec.dims
    # Two sizes that vary are those of a picture, which most models shrink several times.
    return None if is_media or spec.dims.count(-1) > 1 else _small(spec.dims)


def _sequence_id(family: Sequence[ModelConfig]) -> int | str | None:
    """A correlation id for a model that needs one (S50). The server makes those of iterative sequences (S72)."""
    for batching in (each.sequence_batching for each in family):
        if batching is not None and not batching.iterative:
            control = batching.control(ControlKind.CORRID)
            return _TEXT_SEQUENCE_ID if control is not None and control.datatype is BYTES else _SEQUENCE_ID
    return None


def _small(dims: Shape) -> Shape:
    """The smallest sizes that fit."""
    return tuple([1 if size == -1 else size for size in dims])


def _shape(config: ModelConfig, dims: Shape) -> Shape:
    return (1, *dims) if config.max_batch_size else dims


def _in_json(spec: TensorSpec) -> bool:
    return spec.datatype not in (FP16, BF16)


# The line for curl.


def _curl(request: _Request, address: str) -> str:
    """Empty if there is no HTTP, or if the model has no form that curl can send and show."""
    if not address:
        return ""
    return _curl_events(request, address) if request.config.decoupled else _curl_infer(request, address)


def _curl_infer(request: _Request, address: str) -> str:
    config = request.config
    if not any(map(_in_json, config.outputs)):
        return ""
    text, target = json.dumps(_body(request)), _target(address, f"{config.name}/infer")
    if not request.zero_bytes:
        return f"curl -s {target} -d '{text}'"
    sent = f"{{ printf %s '{text}'; head -c {request.zero_bytes} /dev/zero; }}"
    return f"{sent} | curl -s {target} -H 'Inference-Header-Content-Length: {len(text)}' --data-binary @-"


def _curl_events(request: _Request, address: str) -> str:
    config = request.config
    # Generate has no sequences (H133) and no binary tensors, and answers with all outputs.
    if request.sequence_id is not None or request.zero_bytes or not all(map(_in_json, config.outputs)):
        return ""
    body = {each.name: each.data[0] if each.elements == 1 else each.data for each in request.inputs}
    return f"curl -sN {_target(address, f'{config.name}/generate_stream')} -d '{json.dumps(body)}'"


def _target(address: str, path: str) -> str:
    """A URL for the shell, with curl's option for a Unix socket."""
    host, option = _reachable(address), ""
    if address.startswith(_UNIX):
        host = "localhost"
        option = f"--unix-socket {shlex.quote(address.removeprefix(_UNIX).removeprefix('//'))} "
    return option + shlex.quote(f"http://{host}/v2/models/{path}")


def _reachable(bound: str) -> str:
    """The address for a client on this machine: localhost for a server that listens everywhere."""
    host, _, port = bound.rpartition(":")
    return f"localhost:{port}" if host in _EVERYWHERE else bound


def _body(request: _Request) -> dict[str, Any]:
    config = request.config
    body: dict[str, Any] = {"inputs": [_tensor(each) for each in request.inputs]}
    if request.sequence_id is not None:
        flags = {"sequence_id": request.sequence_id, "sequence_start": True, "sequence_end": True}
        body = {"parameters": flags, **body}
    if not all(map(_in_json, config.outputs)):
        body["outputs"] = [{"name": spec.name} for spec in config.outputs if _in_json(spec)]
    return body


def _tensor(each: _Input) -> dict[str, Any]:
    tensor: dict[str, Any] = {"name": each.name, "shape": list(each.shape), "datatype": each.datatype.name}
    if each.zeros:
        return {**tensor, "parameters": {"binary_data_size": each.byte_size}}
    return {**tensor, "data": each.data}


# The line for Python.


def _python(request: _Request, clients: Clients) -> str:
    """Empty if no part of tritonclient is there for a port that takes this request."""
    # numpy has no BF16, and tritonclient has changed what it takes instead.
    if any(each.datatype is BF16 for each in request.inputs):
        return ""
    decoupled = request.config.decoupled  # HTTP refuses such a model
    if "http" in clients.libraries and clients.http and not clients.http.startswith(_UNIX) and not decoupled:
        library, address = "http", _reachable(clients.http)
    elif "grpc" in clients.libraries and clients.grpc:
        library, address = "grpc", clients.grpc if clients.grpc.startswith(_UNIX) else _reachable(clients.grpc)
    else:
        return ""
    if not _PLAIN_ADDRESS.fullmatch(address):
        return ""
    client = f"triton.InferenceServerClient('{address}')"
    arguments = f"'{request.config.name}', [{', '.join(_VARIABLES[: len(request.inputs)])}]{_sequence(request)}"
    if decoupled:
        show = "lambda result, error: print(error or result.get_response())"
        calls = f"client.start_stream({show}); client.async_stream_infer({arguments}); client.stop_stream()"
        asking = f"client = {client}; {calls}"
    else:
        asking = f"print({client}.infer({arguments}).get_response())"
    statements = f"import numpy, tritonclient.{library} as triton; {'; '.join(_made(request))}; {asking}"
    return f'{shlex.quote(clients.python)} -c "{statements}"'


_PLAIN_ADDRESS = re.compile(r"[\w.:/\[\]-]+", re.ASCII)
"""An address that can stand between Python's quotes between a shell's quotes."""


def _sequence(request: _Request) -> str:
    if request.sequence_id is None:
        return ""
    return f", sequence_id={request.sequence_id!r}, sequence_start=True, sequence_end=True"


def _made(request: _Request) -> Iterator[str]:
    """Python statements that make the inputs `a`, `b`, ..."""
    # An input may have a name that is none in Python, so the variables are letters.
    for variable, each in zip(_VARIABLES, request.inputs, strict=False):
        shape, value = list(each.shape), f"'{_EXAMPLE}'" if each.datatype is BYTES else "0" if each.zeros else "1"
        dtype = each.datatype.numpy.name
        yield f"{variable} = triton.InferInput('{each.name}', {shape}, '{each.datatype}')"
        yield f"{variable}.set_data_from_numpy(numpy.full({shape}, {value}, '{dtype}'))"
