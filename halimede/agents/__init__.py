"""Repository agents: the operator's own code that runs when a model is loaded and unloaded (R22).

An agent is a class that derives from `RepositoryAgent`; `registry` finds it. This package knows no backends, engines or
protocols. `models.agents` calls the agents, on load and closing threads.
"""

from halimede.agents.api import AgentModel, RepositoryAgent

__all__ = ["AgentModel", "RepositoryAgent"]
