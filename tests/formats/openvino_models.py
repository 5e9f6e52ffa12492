"""Small models of OpenVINO, built with its own operators."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from openvino import opset15 as ops

from halimede.backends.openvino.runtime import ov

KINDS = {
    "BOOL": "boolean",
    "FP16": "f16",
    "FP32": "f32",
    "FP64": "f64",
    "BF16": "bf16",
    "BYTES": "string",
    **{f"INT{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
}
"""The runtime's names of our datatypes."""

Dims = Sequence[int | tuple[int, int]]


def parameter(name: str, datatype: str, dims: Dims, layout: str = "") -> Any:
    shape = ov.PartialShape([ov.Dimension(*each) if isinstance(each, tuple) else ov.Dimension(each) for each in dims])
    made = ops.parameter(shape, getattr(ov.Type, KINDS[datatype]), name=name)
    made.output(0).get_tensor().set_names({name})
    if layout:
        made.set_layout(ov.Layout(layout))
    return made


def result(name: str, value: Any, layout: str = "") -> Any:
    tensor = value.output(0).get_tensor()
    tensor.set_names({*tensor.names, name})
    made = ops.result(value)
    if layout:
        made.set_layout(ov.Layout(layout))
    return made


def function(
    inputs: Sequence[Any], compute: Callable[..., Any], outputs: Sequence[str] = ("y",), layout: str = ""
) -> Any:
    """A model. `compute` gets the parameters and returns a value, or a list of as many as there are outputs."""
    values = compute(*inputs)
    values = values if isinstance(values, list) else [values]
    named = [result(name, value, layout) for name, value in zip(outputs, values, strict=True)]
    return ov.Model(named, list(inputs), "m")


def identity(datatype: str, dims: Dims, layout: str = "", names: tuple[str, str] = ("x", "y")) -> Any:
    """Answers with its input."""
    given = parameter(names[0], datatype, dims, layout)
    return function([given], lambda x: x, [names[1]], layout)


def twice(dims: Dims, layout: str = "") -> Any:
    return function([parameter("x", "FP32", dims, layout)], lambda x: ops.add(x, x), layout=layout)


def summing(rows: int = 1, start: float = 0) -> Any:
    """The sum of all inputs so far, in a state called "total" that starts with this number."""
    x = parameter("x", "FP32", [rows, 2])
    begin = ops.constant(np.full((1, 2), start, np.float32))
    before = ops.read_value(begin, "total", ov.Type.f32, ov.PartialShape([rows, 2]))
    after = ops.add(before, x)
    sink = ops.assign(after, "total")
    return ov.Model([result("y", after)], [sink], [x], "m")


def save(model: Any, version: Path, name: str = "model.xml") -> Path:
    """Writes IR into a version directory."""
    version.mkdir(parents=True, exist_ok=True)
    ov.save_model(model, version / name, compress_to_fp16=False)
    return version / name
