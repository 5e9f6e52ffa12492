"""Orders for a child that hosts a backend, and their results: values of this package, pickled, in a frame.

Both sides run the same version of the package: `hosted.main` imports it from the server's folder. A server reads only
pickles of children that it has started, and a child only those of its server.
"""

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from halimede.backends.traits import Traits
from halimede.errors import Error
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


def read(data: bytes) -> Any:
    return pickle.loads(data)


def read_order(data: bytes) -> Order:
    order: Order = read(data)
    return order


def written_error(error: Error) -> bytes:
    """An error, with its cause and its advice. Its class becomes the one of the server that it derives from: the server
    need not have the module of a subclass."""
    plain = ERRORS[code_of(error)](error.message)
    plain.cause, plain.advice = error.cause, error.advice
    return written(plain)


def read_error(data: bytes) -> Error:
    error: Error = read(data)
    return error
