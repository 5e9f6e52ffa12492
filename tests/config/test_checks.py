"""The checks of a configuration. The texts are those of the real server 2.51 for the same configurations."""

from pathlib import Path

import pytest

from halimede import config
from halimede.config.model_config import BatchInput, BatchInputKind, BatchOutput
from halimede.errors import Error, Internal, Invalid
from halimede.tensors import INT32
from tests.config.models import IDENTITY, INPUT, OUTPUT, TENSORS, folder_of

BATCHING = f"max_batch_size: 2 {IDENTITY}"


def dynamic(text: str) -> str:
    return f"{BATCHING} dynamic_batching {{ {text} }}"


AT_READING = {
    f'platform: "foo" {TENSORS}': "unexpected platform type 'foo' for m",
    **{
        f'{IDENTITY} default_model_filename: "{path}"': (
            f"'default_model_filename' must stay within the version directory for m, got '{path}'"
        )
        for path in ("/", "/etc/model.py", "//a", "..", "../model.py", "../../x", "a/../../model.py", "./../x")
    },
    f'default_model_filename: "x" {TENSORS}': "unexpected platform type '' for m",
    f'platform: "x" backend: "onnxruntime" {TENSORS}': "unexpected 'platform' and 'backend' pair, got:x, onnxruntime",
    f'backend: "tensorflow" {TENSORS}': "unexpected 'platform' and 'backend' pair, got:, tensorflow",
    f'platform: "ensemble" backend: "identity" {TENSORS}': (
        "Ensemble model 'm' must have platform type 'ensemble' and empty backend type"
    ),
    f'platform: "ensemble" {TENSORS}': "ensemble scheduling must be set for ensemble m whose platform is ensemble",
    f"{IDENTITY} ensemble_scheduling {{ }}": (
        "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble"
    ),
    f"max_batch_size: -1 {IDENTITY}": "'max_batch_size' must be non-negative value for m",
    dynamic("preferred_batch_size: 0"): "dynamic batching preferred size must be positive for m",
    dynamic("preferred_batch_size: -1"): "dynamic batching preferred size must be positive for m",
    dynamic("preferred_batch_size: [ 2, 3 ]"): "dynamic batching preferred size must be <= max batch size for m",
    dynamic("priority_levels: 3"): "default priority level must be in range [1, 3] for m",
    dynamic("priority_levels: 3 default_priority_level: 4"): "default priority level must be in range [1, 3] for m",
    dynamic("priority_levels: 3 default_priority_level: 3 priority_queue_policy { key: 4 value { } }"): (
        "priority queue policy must have priority level in range [1, 3] for m"
    ),
    dynamic("preserve_ordering: true priority_levels: 2 default_priority_level: 1"): (
        "Only one priority level is allowed when 'preserve_ordering' is true for m"
    ),
    dynamic(
        "preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }"
    ): "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    dynamic(
        "preserve_ordering: true "
        "priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1 } }"
    ): "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    f"max_batch_size: 1 {IDENTITY} response_cache {{ enable: true }} sequence_batching {{ }}": (
        "Response Cache does not currently support model m with sequence batching scheduler. "
        "Please disable the response cache."
    ),
    f"{IDENTITY} response_cache {{ enable: true }} model_transaction_policy {{ decoupled: true }}": (
        "Response Cache does not currently support model m with 'decoupled' transaction policy. "
        "Please disable the response cache."
    ),
}


@pytest.mark.parametrize(("text", "problem"), AT_READING.items())
def test_bad_configuration_is_refused_when_read(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(Invalid) as caught:
        config.read(folder_of(tmp_path, "m", text))
    assert str(caught.value) == problem


@pytest.mark.parametrize("path", ["model.bin", "a/b", "a/../b", "..model", "...", "./x", "."])
def test_filename_within_the_version_is_accepted(tmp_path: Path, path: str) -> None:
    text = f'{IDENTITY} default_model_filename: "{path}"'
    assert config.read(folder_of(tmp_path, "m", text)).model_filename == path


TYPED = 'name: "X" data_type: TYPE_FP32'
SIZE = "must be integer >= 1, or -1 to indicate a variable-size dimension"
TENSOR_PROBLEMS = {
    "data_type: TYPE_FP32 dims: 4": "must specify 'name'",
    'name: "X" dims: 4': "'X' must specify 'data_type'",
    'name: "X" data_type: 99 dims: 4': "'X' must specify 'data_type'",
    TYPED: "'X' must specify 'dims'",
    f"{TYPED} dims: 0": f"'X' dimension {SIZE}",
    f"{TYPED} dims: [ 1, -2 ]": f"'X' dimension {SIZE}",
    f"{TYPED} dims: 4 reshape {{ shape: 0 }}": f"'X' reshape dimensions {SIZE}",
    f"{TYPED} dims: 4 reshape {{ shape: 5 }}": "'X' has different size for dims and reshape",
    f"{TYPED} dims: 2 reshape {{ }}": "'X' has different size for dims and reshape",
    f"{TYPED} dims: [ -1, 4 ] reshape {{ shape: 4 }}": "'X' has different size for dims and reshape",
    f"{TYPED} dims: [ -1, 4 ] reshape {{ shape: [ -1, 5 ] }}": "'X' has different size for dims and reshape",
    f"{TYPED} dims: [ -1, 4 ] reshape {{ shape: [ -1, -1 ] }}": (
        "'X' has different number of variable-size dimensions for dims and reshape"
    ),
}


@pytest.mark.parametrize("word", ["input", "output"])
@pytest.mark.parametrize(("tensor", "problem"), TENSOR_PROBLEMS.items())
def test_bad_tensor_is_refused_when_finished(tmp_path: Path, word: str, tensor: str, problem: str) -> None:
    other = OUTPUT if word == "input" else INPUT
    text = f'backend: "identity" max_batch_size: 2 {other} {word} {{ {tensor} }}'
    assert problem_of(tmp_path, text) == f"model {word} {problem} for m"


def problem_of(parent: Path, text: str, gpus: tuple[int, ...] = (), kind: type[Error] = Invalid) -> str:
    draft = config.read(folder_of(parent, "m", text))
    with pytest.raises(kind) as caught:
        draft.finish(gpus=gpus)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f'backend: "identity" {OUTPUT} input {{ {TYPED} dims: 1 reshape {{ }} }}',
            "model input 'X' cannot have empty reshape for non-batching model as scalar tensors are not supported"
            " for m",
        ),
        (
            f'backend: "identity" {OUTPUT} input {{ {TYPED} dims: 4 format: FORMAT_NCHW }}',
            "model input NHWC/NCHW require 3 dims for m",
        ),
        (
            f'backend: "identity" {OUTPUT} input {{ {TYPED} dims: [ 1, 2, 3, 4 ] format: FORMAT_NHWC }}',
            "model input NHWC/NCHW require 3 dims for m",
        ),
        (
            f'backend: "identity" {OUTPUT} input {{ {TYPED} dims: 4 is_shape_tensor: true }}',
            "shape tensors are only supported for TensorRT platform for m",
        ),
        (
            f'backend: "identity" {INPUT} output {{ {TYPED} dims: 4 is_shape_tensor: true }}',
            "shape tensors are only supported for TensorRT platform for m",
        ),
        (
            f'backend: "identity" {OUTPUT} input {{ {TYPED} dims: 4 is_non_linear_format_io: true }}',
            "Non-linear IO format is only supported for the TensorRT platform for m",
        ),
    ],
)
def test_tensor_that_does_not_fit_the_model_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    assert problem_of(tmp_path, text) == problem


@pytest.mark.parametrize(
    "tensor",
    [
        f"{TYPED} dims: 1 reshape {{ }}",
        f"{TYPED} dims: [ 2, 4, -1, 6 ] reshape {{ shape: [ 8, -1, 1, 6 ] }}",
        f"{TYPED} dims: [ -1, -1 ] reshape {{ shape: [ 1, -1, 1, -1 ] }}",
        f"{TYPED} dims: [ 3, 2, 2 ] format: FORMAT_NCHW",
    ],
)
def test_good_tensor_is_accepted(tmp_path: Path, tensor: str) -> None:
    text = f'backend: "identity" max_batch_size: 2 {OUTPUT} input {{ {tensor} }}'
    assert config.read(folder_of(tmp_path, "m", text)).finish().inputs[0].name == "X"


NO_CAPABLE = "GPUs with at least the minimum required CUDA compute compatibility of 6.000000 are: "


@pytest.mark.parametrize(
    ("group", "gpus", "problem"),
    [
        ("{ kind: KIND_GPU }", (), "group m_0 of model m has kind KIND_GPU but no GPUs are available"),
        (
            "{ kind: KIND_GPU gpus: 0 }",
            (),
            f"group m_0 of model m specifies invalid or unsupported gpu id 0. {NO_CAPABLE}",
        ),
        (
            "{ kind: KIND_GPU gpus: [ 1, 2 ] }",
            (0, 1),
            f"group m_0 of model m specifies invalid or unsupported gpu id 2. {NO_CAPABLE}0, 1",
        ),
        (
            "[ { }, { kind: KIND_CPU gpus: [ 0, 1 ] } ]",
            (),
            "group m_1 of model m has kind KIND_CPU but specifies one or more GPUs",
        ),
        ("{ gpus: 0 }", (), "group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"),
        ("{ gpus: 7 }", (0,), "group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"),
        (
            '{ name: "g" kind: KIND_MODEL gpus: 0 }',
            (0,),
            "group g of model m has kind KIND_MODEL but specifies one or more GPUs",
        ),
        (
            '{ profile: "1" }',
            (),
            "group m_0 of model m and platform specifies profile field which is only supported for TensorRT models",
        ),
    ],
)
def test_bad_instance_group_is_refused(tmp_path: Path, group: str, gpus: tuple[int, ...], problem: str) -> None:
    assert problem_of(tmp_path, f"{IDENTITY} instance_group {group}", gpus) == f"instance {problem}"


def test_unknown_instance_kind_is_refused(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, f"{IDENTITY} instance_group {{ kind: 77 }}", kind=Internal)
    assert problem == "instance group m_0 of model m has unexpected kind KIND_AUTO"


def test_instance_groups_are_checked_before_tensors(tmp_path: Path) -> None:
    text = f'backend: "identity" {OUTPUT} input {{ name: "I" dims: 4 }} instance_group {{ kind: KIND_GPU }}'
    assert "no GPUs are available" in problem_of(tmp_path, text)


_MADE = 'kind: BATCH_ITEM_SHAPE target_name: "N" data_type: TYPE_INT32 source_input: "INPUT0"'
_CUT = 'target_name: "OUTPUT0" source_input: "INPUT0"'


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            "batch_input { data_type: TYPE_INT32 }",
            "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0",
        ),
        (
            f'batch_input {{ {_MADE} source_input: "INPUT0" }}',
            "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 2",
        ),
        ("batch_input { kind: 9 }", "unknown batch input kind '9'"),
        (
            'batch_input { data_type: TYPE_INT64 source_input: "NO" }',
            "batch input data type must be TYPE_INT32 or TYPE_FP32",
        ),
        ('batch_input { data_type: TYPE_FP32 source_input: "NO" }', "unknown source input name 'NO'"),
        (
            f'batch_output {{ {_CUT} source_input: "INPUT0" }}',
            "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 2",
        ),
        ('batch_output { target_name: "NO" source_input: "NEITHER" }', "unknown source input name 'NEITHER'"),
        ('batch_output { target_name: "NO" source_input: "INPUT0" }', "unknown target output name 'NO'"),
        (
            f'batch_output {{ {_CUT} target_name: "OUTPUT0" }}',
            "target output name 'OUTPUT0' can only be specified once",
        ),
    ],
)
def test_bad_batch_input_or_output_is_refused(tmp_path: Path, fields: str, problem: str) -> None:
    assert problem_of(tmp_path, f"{IDENTITY} {fields}") == f"{problem} for m"


def test_batch_inputs_and_outputs_are_read(tmp_path: Path) -> None:
    read = config.read(folder_of(tmp_path, "m", f"{IDENTITY} batch_input {{ {_MADE} }} batch_output {{ {_CUT} }}"))
    found = read.finish()
    assert found.batch_inputs == (BatchInput(BatchInputKind.ITEM_SHAPE, ("N",), INT32, "INPUT0"),)
    assert found.batch_outputs == (BatchOutput(("OUTPUT0",), "INPUT0"),)
