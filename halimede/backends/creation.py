"""Creation of a backend: its runtime is imported when the first model needs it, and not before.

A runtime that nobody uses costs neither start-up time nor memory. One that is not installed only fails the models that
want it. Called on load threads.
"""

import os
from dataclasses import replace
from typing import cast

from halimede.backends.api import Backend, BackendContext
from halimede.backends.child.settings import of_backend
from halimede.backends.homes import BackendOfTwoHomes
from halimede.backends.registry import resolve
from halimede.backends.traits import Home, Traits
from halimede.errors import Cause, Invalid, Unavailable
from halimede.workers.host.sandbox_settings import SANDBOX, parse_sandbox


def create_backend(traits: Traits, context: BackendContext) -> Backend:
    """The backend. With two homes the load of each model chooses one (`models.loader.find_backend`). Blocks while the
    runtime is imported. Raises Unavailable, with the command that installs the runtime, if it is missing, and what the
    backend itself raises."""
    # A backend that declares no calls must not come to depend on a port that it has by accident: a child has none.
    if not traits.calls_models:
        context = replace(context, calls=None)
    if Home.CHILD not in traits.homes and parse_sandbox(context.settings) is not None:
        raise Invalid(f"backend '{traits.name}' runs in the server's process only, so it cannot have {SANDBOX}=on")
    if Home.CHILD not in traits.homes or traits.starts_children:
        return create_in_this_process(traits, context)
    in_server = replace(context, settings=of_backend(context.settings))
    return BackendOfTwoHomes(traits, context, lambda: create_in_this_process(traits, in_server))


def create_in_this_process(traits: Traits, context: BackendContext) -> Backend:
    """The backend itself. Blocks while the runtime is imported. Raises as `create_backend`."""
    for name, value in traits.environment.items():
        os.environ.setdefault(name, value)
    try:
        create = resolve(traits.implementation)
    except ImportError as error:
        own = traits.module.partition(".")[0]
        if not traits.extra or (error.name or "").partition(".")[0] == own:
            raise
        raise missing_runtime(traits, error) from error
    return cast(Backend, create(context))


def missing_runtime(traits: Traits, error: ImportError) -> Unavailable:
    """The error for a runtime that is not installed, with the command that installs it."""
    missing = Unavailable(
        f"backend '{traits.name}' cannot be used ({error}); it is installed by: "
        f"pip install '{traits.distribution}[{traits.extra}]'"
    )
    return missing.blaming(Cause.ENVIRONMENT)
