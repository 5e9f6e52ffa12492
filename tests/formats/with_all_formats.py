"""One classifier of digits, one MiniLM and one model of strings in all formats: they answer the same questions alike,
over HTTP, gRPC and shared memory."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from build_repository import Package
from digits_onnx import split, train_versions
from minilm_onnx import build_minilm, read_safetensors
from onnx import numpy_helper
from tritonclient.utils import shared_memory

from halimede.backends.openvino.runtime import ov
from tests.backends import onnx_models
from tests.compat.serving import Serving
from tests.formats.built import TENSORFLOW
from tests.formats.converting import converted
from tests.formats.openvino_models import identity

Array = npt.NDArray[Any]

ROOT = Path(__file__).resolve().parents[2]
TORCH = Path(os.environ.get("HALIMEDE_TORCH", ROOT / ".cache" / "torch"))
SECONDS = 300.0
CLOSE = 1e-4
"""The largest difference of two answers."""


class Question(NamedTuple):
    """The inputs of a model by name, each with its datatype; its output; and its configuration, because some formats
    declare nothing."""

    inputs: dict[str, tuple[str, Array]]
    output: str
    config: str


class Format(NamedTuple):
    ending: str
    file: str
    config: str = ""
    suffix: str = ""
    """Of the name of an output."""
    flat_strings: bool = False
    """Whether strings have one dimension only."""


_ALONE = "instance_group { count: 1 kind: KIND_CPU }\n"
_APART = f'{_ALONE}parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{TENSORFLOW}" }} }}\n'
FORMATS = {
    "onnx": Format("onnx", "model.onnx"),
    "ir": Format("xml", "model.xml", 'backend: "openvino"\n'),
    "onnx_by_openvino": Format("onnx", "model.onnx", 'backend: "openvino" default_model_filename: "model.onnx"\n'),
    "savedmodel": Format("savedmodel", "model.savedmodel", f'platform: "tensorflow_savedmodel"\n{_APART}'),
    "graphdef": Format("graphdef", "model.graphdef", f'platform: "tensorflow_graphdef"\n{_APART}'),
    "tflite": Format("tflite", "model.tflite"),
    "torchscript": Format("pt", "model.pt", 'platform: "pytorch_libtorch"\n', "__0", flat_strings=True),
}


def _io(name: str, kind: str, dims: str) -> str:
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] }}'


IDS = np.array([[101, 2023, 2003, 1037, 7099, 102], [101, 3185, 102, 0, 0, 0]], np.int64)
MASK = np.array([[1] * 6, [1, 1, 1, 0, 0, 0]], np.int64)
QUESTIONS = {
    "digits": Question(
        {"image": ("FP32", split()[1].pixels[:20])},
        "probabilities",
        f"max_batch_size: 32 input {_io('image', 'FP32', '8, 8')} output {_io('probabilities@', 'FP32', '10')}",
    ),
    "minilm": Question(
        {"input_ids": ("INT64", IDS), "attention_mask": ("INT64", MASK)},
        "sentence_embedding",
        f"max_batch_size: 32 input [ {_io('input_ids', 'INT64', '-1')}, {_io('attention_mask', 'INT64', '-1')} ] "
        f"output {_io('sentence_embedding@', 'FP32', '384')}",
    ),
    "text": Question(
        {"words": ("BYTES", np.array([[b"one"], ["zw\u00f6lf".encode()], [b""]], object))},
        "same",
        f"max_batch_size: 32 input {_io('words', 'STRING', '1')} output {_io('same@', 'STRING', '1')}",
    ),
}


def build(folder: Path) -> None:
    """All models, as files called by their question and format."""
    classifier = train_versions()[2]
    package = Package(ROOT / ".cache", print)
    weights = read_safetensors(package.read("model.safetensors"))
    models = {
        "digits": classifier.SerializeToString(),
        "minilm": build_minilm(weights, json.loads(package.read("config.json"))).SerializeToString(),
        "text": onnx_models.model(
            [onnx.helper.make_node("Identity", ["words"], ["same"])],
            [onnx_models.value("words", "BYTES", ["batch", 1])],
            [onnx_models.value("same", "BYTES", ["batch", 1])],
        ),
    }
    layers = [numpy_helper.to_array(each) for each in classifier.graph.initializer]
    matrices, biases = ([each for each in layers if each.ndim == n and each.size > 1] for n in (2, 1))
    named = {f"matrix{i}": each for i, each in enumerate(matrices)} | {
        f"bias{i}": each for i, each in enumerate(biases)
    }
    np.savez(folder / "digits.npz", **named)
    np.savez(folder / "minilm.npz", **weights)  # type: ignore[arg-type]
    core = ov.Core()
    for name, content in models.items():
        (folder / f"{name}.onnx").write_bytes(content)
        made = identity("BYTES", [-1, 1], names=("words", "same")) if name == "text" else core.read_model(content)
        ov.save_model(made, folder / f"{name}.xml", compress_to_fp16=False)
    script = ROOT / "tests" / "formats" / "graphs.py"
    environment = {**os.environ, "PYTHONPATH": str(TORCH)}
    for python, framework in ((TENSORFLOW / "bin" / "python", "tensorflow"), (sys.executable, "torch")):
        command = [str(python), str(script), framework, str(folder)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("formats")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def served(built: Path) -> Iterator[Serving]:
    folder = built
    models = folder / "models"
    for question, asked in QUESTIONS.items():
        for name, form in FORMATS.items():
            version = models / f"{question}_{name}" / "1"
            version.mkdir(parents=True)
            source = folder / f"{question}.{form.ending}"
            if source.is_dir():
                shutil.copytree(source, version / form.file)
            else:
                shutil.copy(source, version / form.file)
            if form.ending == "xml":
                shutil.copy(source.with_suffix(".bin"), version / "model.bin")
            config = form.config + asked.config.replace("@", form.suffix)
            if question == "text" and form.flat_strings:
                config = config.replace("max_batch_size: 32", "").replace("dims: [ 1 ]", "dims: [ -1 ]")
            (version.parent / "config.pbtxt").write_text(config)
    with Serving(models, folder / "log", "--allow-client-shm=true", environment={"PYTHONPATH": str(TORCH)}) as server:
        server.until(lambda: server.status("/v2/health/ready") == 200, "did not come up", SECONDS)
        yield server


def ask(server: Serving, over: Any, question: str, form: str) -> Array:
    """The answer of a model, whose inputs and outputs are in the messages."""
    asked, output = QUESTIONS[question], QUESTIONS[question].output + FORMATS[form].suffix
    client = over.InferenceServerClient(server.grpc_url if over is grpcclient else server.http_url)
    inputs = []
    for name, (datatype, whole) in asked.inputs.items():
        array = whole.reshape(-1) if datatype == "BYTES" and FORMATS[form].flat_strings else whole
        inputs.append(over.InferInput(name, list(array.shape), datatype))
        inputs[-1].set_data_from_numpy(array)
    answer = client.infer(f"{question}_{form}", inputs, outputs=[over.InferRequestedOutput(output)])
    result: Array = answer.as_numpy(output)
    return result


@contextmanager
def region(client: Any, name: str, size: int) -> Iterator[Any]:
    """A region of shared memory that the server knows."""
    handle = shared_memory.create_shared_memory_region(name, f"/{name}", size)
    try:
        client.register_system_shared_memory(name, f"/{name}", size)
        yield handle
        client.unregister_system_shared_memory(name)
    finally:
        shared_memory.destroy_shared_memory_region(handle)


def ask_in_shared_memory(server: Serving, over: Any, question: str, form: str, expected: Array) -> Array:
    """The answer of a model, whose inputs and outputs are in shared memory."""
    asked, output = QUESTIONS[question], QUESTIONS[question].output + FORMATS[form].suffix
    client = over.InferenceServerClient(server.grpc_url if over is grpcclient else server.http_url)
    arrays = {name: array for name, (_, array) in asked.inputs.items()}
    size = sum(array.nbytes for array in arrays.values())
    with (
        region(client, f"in_{os.getpid()}", size) as given,
        region(client, f"out_{os.getpid()}", expected.nbytes) as taken,
    ):
        inputs, offset = [], 0
        for name, array in arrays.items():
            shared_memory.set_shared_memory_region(given, [array], offset=offset)
            inputs.append(over.InferInput(name, list(array.shape), asked.inputs[name][0]))
            inputs[-1].set_shared_memory(f"in_{os.getpid()}", array.nbytes, offset=offset)
            offset += array.nbytes
        wanted = over.InferRequestedOutput(output)
        wanted.set_shared_memory(f"out_{os.getpid()}", expected.nbytes)
        client.infer(f"{question}_{form}", inputs, outputs=[wanted])
        return np.array(shared_memory.get_contents_as_numpy(taken, expected.dtype, expected.shape))


@pytest.mark.rows("BV1", "BF2")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("question", ["digits", "minilm"])
def test_numbers_agree(served: Serving, question: str, form: str) -> None:
    expected = ask(served, httpclient, question, "onnx")
    for over in (httpclient, grpcclient):
        for got in (
            ask(served, over, question, form),
            ask_in_shared_memory(served, over, question, form, expected),
        ):
            np.testing.assert_allclose(got, expected, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("form", FORMATS)
def test_classes_are_equal(served: Serving, form: str) -> None:
    answers = []
    for name in ("onnx", form):
        output = QUESTIONS["digits"].output + FORMATS[name].suffix
        datatype, array = QUESTIONS["digits"].inputs["image"]
        given = httpclient.InferInput("image", list(array.shape), datatype)
        given.set_data_from_numpy(array)
        client = httpclient.InferenceServerClient(served.http_url)
        wanted = httpclient.InferRequestedOutput(output, class_count=2)
        classes = client.infer(f"digits_{name}", [given], outputs=[wanted]).as_numpy(output)
        answers.append([each.decode().split(":")[1] for each in classes.reshape(-1)])
    assert answers[0] == answers[1]
    assert answers[0][::2] == [str(digit) for digit in split()[1].digits[:20]]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("over", [httpclient, grpcclient], ids=["http", "grpc"])
def test_strings_are_equal(served: Serving, over: Any, form: str) -> None:
    [(_, given)] = QUESTIONS["text"].inputs.values()
    assert ask(served, over, "text", form).reshape(-1).tolist() == given.reshape(-1).tolist()


_TEXTS = ("--input", "input_ids:INT64[-1,-1]", "--input", "attention_mask:INT64[-1,-1]")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("digits.pt", ("--input", "image:FP32[-1,8,8]")),
        ("digits.savedmodel", ("--environment", str(TENSORFLOW))),
        ("digits.tflite", ()),
        ("minilm.onnx", ()),
        ("minilm.pt", _TEXTS),
    ],
)
def test_conversion_to_ir(built: Path, tmp_path: Path, source: str, words: tuple[str, ...]) -> None:
    target = tmp_path / "model.xml"
    more = {"PYTHONPATH": str(TORCH)}
    assert converted(built / source, "--to", "openvino", "--output", target, *words, more=more) < CLOSE
