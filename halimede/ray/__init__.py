"""Halimede on a Ray cluster: engines as replicas of Ray Serve, behind ports that speak Triton's protocol.

    import halimede.ray

    halimede.ray.run(model_repository="s3://models", models_per_replica=4, ingress={"num_replicas": 3})

`serve run halimede.ray:app model_repository=s3://models` does the same from a shell (docs/deploy/ray.md). Called by
programs that are connected to a cluster, on any thread. Ray is imported when a function is called.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

NAME = "halimede"
"""The name of the application if the caller gives none."""


def app(settings: Mapping[str, Any]) -> Any:
    """Returns the application for `serve.run`, `serve run` and Serve's configuration files. Raises Invalid for a wrong
    setting (`halimede.ray.settings`), and ImportError without Ray."""
    return _library().build(settings)


def run(name: str = NAME, **settings: Any) -> list[dict[str, str]]:
    """Deploys the application, waits until it runs, and returns `addresses(name)`.

    Starts Serve if it does not run, without Serve's own HTTP ports. An application of the same name is replaced. Raises
    Invalid for a wrong setting, RuntimeError if the deployment fails, and ImportError without Ray.
    """
    found: list[dict[str, str]] = _library().run(name, settings)
    return found


def addresses(name: str = NAME) -> list[dict[str, str]]:
    """Returns the open ports of a running application: for each node with an ingress a dict with `node` (its id in
    Ray), `http`, `grpc` and `metrics` (host and port; empty for a port that is not open)."""
    found: list[dict[str, str]] = _library().addresses(name)
    return found


def _library() -> Any:
    try:
        return import_module("halimede.ray.application")
    except ImportError as error:
        if (error.name or "").startswith("halimede"):  # a mistake of our own, and not the missing library
            raise
        raise ImportError(f"Ray is not installed ({error}): pip install 'halimede[ray]'", name=error.name) from error
