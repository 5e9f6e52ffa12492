"""The dynamic batcher of a configuration: queue policies (of a batcher, or of parameters), and the latency target."""

from pathlib import Path

import pytest

from halimede import config
from halimede.config import QueuePolicy
from halimede.errors import Error, Invalid
from tests.config.models import IDENTITY, folder_of


def read(parent: Path, text: str) -> config.ModelConfig:
    return config.read(folder_of(parent, "m", f"max_batch_size: 2 {IDENTITY} {text}")).finish()


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "QUEUE_{name}" value {{ string_value: "{value}" }} }}'


ALL_FIELDS = """
    timeout_action: DELAY default_timeout_microseconds: 18446744073709551615 allow_timeout_override: true
    max_queue_size: 4294967295
"""
ALL_VALUES = QueuePolicy(4294967295, 18446744073709551615, True, True)


def test_policies_of_a_dynamic_batcher(tmp_path: Path) -> None:
    value = read(
        tmp_path,
        f"""
        dynamic_batching {{
            priority_levels: 3 default_priority_level: 2
            default_queue_policy {{ max_queue_size: 7 }}
            priority_queue_policy {{ key: 1 value {{ {ALL_FIELDS} }} }}
            priority_queue_policy {{ key: 3 value {{ }} }}
        }}
        """,
    )
    batching = value.dynamic_batching
    assert batching is not None
    assert (batching.priority_levels, batching.default_priority_level, batching.preserve_ordering) == (3, 2, False)
    assert value.queue_policy == QueuePolicy(max_size=7)
    assert batching.level_policies == {1: ALL_VALUES, 3: QueuePolicy()}


def test_batcher_without_levels_ignores_their_default_and_policies(tmp_path: Path) -> None:
    value = read(
        tmp_path,
        "dynamic_batching { default_priority_level: 3 priority_queue_policy { key: 7 value { max_queue_size: 1 } } }",
    )
    batching = value.dynamic_batching
    assert batching is not None
    assert (batching.priority_levels, batching.default_priority_level, dict(batching.level_policies)) == (0, 0, {})


def test_preserve_ordering(tmp_path: Path) -> None:
    batching = read(tmp_path, "dynamic_batching { preserve_ordering: true }").dynamic_batching
    assert batching is not None
    assert batching.preserve_ordering


@pytest.mark.parametrize(
    "scheduler", ["", "dynamic_batching { }", "dynamic_batching { max_queue_delay_microseconds: 9 }"]
)
def test_queue_policy_comes_from_parameters(tmp_path: Path, scheduler: str) -> None:
    """Completion may add a dynamic batcher. It does not matter as long as it has no policy itself."""
    texts = (
        parameter("MAX_SIZE", "4294967295"),
        parameter("TIMEOUT_MICROSECONDS", "18446744073709551615"),
        parameter("ALLOW_TIMEOUT_OVERRIDE", "true"),
        parameter("TIMEOUT_ACTION", "DELAY"),
    )
    assert read(tmp_path, f"{scheduler} {' '.join(texts)}").queue_policy == ALL_VALUES


def test_default_policy_has_no_limits(tmp_path: Path) -> None:
    assert read(tmp_path, "").queue_policy == QueuePolicy(0, 0, False, False)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (parameter("MAX_SIZE", "-1"), "'QUEUE_MAX_SIZE' must be a number from 0 to 4294967295, not '-1'"),
        (
            parameter("MAX_SIZE", "4294967296"),
            "'QUEUE_MAX_SIZE' must be a number from 0 to 4294967295, not '4294967296'",
        ),
        (parameter("MAX_SIZE", ""), "'QUEUE_MAX_SIZE' must be a number from 0 to 4294967295, not ''"),
        (parameter("MAX_SIZE", "²"), "'QUEUE_MAX_SIZE' must be a number from 0 to 4294967295, not '²'"),
        pytest.param(
            parameter("MAX_SIZE", "1" * 5000),
            f"'QUEUE_MAX_SIZE' must be a number from 0 to 4294967295, not '{'1' * 5000}'",
            id="more digits than Python reads",
        ),
        (
            parameter("TIMEOUT_MICROSECONDS", "1e3"),
            "'QUEUE_TIMEOUT_MICROSECONDS' must be a number from 0 to 18446744073709551615, not '1e3'",
        ),
        (
            parameter("ALLOW_TIMEOUT_OVERRIDE", "1"),
            "'QUEUE_ALLOW_TIMEOUT_OVERRIDE' must be 'true' or 'false', not '1'",
        ),
        (parameter("TIMEOUT_ACTION", "delay"), "'QUEUE_TIMEOUT_ACTION' must be 'REJECT' or 'DELAY', not 'delay'"),
        (
            parameter("MAX_SIZE", "1") + " dynamic_batching { default_queue_policy { } }",
            "'QUEUE_MAX_SIZE' has no effect beside 'default_queue_policy'",
        ),
        (
            parameter("TIMEOUT_ACTION", "DELAY") + " sequence_batching { }",
            "'QUEUE_TIMEOUT_ACTION' has no effect beside 'sequence_batching'",
        ),
    ],
)
def test_bad_queue_parameter_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(Invalid) as caught:
        read(tmp_path, text)
    assert str(caught.value) == f"model 'm': the parameter {problem}"


TARGET = config.LATENCY_TARGET_PARAMETER


def target(value: str) -> str:
    return f'max_batch_size: 8 {IDENTITY} parameters {{ key: "{TARGET}" value {{ string_value: "{value}" }} }}'


def problem_of(tmp_path: Path, text: str) -> str:
    with pytest.raises(Invalid) as raised:
        config.read(folder_of(tmp_path, "m", text)).finish()
    error: Error = raised.value
    return str(error)


def test_latency_target_is_read(tmp_path: Path) -> None:
    batching = (
        config.read(folder_of(tmp_path, "m", target("20000") + " dynamic_batching { }")).finish().dynamic_batching
    )
    assert batching is not None
    assert batching.latency_target_us == 20000


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "²", "1" * 16, "soon"])
def test_latency_target_must_be_a_number(tmp_path: Path, value: str) -> None:
    assert problem_of(tmp_path, target(value) + " dynamic_batching { }") == (
        f"model 'm': the parameter '{TARGET}' must be a number of microseconds above 0, not '{value}'"
    )


def test_latency_target_excludes_a_fixed_delay(tmp_path: Path) -> None:
    text = target("20000") + " dynamic_batching { max_queue_delay_microseconds: 5 }"
    assert problem_of(tmp_path, text) == (
        f"model 'm': the parameter '{TARGET}' decides instead of 'max_queue_delay_microseconds': only one of them can "
        "be set"
    )


def test_latency_target_needs_a_batcher(tmp_path: Path) -> None:
    assert problem_of(tmp_path, target("20000")) == f"the parameter '{TARGET}' needs 'dynamic_batching' for m"


def test_latency_target_excludes_other_schedulers(tmp_path: Path) -> None:
    assert problem_of(tmp_path, target("20000") + " sequence_batching { }") == (
        f"model 'm': the parameter '{TARGET}' has no effect beside 'sequence_batching'"
    )
