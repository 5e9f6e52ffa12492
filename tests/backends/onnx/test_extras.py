"""Accelerators, operator libraries and files by GPU generation of ONNX models."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from halimede.backends.onnx.backend import OnnxRuntimeBackend
from halimede.backends.onnx.extras import Extras, extras_of
from halimede.errors import Error, Internal, Invalid
from tests.backends import onnx_models
from tests.backends.fakes import asked, context, folder, idle_loop

EVERYTHING = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "OpenVINOExecutionProvider", "CPUExecutionProvider")
CPU_ONLY = ("CPUExecutionProvider",)
NUMBERS = onnx_models.identity("FP32", ["batch", 4])
LIBRARY = """
#include <stdio.h>
void *RegisterCustomOps(void *options, const void *api) {
    FILE *mark = fopen("%s", "w");
    fclose(mark);
    return 0;
}
"""


def asking(gpu: str = "", cpu: str = "", **parameters: str) -> Extras:
    chosen = {
        f"{kind}_execution_accelerator": [{"name": name, "parameters": parameters}]
        for kind, name in (("gpu", gpu), ("cpu", cpu))
        if name
    }
    return extras_of(asked(optimization={"execution_accelerators": chosen}))


def describe(root: Path, **config: Any) -> None:
    with idle_loop() as loop:
        backend = OnnxRuntimeBackend(context(loop))
        backend.describe(asked(**config), folder(root, NUMBERS), "model.onnx")


def test_tensorrt_options_have_the_names_of_the_provider() -> None:
    extras = asking(
        gpu="tensorrt", precision_mode="FP16", max_workspace_size_bytes="1000", trt_engine_cache_enable="true"
    )
    [(name, options)] = extras.providers(1, EVERYTHING)
    assert name == "TensorrtExecutionProvider"
    assert dict(options) == {
        "device_id": "1",
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "1000",
        "trt_engine_cache_enable": "true",
    }


def test_accelerator_of_a_gpu_says_nothing_to_an_instance_on_the_cpu() -> None:
    assert asking(gpu="tensorrt").providers(None, CPU_ONLY) == ()


def test_parameters_of_cuda_are_options_of_its_provider() -> None:
    assert asking(gpu="cuda", arena_extend_strategy="1").providers(0, EVERYTHING) == (
        ("CUDAExecutionProvider", (("device_id", "0"), ("arena_extend_strategy", "1"))),
    )


@pytest.mark.parametrize(
    ("extras", "device", "text"),
    [
        (asking(gpu="tensorrt"), 0, "TensorRT Execution Accelerator is not enabled"),
        (asking(gpu="nope"), 0, "unknown Execution Accelerator 'nope' is requested"),
        (asking(cpu="nope"), None, "unknown Execution Accelerator 'nope' is requested"),
        (asking(cpu="openvino"), None, "OpenVINO Execution Accelerator is not enabled"),
    ],
)
def test_accelerator_that_is_not_there_is_refused(extras: Extras, device: int | None, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        extras.providers(device, CPU_ONLY)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"segment": "3"}, "unknown parameter 'segment' is provided for TensorRT Execution Accelerator"),
        ({"precision_mode": "FP5"}, "unsupported precision mode 'FP5' is requested"),
    ],
)
def test_parameter_that_means_nothing_is_refused(parameters: dict[str, str], text: str) -> None:
    with pytest.raises(Invalid) as caught:
        asking("tensorrt", **parameters).providers(0, EVERYTHING)
    assert str(caught.value) == text


def test_model_with_an_accelerator_that_is_not_there_does_not_load(tmp_path: Path) -> None:
    accelerators = {"cpu_execution_accelerator": [{"name": "openvino"}]}
    with pytest.raises(Invalid, match="OpenVINO Execution Accelerator is not enabled"):
        describe(tmp_path, optimization={"execution_accelerators": accelerators})


@pytest.mark.parametrize(("device", "file"), [(None, "model.onnx"), (0, "for75"), (1, "model.onnx"), (2, "model.onnx")])
def test_file_is_chosen_by_the_generation_of_the_gpu(device: int | None, file: str) -> None:
    extras = extras_of(asked(cc_model_filenames={"7.5": "for75", "9.0": "for90"}))
    generations = {0: "7.5", 1: "8.0"}
    assert extras.filename_on(device, "model.onnx", generations.get) == file


def test_library_of_operators_is_registered(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    assert compiler is not None, "a C compiler is needed"
    source, library, mark = tmp_path / "ops.c", tmp_path / "ops.so", tmp_path / "registered"
    source.write_text(LIBRARY % mark)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    describe(tmp_path, model_operations={"op_library_filename": [str(library)]})
    assert mark.exists()


def test_library_of_operators_that_is_missing_fails_the_load(tmp_path: Path) -> None:
    with pytest.raises(Error, match="onnx runtime error") as caught:
        describe(tmp_path, model_operations={"op_library_filename": ["/nowhere/ops.so"]})
    assert isinstance(caught.value, Internal)
    assert "/nowhere/ops.so" in str(caught.value)
