"""The backends that exist, by the name a model configuration gives (contract R42), and their creation.

A backend's module is imported when the first model needs it: a runtime that nobody uses costs neither start-up time nor
memory, and one that is not installed only fails the models that want it. Called on load threads.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import cast

from halimede.backends.api import Backend
from halimede.backends.runtimes import PYTHON_BASED, unknown_backend
from halimede.errors import Unavailable
from halimede.platform.worker_poller import WorkerPoller
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
        "identity": BackendEntry("halimede.backends.identity.backend", "IdentityBackend"),
        "onnxruntime": BackendEntry("halimede.backends.onnx.backend", "OnnxRuntimeBackend", extra="onnx"),
        "python": BackendEntry("halimede.backends.python.backend", "PythonBackend", calls=True),
    }
)


def place_of(name: str, directory: str) -> str:
    """Where the code of a backend lies, for a table: a module of this server, or a file below `directory`."""
    entry = BACKENDS.get(name)
    if entry is None:
        return str(Path(directory) / name / PYTHON_BASED)
    found = find_spec(entry.module)
    return (found.origin if found is not None else None) or entry.module


def create_backend(
    name: str,
    loop: asyncio.AbstractEventLoop,
    settings: Mapping[str, str],
    table: Mapping[str, BackendEntry] = BACKENDS,
    port: Port | None = None,
    worker_poller: WorkerPoller | None = None,
) -> Backend:
    """The backend called `name`, with its `--backend-config` settings. Blocks while its runtime is imported. `port` is
    where its models call others, `worker_poller` looks after its workers.

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
    if entry.calls and port is not None:
        return cast(Backend, create(loop, settings, port, worker_poller))
    return cast(Backend, create(loop, settings))
