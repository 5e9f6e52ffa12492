"""The fields of a configuration that this server understands and does not serve yet: one table, nothing ignored.

A field leaves the table with the change that serves it. What cannot change an answer (pinned memory, thread priority,
eager batching, waiting for CUDA events) is accepted and not listed. Pure, any thread.
"""

from collections.abc import Iterable
from typing import Any

from halimede.config.message import Message

UNSERVED = (
    # schedulers
    "sequence_batching",
    "ensemble_scheduling",
    # ragged batches
    "input.allow_ragged_batch",
    "batch_input",
    "batch_output",
    # TensorRT tensors
    "input.is_shape_tensor",
    "output.is_shape_tensor",
    "input.is_non_linear_format_io",
    "output.is_non_linear_format_io",
    # runtimes
    "cc_model_filenames",
    "model_operations.op_library_filename",
    "optimization.cuda.graphs",
    "optimization.cuda.graph_spec",
    "optimization.execution_accelerators.gpu_execution_accelerator",
    "optimization.execution_accelerators.cpu_execution_accelerator",
    # everything around a model
    "model_repository_agents",
    "model_metrics",
)
"""Paths of field names; a path through a list means any of its elements."""


def first_unserved(message: Message) -> str | None:
    """The path of the first field of the table that is set in the configuration and has an effect."""
    return next((path for path in UNSERVED if _is_set(message, path.split("."))), None)


def _is_set(message: Message, path: list[str]) -> bool:
    field = message.DESCRIPTOR.fields_by_name[path[0]]
    if field.has_presence and not message.HasField(field.name):
        return False
    value = getattr(message, field.name)
    if len(path) > 1:
        inner: Iterable[Any] = value if field.is_repeated else (value,)
        return any(_is_set(each, path[1:]) for each in inner)
    return field.has_presence or bool(value)
