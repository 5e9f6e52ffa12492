"""What an application on a Ray cluster may be told."""

from typing import Any

import pytest

from halimede.errors import Error, Invalid
from halimede.ray.settings import Settings, settings_of


def read(**given: Any) -> Settings:
    return settings_of({"model_repository": "models", **given}, {})


def test_flags_are_those_of_the_command_and_numbers_may_be_text() -> None:
    settings = read(models_per_replica="3", http_port="0", engine={"max_ongoing_requests": 5})
    options = settings.options({})
    assert (settings.models_per_replica, settings.retries, settings.engine) == (3, 2, {"max_ongoing_requests": 5})
    assert (options.model_repositories, options.http.port) == (("models",), 0)


def test_replicas_that_load_what_is_asked_for_start_without_models() -> None:
    assert read().options({}).model_control_mode == "none"
    assert read(models_per_replica=3).options({}).model_control_mode == "explicit"


@pytest.mark.parametrize(
    ("engine", "may_sleep"),
    [
        ({}, False),
        ({"num_replicas": 2}, False),
        ({"autoscaling_config": {"min_replicas": 1}}, False),
        ({"autoscaling_config": {"min_replicas": 0}}, True),
    ],
)
def test_whether_there_may_be_no_replica(engine: dict[str, Any], may_sleep: bool) -> None:
    assert read(engine=engine).may_sleep is may_sleep


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"model_repository": None}, "model_repository is missing: a folder that every node has, or a bucket"),
        ({"models_per_replica": "many"}, "models_per_replica must be a number, not 'many'"),
        ({"retries": -1}, "retries must not be negative, and is -1"),
        ({"engine": 3}, "engine must be a dict of options of serve.deployment, not 3"),
        (
            {"models_per_replica": 1, "model_control_mode": "poll"},
            "models_per_replica sets model_control_mode: replicas load the models that requests ask for",
        ),
        (
            {"allow_client_shm": True},
            "allow_client_shm: a client's shared memory does not reach the replicas of a cluster",
        ),
        (
            {"trace_config": "level=TIMESTAMPS"},
            "the flags --trace-... have no effect on a cluster; Ray Serve has a tracing of its own",
        ),
        (
            {"console_port": 8003},
            "the console shows one engine, and a cluster has many; Ray's dashboard shows the replicas",
        ),
        ({"http_prot": 0}, "unrecognized option '--http-prot=0'. Did you mean '--http-port'?"),
    ],
)
def test_wrong_setting_is_explained(given: dict[str, Any], text: str) -> None:
    with pytest.raises(Error) as caught:
        read(**given)
    assert isinstance(caught.value, Invalid)
    assert str(caught.value) == text
