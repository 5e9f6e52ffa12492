"""Times a model without a server: `python alone.py KIND FILE INPUTS [SECONDS]` prints the median and the CPU time of a
call, in microseconds, as JSON.

KIND is torch, tensorflow, openvino or onnx. INPUTS is JSON: for each input, in the order of the arguments, its `shape`,
and its `content` if it is not random floats. Imports nothing of this repository, because a framework may have an
environment of its own.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]
WARM_UP = 20


def read_inputs(text: str) -> Arrays:
    random = np.random.default_rng(0)
    return {
        name: np.array(each["content"], np.int64).reshape(each["shape"])
        if "content" in each
        else random.random(each["shape"], np.float32)
        for name, each in json.loads(text).items()
    }


def of_torch(file: Path, arrays: Arrays) -> Callable[[], object]:
    import torch

    module = torch.jit.load(str(file)).eval()
    given = [torch.from_numpy(each) for each in arrays.values()]
    torch.set_grad_enabled(False)
    return lambda: module(*given)


def of_tensorflow(file: Path, arrays: Arrays) -> Callable[[], object]:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(file))
    signature = loaded.signatures["serving_default"]
    given = {name: tf.constant(each) for name, each in arrays.items()}

    def call() -> object:
        _ = loaded  # the signature does not keep its variables alive
        return [each.numpy() for each in signature(**given).values()]

    return call


def of_openvino(file: Path, arrays: Arrays) -> Callable[[], object]:
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # it would report each import
    import openvino as ov

    request = ov.Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    return lambda: request.infer(arrays)


def of_onnx(file: Path, arrays: Arrays) -> Callable[[], object]:
    import onnxruntime

    session = onnxruntime.InferenceSession(file)
    return lambda: session.run(None, arrays)


KINDS = {"torch": of_torch, "tensorflow": of_tensorflow, "openvino": of_openvino, "onnx": of_onnx}


def main() -> None:
    kind, file, inputs = sys.argv[1:4]
    call = KINDS[kind](Path(file), read_inputs(inputs))
    for _ in range(WARM_UP):
        call()
    took = []
    cpu, until = time.process_time(), time.perf_counter() + float((sys.argv[4:] or ["1"])[0])
    while time.perf_counter() < until:
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    spent = (time.process_time() - cpu) / len(took)
    print(json.dumps({"p50": statistics.median(took) * 1e6, "cpu": spent * 1e6}))


if __name__ == "__main__":
    main()
