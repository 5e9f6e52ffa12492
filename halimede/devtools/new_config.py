"""The configuration of a new model, for `halimede init`: what the model file declares, and the text of `config.pbtxt`.

Blocks; any thread. If a Python model has an `auto_complete_config`, it runs in a process that ends after it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from halimede.backends.api import Fault, Outline, Probing
from halimede.backends.registry import resolve, traits_of
from halimede.config import Draft, ModelConfig, TensorSpec, read
from halimede.config.model_config import DescribedTensor
from halimede.errors import Invalid
from halimede.models.backend_pool import BackendPool, pool_to_look
from halimede.models.loader import LoadOptions, complete, complete_from, find_backend
from halimede.models.repository import FoundModel
from halimede.tensors import FP32

VERSION = 1
"""Of a new model."""

_BATCHING = """
# Requests run together, up to this many rows. The dims below are those of one row, without the batch dimension.
# 0 is for a model that takes no batches; then the dims are whole shapes.
max_batch_size: {}
"""
_DYNAMIC = """
# Requests that wait at the same time share a batch. They can also wait a little for others.
dynamic_batching {
  # max_queue_delay_microseconds: 100
}
"""
_NO_DYNAMIC = """
# With a max_batch_size: requests that wait at the same time share a batch.
# dynamic_batching { }
"""
_DECOUPLED = """
# A request gets any number of responses.
model_transaction_policy { decoupled: true }
"""
_GUESSED = """
# The names are those in the code. The datatypes and dims are guesses, please check them. -1 is any size.
"""
_NOTHING = """
# The code does not name all the tensors that it reads and writes. Add the inputs and outputs; -1 is any size:
#
# input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
# output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
_REST = """
# How many batches run at the same time, and where; KIND_GPU with gpus: [ 0 ] for a GPU.
# instance_group [ { count: 2 kind: KIND_CPU } ]

# Which versions are served. Without it: the highest one.
# version_policy { all { } }

# Equal requests are answered from a cache, if the server has one (--cache-config).
# response_cache { enable: true }
"""


@dataclass(frozen=True, slots=True)
class Declared:
    """What a model declares: its configuration, and the names of tensors in its code.

    `reads` and `writes` are for a model whose configuration has no inputs or outputs.
    """

    config: ModelConfig
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the model declares inputs and outputs."""
        return bool(self.config.inputs and self.config.outputs)


def declared_by(folder: Path, options: LoadOptions, given: Sequence[DescribedTensor] = ()) -> Declared:
    """What the model in `folder` declares. Its configuration must name the backend, and its version must be `VERSION`.
    With `given`, the model is run on these inputs to find its outputs.

    Raises Error with the text of the backend or of the model.
    """
    found = FoundModel(folder.name, folder)
    draft = read(folder)
    traits = traits_of(draft.backend)
    reads_source = resolve(traits.outline) if traits is not None and traits.outline else None
    # Before the backend runs the code: a mistake in it gets its line this way.
    source = None if reads_source is None else reads_source(folder / str(VERSION) / draft.model_filename)
    if isinstance(source, Fault):
        place = f"{source.file}:{source.line}" if source.line else str(source.file)
        raise Invalid(f"{place}: {source.text}")
    with pool_to_look(options.settings) as backends:
        return _described(found, draft, source, backends, options, given)


def _described(
    found: FoundModel,
    draft: Draft,
    source: Outline | None,
    backends: BackendPool,
    options: LoadOptions,
    given: Sequence[DescribedTensor],
) -> Declared:
    folder, backend = find_backend(found, VERSION, draft, backends, options)
    if given:
        if not isinstance(backend, Probing):
            raise Invalid(f"backend '{draft.backend}' reads the inputs from the file: leave out --input")
        complete_from(draft, backend.probe(given, folder, draft.model_filename), backend, options)
    # Otherwise the code completes nothing, and it need not run.
    elif source is None or source.completes:
        complete(draft, backend, folder, options)
    config = draft.finish(gpus=backend.usable_gpus(options.gpus), default_instance_count=backend.traits.cpu_instances)
    if source is None:
        return Declared(config)
    return Declared(config, tuple(source.reads), tuple(source.writes))


def config_text(name: str, backend: str, declared: Declared, platform: str = "") -> str:
    """The text of the configuration, with comments about what may be added. `platform` is for a backend that has
    several."""
    config = declared.config
    inputs, outputs = config.inputs, config.outputs
    remark = "\n"
    if not declared.is_complete:
        # What the model declares goes before what its code mentions.
        inputs = inputs or _guessed(declared.reads)
        outputs = outputs or _guessed(declared.writes)
        remark = _GUESSED if inputs and outputs else _NOTHING
    return "".join(
        [
            f"# The configuration of the model '{name}'. `halimede check` checks it.\n",
            f'\nbackend: "{backend}"\n' + (f'platform: "{platform}"\n' if platform else ""),
            _BATCHING.format(config.max_batch_size),
            remark,
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
        return decoupled  # the model's code chose it, and does so again at each load
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
