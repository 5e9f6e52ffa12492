"""Which repository agents a configuration names (contract R22), read before anything else of it counts: an agent may
put the model, and another configuration, elsewhere. Reads a file; any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from halimede.config import message as messages
from halimede.config.files import read_whole
from halimede.config.rendering import json_text

_FIELD = b"model_repository_agents"


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One agent of a model, with its parameters."""

    name: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AskedAgents:
    """The agents of a model in their order, and the configuration that names them as JSON, with nothing completed."""

    specs: tuple[AgentSpec, ...] = ()
    json: str = field(default="", compare=False)


_NONE = AskedAgents()


def agents_of(folder: Path, *, config_name: str = "", override: str | None = None) -> AskedAgents:
    """The agents in the configuration of a model's folder, or in the one that counts instead of it. Raises Invalid
    where that is none."""
    if override is not None:
        message = messages.parse_json(override)
    else:
        file = messages.file_of(folder, config_name)
        try:
            if _FIELD not in read_whole(file):  # almost every one: it need not be parsed twice
                return _NONE
        except OSError:
            return _NONE  # whoever reads the configuration next says so
        message = messages.parse_file(file, folder.name)
    specs = tuple(
        AgentSpec(agent.name, MappingProxyType(dict(agent.parameters)))
        for agent in message.model_repository_agents.agents
    )
    return AskedAgents(specs, json_text(message)) if specs else _NONE
