"""What both front ends ask of a request before it is served, and what of its headers reaches the model.

Plain values and pure functions; knows no protocol. Any thread.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from halimede.errors import Invalid
from halimede.requests import InferRequest


class Category(Enum):
    """The groups of endpoints that can be restricted, as the command line names them (contract H24, G13)."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"


@dataclass(frozen=True, slots=True)
class Access:
    """`keys` are the header and its value that a request to a category must have, by the name of the category; what is
    not there is open to all. `forward` finds the headers that become parameters of an inference; None: no header does.
    """

    keys: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    forward: re.Pattern[str] | None = None


MAX_FORWARDED_NAME = 256
"""Headers with longer names are not forwarded: the time that a pattern takes may grow fast with what it searches."""

OPEN = Access()
"""Everything for everybody."""


def access_of(keys: Mapping[str, tuple[str, str]], forward_pattern: str) -> Access:
    """`forward_pattern` matches anywhere in a name and in any case (contract H25, G14); empty for none."""
    return Access(keys, re.compile(forward_pattern, re.IGNORECASE) if forward_pattern else None)


_RESERVED = frozenset(
    {
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
    }
)


def forward_headers(pattern: re.Pattern[str], headers: Iterable[tuple[str, str]], request: InferRequest) -> None:
    """Makes parameters of the headers whose names match, of equal ones the last. Raises Invalid for a name that means
    something to the server itself (contract H25)."""
    found = {name: value for name, value in headers if len(name) <= MAX_FORWARDED_NAME and pattern.search(name)}
    for name in found:
        if name in _RESERVED or name.startswith("triton_"):
            raise Invalid(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
    if found:
        request.parameters = {**(request.parameters or {}), **found}
