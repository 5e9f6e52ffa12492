"""Parameters of TensorFlow models, without the runtime."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halimede.backends.tensorflow.settings import SessionPlan, check_platform, plan_session
from halimede.config.model_config import InstanceKind
from halimede.errors import Invalid, Unsupported
from tests.backends.fakes import folder, message_of, model_config


def plan(
    root: Path, backend: dict[str, str] | None = None, kind: InstanceKind = InstanceKind.CPU, **given: Any
) -> SessionPlan:
    parameters = given.pop("parameters", {})
    config = replace(model_config([], [], kind=kind), parameters=parameters, message=message_of(given))
    return plan_session(config, folder(root), backend or {})


def test_nothing_is_set_without_parameters(tmp_path: Path) -> None:
    assert plan(tmp_path) == SessionPlan()


@pytest.mark.rows("BF9")
@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (
            "TF_NUM_INTRA_THREADS",
            "-1",
            "parameter 'TF_NUM_INTRA_THREADS' must be non-negative number for TensorFlow model 'm'",
        ),
        (
            "MAX_SESSION_SHARE_COUNT",
            "0",
            "parameter 'MAX_SESSION_SHARE_COUNT' must be positive number for TensorFlow model 'm'",
        ),
        ("TF_NUM_INTER_THREADS", "few", "failed to convert 'few' to integral number"),
        ("TF_USE_PER_SESSION_THREADS", "yes", "failed to convert 'yes' to boolean"),
    ],
)
def test_value_without_a_meaning_is_refused(tmp_path: Path, key: str, value: str, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        plan(tmp_path, parameters={key: value})
    assert caught.value.message == text


@pytest.mark.rows("BF9", "BF10")
def test_parameters_and_settings(tmp_path: Path) -> None:
    parameters = {"TF_NUM_INTRA_THREADS": "3", "TF_NUM_INTER_THREADS": "2", "TF_USE_PER_SESSION_THREADS": "ON"}
    settings = {"allow-soft-placement": "false", "gpu-memory-fraction": "0.5"}
    assert plan(tmp_path, settings, parameters=parameters) == SessionPlan(3, 2, True, False, 0.5)


@pytest.mark.rows("BF9")
def test_operations_that_run_first_are_in_a_file(tmp_path: Path) -> None:
    there = {"TF_INIT_OPS_FILE": "init.json"}
    with pytest.raises(Invalid, match=r"unable to find 'init.json' of model 'm'"):
        plan(tmp_path, parameters=there)
    (tmp_path / "m" / "init.json").write_text("[]")
    with pytest.raises(Invalid, match="must be JSON with a list init_ops"):
        plan(tmp_path, parameters=there)
    (tmp_path / "m" / "1" / "init.json").write_text(json.dumps({"init_ops": ["a", "b"]}))
    assert plan(tmp_path, parameters=there).init_ops == ("a", "b")


@pytest.mark.rows("BF11")
@pytest.mark.parametrize(("level", "expected"), [(-1, -1), (0, None), (1, 1), (2, 2), (5, 2)])
def test_level_of_optimization_is_that_of_xla(tmp_path: Path, level: int, expected: int | None) -> None:
    assert plan(tmp_path, optimization={"graph": {"level": level}}).jit_level == expected


def accelerated(**by_device: list[str]) -> Any:
    lists = {
        f"{device}_execution_accelerator": [{"name": name} for name in names] for device, names in by_device.items()
    }
    return {"execution_accelerators": lists}


@pytest.mark.rows("BF11")
def test_accelerators(tmp_path: Path) -> None:
    gpu = InstanceKind.GPU
    with pytest.raises(Invalid, match="CPU Execution Accelerator is not supported in TensorFlow backend"):
        plan(tmp_path, optimization=accelerated(cpu=["openvino"]))
    with pytest.raises(Invalid, match="unknown Execution Accelerator 'ghost' is requested"):
        plan(tmp_path, kind=gpu, optimization=accelerated(gpu=["ghost"]))
    with pytest.raises(Invalid, match="Auto mixed precision can not be set with TFTRT optimization"):
        plan(tmp_path, kind=gpu, optimization=accelerated(gpu=["tensorrt", "auto_mixed_precision"]))
    with pytest.raises(Unsupported, match="TensorRT inside TensorFlow"):
        plan(tmp_path, kind=gpu, optimization=accelerated(gpu=["tensorrt"]))
    assert plan(tmp_path, kind=gpu, optimization=accelerated(gpu=["auto_mixed_precision", "gpu_io"])).mixed_precision
    ignored = plan(tmp_path, optimization=accelerated(gpu=["tensorrt"]))
    assert ["GPU Execution Accelerators are ignored" in each for each in ignored.warnings] == [True]


@pytest.mark.rows("BF1")
def test_platform_must_be_one_of_two(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as caught:
        check_platform("tensorflow_other", "m")
    assert caught.value.message == "platform tensorflow_other not supported for TensorFlow model 'm'"
