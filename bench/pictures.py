"""Measures three ways from a JPEG to a tensor, with eight clients: DALI, and Pillow or OpenCV in a model.py.

    .venv/bin/python -m bench.pictures [--rounds 3] [--seconds 1] [--json FILE]

The picture has 588 KiB, the tensor is 3 x 224 x 224 FP32. One server has all three models, each with one process and
batches of up to eight pictures. The load is perf_analyzer's, in turn for the three. Needs what `make test-dali`
installs, and opencv-python-headless.
"""

import argparse
import base64
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from tools import versus
from tools.versus import ORACLE, WORK, Figures, Server, Work

SIDE = 224
BYTES = 588 * 1024
CLIENTS = 8

_CONFIG = """name: "{name}"
backend: "{backend}"
max_batch_size: 8
input {{ name: "IMAGE" data_type: TYPE_UINT8 dims: [ -1 ] allow_ragged_batch: true }}
output {{ name: "TENSOR" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }}
instance_group {{ kind: KIND_CPU count: 1 }}
dynamic_batching {{ }}
"""
_DALI = """from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.triton import autoserialize


@autoserialize
@pipeline_def(batch_size=8, num_threads=2, device_id=None)
def pictures():
    encoded = fn.external_source(name="IMAGE", dtype=types.UINT8, ndim=1)
    image = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
    image = fn.resize(image, resize_x=224, resize_y=224)
    mean, std = [123.7, 116.3, 103.5], [58.4, 57.1, 57.4]
    return fn.crop_mirror_normalize(image, dtype=types.FLOAT, output_layout="CHW", mean=mean, std=std)
"""
_PYTHON = """import io

import numpy as np
import triton_python_backend_utils as pb_utils
{imports}

MEAN = np.array([123.7, 116.3, 103.5], np.float32)
STD = np.array([58.4, 57.1, 57.4], np.float32)


def decoded(data):
    {decode}


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
            tensor = ((decoded(data) - MEAN) / STD).transpose(2, 0, 1)[np.newaxis]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TENSOR", np.ascontiguousarray(tensor))]))
        return responses
"""
_WAYS = {
    "dali": ("dali", "dali.py", _DALI),
    "pillow": (
        "python",
        "model.py",
        _PYTHON.format(
            imports="from PIL import Image",
            decode="image = Image.open(io.BytesIO(data.tobytes())).convert('RGB').resize((224, 224), Image.BILINEAR)\n"
            "    return np.asarray(image, np.float32)",
        ),
    ),
    "opencv": (
        "python",
        "model.py",
        _PYTHON.format(
            imports="import cv2",
            decode="image = cv2.cvtColor(cv2.imdecode(data.reshape(-1), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)\n"
            "    return cv2.resize(image, (224, 224), interpolation=cv2.INTER_LINEAR).astype(np.float32)",
        ),
    ),
}


def jpeg() -> bytes:
    """A picture of about `BYTES`: a smooth one with noise, whose size the quality of the file decides."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[0:1200, 0:1600] / 200
    smooth = np.stack([np.sin(x), np.cos(y), np.sin(x * y)], axis=2) * 100 + 128
    pixels = np.clip(smooth + random.normal(0, 12, smooth.shape), 0, 255).astype(np.uint8)
    low, high, best = 1, 100, b""
    while low <= high:
        quality = (low + high) // 2
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
        if len(buffer.getvalue()) <= BYTES:
            low, best = quality + 1, buffer.getvalue()
        else:
            high = quality - 1
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", default="")
    asked = parser.parse_args()
    subprocess.run([str(ORACLE), "install"], check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "models"
        for way, (backend, file, source) in _WAYS.items():
            version = root / way / "1"
            version.mkdir(parents=True)
            (version / file).write_text(source)
            (version.parent / "config.pbtxt").write_text(_CONFIG.format(name=way, backend=backend))
        picture = jpeg()
        data = Path(name) / "input.json"
        content = {"b64": base64.b64encode(picture).decode()}
        data.write_text(json.dumps({"data": [{"IMAGE": {"content": content, "shape": [len(picture)]}}]}))
        WORK.update({way: Work(way, "grpc", CLIENTS, ["--input-data", str(data)]) for way in _WAYS})
        versus.UNCHECKED.update(_WAYS)
        flags = "--http-address=127.0.0.1 --grpc-address=127.0.0.1 --http-port={http} --grpc-port={grpc}"
        command = f"{sys.executable} -m halimede serve --model-repository={{repo}} {flags} --metrics-port={{metrics}}"
        server = Server("a", command, root, set(_WAYS))
        found: dict[str, list[Figures]] = {way: [] for way in _WAYS}
        try:
            versus.settle([server])
            for _ in range(asked.rounds):
                for way in _WAYS:
                    found[way].append(server.measure(way, asked.seconds))
        finally:
            server.stop()
    medians = {
        way: {key: statistics.median(r[key] for r in rounds) for key in rounds[0]} for way, rounds in found.items()
    }
    for way, each in medians.items():
        print(
            f"{way:8}{each['throughput']:7.0f}/s  p50 {each['p50'] / 1000:6.1f} ms  p99 {each['p99'] / 1000:6.1f} ms"
            f"  cpu {each['cpu'] / 1000:6.1f} ms"
        )
    if asked.json:
        kept = {"bytes": len(picture), "clients": CLIENTS, "cores": os.cpu_count(), "median": medians, "rounds": found}
        Path(asked.json).write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
