"""What a configuration asks of a backend that cannot do it, as far as the backend's traits say so. Pure; any thread."""

from collections.abc import Iterator, Sequence

from halimede.backends.traits import DeviceKind, Traits
from halimede.checking.advice import FALLBACK
from halimede.config import ModelConfig
from halimede.config.model_config import InstanceKind


def gpu_advice(traits: Traits, gpus: Sequence[int]) -> str:
    """What to do about KIND_GPU or a list of GPUs if the backend cannot use those of this machine, or needs one; empty
    if there are none that it could use."""
    if DeviceKind.GPU not in traits.devices:
        return f"kind: KIND_CPU and no gpus; backend '{traits.name}' runs on CPUs only"
    if lacks_device(traits, gpus):
        return NEEDS_GPU
    if gpus:
        return f"the runtime of backend '{traits.name}' in its build for GPUs, or {FALLBACK} for the server"
    return ""


def lacks_device(traits: Traits, gpus: Sequence[int]) -> bool:
    """Whether no instance of a backend can be made on a machine with these GPUs."""
    return DeviceKind.CPU not in traits.devices and not gpus


NEEDS_GPU = "a machine with a GPU; or serve what the model was made from, with a backend that runs on CPUs"
"""What to do about a model whose backend runs on GPUs only."""


def unmet(config: ModelConfig, traits: Traits, gpus: bool = True) -> Iterator[str]:
    """A load accepts each of these, as in Triton, but the model cannot behave as its configuration says. What a load
    refuses is in `models.abilities`. `gpus`: also about instances on GPUs."""
    backend = f"backend '{traits.name}'"
    on_gpus = gpus and any(each.kind is InstanceKind.GPU for each in config.instance_groups)
    if on_gpus and DeviceKind.GPU not in traits.devices:
        yield f"{backend} runs on CPUs only, but an instance_group has a GPU"
    if config.sequence_batching is not None and config.sequence_batching.states and not traits.states:
        names = ", ".join(f"'{state.input_name}'" for state in config.sequence_batching.states)
        yield f"{backend} has no implicit states, so the states of sequence_batching never change: {names}"
    if not traits.ragged:
        targets = [each.targets for each in config.batch_inputs] + [each.targets for each in config.batch_outputs]
        for each in targets:
            listed = ", ".join(f"'{name}'" for name in each)
            yield f"{backend} has neither batch inputs nor batch outputs, but one has the target_name {listed}"
