"""From the arguments of `bind` to a model, and the texts about wrong ones."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from halimede.backends.function.functions import Function, Functions
from halimede.binding.models import bound_model
from halimede.binding.tensors import Tensor
from halimede.config import ModelConfig, read_override
from halimede.errors import Invalid

X, Y = Tensor("x", np.float32, [-1]), Tensor("y", np.float32, [-1])


def same(x: Any) -> Any:
    return x


def counting(x: Any) -> Iterator[Any]:
    yield x


def config_of(
    function: Function = same,
    name: str = "m",
    max_batch_size: int = 0,
    batching: bool | Mapping[str, Any] = True,
    decoupled: bool | None = None,
    inputs: Any = (X,),
    **config: Any,
) -> ModelConfig:
    functions = Functions((function, function))
    found = bound_model(name, functions, inputs, [Y], max_batch_size, batching, decoupled, config, 1)
    assert found.config is not None
    assert found.bound is not None
    assert found.bound.content is functions
    return read_override(found.config, found.folder).finish()


def test_model_without_batches() -> None:
    config = config_of()
    assert (config.name, config.max_batch_size, config.dynamic_batching) == ("m", 0, None)
    assert [spec.name for spec in (*config.inputs, *config.outputs)] == ["x", "y"]
    assert [group.count for group in config.instance_groups] == [2]
    assert not config.decoupled


def test_batches_are_dynamic_unless_switched_off() -> None:
    assert config_of(max_batch_size=8).dynamic_batching is not None
    assert config_of(max_batch_size=8, batching=False).dynamic_batching is None
    batching = config_of(max_batch_size=8, batching={"max_queue_delay_microseconds": 500}).dynamic_batching
    assert batching is not None
    assert batching.max_queue_delay_us == 500


def test_sequences_have_no_dynamic_batcher() -> None:
    config = config_of(max_batch_size=8, sequence_batching={"oldest": {"max_candidate_sequences": 4}})
    assert config.dynamic_batching is None
    assert config.sequence_batching is not None


def test_generator_is_decoupled_by_itself() -> None:
    assert config_of(counting).decoupled
    assert config_of(decoupled=True).decoupled


def test_further_fields_of_the_configuration() -> None:
    assert config_of(response_cache={"enable": True}).response_cache


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": ""}, "'' cannot be the name of a model"),
        ({"name": "a/b"}, "'a/b' cannot be the name of a model"),
        ({"function": counting, "decoupled": False}, "a function that yields has several responses"),
        ({"batching": {}}, "batching needs a max_batch_size of 1 or more"),
        ({"max_batch_size": -1}, "model 'm': 'max_batch_size' must be non-negative"),
        ({"backend": "python"}, "config must not have 'backend': the model is what you bind"),
        ({"instance_group": []}, "config must not have 'instance_group': use the argument function"),
        ({"response_cash": {}}, "response_cash: Cannot find field."),
        ({"version_policy": {1, 2}}, "the configuration cannot be written as JSON"),
        ({"inputs": []}, "cannot be called as"),
        ({"inputs": [X, Tensor("z", np.float32, [1])]}, "got an unexpected keyword argument 'z'"),
        ({"inputs": [Tensor("x", np.float32, [0])]}, "model 'm': "),
    ],
)
def test_arguments_that_are_no_model(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(Invalid) as caught:
        config_of(**arguments)
    assert text in str(caught.value)
