"""Which code runs a model: a backend of this server, or the `model.py` of a Python-based one (R42, R43, R83).

Looks at file names, opens nothing. Called on load threads.
"""

from collections.abc import Container
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from halimede.backends import registry
from halimede.backends.api import ModelFolder
from halimede.backends.registry import advice_for, runs_python_backends, traits_of
from halimede.errors import Error, Invalid, Unsupported

PYTHON_BASED = "model.py"
"""The runtime of a Python-based backend, and the name of its file."""

_ENVIRONMENT = f"pb_exec_env_{PYTHON_BASED}.tar.gz"


@dataclass(frozen=True, slots=True)
class Runtime:
    """A backend of this server, by its name in the registry. `code` and `environment` are of a Python-based
    one: the file with its class, and the archive beside it, if there is one."""

    backend: str
    code: Path | None = None
    environment: Path | None = None


def find_runtime(
    model: str, backend: str, runtime: str, folder: ModelFolder, directory: Path, known: Container[str]
) -> Runtime:
    """What serves a model that is configured for `backend` and `runtime` (empty: not said). `directory` is where other
    backends lie, `known` are those of this server, each of which goes before one there that has its name.

    Raises Invalid in the real server's words, Unsupported for a shared library.
    """
    own = _library(backend)
    traits = traits_of(backend)
    if backend in known and runtime in ("", own, *(() if traits is None else traits.runtimes)):
        return Runtime(backend)
    if runtime == PYTHON_BASED:
        return _python_based(model, backend, directory)
    places = [folder.version, folder.model, *([directory / backend] if _is_plain(backend) else [])]
    library = runtime or own
    found = next((place / library for place in places if (place / library).is_file()), None)
    if found is not None and _is_plain(library):
        raise Unsupported(
            f"unable to load backend library '{found}' for model '{model}': shared libraries are not supported"
        )
    if runtime:
        searched = "".join(f"'{place}' " for place in places)
        raise Invalid(f"unable to find backend library '{runtime}' for model '{model}', searched: {searched}")
    if _is_plain(backend) and (directory / backend / PYTHON_BASED).is_file():
        return _python_based(model, backend, directory)
    raise unknown_backend(backend, directory)


def code_for(backend: str, platform: str) -> Path | None:
    """The file with the class that serves the models of a platform, if those of this backend have none themselves."""
    traits = traits_of(backend)
    module = None if traits is None else traits.platforms.get(platform)
    found = None if module is None else find_spec(module)
    return None if found is None or found.origin is None else Path(found.origin)


def origin_of(name: str, directory: str) -> str:
    """The file with the code of a backend, for a table: of this server, or one below `directory`."""
    traits = traits_of(name)
    return str(Path(directory) / name / PYTHON_BASED) if traits is None else registry.origin_of(traits)


def unknown_backend(name: str, directory: Path | None = None) -> Error:
    """`directory` is where a Python-based backend of this name was looked for."""
    error = Invalid(
        f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration."
    )
    if directory is not None and _is_plain(name):
        error.advice = (
            f"'{name}' is not served here: {advice_for(name)}; a backend in Python would be "
            f"{directory / name / PYTHON_BASED}"
        )
    return error


def _python_based(model: str, backend: str, directory: Path) -> Runtime:
    code = directory / backend / PYTHON_BASED
    if not (_is_plain(backend) and code.is_file()):
        raise Invalid(
            f"unable to find Python backend based backend library '{PYTHON_BASED}' for model '{model}', searched: "
            f"'{code}'"
        )
    environment = code.with_name(_ENVIRONMENT)
    return Runtime(runs_python_backends(), code, environment if environment.is_file() else None)


def _library(backend: str) -> str:
    return f"libtriton_{backend}.so"


def _is_plain(name: str) -> bool:
    """A name that does not lead out of the directory: configurations also come from clients (H113)."""
    return name not in ("", ".", "..") and not {"/", "\\", "\0"}.intersection(name)
