"""Fields that are refused, and fields that are accepted because they change no answer."""

from pathlib import Path

import pytest

from halimede import config
from halimede.config.unserved import UNSERVED
from halimede.errors import Unsupported
from tests.config.models import OUTPUT, TENSORS, folder_of

IDENTITY = f'backend: "identity" max_batch_size: 2 {TENSORS}'
REFUSED = {
    "sequence_batching": "sequence_batching { }",
    "input.allow_ragged_batch": 'input { name: "R" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }',
    "batch_input": 'batch_input { target_name: "N" data_type: TYPE_FP32 source_input: "INPUT0" }',
    "batch_output": 'batch_output { target_name: "OUTPUT0" source_input: "INPUT0" }',
    "cc_model_filenames": 'cc_model_filenames { key: "7.5" value: "x" }',
    "model_operations.op_library_filename": 'model_operations { op_library_filename: "x.so" }',
    "optimization.cuda.graphs": "optimization { cuda { graphs: true } }",
    "optimization.cuda.graph_spec": "optimization { cuda { graph_spec { batch_size: 1 } } }",
    "optimization.execution_accelerators.gpu_execution_accelerator": (
        'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }'
    ),
    "optimization.execution_accelerators.cpu_execution_accelerator": (
        'optimization { execution_accelerators { cpu_execution_accelerator [ { name: "openvino" } ] } }'
    ),
    "model_repository_agents": 'model_repository_agents { agents { name: "checksum" } }',
    "model_metrics": 'model_metrics { metric_control { metric_identifier { family: "f" } } }',
}
SHOWN_FIRST_BY_A_CHECK = {
    "ensemble_scheduling",
    "input.is_shape_tensor",
    "output.is_shape_tensor",
    "input.is_non_linear_format_io",
    "output.is_non_linear_format_io",
}
"""Fields that a model of another platform may not have at all: Triton's own check speaks before the table."""


def test_every_field_of_the_table_is_tried() -> None:
    assert set(UNSERVED) == set(REFUSED) | SHOWN_FIRST_BY_A_CHECK


@pytest.mark.parametrize(("field", "text"), REFUSED.items())
def test_unserved_field_is_refused_by_name(tmp_path: Path, field: str, text: str) -> None:
    draft = config.read(folder_of(tmp_path, "m", f"{IDENTITY} {text}"))
    for refuse in (draft.finish, draft.refuse_unserved):
        with pytest.raises(Unsupported) as caught:
            refuse()
        assert str(caught.value) == f"{tmp_path}/m/config.pbtxt: model 'm': field '{field}' is not supported yet"


def test_ensemble_is_refused_by_name(tmp_path: Path) -> None:
    text = f'platform: "ensemble" {TENSORS} ensemble_scheduling {{ step {{ model_name: "x" model_version: -1 }} }}'
    draft = config.read(folder_of(tmp_path, "m", text))
    assert draft.backend == ""
    with pytest.raises(Unsupported, match="model 'm': field 'ensemble_scheduling' is not supported yet"):
        draft.finish()


@pytest.mark.parametrize("tensor", ["is_shape_tensor", "is_non_linear_format_io"])
@pytest.mark.parametrize("word", ["input", "output"])
def test_tensorrt_tensor_is_refused_by_name(tmp_path: Path, word: str, tensor: str) -> None:
    text = (
        f'platform: "tensorrt_plan" {OUTPUT} {word} {{ name: "X" data_type: TYPE_FP32 dims: [1, 1, 1] {tensor}: true }}'
    )
    with pytest.raises(Unsupported, match=rf"field '{word}\.{tensor}' is not supported yet"):
        config.read(folder_of(tmp_path, "m", text)).finish()


@pytest.mark.parametrize(
    "text",
    [
        "optimization { priority: PRIORITY_MAX input_pinned_memory { enable: false } eager_batching: true }",
        "optimization { output_pinned_memory { enable: true } gather_kernel_buffer_threshold: 9 }",
        "optimization { cuda { graphs: false busy_wait_events: true output_copy_stream: true } }",
        "optimization { execution_accelerators { } }",
        "dynamic_batching { preserve_ordering: false default_queue_policy { allow_timeout_override: true } }",
        "dynamic_batching { default_priority_level: 3 }",
        "response_cache { enable: false }",
        "model_operations { }",
        "instance_group { secondary_devices { device_id: 1 } }",
        'metric_tags { key: "a" value: "b" }',
        "model_transaction_policy { decoupled: true }",
    ],
)
def test_field_without_effect_is_accepted(tmp_path: Path, text: str) -> None:
    assert config.read(folder_of(tmp_path, "m", f"{IDENTITY} {text}")).finish().name == "m"
