"""What a configuration asks for in vain: what no model of the backend can do, by the backend's traits, and amounts that
the server does not allow. Pure; any thread."""

from collections.abc import Iterator
from math import prod

from halimede.backends.traits import Traits
from halimede.config import ModelConfig
from halimede.errors import Cause, Invalid
from halimede.tensors import BYTES

MAX_WARMUP_REQUESTS = 1_000_000
"""Requests in the warm-up samples of a load, over the instances of all versions. Beyond: the load fails: 400."""
MAX_WARMUP_BYTES = 2 << 30
"""Bytes of the inputs of all warm-up samples of a load, counted once for each version. Beyond: the load fails: 400."""
MAX_WARMUP_STRINGS = 100_000
"""Strings in all warm-up samples of a load, counted once for each version. Beyond: the load fails: 400."""
MAX_RESOURCES = 20_000
"""Resources of the rate limiter that a load names, counted for each instance of all versions. Beyond: the load fails:
400."""
STRING_BYTES = 4
"""Of an empty string, of which such an input consists: its length."""


def refused_abilities(config: ModelConfig, traits: Traits) -> Iterator[str]:
    """The reasons to refuse a load (BC7). The text about optional inputs is Triton's. Triton's backends all gather
    ragged inputs; one that does not would fail each batch of several requests."""
    for spec in config.inputs:
        if spec.optional and not traits.optional_inputs:
            yield (
                f"'optional' is set to true for input '{spec.name}' while the backend model doesn't support optional "
                "input"
            )
        if spec.allow_ragged_batch and not traits.ragged:
            yield (
                f"'allow_ragged_batch' is set to true for input '{spec.name}' of model '{config.name}', but backend "
                f"'{traits.name}' has no ragged inputs"
            )


def check_abilities(config: ModelConfig, traits: Traits) -> None:
    """Raises Invalid for the first of these reasons."""
    for text in refused_abilities(config, traits):
        raise Invalid(text).blaming(Cause.CONFIGURATION)


def refused_amounts(
    config: ModelConfig, instances: int, warmup_samples: int, versions: int
) -> Iterator[tuple[str, str]]:
    """The reasons to refuse a load, by the most instances and warm-up samples of a configuration, each after the field
    that it is about. `versions` is how many the load brings into service.

    A client may have sent the configuration, and each instance may be a process. The event loop publishes the instances
    of all versions in one turn, and later retires them likewise.
    """
    of_groups = [group.count * max(1, len(group.gpus)) for group in config.instance_groups]
    of_version = sum(of_groups)
    wanted = of_version * versions
    if wanted > instances:
        each = f" ({of_version} in each of {versions} versions)" if versions > 1 else ""
        text = f"model '{config.name}' asks for {wanted} instances{each}, and --max-instances is {instances}"
        yield "instance_group", text
    named = sum(number * len(group.resources) for number, group in zip(of_groups, config.instance_groups, strict=True))
    if named * versions > MAX_RESOURCES:
        text = f"model '{config.name}' names {named * versions} resources over all its instances, and"
        yield "instance_group", f"{text} {MAX_RESOURCES} are allowed"
    samples = sum(sample.count for sample in config.warmup)
    largest = max((sample.batch_size for sample in config.warmup), default=0)
    for number, what in ((samples, "warm-up samples"), (largest, "requests in a warm-up sample")):
        if number > warmup_samples:
            text = f"model '{config.name}' asks for {number} {what}, and --max-warmup-samples is {warmup_samples}"
            yield "model_warmup", text
    asked = f"model '{config.name}' asks for warm-up samples with more than"
    if wanted * sum(sample.count * sample.batch_size for sample in config.warmup) > MAX_WARMUP_REQUESTS:
        yield "model_warmup", f"{asked} {MAX_WARMUP_REQUESTS} requests on all its instances"
    # The server makes them, and keeps them for instances that restart. Dimensions below 0 are refused elsewhere.
    inputs = [each for sample in config.warmup for each in sample.inputs if min(each.dims, default=0) >= 0]
    if versions * sum(prod(each.dims) * (each.datatype.size or STRING_BYTES) for each in inputs) > MAX_WARMUP_BYTES:
        yield "model_warmup", f"{asked} {MAX_WARMUP_BYTES} bytes"
    # The length of each is read, and the model may make an object of each. Other threads may have to wait meanwhile.
    if versions * sum(prod(each.dims) for each in inputs if each.datatype is BYTES) > MAX_WARMUP_STRINGS:
        yield "model_warmup", f"{asked} {MAX_WARMUP_STRINGS} strings"


def check_amounts(config: ModelConfig, instances: int, warmup_samples: int, versions: int) -> None:
    """Raises Invalid for the first of these reasons."""
    for _, text in refused_amounts(config, instances, warmup_samples, versions):
        raise Invalid(text).blaming(Cause.CONFIGURATION)
