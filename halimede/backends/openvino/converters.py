"""OpenVINO's converter, for `halimede convert`. Runs in a process of its own (`converter`), and imports nothing of this
package.

A function gets an order: `source`, `target`, the `inputs` and `outputs` with name, datatype and shape, and whether the
model `batches`.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # as in `runtime`

import openvino as ov  # noqa: E402

Order = Mapping[str, Any]

_TYPES = {"BOOL": "boolean", "FP16": "f16", "FP32": "f32", "FP64": "f64", "BF16": "bf16", "BYTES": "string"}


def from_file(order: Order) -> None:
    """ONNX, SavedModels, frozen graphs and TFLite, which OpenVINO reads itself."""
    _save(ov.convert_model(order["source"]), order)


def from_script(order: Order) -> None:
    import torch

    _save(_of_module(torch.jit.load(order["source"], map_location="cpu").eval(), order), order)


def from_program(order: Order) -> None:
    import torch

    _save(ov.convert_model(torch.export.load(order["source"])), order)


def _of_module(module: Any, order: Order) -> Any:
    names = [each.name for each in module.forward.schema.arguments[1:]]
    by_name = {each["name"]: each for each in order["inputs"]}
    inputs = [by_name[each] for each in names] if set(names) == set(by_name) else order["inputs"]
    model = ov.convert_model(module)
    for parameter, tensor in zip(model.get_parameters(), inputs, strict=True):  # TorchScript does not know them
        parameter.set_element_type(_type(tensor["datatype"]))
        parameter.set_partial_shape(ov.PartialShape(tensor["shape"]))
    model.validate_nodes_and_infer_types()
    return model


def _type(datatype: str) -> Any:
    name = _TYPES.get(datatype, datatype.lower().replace("uint", "u").replace("int", "i"))
    return getattr(ov.Type, name)


def _save(model: Any, order: Order) -> None:
    """Writes the model with the names of the original, and with N first in its layouts if it batches."""
    taken: set[str] = set()
    for ports, tensors in ((model.inputs, order["inputs"]), (model.outputs, order["outputs"])):
        for port, name in _names(ports, [each["name"] for each in tensors]):
            # An output that is an input shares its tensor, and so its names.
            port.get_tensor().set_names({*taken.intersection(port.names), name})
            taken.add(name)
        for port in ports if order["batches"] else ():
            port.node.set_layout(ov.Layout("N..."))
    ov.save_model(model, order["target"], compress_to_fp16=False)


def _names(ports: Sequence[Any], names: Sequence[str]) -> list[tuple[Any, str]]:
    """Each port with its name. A converter that knows other names keeps the order."""
    known = [name for name in names if any(name in port.names for port in ports)]
    if len(known) == len(ports):
        return [(port, next(name for name in known if name in port.names)) for port in ports]
    return list(zip(ports, names, strict=True)) if len(ports) == len(names) else []
