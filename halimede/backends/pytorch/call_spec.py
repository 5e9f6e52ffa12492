"""The names of the inputs and outputs of a PT2 model (BT28): ordinals, paths, or the names of arguments.

A model takes positional and named arguments, which may be lists, tuples and dicts of tensors. Its leaves, in order, are
its inputs; those of its result are its outputs. Pure; needs no torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from halimede.backends.pytorch.binding import Binding, outputs_of
from halimede.config.model_config import ModelConfig
from halimede.errors import Cause, Error, Internal, Invalid
from halimede.tensors import BYTES


def paths_of(structure: Any, root: str) -> Iterator[tuple[int, str]]:
    """The leaves of nested lists, tuples and dicts, with a path for each. The leaves of `structure` are their indices.
    Values of other classes have no paths."""
    if isinstance(structure, int):
        yield structure, root
    elif isinstance(structure, Mapping):
        for key, value in structure.items():
            yield from paths_of(value, f"{root}[{key}]")
    elif isinstance(structure, list | tuple):
        for i, value in enumerate(structure):
            yield from paths_of(value, f"{root}[{i}]")


def input_names(arguments: Any, given: Sequence[str] = ()) -> dict[str, int]:
    """The names of the leaves of `(args, kwargs)`. `given` are the names of the arguments, one for each leaf.

    A named argument is also `KWARGSname`, as Triton writes it."""
    positional, named = arguments
    names = {name: i for i, name in enumerate(given)}
    leaves = dict(paths_of(positional, "ARGS")) | dict(paths_of(named, "KWARGS"))
    for i, path in leaves.items():
        names[f"INPUT__{i}"] = names[path] = i
    for key, value in named.items():
        if isinstance(value, int):
            names[f"KWARGS{key}"] = value
    return names


def output_names(result: Any, given: Sequence[str] = ()) -> dict[str, int]:
    """The names of the leaves of the result. `given` are the keys of a dict, if it is one."""
    names = {name: i for i, name in enumerate(given)}
    for i, path in paths_of(result, "RESULT"):
        names[f"OUTPUT__{i}"] = names[path] = i
    return names


def keys_of(result: Any) -> list[str]:
    """The names that a result itself has: the keys of a dict of tensors."""
    if isinstance(result, Mapping) and all(isinstance(value, int) for value in result.values()):
        return [str(key) for key in result]
    return []


def bind_program(config: ModelConfig, instance: str, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> Binding:
    """The binding of a PT2 model. `inputs` and `outputs` have all names of its leaves. Raises Error (BT29)."""
    for problem in program_problems(config, instance, inputs, outputs):
        raise problem
    order = sorted((spec.name for spec in config.inputs), key=inputs.__getitem__)
    return Binding(tuple(order), outputs_of(config, [outputs[spec.name] for spec in config.outputs]))


def program_problems(
    config: ModelConfig, instance: str, inputs: Mapping[str, int], outputs: Mapping[str, int]
) -> Iterator[Error]:
    """Why a PT2 model cannot be served with this configuration."""
    frame = (
        f'failed to create instance "{instance}" for inductor model "{config.name}": Failed to create '
        f'ModelInstanceState for model "{config.name}": '
    )
    leaves = len(set(inputs.values()))
    if len(config.inputs) != leaves:
        yield _unfit(
            f'{frame}Failed to load model "{instance}" configuration expects {len(config.inputs)} inputs, but model '
            f"expects {leaves} inputs."
        )
    for word, specs, names in (("Input", config.inputs, inputs), ("Output", config.outputs, outputs)):
        for spec in specs:
            if spec.name not in names:
                yield _unfit(
                    f'{frame}{word} "{spec.name}" for model instance "{instance}" is not found in model '
                    f"{word.lower()} map."
                )
            elif spec.datatype is BYTES:
                yield _unfit(
                    f'{frame}Unsupported datatype {spec.datatype.config_name} for {word.lower()} "{spec.name}" for '
                    f'model instance "{instance}".'
                )
    taken: dict[int, str] = {}
    for spec in config.inputs:
        leaf = inputs.get(spec.name)
        if leaf is not None and leaf in taken:
            yield _unfit(f"{frame}'{taken[leaf]}' and '{spec.name}' are the same input of the model")
        elif leaf is not None:
            taken[leaf] = spec.name
    if config.sequence_batching is not None:
        yield Invalid(f'{frame}Boolean sequence control validation is not supported for model instance "{instance}".')


def _unfit(text: str) -> Error:
    return Internal(text).blaming(Cause.CONFIGURATION)
