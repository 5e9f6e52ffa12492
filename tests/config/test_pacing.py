"""The parameter of adaptive batching."""

from pathlib import Path

import pytest

from halimede import config
from halimede.errors import Error, Invalid
from tests.config.models import IDENTITY, folder_of

NAME = config.LATENCY_TARGET


def target(value: str) -> str:
    return f'max_batch_size: 8 {IDENTITY} parameters {{ key: "{NAME}" value {{ string_value: "{value}" }} }}'


def complaint(tmp_path: Path, text: str) -> str:
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
    assert complaint(tmp_path, target(value) + " dynamic_batching { }") == (
        f"model 'm': the parameter '{NAME}' must be a number of microseconds above 0, not '{value}'"
    )


def test_latency_target_and_a_fixed_delay_are_one_too_many(tmp_path: Path) -> None:
    text = target("20000") + " dynamic_batching { max_queue_delay_microseconds: 5 }"
    assert complaint(tmp_path, text) == (
        f"model 'm': the parameter '{NAME}' decides instead of 'max_queue_delay_microseconds': only one of them can be "
        "set"
    )


def test_latency_target_needs_a_batcher(tmp_path: Path) -> None:
    assert complaint(tmp_path, target("20000")) == f"the parameter '{NAME}' needs 'dynamic_batching' for m"


def test_latency_target_is_for_no_other_scheduler(tmp_path: Path) -> None:
    assert complaint(tmp_path, target("20000") + " sequence_batching { }") == (
        f"model 'm': the parameter '{NAME}' has no effect beside 'sequence_batching'"
    )
