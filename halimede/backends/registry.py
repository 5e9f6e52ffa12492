"""The backends that exist, by the name a model configuration gives (contract R42), and their creation.

A backend's module is imported when the first model needs it: a runtime that nobody uses costs neither start-up time nor
memory, and one that is not installed only fails the models that want it. Called on load threads.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import cast

from halimede.backends.api import Backend
from halimede.backends.runtimes import unknown_backend
from halimede.errors import Unavailable
from halimede.workers.calls import Port


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """Where a backend lives, and the extra of this package that installs its runtime (empty: always there)."""

    module: str
    attribute: str
    extra: str = ""
    calls: bool = False
    """Whether its models may call others."""


BACKENDS: Mapping[str, BackendEntry] = MappingProxyType(
    {
        "identity": BackendEntry("halimede.backends.identity", "IdentityBackend"),
        "onnxruntime": BackendEntry("halimede.backends.onnxruntime", "OnnxRuntimeBackend", extra="onnx"),
        "python": BackendEntry("halimede.backends.python", "PythonBackend", calls=True),
    }
)


def create_backend(
    name: str,
    loop: asyncio.AbstractEventLoop,
    settings: Mapping[str, str],
    table: Mapping[str, BackendEntry] = BACKENDS,
    port: Port | None = None,
) -> Backend:
    """The backend called `name`, with its `--backend-config` settings. Blocks while its runtime is imported. `port` is
    where its models call others.

    Raises Invalid where there is no such backend (the real server's words), Unavailable where its runtime is not
    installed (naming the extra that brings it).
    """
    entry = table.get(name)
    if entry is None:
        raise unknown_backend(name)
    try:
        module = import_module(entry.module)
    except ImportError as error:
        if not entry.extra or (error.name or "").startswith("halimede"):
            raise
        raise Unavailable(
            f"backend '{name}' cannot be used ({error}); it is installed by: pip install 'halimede[{entry.extra}]'"
        ) from error
    create = getattr(module, entry.attribute)
    return cast(Backend, create(loop, settings, port) if entry.calls and port is not None else create(loop, settings))
