"""The contract suite with the backend `function`: plain functions, async ones, and functions that get requests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from halimede.backends.api import Backend, BackendContext, BackendModel, ModelFolder
from halimede.backends.function.backend import FunctionBackend
from halimede.backends.function.functions import Function, Functions
from halimede.backends.testing import PATIENCE, SITUATIONS, NotApplicable, Situation
from halimede.config import ModelConfig
from tests.backends.contract.checking import Declared, check

Array = npt.NDArray[Any]
Result = Mapping[str, Array]


class Refilling:
    """Returns the same array for all inputs of one shape. The server must not send what a later call wrote."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, ...], Array] = {}

    def __call__(self, x: Array, **others: Array) -> Array:
        buffer = self._buffers.setdefault(x.shape, np.empty_like(x))
        buffer[...] = x
        return buffer


def same(x: Array, **others: Array) -> list[Array]:
    return [x]


def failing(x: Array) -> Array:
    if (x[:, 0] < 0).any():
        raise ValueError("negative numbers")
    return x


def repeated(x: Array) -> Iterator[Result]:
    for _ in range(int(x[0, 0])):
        yield {"y": x}


class Roles:
    """The functions of the roles. `gate` opens when the adapter releases them."""

    def __init__(self, gate: Event) -> None:
        self._gate = gate

    def slow(self, x: Array) -> Result:
        assert self._gate.wait(PATIENCE)
        return {"y": x}

    def function_of(self, role: str) -> Function:
        functions: Mapping[str, Callable[..., Any]] = {
            "echo": same,
            "bytes": same,
            "optional": same,
            "sequence": same,
            "failing": failing,
            "wrong shape": lambda x: x[:-1],
            "wrong datatype": lambda x: x.astype(complex),
            "unknown output": lambda x: {"OTHER": x},
            "slow": self.slow,
            "decoupled": repeated,
        }
        if role not in functions:
            raise NotApplicable("it has no such models")
        return functions[role]


def plain(function: Function) -> Functions:
    return Functions((Refilling(), Refilling()) if function is same else (function, function))


def in_async(function: Function) -> Functions:
    async def call(**inputs: Array) -> Any:
        return await asyncio.to_thread(function, **inputs)

    async def stream(**inputs: Array) -> AsyncIterator[Any]:
        for each in function(**inputs):
            yield each

    made = stream if function is repeated else call
    return Functions((made, made), concurrency=4)


def of_requests(function: Function) -> Functions:
    def call(requests: Sequence[Mapping[str, Array]]) -> list[Any]:
        return [function(**request) for request in requests]

    def stream(requests: Sequence[Mapping[str, Array]]) -> Iterator[list[Any]]:
        [request] = requests
        for each in function(**request):
            yield [each]

    made = stream if function is repeated else call
    return Functions((made, made), takes_requests=True)


class BackendOfRoles(FunctionBackend):
    """Binds the function of the role that the model's parameters name."""

    def __init__(self, context: BackendContext, form: Callable[[Function], Functions], roles: Roles) -> None:
        super().__init__(context)
        self._form, self._roles = form, roles

    def open(self, config: ModelConfig, folder: ModelFolder) -> BackendModel:
        function = self._roles.function_of(config.parameters["role"])
        return super().open(config, replace(folder, bound=self._form(function)))


class FunctionAdapter(Declared):
    name = "function"
    input = "x"
    output = "y"
    cannot: Mapping[str, str] = {
        **dict.fromkeys(["ragged", "broken file"], "it has no such models"),
        **dict.fromkeys(["rescheduled", "rescheduled outside of an iterative sequence"], "a function runs once"),
        "close after the last answer": "its last answer is the end of the generator",
        "noticed cancellation": "a function of arrays does not see whether its client has gone",
        "completion": "its configurations must be complete",
        "two devices": "its instances are on the CPU",
        "tensors on a device": "it has no device",
        "several batches in flight": "an instance has one batch at a time",
        "killed child": "it has no process",
    }

    def __init__(self, form: Callable[[Function], Functions]) -> None:
        self._form = form
        self._gate = Event()
        if form is in_async:
            self.cannot = {name: why for name, why in self.cannot.items() if name != "several batches in flight"}

    def create(self, context: BackendContext) -> Backend:
        return BackendOfRoles(context, self._form, Roles(self._gate))

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        Roles(self._gate).function_of(role)  # raises if there is none
        return {"parameters": {"role": {"string_value": role}}}

    def release(self) -> None:
        self._gate.set()


@pytest.mark.parametrize("form", [plain, in_async, of_requests], ids=lambda form: str(form.__name__))
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_function_keeps_the_contract(
    situation: Situation, form: Callable[[Function], Functions], tmp_path: Path
) -> None:
    check(situation, FunctionAdapter(form), tmp_path)
