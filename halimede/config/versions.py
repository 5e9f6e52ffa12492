"""Which version directories of a model are served: the version policy, and its choice among names (R2, R3, R44).

Knows names of directories; the caller lists them. Pure, any thread.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from halimede.config.message import Message
from halimede.errors import Invalid


class VersionChoice(Enum):
    """The kind of a version policy (R44)."""

    LATEST = "latest"
    ALL = "all"
    SPECIFIC = "specific"


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which of the version directories are served: the `latest` n, all, or the listed ones (R44)."""

    choice: VersionChoice = VersionChoice.LATEST
    latest: int = 1
    specific: tuple[int, ...] = ()


MAX_VERSIONS = 512
"""Versions of a model that are served at the same time. The event loop publishes them in one turn. Beyond: the load
fails: 400."""
_NOT_VERSIONS = frozenset({"configs", "initial_state", "warmup"})
"""Directories of a model that hold something else, and get no warning."""
_LEADING_NUMBER = re.compile(r"\s*\+?(\d+)", re.ASCII)
_MAX_VERSION = 2**63 - 1
_MEANT = re.compile(r"(?:v|ver|version|rev|r)?[-_. ]?0*(\d{1,18})", re.ASCII | re.IGNORECASE)
_MAX_TOLD = 3
"""Directories that an advice names."""


def version_policy_of(message: Message) -> VersionPolicy:
    """The version policy of a configuration."""
    policy = message.version_policy
    match policy.WhichOneof("policy_choice"):
        case "latest":
            return VersionPolicy(VersionChoice.LATEST, latest=policy.latest.num_versions)
        case "specific":
            return VersionPolicy(VersionChoice.SPECIFIC, specific=tuple(policy.specific.versions))
        case _:  # a policy without a choice means all, as in Triton
            return VersionPolicy(VersionChoice.ALL)


def versions_to_load(policy: VersionPolicy, names: Iterable[str], model: str) -> tuple[list[int], list[str]]:
    """The versions to serve, ascending, and warnings to log. `names` are those of the model's subdirectories.

    A name counts by the number that it begins with, like C's `strtol`: `1abc` is version 1. Raises Invalid if no
    version is left (R3), or if there are too many.
    """
    names = sorted(set(names) - _NOT_VERSIONS)
    present, warnings = _present(names)
    if policy.choice is VersionChoice.SPECIFIC:
        chosen = present & set(policy.specific)
        warnings += [_missing(version, model) for version in policy.specific if version not in present]
    elif policy.choice is VersionChoice.LATEST:
        chosen = set(sorted(present, reverse=True)[: policy.latest])
    else:
        chosen = present
    if not chosen:
        error = Invalid(f"at least one version must be available under the version policy of model '{model}'")
        if not present:
            error.advice = version_renames(names) if names else _NO_DIRECTORY
        raise error
    if len(chosen) > MAX_VERSIONS:
        asked = f"the version policy of model '{model}' asks for {len(chosen)} versions"
        raise Invalid(f"{asked}, and {MAX_VERSIONS} are allowed")
    return sorted(chosen), warnings


def meant_version(name: str) -> str:
    """The name that a directory should have if `name` is meant to be a version, such as 1 for v1; otherwise empty."""
    found = _MEANT.fullmatch(name)
    return found[1] if found is not None and found[1] != name else ""


def version_renames(names: Iterable[str]) -> str:
    """An advice for a model none of whose directories is a version; empty if none of them seems to be meant as one."""
    meant = {name: better for name in names if (better := meant_version(name))}
    told = " and ".join(f"'{name}' to '{better}'" for name, better in islice(meant.items(), _MAX_TOLD))
    return f"rename {told}: the names of version directories are numbers" if told else ""


_NO_DIRECTORY = "make a directory '1' in the model's, with the model's files in it; that of an ensemble stays empty"


def _present(names: Iterable[str]) -> tuple[set[int], list[str]]:
    present, warnings = set(), []
    for name in names:
        # No minus sign in the pattern: -1 means "any version" on the wire.
        number = _LEADING_NUMBER.match(name)
        if len(name) > 1 and name.startswith("0"):
            warnings.append(f"ignore version directory '{name}' which contains leading zeros in its directory name")
        elif number and int(number[1]) <= _MAX_VERSION:
            present.add(int(number[1]))
        else:
            warnings.append(f"ignore version directory '{name}' which fails to convert to integral number")
    return present, warnings


def _missing(version: int, model: str) -> str:
    return f"version {version} is specified for model '{model}', but the version directory is not present"
