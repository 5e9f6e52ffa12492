"""Which version directories of a model are served (contract R2, R3, R44). Pure, any thread."""

import re
from collections.abc import Iterable

from halimede.config.model_config import VersionChoice, VersionPolicy
from halimede.errors import Invalid

_NO_VERSIONS = frozenset({"configs", "initial_state", "warmup"})
"""Directories of a model that hold something else."""
_NUMBER = re.compile(r"\s*\+?(\d+)", re.ASCII)
_LARGEST = 2**63 - 1


def versions_to_load(policy: VersionPolicy, names: Iterable[str], model: str) -> tuple[list[int], list[str]]:
    """The versions to serve, ascending, and warnings to log, for the names of a model's sub-directories.

    A name counts by the number it begins with, as with C's conversion: `1abc` is version 1. A negative one is no
    version (-1 means "any" on the wire). Raises Invalid where no version is left (R3).
    """
    present, warnings = _present(names)
    if policy.choice is VersionChoice.SPECIFIC:
        chosen = present & set(policy.specific)
        warnings += [_missing(version, model) for version in policy.specific if version not in present]
    elif policy.choice is VersionChoice.LATEST:
        chosen = set(sorted(present, reverse=True)[: policy.latest])
    else:
        chosen = present
    if not chosen:
        raise Invalid(f"at least one version must be available under the version policy of model '{model}'")
    return sorted(chosen), warnings


def _present(names: Iterable[str]) -> tuple[set[int], list[str]]:
    present, warnings = set(), []
    for name in sorted(set(names) - _NO_VERSIONS):
        number = _NUMBER.match(name)
        if len(name) > 1 and name.startswith("0"):
            warnings.append(f"ignore version directory '{name}' which contains leading zeros in its directory name")
        elif number and int(number[1]) <= _LARGEST:
            present.add(int(number[1]))
        else:
            warnings.append(f"ignore version directory '{name}' which fails to convert to integral number")
    return present, warnings


def _missing(version: int, model: str) -> str:
    return f"version {version} is specified for model '{model}', but the version directory is not present"
