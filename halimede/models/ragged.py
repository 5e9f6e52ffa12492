"""What of a configuration makes its batches ragged, for the scheduler (contract S36, S37, S39). Pure, any thread."""

from halimede.config import ModelConfig
from halimede.scheduling.ragged import BatchInput, Ragged


def ragged_of(config: ModelConfig) -> Ragged | None:
    """None where the inputs and outputs of every request are rows of the batch's."""
    flat = [spec.name for spec in config.inputs if spec.allow_ragged_batch]
    lead = (-1,) if config.max_batch_size else ()
    shapes = {spec.name: lead + spec.model_dims for spec in config.outputs}
    cut = {name: (each.source, shapes[name]) for each in config.batch_outputs for name in each.targets}
    made = [BatchInput(each.kind.value, each.targets, each.datatype, each.source) for each in config.batch_inputs]
    return Ragged(flat, made, cut) if flat or made or cut else None
