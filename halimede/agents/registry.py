"""Finds an agent by its name: in `--repoagent-directory`, in an installed package, or built in.

- `DIRECTORY/NAME/agent.py` has one class that derives from `RepositoryAgent`. It is read for each load, so that a
  change counts from the next load on.
- An entry point `NAME` of the group `halimede.repository_agents` names such a class.

Used on load threads; blocks.
"""

import importlib.util
import logging
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING

from halimede.agents.api import RepositoryAgent
from halimede.agents.checksum import ChecksumAgent
from halimede.errors import Internal, NotFound

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

log = logging.getLogger(__name__)

ENTRY_POINTS = "halimede.repository_agents"
FILE = "agent.py"
BUILT_IN: Mapping[str, type[RepositoryAgent]] = MappingProxyType({"checksum": ChecksumAgent})


def entry_points(name: str) -> "EntryPoints":
    """The entry points of an agent."""
    # Imported here: it takes 6 ms, and few servers have agents.
    from importlib.metadata import entry_points as of_packages

    return of_packages(group=ENTRY_POINTS, name=name)


def find_agent(name: str, directory: Path) -> type[RepositoryAgent]:
    """The class of an agent. Raises NotFound, in Triton's words, if there is none; Internal if the code is no agent."""
    file = directory / name / FILE
    # A name with a slash would lead out of the directory.
    if name not in ("", ".", "..") and Path(name).name == name and file.is_file():
        return _class_of(_module(name, file), file)
    for point in entry_points(name):
        with _explained(name, f"entry point '{point.value}'"):
            found = point.load()
        if not (isinstance(found, type) and issubclass(found, RepositoryAgent)):
            raise Internal(f"entry point '{point.value}' of repo agent '{name}' is no RepositoryAgent")
        return found
    if name in BUILT_IN:
        return BUILT_IN[name]
    raise NotFound(f"unable to find 'libtritonrepoagent_{name}.so' for repo agent '{name}', searched: {directory}")


def is_there(name: str, directory: Path) -> bool:
    """Whether there is code of that name for `find_agent`. Runs none of it."""
    file = directory / name / FILE
    is_file = name not in ("", ".", "..") and Path(name).name == name and file.is_file()
    return is_file or bool(entry_points(name)) or name in BUILT_IN


def _module(name: str, file: Path) -> ModuleType:
    """Runs the file as a module with a unique name. Several states of one file may be in use at once, so the name is
    only in `sys.modules` while the code runs."""
    private = f"halimede_repository_agent_{uuid.uuid4().hex}"
    spec = importlib.util.spec_from_file_location(private, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[private] = module
    try:
        with _explained(name, str(file)):
            spec.loader.exec_module(module)
    finally:
        del sys.modules[private]
    return module


@contextmanager
def _explained(name: str, where: str) -> Iterator[None]:
    """Turns what an agent's code raises during its import into Internal, and logs the traceback."""
    try:
        yield
    except BaseException as error:  # the operator's code may raise SystemExit, which would end the server
        log.error("repo agent '%s' cannot be imported; models that name it are not loaded", name, exc_info=error)
        raise Internal(f"repo agent '{name}': {where}: {type(error).__name__}: {error}") from error


def _class_of(module: ModuleType, file: Path) -> type[RepositoryAgent]:
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, RepositoryAgent) and value.__module__ == module.__name__
    ]
    if len(own) != 1:
        raise Internal(f"{file} must have one class that derives from RepositoryAgent, it has {len(own)}")
    return own[0]
