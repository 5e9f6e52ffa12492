"""Calls the repository agents of models while they are loaded, served and unloaded (R22).

An `Engagement` is the agents of one model for one load and for the versions opened by it. Its states:

    state       event                                  next state   agents are called with
    LOADING     settle: the load succeeded             SERVING      load_complete
    LOADING     settle: the load failed                FAILED       load_fail
    LOADING     fail: nobody loads the model           FAILED       load_fail
    SERVING     leave: the last version closes         UNLOADING    unload
    SERVING     settle: a later load opened nothing    UNLOADING    unload, unload_complete
    UNLOADING   left: the last version has closed      (end)        unload_complete
    FAILED      left: the last version has closed      (end)        nothing

At the end the folders that the agents made are removed. Used on load and closing threads. The counts are locked,
because versions of one model may close at the same time.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from pathlib import Path

from halimede.agents import AgentModel, RepositoryAgent
from halimede.agents.registry import find_agent
from halimede.config import ConfiguredAgents, agents_of
from halimede.errors import Error, Internal, Unsupported
from halimede.models.repository import Fingerprint, FoundModel
from halimede.platform.scratch import Scratch, remove_leftovers

log = logging.getLogger(__name__)

PREFIX = "halimede-agents-"
"""The prefix of the temporary folders of agents."""
DIRECTORY = Path("/opt/tritonserver/repoagents")
"""The default of `--repoagent-directory`."""


class AgentsWanted(Exception):
    """A model cannot be inspected before its agents have run, which may take long."""


class _State(Enum):
    LOADING = "loading"
    SERVING = "serving"
    FAILED = "failed"
    UNLOADING = "unloading"


class Engagement:
    """The agents of one model for one load. `folder` is where they have put the model."""

    def __init__(self, found: FoundModel, seen: Fingerprint, asked: ConfiguredAgents) -> None:
        self.found, self.seen, self.asked = found, seen, asked
        self.folder = found.folder
        self._agents: list[tuple[str, RepositoryAgent]] = []
        self._scratch: list[Scratch] = []
        self._lock = threading.Lock()
        self._users = 0
        """The number of loads under way and open versions."""
        self._leaving = 0
        """How many of the versions are being closed."""
        self._state = _State.LOADING

    def fits(self, found: FoundModel, seen: Fingerprint, asked: ConfiguredAgents) -> bool:
        """Whether a load of the model, as it is now, can use this engagement."""
        lasts = self._state in (_State.LOADING, _State.SERVING)
        return lasts and (self.found, self.seen, self.asked) == (found, seen, asked)

    def begin(self, directory: Path) -> None:
        """Calls `load` of each agent in turn. If one raises, the agents before it get `load_fail`. Raises Error."""
        try:
            kinds = [(spec, find_agent(spec.name, directory)) for spec in self.asked.specs]
            for spec, kind in kinds:
                model = AgentModel(self.found.name, self.folder, self.asked.json, spec.parameters, self._private_folder)
                agent = kind(model)
                log.debug("agent '%s' of model '%s': load", spec.name, self.found.name)
                self.folder = agent.load() or self.folder
                self._agents.append((spec.name, agent))
            self.folder = self._named(self.folder)
        except BaseException as error:  # the operator's code may raise SystemExit, which would end the server
            self.fail()
            raise self._explained(error) from error

    def reserve(self) -> bool:
        """Begins a load. Returns False if it is too late: what the agents made is removed, or about to be."""
        with self._lock:
            if self._state not in (_State.LOADING, _State.SERVING):
                return False
            self._users += 1
            return True

    def settle(self, opened: int, failed: bool) -> None:
        """Ends a load that `reserve` began, with this number of versions opened. If it failed they are closed next."""
        with self._lock:
            first = self._state is _State.LOADING
            if first:
                self._state = _State.FAILED if failed else _State.SERVING
            self._users += opened - 1
            last = self._users == 0
        # A later load, which found the agents' work still valid, calls neither.
        if first and failed:
            self._tell("load_fail", lambda agent: agent.load_fail())
        elif first:
            self._tell("load_complete", lambda agent: agent.load_complete())
        if last:
            self._end()

    def fail(self) -> None:
        """The model was inspected, and is not loaded. Does nothing if a load has begun."""
        with self._lock:
            if self._state is not _State.LOADING or self._users:
                return
            self._state = _State.FAILED
        self._tell("load_fail", lambda agent: agent.load_fail())
        self._end()

    def leave(self) -> None:
        """A version is about to close."""
        with self._lock:
            self._leaving += 1
            all_leave = self._state is _State.SERVING and self._leaving == self._users
            if all_leave:
                self._state = _State.UNLOADING
        if all_leave:
            self._tell("unload", lambda agent: agent.unload())

    def left(self) -> None:
        """A version has closed."""
        with self._lock:
            self._users -= 1
            self._leaving -= 1
            last = self._users == 0
        if last:
            self._end()

    def _end(self) -> None:
        """No version is open, and no load is under way."""
        with self._lock:
            # `leave` has called `unload` already, unless the last user was a load that opened nothing.
            still_serving = self._state is _State.SERVING
            if still_serving:
                self._state = _State.UNLOADING
        if still_serving:
            self._tell("unload", lambda agent: agent.unload())
        if self._state is _State.UNLOADING:
            self._tell("unload_complete", lambda agent: agent.unload_complete())
        for scratch in self._scratch:
            scratch.remove()
        self._scratch.clear()

    def _tell(self, what: str, tell: Callable[[RepositoryAgent], None]) -> None:
        """Calls a method of all agents, in reverse order. An exception of one does not stop the others."""
        for name, agent in reversed(self._agents):
            log.debug("agent '%s' of model '%s': %s", name, self.found.name, what)
            try:
                tell(agent)
            except BaseException:  # SystemExit too
                log.exception(
                    "model '%s': %s of its agent '%s' raised an exception; it is ignored", self.found.name, what, name
                )

    def _private_folder(self) -> Path:
        self._scratch.append(Scratch(PREFIX))
        return self._scratch[-1].path

    def _named(self, folder: Path) -> Path:
        """The folder under the model's name, which a model's folder must have (R6): itself, or a link to it."""
        if not folder.is_dir():
            raise Internal(f"an agent put model '{self.found.name}' in '{folder}', which is not a directory")
        if folder.name == self.found.name:
            return folder
        # The configuration's name, if it has one, must be that of the folder.
        link = self._private_folder() / self.found.name
        link.symlink_to(folder.resolve(), target_is_directory=True)
        return link

    def _explained(self, error: BaseException) -> Error:
        if isinstance(error, Error):
            return error
        log.error("model '%s': one of its agents failed; the model is not loaded", self.found.name, exc_info=error)
        return Internal(f"an agent of model '{self.found.name}' failed: {type(error).__name__}: {error}")


class Agents:
    """The engagements of all models. `directory` is the one of `--repoagent-directory`."""

    def __init__(self, directory: Path = DIRECTORY, config_name: str = "") -> None:
        self.directory = directory
        self._config_name = config_name
        self._lock = threading.Lock()
        self._current: dict[tuple[str, bool], Engagement] = {}
        """By the model's key, and whether its configuration came with the load."""

    def engage(self, found: FoundModel, seen: Fingerprint, may_ask: bool = True) -> FoundModel:
        """The model as its agents leave it. If it has none, or has not changed since the last call, nothing runs.

        Raises Error if an agent fails, AgentsWanted if agents must run and may not.
        """
        # Only the names and parameters of agents are read here: the rest of the model may be encrypted.
        asked = agents_of(found.folder, config_name=self._config_name, override=found.config)
        if not asked.specs:
            self._forget(found)
            return found
        if found.config is not None:
            self._allow(found, asked)
        known = self._known(found)
        if known is None or not known.fits(found, seen, asked):
            if not may_ask:
                raise AgentsWanted
            known = self._engaged(found, seen, asked)
        return replace(found, folder=known.folder)

    def take(self, found: FoundModel) -> Engagement | None:
        """Begins a load of a model that was engaged. Returns None if it has no agents. Raises Error if one fails."""
        known = self._known(found)
        if known is None or known.reserve():
            return known
        # Since the inspection the last version has closed, and what the agents made was removed: they run again.
        again = self._engaged(found, known.seen, known.asked)
        again.reserve()
        return again

    def give_up(self, found: FoundModel) -> None:
        """The model was inspected, and is not loaded."""
        known = self._known(found)
        if known is not None:
            known.fail()

    def settle(self, found: FoundModel, taken: Engagement, opened: int, failed: bool) -> None:
        """A load of the model is over. An engagement that was only made to inspect it is not needed any more."""
        taken.settle(opened, failed)
        # A load with a client's configuration also inspects the one in the folder, so there may be two engagements.
        for is_override in (True, False):
            with self._lock:
                other = self._current.get((found.key, is_override))
            if other is not None and other is not taken:
                other.fail()

    def _known(self, found: FoundModel) -> Engagement | None:
        if not self._current:  # most servers have no agents, and need no lock
            return None
        with self._lock:
            return self._current.get((found.key, found.config is not None))

    def _forget(self, found: FoundModel) -> None:
        """The model has no agents any more. Versions in service keep theirs."""
        if self._known(found) is not None:
            with self._lock:
                before = self._current.pop((found.key, found.config is not None))
            before.fail()

    def _engaged(self, found: FoundModel, seen: Fingerprint, asked: ConfiguredAgents) -> Engagement:
        engagement = Engagement(found, seen, asked)
        with self._lock:
            is_first = not self._current
            before = self._current.get((found.key, found.config is not None))
            self._current[found.key, found.config is not None] = engagement
        # A server that was killed left its agents' folders, perhaps with decrypted models.
        if is_first:
            remove_leftovers(PREFIX)
        if before is not None:
            before.fail()
        engagement.begin(self.directory)
        return engagement

    def _allow(self, found: FoundModel, asked: ConfiguredAgents) -> None:
        """Raises Unsupported if a client's configuration would run other agents than the one in the repository."""
        if agents_of(found.folder, config_name=self._config_name) != asked:
            raise Unsupported(
                f"the repository agents of model '{found.name}' can only be set by the configuration in its folder"
            )
