"""What auto_complete_config may change, and what it is told when it contradicts the configuration (P31)."""

import json
import re
from typing import Any

import pytest

from halimede.workers.child.model_config import ModelConfig

TENSOR = {"name": "A", "data_type": "TYPE_FP32", "dims": [4]}


def config(**fields: Any) -> ModelConfig:
    return ModelConfig(json.dumps({"name": "m", "max_batch_size": 0, "input": [], "output": [], **fields}))


def test_empty_configuration_is_completed() -> None:
    it = config()
    it.set_max_batch_size(8)
    it.set_dynamic_batching()
    it.add_input({**TENSOR, "optional": True})
    it.add_output(TENSOR)
    it.set_model_transaction_policy({"decoupled": False})
    assert it.as_dict() == {
        "name": "m",
        "max_batch_size": 8,
        "input": [{**TENSOR, "optional": True}],
        "output": [TENSOR],
        "dynamic_batching": {},
        "model_transaction_policy": {"decoupled": False},
    }


def test_another_configuration_can_be_made_of_the_text_of_one() -> None:
    made = ModelConfig(json.dumps(config(max_batch_size=2).as_dict()))
    made.set_max_batch_size(8)
    assert made.as_dict() == config(max_batch_size=8).as_dict()
    with pytest.raises(ValueError, match="for model 'm'"):
        made.set_max_batch_size(4)


def test_open_fields_of_a_present_tensor_are_filled() -> None:
    it = config(input=[{"name": "A", "data_type": "TYPE_INVALID", "dims": []}])
    it.add_input({**TENSOR, "optional": True})
    assert it.as_dict()["input"] == [{**TENSOR, "optional": True}]


def test_what_is_configured_alike_stays() -> None:
    it = config(input=[TENSOR], max_batch_size=4, dynamic_batching={"preferred_batch_size": [4]})
    it.add_input(TENSOR)
    it.set_max_batch_size(4)
    it.set_dynamic_batching()
    assert it.as_dict()["dynamic_batching"] == {"preferred_batch_size": [4]}
    assert it.as_dict()["input"] == [TENSOR]


WHERE = "in auto-complete-config function for model 'm'"


@pytest.mark.parametrize(
    ("present", "method", "argument", "text"),
    [
        (
            {"max_batch_size": 8},
            "set_max_batch_size",
            4,
            f"configuration specified max_batch_size 8, but {WHERE} specified max_batch_size 4",
        ),
        (
            {"input": [TENSOR]},
            "add_input",
            {**TENSOR, "data_type": "TYPE_INT8"},
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'A', "
            "model provides TYPE_INT8",
        ),
        (
            {"output": [TENSOR]},
            "add_output",
            {**TENSOR, "dims": [5]},
            "model 'm', tensor 'A': the model expects dims [5] but the model configuration specifies dims [4]",
        ),
        (
            {"input": [{**TENSOR, "optional": True}]},
            "add_input",
            {**TENSOR, "optional": False},
            "model 'm', tensor 'A': the model expects optional False "
            "but the model configuration specifies optional True",
        ),
        (
            {},
            "add_input",
            {**TENSOR, "x": 1},
            f"input 'A' {WHERE} contains property other than 'name', 'data_type', 'dims' and 'optional'.",
        ),
        (
            {},
            "add_output",
            {**TENSOR, "optional": True},
            f"output 'A' {WHERE} contains property other than 'name', 'data_type' and 'dims'.",
        ),
        ({}, "add_input", {"dims": [1]}, f"input {WHERE} is missing 'name' property."),
        ({}, "add_output", {"name": "A", "dims": [1]}, f"output 'A' {WHERE} is missing 'data_type' property."),
        ({}, "add_input", {"name": "A", "data_type": "TYPE_FP32"}, f"input 'A' {WHERE} is missing 'dims' property."),
        (
            {},
            "set_model_transaction_policy",
            {"x": 1},
            f"model transaction property {WHERE} contains property other than 'decoupled'.",
        ),
        (
            {"model_transaction_policy": {"decoupled": True}},
            "set_model_transaction_policy",
            {"decoupled": False},
            "trying to change decoupled property in auto-complete-config for model 'm', "
            "which is already set to 'True'.",
        ),
    ],
)
def test_contradiction_is_refused(present: dict[str, Any], method: str, argument: Any, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        getattr(config(**present), method)(argument)


@pytest.mark.parametrize("scheduler", ["sequence_batching", "ensemble_scheduling"])
def test_dynamic_batching_beside_another_scheduler_is_refused(scheduler: str) -> None:
    text = (
        f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function for model 'm' "
        "tries to set scheduling_choice as 'dynamic_batching'"
    )
    with pytest.raises(ValueError, match=f"^{text}$"):
        config(**{scheduler: {}}).set_dynamic_batching()
