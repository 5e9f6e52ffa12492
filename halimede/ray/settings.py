"""What an application on a Ray cluster is told: flags of `halimede serve`, and the settings of the cluster. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from halimede.binding.flags import Option, options_of
from halimede.errors import Invalid
from halimede.options import ServerOptions, TraceOptions

MAX_ONGOING_REQUESTS = 64
"""Requests that a replica has at a time if the settings do not say. Serve's own default of 5 would leave nothing to
batch."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an application.

    flags -- the flags of `halimede serve`, as keywords (`model_repository`, `http_port`). Replicas use those about
        models, ingresses those about ports
    models_per_replica -- how many models a replica holds at most; it loads those that requests ask for. 0: each replica
        loads all models when it starts
    retries -- how often a request is sent again if the replica that ran it is lost
    engine -- options of `serve.deployment` for the replicas, such as `autoscaling_config`
    ingress -- likewise for the ingresses; at most one of them runs on a node
    """

    flags: Mapping[str, Option]
    models_per_replica: int
    retries: int
    engine: Mapping[str, Any]
    ingress: Mapping[str, Any]

    @property
    def may_sleep(self) -> bool:
        """Whether there may be no replica at all, so that a question about readiness must not wake one."""
        scaling = self.engine.get("autoscaling_config")
        return isinstance(scaling, Mapping) and scaling.get("min_replicas") == 0

    def options(self, environment: Mapping[str, str]) -> ServerOptions:
        """Returns the options that the flags stand for. Raises Invalid, Unsupported."""
        flags = dict(self.flags)
        if self.models_per_replica:
            flags["model_control_mode"] = "explicit"
        return options_of((), flags, environment)


def settings_of(given: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Reads settings: names of `Settings`, and flags beside them. Numbers may be text, as `serve run` passes them.

    Raises Invalid for wrong settings, and for flags that a cluster cannot obey.
    """
    left = dict(given)
    settings = Settings(
        models_per_replica=_number("models_per_replica", left.pop("models_per_replica", 0)),
        retries=_number("retries", left.pop("retries", 2)),
        engine=_mapping("engine", left.pop("engine", {})),
        ingress=_mapping("ingress", left.pop("ingress", {})),
        flags=left,
    )
    if settings.models_per_replica and "model_control_mode" in left:
        raise Invalid("models_per_replica sets model_control_mode: replicas load the models that requests ask for")
    options = settings.options(environment)
    if not options.model_repositories:
        raise Invalid("model_repository is missing: a folder that every node has, or a bucket")
    if options.allow_client_shm:
        raise Invalid("allow_client_shm: a client's shared memory does not reach the replicas of a cluster")
    if options.trace != TraceOptions():
        raise Invalid("the flags --trace-... have no effect on a cluster; Ray Serve has a tracing of its own")
    if options.console.allowed:
        raise Invalid("the console shows one engine, and a cluster has many; Ray's dashboard shows the replicas")
    return settings


def _number(name: str, value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise Invalid(f"{name} must be a number, not {value!r}") from None
    if number < 0:
        raise Invalid(f"{name} must not be negative, and is {number}")
    return number


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Invalid(f"{name} must be a dict of options of serve.deployment, not {value!r}")
    return dict(value)
