"""What a program that calls `Server.bind` with other arguments is told. Pure; any thread."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from halimede.backends.function.functions import Function
from halimede.binding.tensors import Tensor
from halimede.errors import Invalid
from halimede.options import suggestion

P = ParamSpec("P")
R = TypeVar("R")

_ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {"model_name": "name", "infer_func": "function", "input": "inputs", "output": "outputs"}
)
"""Names of arguments as PyTriton's users write them, and singulars."""
_USUAL = "it is called as bind(name, function, inputs=[Tensor(...)], outputs=[Tensor(...)])"


def explained(method: Callable[P, R]) -> Callable[P, R]:
    """The method, whose TypeError for wrong arguments says how to call it."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            signature.bind(*arguments, **named)
        except TypeError as error:
            unknown = [name for name in named if name not in signature.parameters]
            raise TypeError(_text(str(error), unknown, list(signature.parameters))) from None
        return method(*arguments, **named)

    return call


def _text(error: str, unknown: Sequence[str], known: Sequence[str]) -> str:
    if not unknown:
        return f"bind: {error}; {_USUAL}"
    told = []
    for name in unknown:
        meant = _ELSEWHERE.get(name)
        told.append(f"there is no argument '{name}'{f', it is {meant!r}' if meant else suggestion(name, known)}")
    return f"bind: {'; '.join(told)}; {_USUAL}"


def check_kinds(name: Any, function: Any, inputs: Any, outputs: Any, config: Any) -> tuple[Function, ...]:
    """The functions. Raises Invalid for an argument of a wrong kind."""
    if not isinstance(name, str):
        raise Invalid(f"the name of a model must be a text, not {name!r}")
    if not callable(function) and not isinstance(function, Sequence):
        raise Invalid(f"model '{name}': {function!r} is no function, nor a list of functions")
    for what, tensors in (("inputs", inputs), ("outputs", outputs)):
        if not isinstance(tensors, Sequence) or not all(isinstance(each, Tensor) for each in tensors):
            raise Invalid(f"model '{name}': {what} must be a list of halimede.Tensor, not {tensors!r}")
    if config is not None and not isinstance(config, Mapping):
        raise Invalid(f"model '{name}': config must be a dict of fields of the model configuration, not {config!r}")
    return (function,) if callable(function) else tuple(function)
