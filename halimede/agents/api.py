"""The base class of agents. Its methods are called on load and closing threads, one at a time for each load."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AgentModel:
    """A model that is being loaded."""

    name: str
    folder: Path
    """Where the model is: in its repository, or where the agent before this one has put it."""
    config: str
    """The configuration in the repository, as JSON."""
    parameters: Mapping[str, str]
    """The parameters of this agent in the configuration."""
    private_folder: Callable[[], Path]
    """Makes an empty folder that only the server's user can read. Each call makes another one.

    It is removed when the model is unloaded or its load fails. If the server is killed, the next server removes it.
    """


class RepositoryAgent:
    """One object for each load of a model that names the agent. Every method may block and may raise any exception.

    The order of calls is `load`, then `load_complete` or `load_fail`. After `load_complete` follow `unload` and
    `unload_complete` when the model goes. If a model has several agents, `load` is called in the order of the
    configuration, and every other method in the reverse order.
    """

    def __init__(self, model: AgentModel) -> None:
        self.model = model

    def load(self) -> Path | None:
        """Called before the model is read. Returns the folder to load it from, None for `model.folder`.

        An exception fails the load.
        """
        return None

    def load_complete(self) -> None:
        """All versions are opened."""

    def load_fail(self) -> None:
        """A version could not be opened, or an agent after this one raised an exception."""

    def unload(self) -> None:
        """No request uses the model any more. It is closed next."""

    def unload_complete(self) -> None:
        """The model is closed."""
