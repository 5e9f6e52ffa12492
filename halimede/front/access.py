"""Restricted endpoints, and headers that become request parameters, for both front ends.

Plain values and pure functions. Knows no protocol. Any thread.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from halimede.errors import Error, Invalid
from halimede.identities.guard import Caller
from halimede.identities.roles import Right
from halimede.requests import InferRequest


class Category(Enum):
    """The groups of endpoints that can be restricted, as the command line names them (H24, G13)."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"


Search = Callable[[str], object]
"""Returns None if it does not find what it looks for in a text."""


@dataclass(frozen=True, slots=True)
class Access:
    """What is restricted, and what is forwarded.

    `keys` maps the name of a category to the header, and its value, that a request must have. Other categories are
    open. `forward` searches the names of headers: those in which it finds something become parameters of an inference.
    None means none. `caller` is the one whose requests these are, None without `--auth`: what it may not do is refused
    before its body is read.
    """

    keys: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    forward: Search | None = None
    caller: Caller | None = None

    def refusal(self, category: Category, right: Right | None = None) -> Error | None:
        """Returns why the caller may use nothing of a category, or has not this one right; None if it may."""
        if self.caller is None:
            return None
        return self.caller.refusal(CATEGORY_RIGHTS[category] if right is None else (right,))


CATEGORY_RIGHTS: Mapping[Category, tuple[Right, ...]] = MappingProxyType(
    {
        Category.HEALTH: (Right.HEALTH,),
        Category.METADATA: (Right.METADATA,),
        Category.INFERENCE: (Right.INFERENCE,),
        Category.SHARED_MEMORY: (Right.REGIONS, Right.MEMORY),
        Category.MODEL_CONFIG: (Right.METADATA,),
        Category.MODEL_REPOSITORY: (Right.STATE, Right.CONTROL),
        Category.STATISTICS: (Right.STATE,),
        Category.TRACE: (Right.STATE, Right.CONTROL),
        Category.LOGGING: (Right.STATE, Right.CONTROL),
    }
)
"""The rights of which a request of a category needs one (`--auth`). Which one, its question says (`caller_port`)."""


MAX_FORWARDED_NAME = 256
"""Longest header name that is forwarded. A pattern may take time that grows fast with the text that it searches."""

OPEN = Access()
"""No category is restricted, and no header is forwarded."""


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


def hiding_keys(search: Search) -> Search:
    """Returns a search that never finds the header with the key of a caller, which is no business of models."""
    return lambda name: search(name) if name.lower() != "authorization" else None


def forward_headers(search: Search, headers: Iterable[tuple[str, str]], request: InferRequest) -> None:
    """Adds the headers with matching names to the parameters of a request. Of equal names the last counts. Raises
    Invalid for a name that the server itself uses (H25)."""
    # A dict keeps the last of equal names, as Triton does.
    found = {name: value for name, value in headers if len(name) <= MAX_FORWARDED_NAME and search(name)}
    for name in found:
        if name in _RESERVED or name.startswith("triton_"):
            raise Invalid(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
    # Most requests have no matching header. Their `parameters` stay None.
    if found:
        request.parameters = {**(request.parameters or {}), **found}
