"""Orders for a child that hosts a backend, and their results: values of this package, pickled, in a frame.

Both sides run the same version of the package: `hosted.main` imports it from the server's folder. A child believes its
server. The server does not believe a child, which runs the code of a model: of its pickles it makes only the values
that a result may have.
"""

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum
from importlib import import_module
from types import MappingProxyType
from typing import Any

from halimede.backends.traits import Traits
from halimede.errors import Error, Internal
from halimede.tensors import datatype_named
from halimede.workers.messages import ERRORS, code_of


@dataclass(frozen=True, slots=True)
class Order:
    """What a child does: create the backend `traits` and call `method` of it with `arguments`; with no method, serve an
    instance of a model, whose configuration, folder and place the arguments are. `settings` are those of
    `--backend-config`."""

    traits: Traits
    settings: Mapping[str, str]
    arguments: tuple[Any, ...] = ()
    method: str = ""


class _Pickler(pickle.Pickler):
    """Knows the read-only dictionaries of configurations, which pickle does not."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, MappingProxyType):
            return _read_only, (dict(value),)
        return NotImplemented


def _read_only(value: dict[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(value)


def written(value: object) -> bytes:
    """Raises pickle.PicklingError or TypeError if a backend puts a live object into its result."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


class _Results(pickle.Unpickler):
    """Makes dataclasses, enumerations and errors of the modules that results come from, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        found = _FUNCTIONS.get((module, name))
        if found is None and module in _MODULES:
            found = getattr(import_module(module), name, None)
            if not isinstance(found, type) or not (is_dataclass(found) or issubclass(found, Enum | Error)):
                found = None
        if found is None:
            raise pickle.UnpicklingError(f"a result has no {module}.{name}")
        return found


_MODULES = frozenset({"halimede.backends.api", "halimede.config.model_config", "halimede.errors"})
_FUNCTIONS: Mapping[tuple[str, str], Any] = MappingProxyType(
    {(each.__module__, each.__name__): each for each in (_read_only, datatype_named)}
)


def read(data: bytes) -> Any:
    """A result. Raises Internal for one that no backend of this package returns."""
    try:
        return _Results(io.BytesIO(data)).load()
    except Exception as error:  # of any kind: the child may have sent anything
        raise Internal(f"a child process sent a result that makes no sense: {error}") from error


def read_order(data: bytes) -> Order:
    order: Order = pickle.loads(data)
    return order


def written_error(error: Error) -> bytes:
    """An error, with its cause and its advice. Its class becomes the one of the server that it derives from: the server
    need not have the module of a subclass."""
    plain = ERRORS[code_of(error)](error.message)
    plain.cause, plain.advice = error.cause, error.advice
    return written(plain)


def read_error(data: bytes) -> Error:
    error = read(data)
    return error if isinstance(error, Error) else Internal("a child process sent an error that is none")
