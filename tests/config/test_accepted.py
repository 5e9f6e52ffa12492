"""Fields that are accepted and have no effect on responses."""

from pathlib import Path

import pytest

from halimede import config
from tests.config.models import TENSORS, folder_of

IDENTITY = f'backend: "identity" max_batch_size: 2 {TENSORS}'


@pytest.mark.parametrize(
    "text",
    [
        "optimization { priority: PRIORITY_MAX input_pinned_memory { enable: false } eager_batching: true }",
        "optimization { output_pinned_memory { enable: true } gather_kernel_buffer_threshold: 9 }",
        "optimization { cuda { graphs: false busy_wait_events: true output_copy_stream: true } }",
        "optimization { execution_accelerators { } }",
        "optimization { cuda { graphs: true graph_spec { batch_size: 1 } } }",
        'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }',
        'optimization { execution_accelerators { cpu_execution_accelerator [ { name: "openvino" } ] } }',
        'cc_model_filenames { key: "7.5" value: "x" }',
        'model_operations { op_library_filename: "x.so" }',
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
