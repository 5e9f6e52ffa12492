"""Repository agents: code of the operator's that has a say when a model is loaded and unloaded (contract R22).

An agent is a class that derives from `RepositoryAgent`. Where it is found: `registry`. Nothing here knows of backends,
engines or protocols; the room of models calls the agents, on load and close threads.
"""

from halimede.agents.api import AgentModel, RepositoryAgent

__all__ = ["AgentModel", "RepositoryAgent"]
