"""What a newcomer can try right after the start: a line for curl and one for Python that get an answer. Pure."""

import json
import re
import shlex
from collections.abc import Sequence
from math import prod

from halimede.config import ModelConfig, TensorSpec
from halimede.tensors import BF16, BOOL, BYTES, FP16

MAX_ELEMENTS = 16
"""Of an input. Nobody types a line with more numbers."""

_EXAMPLE = "Hello, world"
_VARIABLES = "abcdefgh"
_PLAIN = re.compile(r"\w[\w.-]*", re.ASCII)
"""A name without characters that a URL, a shell or Python's quotes change."""

_EVERYWHERE = ("0.0.0.0", "[::]")


def hints(configs: Sequence[ModelConfig], http_address: str, python: str) -> list[str]:
    """The lines for the model with the smallest request and answer. None if no model has a request that can be typed.

    `http_address` is host and port as the server has them, IPv6 in brackets. `python` is how to call an interpreter
    that has tritonclient; if it is empty, there is no line for Python.
    """
    typable = [config for config in configs if _typable(config)]
    if not typable:
        return []
    # Few numbers to type, few to read; the name makes the choice stable.
    config = min(typable, key=lambda c: (_elements(c, c.inputs), _elements(c, c.outputs), c.name))
    inputs = [
        {
            "name": spec.name,
            "shape": list(_shape(config, spec)),
            "datatype": spec.datatype.name,
            "data": _data(config, spec),
        }
        for spec in config.inputs
    ]
    address = _address(http_address)
    infer = f"http.InferenceServerClient('{address}').infer('{config.name}', [{_names(config)}])"
    statements = f"import numpy, tritonclient.http as http; {_tensors(config)}; print({infer}.get_response())"
    url = shlex.quote(f"http://{address}/v2/models/{config.name}/infer")
    curl = f"curl -s {url} -d '{json.dumps({'inputs': inputs})}'"
    return [curl, f'{shlex.quote(python)} -c "{statements}"'] if python else [curl]


def _address(bound: str) -> str:
    """The address for a client on this machine: localhost for a server that listens everywhere."""
    host, _, port = bound.rpartition(":")
    return f"localhost:{port}" if host in _EVERYWHERE else bound


def _typable(config: ModelConfig) -> bool:
    names = [config.name, *(spec.name for spec in config.inputs)]
    return (
        not config.decoupled  # HTTP refuses such a model
        and 0 < len(config.inputs) <= len(_VARIABLES)
        and all(map(_PLAIN.fullmatch, names))
        and all(map(_is_small, config.inputs))
    )


def _is_small(spec: TensorSpec) -> bool:
    # JSON has no FP16 and BF16.
    return spec.datatype not in (FP16, BF16) and prod(d for d in spec.dims if d > 0) <= MAX_ELEMENTS


def _shape(config: ModelConfig, spec: TensorSpec) -> tuple[int, ...]:
    # The smallest request that fits.
    dims = tuple(1 if d == -1 else d for d in spec.dims)
    return (1, *dims) if config.max_batch_size else dims


def _elements(config: ModelConfig, specs: Sequence[TensorSpec]) -> int:
    return sum(prod(_shape(config, spec)) for spec in specs)


def _data(config: ModelConfig, spec: TensorSpec) -> list[object]:
    example: object = _EXAMPLE if spec.datatype is BYTES else True if spec.datatype is BOOL else 1
    return [example] * prod(_shape(config, spec))


def _tensors(config: ModelConfig) -> str:
    """Python statements that make the inputs `a`, `b`, ..."""
    statements = []
    # An input may have a name that is none in Python, so the variables are letters.
    for name, spec in zip(_VARIABLES, config.inputs, strict=False):
        shape = list(_shape(config, spec))
        dtype = spec.datatype.numpy.name
        value = f"'{_EXAMPLE}'" if spec.datatype is BYTES else "1"
        statements.append(f"{name} = http.InferInput('{spec.name}', {shape}, '{spec.datatype}')")
        statements.append(f"{name}.set_data_from_numpy(numpy.full({shape}, {value}, '{dtype}'))")
    return "; ".join(statements)


def _names(config: ModelConfig) -> str:
    return ", ".join(_VARIABLES[: len(config.inputs)])
