"""What a newcomer can try right after the start: one curl line and one Python line that get an answer. Pure."""

import json
from collections.abc import Sequence
from math import prod

from halimede.config import ModelConfig, TensorSpec
from halimede.tensors import BF16, BOOL, BYTES, FP16

MAX_ELEMENTS = 16
"""A line with more numbers than this is nothing to type."""

_EXAMPLE = "Hello, world"


def hints(configs: Sequence[ModelConfig], http_address: str, python: str) -> list[str]:
    """The lines for the model with the smallest request; none where no request is small enough to type."""
    typable = [config for config in configs if all(map(_typable, config.inputs))]
    if not typable:
        return []
    config = min(typable, key=lambda c: (sum(prod(_shape(c, spec)) for spec in c.inputs), c.name))
    inputs = [
        {
            "name": spec.name,
            "shape": list(_shape(config, spec)),
            "datatype": spec.datatype.name,
            "data": _data(config, spec),
        }
        for spec in config.inputs
    ]
    infer = f"http.InferenceServerClient('{http_address}').infer('{config.name}', [{_names(config)}])"
    statements = f"import numpy, tritonclient.http as http; {_tensors(config)}; print({infer}.get_response())"
    return [
        f"curl -s http://{http_address}/v2/models/{config.name}/infer -d '{json.dumps({'inputs': inputs})}'",
        f'{python} -c "{statements}"',
    ]


def _typable(spec: TensorSpec) -> bool:
    return spec.datatype not in (FP16, BF16) and prod(d for d in spec.dims if d > 0) <= MAX_ELEMENTS


def _shape(config: ModelConfig, spec: TensorSpec) -> tuple[int, ...]:
    dims = tuple(1 if d == -1 else d for d in spec.dims)
    return (1, *dims) if config.max_batch_size else dims


def _data(config: ModelConfig, spec: TensorSpec) -> list[object]:
    example: object = _EXAMPLE if spec.datatype is BYTES else True if spec.datatype is BOOL else 1
    return [example] * prod(_shape(config, spec))


def _tensors(config: ModelConfig) -> str:
    """Python statements that make the inputs `a`, `b`, ..."""
    statements = []
    for name, spec in zip("abcdefgh", config.inputs, strict=False):
        shape = list(_shape(config, spec))
        dtype = "object" if spec.datatype is BYTES else f"numpy.{spec.datatype.numpy.name}"
        value = f"'{_EXAMPLE}'" if spec.datatype is BYTES else "1"
        statements.append(f"{name} = http.InferInput('{spec.name}', {shape}, '{spec.datatype}')")
        statements.append(f"{name}.set_data_from_numpy(numpy.full({shape}, {value}, {dtype}))")
    return "; ".join(statements)


def _names(config: ModelConfig) -> str:
    return ", ".join("abcdefgh"[: len(config.inputs)])
