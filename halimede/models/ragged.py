"""Translates the ragged inputs and batch tensors of a configuration for the scheduler (S36, S37, S39). Pure."""

from halimede.config import ModelConfig
from halimede.scheduling.ragged import BatchInput, Ragged


def ragged_of(config: ModelConfig) -> Ragged | None:
    """None if each request is simply some rows of its batch."""
    flat = [spec.name for spec in config.inputs if spec.allow_ragged_batch]
    lead = (-1,) if config.max_batch_size else ()
    shapes = {spec.name: lead + spec.model_dims for spec in config.outputs}
    cut = {name: (each.source, shapes[name]) for each in config.batch_outputs for name in each.targets}
    made = [BatchInput(each.kind.value, each.targets, each.datatype, each.source) for each in config.batch_inputs]
    return Ragged(flat, made, cut) if flat or made or cut else None
