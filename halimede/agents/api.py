"""What an agent derives from, and what it is told. Called on load and close threads, one call at a time for a load."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AgentModel:
    """A model that is being loaded. `folder` is where it lies now: in its repository, or where an agent before this one
    said. `config` is the configuration in the repository, as JSON. `parameters` are those of this agent there.

    `private_folder` gives an empty folder, for the server's user only, that is removed when the model is unloaded, when
    its load fails, and, should the process be killed, when the next server starts. Asked again it gives another one."""

    name: str
    folder: Path
    config: str
    parameters: Mapping[str, str]
    private_folder: Callable[[], Path]


class RepositoryAgent:
    """One object for each load of a model that names the agent. Each method may block; it may raise any exception.

    The order is `load`, then `load_complete` or `load_fail`; and after `load_complete`, when the model goes, `unload`
    and `unload_complete`. Several agents of a model load in the order of the configuration; everything else is told to
    them in the reverse order.
    """

    def __init__(self, model: AgentModel) -> None:
        self.model = model

    def load(self) -> Path | None:
        """Before anything of the model is read: where it lies, None for where it lay. An exception fails the load."""
        return None

    def load_complete(self) -> None:
        """All versions are opened."""

    def load_fail(self) -> None:
        """A version could not be opened, or an agent after this one failed."""

    def unload(self) -> None:
        """No request uses the model any more; it is closed next."""

    def unload_complete(self) -> None:
        """The model is closed."""
