"""Which steps of an ensemble leave their outputs on a device: those that only models on a device read."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from halimede.config import read_override
from halimede.config.model_config import ModelConfig
from halimede.models.ensembles import bind, graph_of

_INPUT = {"data_type": "TYPE_FP32", "dims": [2]}


def ensemble(*steps: tuple[str, dict[str, str], dict[str, str]], outputs: Sequence[str] = ("OUT",)) -> ModelConfig:
    fields = {
        "name": "e",
        "platform": "ensemble",
        "max_batch_size": 4,
        "input": [{"name": "IN", **_INPUT}],
        "output": [{"name": name, **_INPUT} for name in outputs],
        "ensemble_scheduling": {
            "step": [
                {"model_name": name, "model_version": -1, "input_map": reads, "output_map": writes}
                for name, reads, writes in steps
            ]
        },
    }
    return read_override(json.dumps(fields), Path("e")).finish()


@dataclass(eq=False)
class Member:
    name: str
    config: ModelConfig
    takes_device: bool
    number: int = 1
    decoupled: bool = False


def member(name: str) -> Any:
    """A version of a model, on a device if its name says so."""
    tensors = {"input": [{"name": "I", **_INPUT}], "output": [{"name": "O", **_INPUT}]}
    fields = {"name": name, "backend": "x", "max_batch_size": 4, **tensors}
    config = read_override(json.dumps(fields), Path(name)).finish()
    return Member(name, config, name.startswith("gpu"))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("gpu_a", "gpu_b", "gpu_c"), [True, True, False]),
        (("gpu_a", "cpu_b", "gpu_c"), [False, True, False]),
        (("cpu_a", "gpu_b", "cpu_c"), [True, False, False]),
    ],
)
def test_step_leaves_outputs_on_the_device_for_readers_there(names: tuple[str, ...], expected: list[bool]) -> None:
    first, second, third = names
    config = ensemble(
        (first, {"I": "IN"}, {"O": "between"}),
        (second, {"I": "between"}, {"O": "almost"}),
        (third, {"I": "almost"}, {"O": "OUT"}),
    )
    binding = bind(config, graph_of(config), lambda name, version: member(name))
    assert [step.on_device for step in binding.steps] == expected


def test_output_that_a_client_reads_too_comes_by_the_host() -> None:
    steps = (("gpu_a", {"I": "IN"}, {"O": "OUT"}), ("gpu_b", {"I": "OUT"}, {"O": "LAST"}))
    config = ensemble(*steps, outputs=("OUT", "LAST"))
    binding = bind(config, graph_of(config), lambda name, version: member(name))
    assert [step.on_device for step in binding.steps] == [False, False]
