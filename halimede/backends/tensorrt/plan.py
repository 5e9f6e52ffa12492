"""What a plan declares: its tensors and profiles, as plain values. Knows no configuration. Load threads.

The runtime's module is an argument, so that nothing here imports it."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from halimede.errors import Internal
from halimede.tensors import DATATYPES, DataType, Shape

_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "FLOAT": "FP32",
        "HALF": "FP16",
        "BF16": "BF16",
        "INT8": "INT8",
        "UINT8": "UINT8",
        "INT32": "INT32",
        "INT64": "INT64",
        "BOOL": "BOOL",
    }
)
"""Our names of the runtime's types (BR7)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The shapes of an input in a profile. For a shape tensor they are its values."""

    least: Shape
    best: Shape
    most: Shape


@dataclass(frozen=True, slots=True)
class PlanTensor:
    """shape -- -1 for any size
    limits -- of an input, for each profile; empty for an output
    is_linear -- whether its elements lie one after the other; if not, `byte_size` is that of the packed form
    """

    name: str
    is_input: bool
    datatype: DataType
    shape: Shape
    is_shape_tensor: bool = False
    is_linear: bool = True
    limits: tuple[Limits, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    tensors: tuple[PlanTensor, ...]
    profiles: int

    @property
    def inputs(self) -> tuple[PlanTensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.is_input)

    @property
    def outputs(self) -> tuple[PlanTensor, ...]:
        return tuple(tensor for tensor in self.tensors if not tensor.is_input)

    def tensor(self, name: str) -> PlanTensor | None:
        return next((tensor for tensor in self.tensors if tensor.name == name), None)

    def batch_limit(self, profiles: tuple[int, ...]) -> int:
        """The largest batch: over all inputs the smallest, over the profiles in use the largest (BR4)."""
        limits = [
            min((each.limits[index].most[0] for each in self.inputs if each.shape), default=0) for index in profiles
        ]
        return max(limits, default=0)


def read_plan(trt: Any, engine: Any, model: str) -> Plan:
    """Raises Internal for a datatype that no request could carry."""
    profiles = int(engine.num_optimization_profiles)
    tensors = []
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        kind = engine.get_tensor_dtype(name).name
        if kind not in _NAMES:
            word = "input" if is_input else "output"
            raise Internal(f"unsupported datatype {kind} for {word} '{name}' for model '{model}'")
        is_shape = bool(engine.is_shape_inference_io(name))
        tensors.append(
            PlanTensor(
                name,
                is_input,
                DATATYPES[_NAMES[kind]],
                tuple(engine.get_tensor_shape(name)),
                is_shape,
                engine.get_tensor_format(name) == trt.TensorFormat.LINEAR,
                tuple(_limits(engine, name, each, is_shape) for each in range(profiles)) if is_input else (),
            )
        )
    return Plan(tuple(tensors), profiles)


def _limits(engine: Any, name: str, profile: int, is_shape: bool) -> Limits:
    if is_shape:
        return Limits(*(tuple(map(int, each)) for each in engine.get_tensor_profile_values(profile, name)))
    return Limits(*(tuple(map(int, each)) for each in engine.get_tensor_profile_shape(name, profile)))
