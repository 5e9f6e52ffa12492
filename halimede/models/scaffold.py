"""What a model file says of itself, before it has a configuration: for `halimede init`. Blocks; any thread.

The `auto_complete_config` of a Python model is run, in a process that is thrown away.
"""

from dataclasses import dataclass
from pathlib import Path

from halimede.backends.api import Fault
from halimede.backends.python.source import PythonSource, look_at
from halimede.config import Draft, ModelConfig, read
from halimede.errors import Invalid
from halimede.models.backend_pool import BackendPool, pool_to_look
from halimede.models.loader import LoadOptions, complete, prepare_draft
from halimede.models.repository import FoundModel

VERSION = 1


@dataclass(frozen=True, slots=True)
class Beginning:
    """`config` is what the model declares. Where it declares nothing, `reads` and `writes` are the names of tensors in
    its code."""

    config: ModelConfig
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    @property
    def is_declared(self) -> bool:
        """Whether inputs and outputs are known."""
        return bool(self.config.inputs and self.config.outputs)


def beginning_of(folder: Path, options: LoadOptions) -> Beginning:
    """Of a model's folder with a version 1 and a configuration that names the backend. Raises Error, with the words of
    the backend or of the model."""
    found = FoundModel(folder.name, folder)
    draft = read(folder)
    source = look_at(folder / str(VERSION) / draft.model_filename) if draft.backend == "python" else None
    if isinstance(source, Fault):
        place = f"{source.file}:{source.line}" if source.line else str(source.file)
        raise Invalid(f"{place}: {source.text}")
    with pool_to_look(options.settings) as backends:
        return _described(found, draft, source, backends, options)


def _described(
    found: FoundModel, draft: Draft, source: PythonSource | None, backends: BackendPool, options: LoadOptions
) -> Beginning:
    folder, backend = prepare_draft(found, VERSION, draft, backends, options)
    if source is None or source.completes:
        complete(draft, backend, folder, options)
    config = draft.finish(gpus=backend.usable_gpus(options.gpus), default_instance_count=backend.default_instance_count)
    if source is None:
        return Beginning(config)
    return Beginning(config, tuple(source.reads), tuple(source.writes))
