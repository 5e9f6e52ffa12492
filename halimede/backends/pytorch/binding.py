"""Which input of the configuration is which argument of a model, and which output is which result. Pure; any thread.

The rules and texts for TorchScript are Triton's (BT3 to BT9, BT16, BT18 to BT20). Needs no torch.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from halimede.backends.texts import wrong_input_count
from halimede.config.model_config import ModelConfig, TensorSpec
from halimede.errors import Cause, Error, Internal, Invalid
from halimede.tensors import BYTES, DataType

log = logging.getLogger(__name__)

TENSOR = "Tensor"
STRINGS = "List[str]"
_ORDINAL = re.compile(r"__(\d*)")


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of `forward`. `type` is as TorchScript writes it, such as `Tensor`, `List[str]` or `int`."""

    name: str
    type: str

    @property
    def is_list(self) -> bool:
        return self.type.startswith("List[")

    @property
    def is_dict(self) -> bool:
        return self.type.startswith("Dict(") or self.type.startswith("Dict[")


@dataclass(frozen=True, slots=True)
class Output:
    """An output of the configuration and its position among the results."""

    name: str
    position: int
    datatype: DataType
    by_rows: bool
    """Whether its first dimension is the batch."""


@dataclass(frozen=True, slots=True)
class Binding:
    """`inputs` are the names of the inputs in the order of the arguments. With `as_dict` they are the keys of the only
    argument. `strings` are those that are BYTES."""

    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]
    as_dict: bool = False
    strings: frozenset[str] = frozenset()


def ordinal(name: str) -> int | None:
    """The number after the first `__` of a name; 0 if nothing follows it. None unless only digits follow (BT4)."""
    at = name.find("__")
    found = _ORDINAL.fullmatch(name, at) if at >= 0 else None
    return None if found is None else int(found[1] or 0)


def bind_script(config: ModelConfig, arguments: Sequence[Argument]) -> Binding:
    """The binding of a TorchScript model. Raises Invalid or Internal if the configuration does not fit."""
    for problem in script_problems(config, arguments):
        raise problem
    names = _input_names(config)
    strings = frozenset(spec.name for spec in config.model_inputs if spec.datatype is BYTES)
    if _takes_dict(arguments):
        return Binding(tuple(names), outputs_of(config, _positions_of_outputs(config)), True, strings)
    places = _positions(config, arguments)
    order = sorted(names, key=places.__getitem__)
    return Binding(tuple(order), outputs_of(config, _positions_of_outputs(config)), False, strings)


def script_problems(config: ModelConfig, arguments: Sequence[Argument]) -> Iterator[Error]:
    """Why a TorchScript model cannot be served with this configuration, in the order of Triton's checks."""
    yield from _problems_of_types(arguments)
    yield from _problems_of_count(config, arguments)
    yield from _problems_of_sequences(config)
    if not _takes_dict(arguments):
        yield from _problems_of_places(config, arguments)
    yield from _problems_of_strings(config)


def outputs_of(config: ModelConfig, positions: Sequence[int]) -> tuple[Output, ...]:
    """The outputs of a model at these positions."""
    cut = {name for each in config.batch_outputs for name in each.targets}
    return tuple(
        Output(spec.name, position, spec.datatype, config.max_batch_size > 0 and spec.name not in cut)
        for spec, position in zip(config.model_outputs, positions, strict=True)
    )


def _takes_dict(arguments: Sequence[Argument]) -> bool:
    return len(arguments) == 1 and arguments[0].is_dict


def _input_names(config: ModelConfig) -> list[str]:
    """The names of all inputs in the order of rule 3: batch inputs follow the inputs (BT18)."""
    batch = [name for each in config.batch_inputs for name in each.targets]
    others = [spec.name for spec in (*config.control_inputs, *config.state_inputs)]
    return [*(spec.name for spec in config.inputs), *batch, *others]


def _problems_of_types(arguments: Sequence[Argument]) -> Iterator[Error]:
    dicts = [each for each in arguments if each.is_dict]
    if dicts and len(arguments) > 1 and arguments[0] is not dicts[0]:
        yield Internal(
            "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is "
            "supported."
        )
    for each in arguments:
        if each.type == TENSOR or each.is_list or (each.is_dict and len(arguments) == 1):
            continue
        yield Internal(
            f"An input of type '{each.type}' was detected in the model. Only a single input of type Dict(str, Tensor) "
            "or input(s) of type Tensor are supported."
        )


def _problems_of_count(config: ModelConfig, arguments: Sequence[Argument]) -> Iterator[Error]:
    given = len(_input_names(config))
    if given != len(arguments) and not _takes_dict(arguments):
        yield wrong_input_count(config.name, given, len(arguments)).blaming(Cause.CONFIGURATION)
    for field, specs in (("input", config.inputs or config.batch_inputs), ("output", config.outputs)):
        if not specs:
            yield Internal(f"model configuration must contain at least one {field}, none were specified.").blaming(
                Cause.CONFIGURATION
            )


def _problems_of_sequences(config: ModelConfig) -> Iterator[Error]:
    for control in config.control_inputs:
        if ordinal(control.name) is None:
            yield Internal(f"input '{control.name}' does not follow <name>__<index> naming convention.").blaming(
                Cause.CONFIGURATION
            )
    if not config.states:
        return
    where = f"PyTorch model '{config.name}' is using sequence batching with state but"
    if any(ordinal(spec.name) is None for spec in (*config.inputs, *config.outputs)):
        yield _unfit(f"{where} not all inputs and outputs follow the <name>__<index> naming convention. ")
    for state in config.states:
        for name in (state.input_name, state.output_name):
            if ordinal(name) is None:
                yield _unfit(f"{where} state '{name}' does not follow the <name>__<index> naming convention. ")


def _positions(config: ModelConfig, arguments: Sequence[Argument]) -> dict[str, int]:
    """The position of each input: by the names of the arguments, by ordinals, or in the order of the configuration
    (BT3 to BT5). Controls and states have ordinals (BT19, BT20)."""
    own = _input_names(config)
    others = {spec.name for spec in (*config.control_inputs, *config.state_inputs)}
    names = [name for name in own if name not in others]
    of_arguments = {each.name: i for i, each in enumerate(arguments)}
    if all(name in of_arguments for name in names):
        places = {name: of_arguments[name] for name in names}
    elif all(ordinal(name) is not None for name in names):
        places = {name: ordinal(name) or 0 for name in names}
    else:
        places = {name: i for i, name in enumerate(names)}
    return places | {name: ordinal(name) or 0 for name in others}


def _problems_of_places(config: ModelConfig, arguments: Sequence[Argument]) -> Iterator[Error]:
    """Positions that are taken twice, or by nothing. Triton does not look for them (BT4)."""
    if len(arguments) != len(_input_names(config)):
        return  # which is a problem of its own
    places = _positions(config, arguments)
    for i, each in enumerate(arguments):
        there = [name for name, place in places.items() if place == i]
        if len(there) != 1:
            what = " and ".join(f"'{name}'" for name in there) if there else "none of the inputs"
            yield _unfit(
                f"unable to load model '{config.name}', {what} of the configuration would be argument {i}, "
                f"'{each.name}', of the model"
            )
    for spec in config.model_inputs:
        place = places.get(spec.name, -1)
        if 0 <= place < len(arguments) and (spec.datatype is BYTES) != arguments[place].is_list:
            yield _unfit(
                f"unable to load model '{config.name}', configuration expects datatype {spec.datatype.config_name} for "
                f"input '{spec.name}', model provides {arguments[place].type}"
            )


def _positions_of_outputs(config: ModelConfig) -> list[int]:
    """The position of each output among the results: by ordinals, or in the order of the configuration (BT6)."""
    ordinals = [ordinal(spec.name) for spec in config.model_outputs]
    return [i if n is None or None in ordinals else n for i, n in enumerate(ordinals)]


def _problems_of_strings(config: ModelConfig) -> Iterator[Error]:
    """Strings are one list, so their tensors have one dimension (BT16)."""
    for word, specs in (("input", config.model_inputs), ("output", config.model_outputs)):
        for spec in specs:
            if spec.datatype is BYTES and _rank(spec, config) > 1:
                yield Internal(
                    f"Triton only supports 1 dimensional List of String as {word} for '{spec.name}' for model "
                    f"'{config.name}'"
                ).blaming(Cause.CONFIGURATION)


def _rank(spec: TensorSpec, config: ModelConfig) -> int:
    return len(spec.model_dims) + (config.max_batch_size > 0)


def warn_of_names(config: ModelConfig, arguments: Sequence[Argument]) -> None:
    """Logs, in Triton's words, that names mean nothing and that the order of the configuration counts (BT5, BT6)."""
    fallback = "Falling back to enforcing strict ordering from model configuration."
    known = {each.name for each in arguments}
    names = [spec.name for spec in config.inputs]
    if not all(name in known for name in names):
        bad = next((name for name in names if ordinal(name) is None), None)
        if bad is not None and "__" in bad:
            log.warning(
                "input '%s' or previous input(s) are neither an input argument to the model '%s' nor do they follow "
                "the <name>__<index> naming convention. %s",
                *(bad, config.name, fallback),
            )
    bad = next((spec.name for spec in config.outputs if ordinal(spec.name) is None), None)
    if bad is not None and len(config.outputs) > 1:
        log.warning(
            "output '%s' or previous output(s) of the model '%s' do not follow the <name>__<index> naming convention. "
            "%s",
            *(bad, config.name, fallback),
        )


def _unfit(text: str) -> Invalid:
    return Invalid(text).blaming(Cause.CONFIGURATION)
