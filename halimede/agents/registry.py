"""Where an agent of a name is found: in `--repoagent-directory`, as an entry point of an installed package, built in.

- `DIRECTORY/NAME/agent.py` has one class that derives from `RepositoryAgent`; it is read for each load, so that a new
  one counts from the next load on.
- An entry point `NAME` of the group `halimede.repository_agents` names such a class.

On load threads; blocks.
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
    """Those of an agent. Few servers have agents, and what lists the packages takes 6 ms to import."""
    from importlib.metadata import entry_points as of_packages

    return of_packages(group=ENTRY_POINTS, name=name)


def find_agent(name: str, directory: Path) -> type[RepositoryAgent]:
    """The class of an agent. Raises NotFound where there is none, in the real server's words; Internal where its code
    is no agent."""
    file = directory / name / FILE
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
    """Whether `find_agent` would look at the code of one. Runs nothing of it."""
    file = directory / name / FILE
    is_file = name not in ("", ".", "..") and Path(name).name == name and file.is_file()
    return is_file or bool(entry_points(name)) or name in BUILT_IN


def _module(name: str, file: Path) -> ModuleType:
    """The file as a module of its own name, which it has in `sys.modules` only while it is executed: it may be there
    in several states at once."""
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
    """What the code of an agent raises when it is imported is Internal, and in the log with its traceback."""
    try:
        yield
    except BaseException as error:  # the operator's code: SystemExit too, which would end the server
        log.error("repo agent '%s' cannot be imported", name, exc_info=error)
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
