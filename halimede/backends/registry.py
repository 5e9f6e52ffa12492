"""The traits of all backends: those of this package, those of other distributions (entry points of the group
`halimede.backends`), and those that only Triton has.

Imports no runtime, and nothing of the server but `Traits`. Any thread.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from halimede.backends import elsewhere
from halimede.backends.traits import Format, Traits

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "halimede.backends"
"""The group of entry points for backends of other distributions. Each entry point is a `Traits`."""

_OWN: tuple[str | Traits, ...] = (
    "halimede.backends.identity",
    "halimede.backends.function",
    "halimede.backends.tensorflow",
    "halimede.backends.tensorrt",
    "halimede.backends.onnx",
    "halimede.backends.openvino",
    "halimede.backends.pytorch",
    "halimede.backends.tflite",
    "halimede.backends.fil",
    "halimede.backends.dali",
    "halimede.backends.sklearn",
    "halimede.backends.mlflow",
    "halimede.backends.python",
    *elsewhere.OTHERS,
)
"""Packages with a `TRAITS`, in the order in which a version directory is searched for their files (R70)."""


@cache
def known() -> tuple[Traits, ...]:
    """All backends, in the order in which a version directory is searched for their files.

    A backend of another distribution cannot replace one that this server has. It does replace one of `elsewhere`, in
    the same place of the order.
    """
    own = [import_module(each).TRAITS if isinstance(each, str) else each for each in _OWN]
    found = {traits.name: traits for traits in own}
    for entry in _entries():
        traits = _loaded(entry)
        if traits is None:
            continue
        if traits.name in found and found[traits.name].served:
            _warn(entry, traits.name, "is not used: there is already one with this name")
            continue
        owners = {each.filename: name for name, other in found.items() if name != traits.name for each in other.formats}
        for file in (each.filename for each in traits.formats if each.filename in owners):
            words = f"is not recognized by '{file}', a file of '{owners[file]}': its models must say"
            _warn(entry, traits.name, f'{words} backend: "{traits.name}"')
        found[traits.name] = traits
    return tuple(found.values())


def _entries() -> Iterable["EntryPoint"]:
    """The entry points of other distributions."""
    if not any(map(_mentions_group, sys.path)):
        return ()
    from importlib.metadata import entry_points  # this import takes 20 ms of each start

    return entry_points(group=GROUP)


def _mentions_group(folder: str) -> bool:
    """Whether a distribution in a folder of `sys.path` has entry points of our group."""
    mark = f"[{GROUP}]".encode()
    try:
        names = [name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info"))]  # noqa: PTH208
    except OSError:  # an archive, or a folder that does not exist
        return False
    for name in names:
        try:
            with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:  # noqa: PTH118, PTH123 - quicker
                if mark in file.read():
                    return True
        except OSError:  # most distributions have no entry points
            continue
    return False


def _loaded(entry: "EntryPoint") -> Traits | None:
    """The traits of an entry point. If they cannot be imported, logs a warning and returns None."""
    try:
        traits = entry.load()
    except Exception as error:  # an exception in foreign code must not prevent the start of the server
        _warn(entry, entry.name, f"is not used: {type(error).__name__}: {error}")
        return None
    if isinstance(traits, Traits):
        return traits
    _warn(entry, entry.name, f"is not used: '{entry.value}' is not a Traits")
    return None


def _warn(entry: "EntryPoint", name: str, what: str) -> None:
    import logging  # here, because reading the command line does not need it

    origin = f"distribution '{entry.dist.name}'" if entry.dist is not None else "an unknown distribution"
    logging.getLogger(__name__).warning("backend '%s' of %s %s", name, origin, what)


@cache
def served() -> Mapping[str, Traits]:
    """The backends whose models this server can run, by name."""
    return MappingProxyType({traits.name: traits for traits in known() if traits.served})


def packages() -> set[str]:
    """The packages of the backends of other distributions."""
    own = __name__.partition(".")[0]
    found = {traits.module.rpartition(".")[0] or traits.module for traits in served().values()}
    return {name for name in found if name.partition(".")[0] != own}


def traits_of(name: str) -> Traits | None:
    """The backend of this server with that name (R42)."""
    return served().get(name)


@cache
def formats() -> tuple[tuple[Traits, Format], ...]:
    """Every format with its backend, in the order in which a version directory is searched."""
    return tuple((traits, each) for traits in known() for each in traits.formats)


def usual_files() -> list[tuple[Traits, Format]]:
    """The first format of each backend of this server, in reverse order: the general ones come first."""
    return [(traits, traits.formats[0]) for traits in reversed(tuple(served().values())) if traits.formats]


def conversions() -> Mapping[str, Traits]:
    """The backend of each format that `halimede convert` can make."""
    return {name: traits for traits in served().values() for name in traits.conversions}


def runs_python_backends() -> str:
    """The name of the backend that serves the models of Python-based backends (R83)."""
    return next(traits.name for traits in served().values() if traits.runs_python_backends)


def alternatives() -> str:
    """Advice for a model whose backend this server does not have."""
    return ", or ".join(traits.alternative for traits in served().values() if traits.alternative)


def advice_for(backend: str) -> str:
    """How a model can be served whose configuration names a backend, or a platform, that this server does not have."""
    elsewhere = _elsewhere()
    return next((elsewhere[name] for name in _names_of(backend) if elsewhere.get(name)), "") or alternatives()


def is_elsewhere(backend: str) -> bool:
    """Whether Triton has a backend of this name, or for this platform, that the server does not have."""
    return any(name in _elsewhere() for name in _names_of(backend))


def _elsewhere() -> Mapping[str, str]:
    """The advice for each backend that the server does not have."""
    return {traits.name: traits.conversion for traits in known() if not traits.served}


def _names_of(backend: str) -> tuple[str, ...]:
    """The backends that a name may mean. A platform begins with its backend: tensorrt_plan."""
    return backend, backend.replace("_", ""), backend.partition("_")[0]


def resolve(reference: str) -> Any:
    """The object that "module:name" refers to. Raises ImportError, AttributeError."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def set_environment() -> None:
    """Sets the environment variables that runtimes need, unless the operator has set them. Call it before any thread
    starts."""
    for traits in _own_traits():
        for name, value in traits.environment.items():
            os.environ.setdefault(name, value)


def _own_traits() -> Iterator[Traits]:
    return (import_module(each).TRAITS for each in _OWN if isinstance(each, str))


def origin_of(traits: Traits) -> str:
    """The file of a backend's implementation, or the name of its module if it has no file."""
    found = find_spec(traits.module)
    return (found.origin if found is not None else None) or traits.module
