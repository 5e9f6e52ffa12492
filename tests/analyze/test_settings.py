"""Command lines and YAML files: the forms of Model Analyzer, and what is wrong with them."""

import math
from pathlib import Path

import pytest

from halimede.analyze.command_line import HelpRequested, VersionRequested, parse
from halimede.analyze.fields import FIELDS
from halimede.analyze.ranking import Limits
from halimede.analyze.settings import Settings, flag_words, numbers_of
from halimede.errors import Invalid


def settings(*words: str) -> Settings:
    return parse(words).settings


def from_yaml(folder: Path, text: str, *words: str) -> Settings:
    file = folder / "a.yaml"
    file.write_text(text)
    return settings("profile", "-f", str(file), *words)


def test_models_come_as_words_with_commas_or_by_their_flag() -> None:
    for words in (["a", "b"], ["a,b"], ["--profile-models", "a,b"]):
        assert [each.name for each in settings("profile", *words).models] == ["a", "b"]


def test_defaults_are_those_of_model_analyzer() -> None:
    found = settings("profile", "m")
    (model,) = found.models
    bounds = model.bounds
    assert (bounds.min_concurrency, bounds.max_concurrency, bounds.min_rate, bounds.max_rate) == (1, 1024, 16, 8192)
    assert (bounds.min_instances, bounds.max_instances, bounds.min_batch, bounds.max_batch) == (1, 5, 1, 128)
    assert (bounds.binary_steps, model.batch_sizes, model.loads) == (5, (1,), ())
    assert model.goal.objectives == {"perf_throughput": 10}
    assert found.text("client_protocol") == "grpc"
    assert found.number("num_configs_per_model") == 3


def test_command_line_goes_before_the_file(tmp_path: Path) -> None:
    text = "model_repository: /a\nprofile_models: [m]\nclient_protocol: http\nlatency_budget: 5\n"
    found = from_yaml(tmp_path, text, "--latency-budget", "7")
    assert (found.text("model_repository"), found.text("client_protocol")) == ("/a", "http")
    assert found.models[0].goal.constraints == {"perf_latency_p99": Limits(most=7)}
    assert [each.name for each in from_yaml(tmp_path, text, "--profile-models", "other").models] == ["other"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1, 2], (1, 2)),
        ("1,2, 4", (1, 2, 4)),
        (3, (3,)),
        ({"start": 2, "stop": 6, "step": 2}, (2, 4, 6)),
        ({"start": 2, "stop": 4}, (2, 3, 4)),
        ("2:8:3", (2, 5, 8)),
        ("0.5,1", (0.5, 1)),
    ],
)
def test_numbers_come_as_lists_ranges_and_texts(value: object, expected: tuple[float, ...]) -> None:
    assert numbers_of(value) == expected


def test_models_of_a_file_have_settings_of_their_own(tmp_path: Path) -> None:
    text = """
constraints: {perf_latency_p99: {max: 100}}
perf_analyzer_flags: {percentile: 95}
profile_models:
  a:
    parameters: {concurrency: {start: 2, stop: 4}, batch_sizes: "1,2"}
    model_config_parameters: {max_batch_size: [2, 4]}
    objectives: [perf_latency_p99, perf_throughput]
    constraints: {perf_throughput: {min: 9}}
    perf_analyzer_flags: {shape: ["A:1", "B:2"]}
    run_config_search_max_instance_count: 2
  b:
    parameters: {request_rate: [10]}
    objectives: {perf_latency_p99: 2, perf_throughput: 3}
"""
    a, b = from_yaml(tmp_path, text).models
    assert (a.loads, a.batch_sizes, a.is_rate) == ((2, 3, 4), (1, 2), False)
    assert a.changes == {"max_batch_size": [2, 4]}
    assert a.goal.objectives == {"perf_latency_p99": 10, "perf_throughput": 10}
    assert a.goal.constraints == {"perf_throughput": Limits(least=9)}
    assert a.perf_words == ("--percentile", "95", "--shape", "A:1", "--shape", "B:2")
    assert a.bounds.max_instances == 2
    assert (b.loads, b.is_rate, b.goal.objectives) == ((10,), True, {"perf_latency_p99": 2, "perf_throughput": 3})
    assert b.goal.constraints == {"perf_latency_p99": Limits(most=100)}


def test_words_after_two_dashes_are_for_the_load() -> None:
    (model,) = settings("profile", "m", "--", "--shape", "A:1").models
    assert model.perf_words == ("--shape", "A:1")


def test_flags_without_a_value_are_words_alone() -> None:
    assert flag_words({"streaming": True, "async": None, "sync": False}) == ["--streaming", "--async"]


def test_online_mode_and_old_names_are_accepted() -> None:
    assert settings("-m", "online", "analyze", "x").command == "profile"
    assert parse(["-q", "profile", "x"]).is_quiet
    assert not parse(["profile", "x", "-v"]).is_quiet


def test_options_without_an_effect_say_so(tmp_path: Path) -> None:
    (of_model,) = from_yaml(tmp_path, "profile_models: {a: {weighting: 2}}").warnings
    assert of_model.startswith("weighting of the model 'a' has no effect: ")
    (warning,) = settings("profile", "m", "--perf-analyzer-timeout", "5").warnings
    assert warning.startswith("perf_analyzer_timeout has no effect: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("profile_model: [a]", "unknown key 'profile_model' in the YAML file. Did you mean 'profile_models'?"),
        (
            "profile_models: {a: {parameter: {}}}",
            "unknown key 'parameter' of the model 'a'. Did you mean 'parameters'?",
        ),
        ("profile_models: {a: {parameters: {clients: 1}}}", "unknown parameter 'clients' of the model 'a'"),
        ("profile_models: {a: {objectives: [speed]}}", "unknown tag 'speed' in objectives"),
        ("profile_models: {a: 3}", "what the model 'a' has must be names with values"),
        ("profile_models: [a]\nconcurrency: x", "concurrency must be numbers: "),
        ("profile_models: [a]\nconcurrency: {start: 4, stop: 2}", "concurrency must be numbers: "),
        ("profile_models: [a]\ncpu_only: perhaps", "cpu_only must be true or false, and is 'perhaps'"),
        ("profile_models: [a]\nrun_config_search_mode: best", "run_config_search_mode must be one of adaptive, "),
        ("profile_models: [a]\nrun_config_search_max_instance_count: 0", "the bounds of instances must be "),
        (
            "profile_models: [a]\nconstraints: {perf_throughput: 3}",
            "the constraint 'perf_throughput' must have min or max",
        ),
        ("profile_models: [a]\nconcurrency: 1\nrequest_rate: 2", "the model 'a' has both request_rate and concurrency"),
        ("- a", "must have names with values"),
        ("a: [", "is no YAML"),
    ],
)
def test_mistakes_of_a_file_are_named(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(Invalid) as caught:
        from_yaml(tmp_path, text)
    assert expected in str(caught.value)


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read: No such file or directory"):
        settings("profile", "-f", str(tmp_path / "no.yaml"))


@pytest.mark.parametrize("words", [(), ("--help",), ("profile", "--help"), ("report", "-h")])
def test_help_is_asked_for(words: tuple[str, ...]) -> None:
    with pytest.raises(HelpRequested):
        parse(words)


def test_help_lists_every_option_with_a_help_text() -> None:
    with pytest.raises(HelpRequested) as caught:
        parse(["profile", "--help"])
    for row in FIELDS.values():
        if row.help and "profile" in row.commands:
            assert row.flag in str(caught.value)


def test_version_is_asked_for() -> None:
    with pytest.raises(VersionRequested):
        parse(["--version"])


@pytest.mark.parametrize("words", [("profile", "--no-such"), ("frofile",), ("profile", "m", "--latency-budget", "x")])
def test_mistakes_of_a_line_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(Invalid):
        parse(words)


def test_longest_measurement_must_be_a_number() -> None:
    assert settings("profile", "m", "--measurement-seconds", "0.5").values["measurement_seconds"] == 0.5
    with pytest.raises(Invalid, match="measurement_seconds must be a number"):
        settings("profile", "m", "--measurement-seconds", "long")


def test_budget_and_least_throughput_are_constraints() -> None:
    (model,) = settings("profile", "m", "--latency-budget", "3.5", "--min-throughput", "10").models
    assert model.goal.constraints == {
        "perf_latency_p99": Limits(-math.inf, 3.5),
        "perf_throughput": Limits(10, math.inf),
    }


def test_delays_are_searched_by_default_only_by_the_adaptive_search() -> None:
    assert settings("profile", "m").delays == (0, 200, 1000)
    assert settings("profile", "m", "--run-config-search-mode", "brute").delays == ()
    assert settings("profile", "m", "--run-config-search-queue-delays", "0").delays == ()
    assert settings("profile", "m", "--run-config-search-queue-delays", "0,50").delays == (0, 50)
