"""The text of the `config.pbtxt` that `halimede init` writes: what the model declares, and comments for the rest.

Pure.
"""

from collections.abc import Iterable, Sequence

from halimede.config import ModelConfig, TensorSpec
from halimede.models.scaffold import Beginning
from halimede.tensors import FP32

_BATCHING = """
# Requests run together, up to so many rows. The dims below are those of one row, without the batch.
# 0 is for a model that takes no batches: then the dims are whole shapes.
max_batch_size: {}
"""
_DYNAMIC = """
# Requests that are there at the same time share a batch. They can also wait for each other a little.
dynamic_batching {
  # max_queue_delay_microseconds: 100
}
"""
_NO_DYNAMIC = """
# With a max_batch_size: requests that are there at the same time share a batch.
# dynamic_batching { }
"""
_DECOUPLED = """
# A request gets any number of responses.
model_transaction_policy { decoupled: true }
"""
_GUESSED = """
# The names are those in the code; datatypes and dims are guesses: look through them. -1 is any size.
"""
_NOTHING = """
# The code does not name all that it reads and writes. Add the inputs and outputs, -1 being any size:
#
# input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
# output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
_REST = """
# How many batches run at the same time, and where; KIND_GPU with gpus: [ 0 ] for a GPU.
# instance_group [ { count: 2 kind: KIND_CPU } ]

# Which versions are served. Without it: the one with the highest number.
# version_policy { all { } }

# Equal requests are answered from a cache, where the server has one (--cache-config).
# response_cache { enable: true }
"""


def config_text(name: str, backend: str, beginning: Beginning) -> str:
    config = beginning.config
    inputs, outputs = config.inputs, config.outputs
    told = "\n"
    if not beginning.is_declared:
        inputs = inputs or _guessed(beginning.reads)
        outputs = outputs or _guessed(beginning.writes)
        told = _GUESSED if inputs and outputs else _NOTHING
    return "".join(
        [
            f"# The configuration of the model '{name}'. `halimede check` looks it over.\n",
            f'\nbackend: "{backend}"\n',
            _BATCHING.format(config.max_batch_size),
            told,
            _tensors("input", inputs),
            _tensors("output", outputs),
            _scheduling(config),
            _REST,
        ]
    )


def _guessed(names: Iterable[str]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, FP32, (-1,)) for name in names)


def _scheduling(config: ModelConfig) -> str:
    decoupled = _DECOUPLED if config.decoupled else ""
    if config.sequence_batching is not None:
        return decoupled  # what the code has chosen, it chooses again at each load
    return decoupled + (_DYNAMIC if config.dynamic_batching is not None else _NO_DYNAMIC)


def _tensors(word: str, specs: Sequence[TensorSpec]) -> str:
    if not specs:
        return ""
    return f"{word} [\n" + ",\n".join(map(_tensor, specs)) + "\n]\n"


def _tensor(spec: TensorSpec) -> str:
    lines = [f"name: {_quoted(spec.name)}", f"data_type: {spec.datatype.config_name}", f"dims: {_numbers(spec.dims)}"]
    if spec.reshape is not None:
        lines.append(f"reshape {{ shape: {_numbers(spec.reshape)} }}")
    if spec.optional:
        lines.append("optional: true")
    return "  {\n" + "".join(f"    {line}\n" for line in lines) + "  }"


def _numbers(values: Sequence[int]) -> str:
    return f"[ {', '.join(map(str, values))} ]" if values else "[ ]"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
