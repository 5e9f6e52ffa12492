"""What a model file says of itself, before it has a configuration: for `halimede init`. Blocks; any thread.

The `auto_complete_config` of a Python model is run, in a process that is thrown away.
"""

from dataclasses import dataclass
from pathlib import Path

from halimede.backends.api import Fault, Outline
from halimede.backends.registry import resolve, traits_of
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
    traits = traits_of(draft.backend)
    reads_source = resolve(traits.outline) if traits is not None and traits.outline else None
    source = None if reads_source is None else reads_source(folder / str(VERSION) / draft.model_filename)
    if isinstance(source, Fault):
        place = f"{source.file}:{source.line}" if source.line else str(source.file)
        raise Invalid(f"{place}: {source.text}")
    with pool_to_look(options.settings) as backends:
        return _described(found, draft, source, backends, options)


def _described(
    found: FoundModel, draft: Draft, source: Outline | None, backends: BackendPool, options: LoadOptions
) -> Beginning:
    folder, backend = prepare_draft(found, VERSION, draft, backends, options)
    if source is None or source.completes:
        complete(draft, backend, folder, options)
    config = draft.finish(gpus=backend.usable_gpus(options.gpus), default_instance_count=backend.traits.cpu_instances)
    if source is None:
        return Beginning(config)
    return Beginning(config, tuple(source.reads), tuple(source.writes))
