"""The application: the deployments `Engine` and `Ingress`, and what a program does with them. Any thread."""

import os
from collections.abc import Mapping
from time import monotonic, sleep
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from halimede.ray.ingress import Ingress
from halimede.ray.replica import Replica
from halimede.ray.settings import MAX_ONGOING_REQUESTS, settings_of

_ROUTER = "halimede.ray.routing:Router"

ANSWER_SECONDS = 30.0
"""How long an ingress may take to say its addresses."""
KNOWN_SECONDS = 10.0
"""How long a new ingress may take to become known to handles."""


def build(given: Mapping[str, Any]) -> Any:
    """Returns the application. Raises Invalid for wrong settings."""
    settings = settings_of(given, os.environ)
    # Serve kills what takes longer to leave. It first waits for the requests, and then each has its own exit timeout.
    leaving = {"graceful_shutdown_timeout_s": 2 * settings.options(os.environ).exit_timeout_secs}
    engine = {
        **leaving,
        "max_ongoing_requests": MAX_ONGOING_REQUESTS,
        "request_router_config": RequestRouterConfig(request_router_class=_ROUTER),
        **settings.engine,
    }
    # A node has each port once. An ingress waits for the network most of the time.
    ingress = {**leaving, "max_replicas_per_node": 1, "ray_actor_options": {"num_cpus": 0}, **settings.ingress}
    engines = serve.deployment(name="Engine", **engine)(Replica).bind(settings)
    return serve.deployment(name="Ingress", **ingress)(Ingress).bind(engines, settings)


def run(name: str, given: Mapping[str, Any]) -> list[dict[str, str]]:
    """Deploys the application and returns its addresses."""
    application = build(given)
    # Its own ports are not used, and by default one of them is 8000, too.
    serve.start(proxy_location="Disabled")
    serve.run(application, name=name, route_prefix=None)
    return addresses(name)


def addresses(name: str) -> list[dict[str, str]]:
    """Returns the addresses of the ingresses that run."""
    ingress = serve.get_deployment_handle("Ingress", name)
    until = monotonic() + KNOWN_SECONDS
    while True:
        # An ingress that has died may be among them for a moment.
        answers = ingress.broadcast("addresses").results(timeout_s=ANSWER_SECONDS, return_exceptions=True)
        found: list[dict[str, str]] = [each for each in answers if isinstance(each, dict)]
        # Serve tells handles of a new replica a moment after it counts as running.
        states = serve.status().applications[name].deployments["Ingress"].replica_states
        if len(found) >= states.get("RUNNING", 0) or monotonic() > until:
            return sorted(found, key=lambda each: each["http"])
        sleep(0.1)
