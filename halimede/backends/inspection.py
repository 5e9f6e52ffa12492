"""What `halimede check` says of a backend that is not `Inspecting`. Pure; any thread."""

from halimede.backends.api import Fault, Severity
from halimede.backends.traits import Traits


def not_inspected(traits: Traits) -> Fault:
    """A note: silence would say that nothing is wrong with the model's files."""
    text = f"the model's files were not looked at: backend '{traits.name}' only loads models"
    return Fault(text, instead="--load, which loads it", severity=Severity.NOTE)
