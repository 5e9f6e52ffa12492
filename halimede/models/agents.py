"""The agents of models that are loaded and served: who is told what, and when (contract R22).

One `Engagement` is a model's agents for one load and for the versions that come of it. Load and close threads; locked,
since versions of one model may close at once.
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
DIRECTORY = Path("/opt/tritonserver/repoagents")


class AgentsWanted(Exception):
    """A model cannot be looked at before its agents did their work, which takes as long as it takes."""


class _State(Enum):
    LOADING = "loading"
    SERVING = "serving"
    FAILED = "failed"
    UNLOADING = "unloading"


class Engagement:
    """`folder` is where the agents left the model."""

    def __init__(self, found: FoundModel, seen: Fingerprint, asked: ConfiguredAgents) -> None:
        self.found, self.seen, self.asked = found, seen, asked
        self.folder = found.folder
        self._agents: list[tuple[str, RepositoryAgent]] = []
        self._scratch: list[Scratch] = []
        self._lock = threading.Lock()
        self._users = 0
        """Loads that want to open versions, and versions that are open."""
        self._leaving = 0
        """Those of them that are being closed."""
        self._state = _State.LOADING

    def fits(self, found: FoundModel, seen: Fingerprint, asked: ConfiguredAgents) -> bool:
        """Whether it is for this state of the model, and lasts."""
        lasts = self._state in (_State.LOADING, _State.SERVING)
        return lasts and (self.found, self.seen, self.asked) == (found, seen, asked)

    def begin(self, directory: Path) -> None:
        """Has the agents load, each after the other. Raises Error; those that had loaded are told that it failed."""
        try:
            kinds = [(spec, find_agent(spec.name, directory)) for spec in self.asked.specs]
            for spec, kind in kinds:
                model = AgentModel(self.found.name, self.folder, self.asked.json, spec.parameters, self._private_folder)
                agent = kind(model)
                log.debug("agent '%s' of model '%s': load", spec.name, self.found.name)
                self.folder = agent.load() or self.folder
                self._agents.append((spec.name, agent))
            self.folder = self._named(self.folder)
        except BaseException as error:  # the operator's code: SystemExit too, which would end the server
            self.fail()
            raise self._explained(error) from error

    def reserve(self) -> bool:
        """A load wants to open versions; False where it comes too late, and what the agents made is gone or going."""
        with self._lock:
            if self._state not in (_State.LOADING, _State.SERVING):
                return False
            self._users += 1
            return True

    def settle(self, opened: int, failed: bool) -> None:
        """That load is over, with so many versions opened, which are closed next where it failed."""
        with self._lock:
            first = self._state is _State.LOADING
            if first:
                self._state = _State.FAILED if failed else _State.SERVING
            self._users += opened - 1
            last = self._users == 0
        if first and failed:
            self._tell("load_fail", lambda agent: agent.load_fail())
        elif first:
            self._tell("load_complete", lambda agent: agent.load_complete())
        if last:
            self._end()

    def fail(self) -> None:
        """Nobody loads the model after all; nothing where somebody does, or did."""
        with self._lock:
            if self._state is not _State.LOADING or self._users:
                return
            self._state = _State.FAILED
        self._tell("load_fail", lambda agent: agent.load_fail())
        self._end()

    def leave(self) -> None:
        """A version is closed next."""
        with self._lock:
            self._leaving += 1
            all_leave = self._state is _State.SERVING and self._leaving == self._users
            if all_leave:
                self._state = _State.UNLOADING
        if all_leave:
            self._tell("unload", lambda agent: agent.unload())

    def left(self) -> None:
        """A version is closed."""
        with self._lock:
            self._users -= 1
            self._leaving -= 1
            last = self._users == 0
        if last:
            self._end()

    def _end(self) -> None:
        """Nobody uses what the agents made, and nobody will."""
        with self._lock:
            untold = self._state is _State.SERVING
            if untold:
                self._state = _State.UNLOADING
        if untold:
            self._tell("unload", lambda agent: agent.unload())
        if self._state is _State.UNLOADING:
            self._tell("unload_complete", lambda agent: agent.unload_complete())
        for scratch in self._scratch:
            scratch.remove()
        self._scratch.clear()

    def _tell(self, what: str, tell: Callable[[RepositoryAgent], None]) -> None:
        """All of them, in reverse order; what one of them raises changes nothing for the others."""
        for name, agent in reversed(self._agents):
            log.debug("agent '%s' of model '%s': %s", name, self.found.name, what)
            try:
                tell(agent)
            except BaseException:  # here too
                log.exception("agent '%s' of model '%s' failed in %s", name, self.found.name, what)

    def _private_folder(self) -> Path:
        self._scratch.append(Scratch(PREFIX))
        return self._scratch[-1].path

    def _named(self, folder: Path) -> Path:
        """The folder under the name of the model, which a model's folder must have (contract R6)."""
        if not folder.is_dir():
            raise Internal(f"'{folder}', where an agent put model '{self.found.name}', is no directory")
        if folder.name == self.found.name:
            return folder
        link = self._private_folder() / self.found.name
        link.symlink_to(folder.resolve(), target_is_directory=True)
        return link

    def _explained(self, error: BaseException) -> Error:
        if isinstance(error, Error):
            return error
        log.error("an agent of model '%s' failed", self.found.name, exc_info=error)
        return Internal(f"an agent of model '{self.found.name}' failed: {type(error).__name__}: {error}")


class Agents:
    """The engagements of a server, by model. `directory` is that of `--repoagent-directory`."""

    def __init__(self, directory: Path = DIRECTORY, config_name: str = "") -> None:
        self.directory = directory
        self._config_name = config_name
        self._lock = threading.Lock()
        self._current: dict[tuple[str, bool], Engagement] = {}
        """By model, and whether its configuration came with the load."""

    def engage(self, found: FoundModel, seen: Fingerprint, may_ask: bool = True) -> FoundModel:
        """The model as its agents leave it: itself where it has none. A second look at what has not changed asks them
        nothing. Raises Error where one of them fails, AgentsWanted where they had to be asked and may not be."""
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
        """The engagement for a load of a model that was engaged, reserved; None where it has no agents. Where what they
        made has gone meanwhile, they do it once more. Raises Error where one of them fails then."""
        known = self._known(found)
        if known is None or known.reserve():
            return known
        again = self._engaged(found, known.seen, known.asked)
        again.reserve()
        return again

    def give_up(self, found: FoundModel) -> None:
        """The model is not loaded after all."""
        known = self._known(found)
        if known is not None:
            known.fail()

    def settle(self, found: FoundModel, taken: Engagement, opened: int, failed: bool) -> None:
        """A load of the model is over. What was only engaged to look at it is not needed any more."""
        taken.settle(opened, failed)
        for is_override in (True, False):
            with self._lock:
                other = self._current.get((found.key, is_override))
            if other is not None and other is not taken:
                other.fail()

    def _known(self, found: FoundModel) -> Engagement | None:
        if not self._current:  # as on every server without agents
            return None
        with self._lock:
            return self._current.get((found.key, found.config is not None))

    def _forget(self, found: FoundModel) -> None:
        """It has no agents any more; versions in service keep theirs."""
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
        if is_first:
            remove_leftovers(PREFIX)
        if before is not None:
            before.fail()
        engagement.begin(self.directory)
        return engagement

    def _allow(self, found: FoundModel, asked: ConfiguredAgents) -> None:
        """What a client sends must not call agents that the operator did not ask for."""
        if agents_of(found.folder, config_name=self._config_name) != asked:
            raise Unsupported(
                f"the repository agents of model '{found.name}' can only be set by the configuration in its folder"
            )
