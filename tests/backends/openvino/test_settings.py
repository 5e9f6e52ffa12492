"""Parameters of OpenVINO models, without the runtime."""

from collections.abc import Mapping

import pytest

from halimede.backends.api import CpuShare
from halimede.backends.openvino.settings import Settings, settings_of
from halimede.errors import Invalid

SHARE = CpuShare(frozenset({0, 1, 2, 3}), 2)


def properties(parameters: Mapping[str, str], backend: Mapping[str, str] | None = None) -> dict[str, str]:
    return settings_of(parameters, backend or {}).properties_for(SHARE)


def test_instances_have_a_stream_each_and_compute_in_the_precision_of_the_model() -> None:
    assert properties({}) == {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "4", "NUM_STREAMS": "2"}


@pytest.mark.rows("BV3")
@pytest.mark.parametrize("word", ["yes", "YES", "Yes"])
def test_yes_switches_on(word: str) -> None:
    names = ("SKIP_OV_DYNAMIC_BATCHSIZE", "ENABLE_BATCH_PADDING", "RESHAPE_IO_LAYERS")
    found = [settings_of({name: word}, {}) for name in names]
    assert [(each.fixed_batch, each.padding, each.reshape) for each in found] == [
        (True, False, False),
        (True, True, False),
        (False, False, True),
    ]


@pytest.mark.rows("BV3")
@pytest.mark.parametrize("word", ["true", "1", "on", "no", ""])
def test_any_other_word_is_off(word: str) -> None:
    names = ("SKIP_OV_DYNAMIC_BATCHSIZE", "ENABLE_BATCH_PADDING", "RESHAPE_IO_LAYERS")
    assert settings_of(dict.fromkeys(names, word), {}) == Settings()


@pytest.mark.rows("BV4")
@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("INFERENCE_NUM_THREADS", "Many", "to be a non-negative number, got many"),
        ("COMPILATION_NUM_THREADS", "-1", "to be a non-negative number, got -1"),
        ("NUM_STREAMS", "FEW", "to be either AUTO/NUMA/<int_value>, got few"),
        ("PERFORMANCE_HINT", "FAST", "to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got fast"),
        ("HINT_BF16", "NO", "to be YES, got no"),
    ],
)
def test_value_without_a_meaning_is_refused(key: str, value: str, text: str) -> None:
    for of_model, of_backend in ((value, ""), ("", value)):
        with pytest.raises(Invalid) as caught:
            settings_of({key: of_model}, {key: of_backend})
        assert caught.value.message == f"expected the parameter '{key}' {text}"


@pytest.mark.rows("BV4")
@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"INFERENCE_NUM_THREADS": "3"}, {"INFERENCE_NUM_THREADS": "3"}),
        ({"INFERENCE_NUM_THREADS": ""}, {"INFERENCE_NUM_THREADS": "4"}),
        ({"COMPILATION_NUM_THREADS": "1"}, {"COMPILATION_NUM_THREADS": "1"}),
        ({"NUM_STREAMS": "auto"}, {"NUM_STREAMS": "AUTO"}),
        ({"NUM_STREAMS": "7"}, {"NUM_STREAMS": "7"}),
        ({"HINT_BF16": "yes"}, {"INFERENCE_PRECISION_HINT": "bf16"}),
        ({"INFERENCE_PRECISION_HINT": "f16"}, {"INFERENCE_PRECISION_HINT": "f16"}),
        ({"CACHE_DIR": "/a"}, {"CACHE_DIR": "/a"}),
    ],
)
def test_parameter_is_a_property_of_the_runtime(parameters: Mapping[str, str], expected: Mapping[str, str]) -> None:
    found = properties(parameters)
    assert {key: found[key] for key in expected} == expected


def test_performance_hint_chooses_the_streams() -> None:
    found = properties({"PERFORMANCE_HINT": "latency"})
    assert found["PERFORMANCE_HINT"] == "LATENCY"
    assert "NUM_STREAMS" not in found


def test_property_of_a_model_goes_before_that_of_the_backend() -> None:
    backend = {"NUM_STREAMS": "3", "CACHE_DIR": "/a", "default-max-batch-size": "8"}
    found = properties({"NUM_STREAMS": "5"}, backend)
    assert (found["NUM_STREAMS"], found["CACHE_DIR"]) == ("5", "/a")


@pytest.mark.parametrize(
    ("device", "expected"),
    [("gpu.1", {"INFERENCE_PRECISION_HINT": "f32"}), ("npu", {}), ("AUTO:GPU,CPU", {})],
)
def test_device_gets_its_name_and_no_property_that_it_does_not_have(device: str, expected: dict[str, str]) -> None:
    settings = settings_of({"TARGET_DEVICE": device}, {})
    assert settings.device == device.upper()
    assert settings.properties_for(SHARE) == expected


def test_libraries_of_operators_come_from_the_parameter_and_the_configuration() -> None:
    assert settings_of({"CPU_EXTENSION_PATH": "/a.so"}, {}, ("/b.so",)).libraries == ("/b.so", "/a.so")
