"""What a configuration asks of its backend that no model of the backend can do, by the backend's traits. Pure; any
thread."""

from collections.abc import Iterator

from halimede.backends.traits import Traits
from halimede.config import ModelConfig
from halimede.errors import Cause, Invalid


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
