"""The exporters of torch and TensorFlow, for `halimede convert`. Runs in the process of a framework (`converter`), and
imports nothing of this package.

A function gets an order: `source`, `target`, and the `inputs` and `outputs` with name, datatype and shape.
"""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

Order = Mapping[str, Any]

_ROWS = 2
"""What a size of any value is in an example."""


def from_script(order: Order) -> None:
    """TorchScript. The module is not traced again, so a loop or a branch in it remains one."""
    import torch

    module = torch.jit.load(order["source"], map_location="cpu").eval()
    names = [each.name for each in module.forward.schema.arguments[1:]]
    by_name = {each["name"]: each for each in order["inputs"]}
    inputs = [by_name[each] for each in names] if set(names) == set(by_name) else order["inputs"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the other exporter takes no TorchScript
        torch.onnx.export(
            module,
            tuple(_example(torch, each) for each in inputs),
            order["target"],
            input_names=[each["name"] for each in inputs],
            output_names=[each["name"] for each in order["outputs"]],
            dynamic_axes={each["name"]: _axes(each, order["batches"]) for each in (*inputs, *order["outputs"])},
            dynamo=False,
        )


def from_program(order: Order) -> None:
    """An exported program."""
    import torch

    torch.onnx.export(
        torch.export.load(order["source"]),
        (),
        order["target"],
        input_names=[each["name"] for each in order["inputs"]],
        output_names=[each["name"] for each in order["outputs"]],
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def _example(torch: Any, tensor: Mapping[str, Any]) -> Any:
    kinds = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "bfloat16"}
    name = kinds.get(tensor["datatype"], tensor["datatype"].lower())
    shape = [_ROWS if size < 0 else size for size in tensor["shape"]]
    return torch.zeros(shape, dtype=getattr(torch, name))


def _axes(tensor: Mapping[str, Any], batches: bool) -> dict[int, str]:
    """The names of sizes that may differ."""
    return {
        i: "batch" if batches and not i else f"{tensor['name']}_{i}"
        for i, size in enumerate(tensor["shape"])
        if size < 0
    }


def from_saved_model(order: Order) -> None:
    parameters = order["parameters"]
    words = ["--saved-model", order["source"], "--tag", parameters.get("TF_GRAPH_TAG", "serve")]
    if signature := parameters.get("TF_SIGNATURE_DEF"):
        words += ["--signature_def", signature]
    _tf2onnx(order, words)


def from_graph(order: Order) -> None:
    sides = [",".join(f"{each['name'].partition(':')[0]}:0" for each in order[side]) for side in ("inputs", "outputs")]
    _tf2onnx(order, ["--graphdef", order["source"], "--inputs", sides[0], "--outputs", sides[1]])


def from_tflite(order: Order) -> None:
    _tf2onnx(order, ["--tflite", order["source"]])


def _tf2onnx(order: Order, words: list[str]) -> None:
    from tf2onnx import convert

    sys.argv = ["tf2onnx", *words, "--output", order["target"]]
    convert.main()
