"""Exported programs (`torch.export.save`): what one declares, and a module of it on a device. Load threads."""

import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from halimede.backends.pytorch.binding import Binding
from halimede.backends.pytorch.call_spec import bind_program, input_names, keys_of, output_names
from halimede.backends.pytorch.effects import Effects
from halimede.backends.pytorch.running import Loaded
from halimede.backends.pytorch.texts import ProgramTexts, Texts, short
from halimede.backends.pytorch.values import DATATYPES_OF
from halimede.config.model_config import BatchDimension, DescribedTensor, Description, ModelConfig
from halimede.errors import Cause, Internal, Invalid, Unsupported

_READING = Lock()
"""torch reads one program at a time: the state of its reader is of the process."""
_OBJECTS = ("custom_obj", "opaque_obj")
"""What the names of pickled objects begin with."""
_VALUE_OPERATORS = frozenset(
    ["_local_scalar_dense", "bincount", "item", "one_hot", "repeat_interleave", "sparse_coo_tensor", "while_loop"]
)
"""Operators that make a number, or a tensor as large as one, of values in a tensor."""
_MOST_ROWS = 1 << 16
"""An upper bound of the batch dimension beyond this is none."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """An input or output of a program. `datatype` is None if no datatype of the server is like it. A size is an int, or
    the text of a symbol."""

    name: str
    datatype: Any
    sizes: tuple[int | str, ...]


class Program:
    """An exported program. `inputs` are its tensors; `constants` are other arguments, by their index among all
    leaves."""

    def __init__(self, path: Path, model: str, pickles: bool) -> None:
        """Reads the file. `pickles`: whether code may be unpickled. Raises Internal with torch's words, Unsupported."""
        try:
            if not pickles:
                _check_pickles(path)
            with _READING:
                self.program = torch.export.load(str(path))
        except Unsupported:
            raise
        except Exception as error:
            raise Internal(f"failed to load model '{model}': {short(error)}").blaming(Cause.FILE) from error
        self._model = model
        signature, spec = self.program.graph_signature, self.program.call_spec
        values = {node.name: node.meta.get("val") for node in self.program.graph.nodes}
        self.arguments = _structure(spec.in_spec)
        self.result = _structure(spec.out_spec)
        self.inputs: list[Leaf] = []
        self.constants: dict[int, Any] = {}
        names = _argument_names(self.program, self.arguments)
        for i, name in enumerate(signature.user_inputs):
            value = values.get(name) if isinstance(name, str) else None
            if isinstance(value, torch.Tensor):
                self.inputs.append(_leaf(names[i] if names else name, value))
            else:
                self.constants[i] = _constant(self.program, i)
        keys = keys_of(self.result)
        self.outputs = [
            _leaf(keys[i] if keys else f"OUTPUT__{i}", values.get(name) if isinstance(name, str) else None)
            for i, name in enumerate(signature.user_outputs)
        ]
        self.input_names = _without(input_names(self.arguments, names), self.constants)
        self.output_names = output_names(self.result, keys)
        rows = {leaf.sizes[0] if leaf.sizes else 0 for leaf in (*self.inputs, *self.outputs)}
        self._rows = rows.pop() if len(rows) == 1 else 0
        """The first size of all tensors, 0 if they differ."""

    def describe(self, source: str) -> Description:
        """Raises Unsupported for a tensor that no request can carry."""
        return Description(
            tuple(self._described(leaf) for leaf in self.inputs),
            tuple(self._described(leaf) for leaf in self.outputs),
            batch=BatchDimension.SYMBOLIC if self.batches else BatchDimension.NONE,
            max_batch_size=self._most_rows(),
            source=source,
        )

    def _described(self, leaf: Leaf) -> DescribedTensor:
        if leaf.datatype is None:
            raise Unsupported(f"'{leaf.name}' of model '{self._model}' is no tensor of a datatype of the protocol")
        return DescribedTensor(leaf.name, leaf.datatype, tuple(s if isinstance(s, int) else -1 for s in leaf.sizes))

    def _most_rows(self) -> int | None:
        for symbol, bounds in self.program.range_constraints.items():
            if str(symbol) == self._rows:
                return int(bounds.upper) if bounds.upper < _MOST_ROWS else None
        return None

    @property
    def batches(self) -> bool:
        """Whether requests may share a run: the first dimension of all tensors is the same symbol."""
        return isinstance(self._rows, str)

    def load(self, device: Any) -> Loaded:
        """The program on a device, or with None where its tensors are."""
        program = self.program
        if device is not None and device.type != "cpu":
            program = move_to_device_pass(program, device)
        mutates = bool(program.graph_signature.buffers_to_mutate)
        inputs = bool(program.graph_signature.user_inputs_to_mutate)
        call = _flat(program.module(), program.call_spec.in_spec, self.constants)
        # A result may be a parameter, and then the answer would be its memory.
        weights = set(program.graph_signature.inputs_to_parameters) | set(program.graph_signature.inputs_to_buffers)
        returns_own = not weights.isdisjoint(map(str, program.graph_signature.user_outputs))
        decide = not _VALUE_OPERATORS.isdisjoint(_operators(program.graph_module))
        return Loaded(call, Effects(mutates, inputs, mutates or returns_own, decide), self.batches)


class ProgramSource:
    """An exported program that is served."""

    def __init__(self, config: ModelConfig, program: Program, instance: str) -> None:
        self._config = config
        self._program = program
        self._instance = instance

    def load(self, device: Any) -> Loaded:
        return self._program.load(device)

    def binding(self) -> Binding:
        program = self._program
        bound = bind_program(self._config, self._instance, program.input_names, program.output_names)
        if self._config.max_batch_size > 1 and not program.batches:
            raise Invalid(
                f"model '{self._config.name}': max_batch_size is {self._config.max_batch_size}, and the first "
                "dimension of the program is not symbolic: export it with dynamic_shapes"
            ).blaming(Cause.CONFIGURATION)
        return bound

    def texts(self, instance: str) -> Texts:
        return ProgramTexts(instance)


def _operators(module: Any) -> Iterator[str]:
    """The operators of a graph and of those within it, by their names without the overload."""
    for each in module.modules():
        if isinstance(each, torch.fx.GraphModule):
            for node in each.graph.nodes:
                if node.op == "call_function":
                    yield getattr(node.target, "_opname", getattr(node.target, "__name__", ""))


def _structure(spec: Any) -> Any:
    """Nested lists, tuples and dicts as in the specification, with the index of each leaf in its place."""
    return pytree.tree_unflatten(list(range(spec.num_leaves)), spec)


def _argument_names(program: Any, arguments: Any) -> list[str]:
    """The names of the arguments of `forward`, if each is one leaf; else those of the placeholders."""
    positional, named = arguments
    known = program.module_call_graph[0].signature
    given = getattr(known, "forward_arg_names", None)
    if given and all(isinstance(each, int) for each in (*positional, *named.values())):
        return [*given[: len(positional)], *named]
    return [str(name) for name in program.graph_signature.user_inputs]


def _leaf(name: Any, value: Any) -> Leaf:
    if not isinstance(value, torch.Tensor):
        return Leaf(str(name), None, ())
    sizes = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    return Leaf(str(name), DATATYPES_OF.get(value.dtype), sizes)


def _constant(program: Any, i: int) -> Any:
    specs = [each for each in program.graph_signature.input_specs if each.kind.name == "USER_INPUT"]
    argument = specs[i].arg
    if not hasattr(argument, "value"):
        raise Unsupported(f"argument '{argument.name}' of the program is a number that changes from run to run")
    return argument.value


def _without(names: dict[str, int], left_out: dict[int, Any]) -> dict[str, int]:
    return {name: i for name, i in names.items() if i not in left_out}


def _flat(module: Any, spec: Any, constants: dict[int, Any]) -> Any:
    """A function that takes the tensors of the leaves and returns those of the result."""
    total = spec.num_leaves

    def call(*tensors: Any) -> Sequence[Any]:
        leaves = list(tensors)
        if constants:
            rest = iter(tensors)
            leaves = [constants[i] if i in constants else next(rest) for i in range(total)]
        positional, named = pytree.tree_unflatten(leaves, spec)
        return tuple(pytree.tree_leaves(module(*positional, **named)))

    return call


def _check_pickles(path: Path) -> None:
    """Opens the pickles of an archive in the way that runs no code, before torch opens them in the other. Raises
    Unsupported for one that is more than tensors."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        pickled = {
            str(each["path_name"])
            for name in names
            if name.endswith("_config.json")
            for each in json.loads(archive.read(name)).get("config", {}).values()
            if each.get("use_pickle")
        }
        for name in names:
            inside = name.partition("/")[2]
            last = inside.rpartition("/")[2]
            if last not in pickled and not last.endswith(".pt"):
                continue
            try:
                if last.startswith(_OBJECTS):
                    raise ValueError("an object of a class")
                torch.load(io.BytesIO(archive.read(name)), weights_only=True, map_location="cpu")
            except Exception as error:
                refusal = Unsupported(
                    f"'{path}' has a pickle, '{inside}', that is more than tensors and could run code: "
                    f"{short(error).splitlines()[0]}"
                )
                refusal.advice = "--backend-config=pytorch,allow-pickle=true opens it, if you trust its author"
                raise refusal.blaming(Cause.FILE) from error
