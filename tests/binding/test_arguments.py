"""What a program is told that calls `bind` as another library has it, or with something else than a function."""

from typing import Any

import numpy as np
import pytest

from halimede import Server, Tensor
from halimede.errors import Invalid

X = Tensor("x", np.float32, [-1])
USUAL = "it is called as bind(name, function, inputs=[Tensor(...)], outputs=[Tensor(...)])"


def same(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("arguments", "named", "text"),
    [
        (
            (),
            {"model_name": "a", "infer_func": same, "inputs": [X], "outputs": [X]},
            "there is no argument 'model_name', it is 'name'; there is no argument 'infer_func', it is 'function'",
        ),
        (("a", 3), {}, "missing a required argument: 'inputs'"),
        (("a", same, [X], [X]), {"max_batchsize": 8}, "there is no argument 'max_batchsize'. Did you mean"),
        (("a", same, [X], [X], 8), {}, "too many positional arguments"),
    ],
)
def test_wrong_call_says_how_it_is_called(arguments: Any, named: Any, text: str) -> None:
    with pytest.raises(TypeError) as caught:
        Server().bind(*arguments, **named)
    assert text in str(caught.value)
    assert str(caught.value).endswith(USUAL)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3, same, [X], [X]), "the name of a model must be a text, not 3"),
        (("a", 3, [X], [X]), "model 'a': 3 is no function, nor a list of functions"),
        (("a", same, X, [X]), "model 'a': inputs must be a list of halimede.Tensor, not Tensor(name='x'"),
        (("a", same, [X], ["y"]), "model 'a': outputs must be a list of halimede.Tensor, not ['y']"),
    ],
)
def test_argument_of_a_wrong_kind_is_named(arguments: Any, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        Server().bind(*arguments)
    assert text in str(caught.value)


def test_config_must_be_fields() -> None:
    config: Any = object()
    with pytest.raises(Invalid, match="model 'a': config must be a dict of fields"):
        Server().bind("a", same, [X], [X], config=config)
