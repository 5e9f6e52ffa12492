"""Models of OpenVINO before they are compiled: how one is read, what it declares, and how it is changed to fit a
configuration. Knows nothing of instances or batches. Blocks; called on load threads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from halimede.backends.openvino.errors import step
from halimede.backends.openvino.runtime import ov
from halimede.backends.openvino.settings import Settings
from halimede.backends.openvino.states import expose_states, state_problems, variables_of
from halimede.backends.texts import unexpected_tensor, wrong_input_count, wrong_shape
from halimede.config.model_config import (
    BatchDimension,
    CompletionRules,
    DescribedTensor,
    Description,
    ModelConfig,
    TensorSpec,
)
from halimede.errors import Cause, Internal, Invalid, Unavailable
from halimede.tensors import DATATYPES, DataType, Shape

RULES = CompletionRules(
    not_batching="model layout for model {model} does not support batching while non-zero max_batch_size is specified",
    not_batching_fails=False,
    chosen=(
        "autofilled max_batch_size to {limit} for model '{model}' since batching is supported but no max_batch_size is "
        "specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max batch size"
    ),
    any_dynamic_makes_all=True,
)

_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "boolean": "BOOL",
        "f16": "FP16",
        "f32": "FP32",
        "f64": "FP64",
        "bf16": "BF16",
        "string": "BYTES",
        **{f"i{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
        **{f"u{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    }
)
"""Our names of the runtime's types."""
TYPES: Mapping[DataType, Any] = MappingProxyType(
    {DATATYPES[ours]: getattr(ov.Type, its) for its, ours in _NAMES.items()}
)

Bounds = tuple[int, int]
"""The smallest and the largest size of a dimension; -1 as the largest means any."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model.

    names -- all its names; `name` is the one that the runtime prefers
    datatype -- None if no request could carry it
    bounds -- None for an unknown rank
    has_layout, has_batch -- whether it has a layout, and whether the first dimension is the batch in it
    """

    index: int
    name: str
    names: frozenset[str]
    kind: str
    datatype: DataType | None
    bounds: tuple[Bounds, ...] | None
    has_layout: bool
    has_batch: bool

    @property
    def shape(self) -> Shape | None:
        """The sizes, -1 for those that are not fixed."""
        if self.bounds is None:
            return None
        return tuple(low if low == high else -1 for low, high in self.bounds)


def find_file(folder: Path, filename: str, model: str) -> Path:
    """The file or directory to open. Raises Unavailable."""
    path = folder / (filename or "model.xml")
    # To open a pipe may take for ever.
    if not (path.is_file() or path.is_dir()):
        raise Unavailable(f"unable to find '{path}' for model '{model}'").blaming(Cause.FILE)
    return path


def read_model(core: Any, path: Path) -> Any:
    """The model in a file of any format that the runtime knows. Raises Internal with its words."""
    with step("reading model", Cause.FILE):
        return core.read_model(str(path))


def inputs_of(model: Any) -> tuple[Port, ...]:
    return tuple(_ports(model.inputs))


def outputs_of(model: Any) -> tuple[Port, ...]:
    return tuple(_ports(model.outputs))


def _ports(found: Sequence[Any]) -> Iterator[Port]:
    for index, port in enumerate(found):
        names = frozenset(port.names)
        name = port.any_name if names else port.node.friendly_name
        kind = port.element_type.get_type_name()
        shape, layout = port.partial_shape, port.node.layout
        bounds = None
        if not shape.rank.is_dynamic:
            bounds = tuple((each.get_min_length(), each.get_max_length()) for each in shape)
        yield Port(
            index=index,
            name=name,
            names=names or frozenset((name,)),
            kind=kind,
            datatype=DATATYPES[_NAMES[kind]] if kind in _NAMES else None,
            bounds=bounds,
            has_layout=not layout.empty,
            has_batch=layout.has_name("N") and layout.get_index_by_name("N") == 0,
        )


def describe_model(model: Any, name: str, source: str) -> Description:
    """What the model declares (BV5, BV6). Raises Internal for a tensor that no request could carry."""
    inputs, outputs = inputs_of(model), outputs_of(model)
    batches = all(port.has_batch for port in (*inputs, *outputs))
    return Description(
        tuple(_described(port, "input", name) for port in inputs),
        tuple(_described(port, "output", name) for port in outputs),
        batch=BatchDimension.SYMBOLIC if batches else BatchDimension.NONE,
        states=tuple(variables_of(model)),
        source=source,
        rules=RULES,
    )


def _described(port: Port, word: str, model: str) -> DescribedTensor:
    if port.datatype is None:
        raise Internal(f"unsupported datatype '{port.kind}' for {word} '{port.name}' of model '{model}'")
    return DescribedTensor(port.name, port.datatype, port.shape)


def named(ports: Sequence[Port], name: str) -> Port | None:
    """The port with a name. Models of TensorFlow often have several for one port."""
    return next((port for port in ports if name in port.names), None)


def fit(model: Any, config: ModelConfig, settings: Settings) -> Any:
    """The model changed for a configuration: its states, shapes, batch dimension and datatypes (BV8, BV10, BV11).

    Raises Invalid if it does not fit (BV9), Internal with the runtime's words."""
    for problem in problems(model, config, settings):
        raise problem
    if config.max_batch_size > 0:
        _set_batch(model, config, settings)
    return _convert(model, config)


def problems(model: Any, config: ModelConfig, settings: Settings) -> Iterator[Invalid]:
    """Everything in which configuration and model differ. Exposes the states of the model, and reshapes it, if the
    configuration says so."""
    of_states = list(state_problems(model, config))
    yield from of_states
    if not of_states:
        expose_states(model, config)
    of_names = list(_name_problems(model, config))
    yield from of_names
    if settings.reshape and not of_names:
        _reshape(model, config)
    cut = {name for each in config.batch_outputs for name in each.targets}
    batching = config.max_batch_size > 0
    for ports, specs, is_input in (
        (inputs_of(model), config.model_inputs, True),
        (outputs_of(model), config.model_outputs, False),
    ):
        for spec in specs:
            port = named(ports, spec.name)
            if port is None or spec.allow_ragged_batch or spec.name in cut:
                continue
            if not _fits(spec, port, batching, is_input):
                given = (config.max_batch_size, *spec.model_dims) if batching else spec.model_dims
                yield wrong_shape(config.name, spec.name, port.shape or (), given, batching)


def _name_problems(model: Any, config: ModelConfig) -> Iterator[Invalid]:
    inputs, outputs = inputs_of(model), outputs_of(model)
    given = [spec.name for spec in config.model_inputs]
    given += [name for each in config.batch_inputs for name in each.targets]
    if len(given) != len(inputs):
        yield wrong_input_count(config.name, len(given), len(inputs))
    for name in given:
        if named(inputs, name) is None:
            yield unexpected_tensor("input", name, (port.name for port in inputs))
    for spec in config.model_outputs:
        if named(outputs, spec.name) is None:
            yield unexpected_tensor("output", spec.name, (port.name for port in outputs))


def _fits(spec: TensorSpec, port: Port, batching: bool, is_input: bool) -> bool:
    """A fixed size must be equal, and a size in a range must lie in it. -1 fits a tensor with any size that is not
    fixed: a completed configuration has it for all sizes then (BV6). With batches the model decides about -1 of inputs
    when it runs (BV10)."""
    if port.bounds is None:
        return True
    if not port.bounds and not batching:
        return all(size == 1 for size in spec.model_dims)  # one element, whatever number of dimensions it is given
    bounds = port.bounds[1:] if batching else port.bounds
    if len(bounds) != len(spec.model_dims) or (batching and not port.bounds):
        return False
    takes_any = any(low != high for low, high in bounds) or (batching and is_input)
    return all(
        takes_any if size == -1 else low <= size and (high == -1 or size <= high)
        for size, (low, high) in zip(spec.model_dims, bounds, strict=True)
    )


def _reshape(model: Any, config: ModelConfig) -> None:
    """Gives the inputs the dims of the configuration (BV11)."""
    ports = inputs_of(model)
    leading = (-1,) if config.max_batch_size > 0 else ()
    shapes = {
        port.index: ov.PartialShape([*leading, *spec.model_dims])
        for spec in config.model_inputs
        if (port := named(ports, spec.name)) is not None
    }
    with step("reshaping model"):
        model.reshape(shapes)


def _set_batch(model: Any, config: ModelConfig, settings: Settings) -> None:
    """Makes the first dimension take 1 to max_batch_size rows, or exactly max_batch_size. One that takes any number
    stays as it is."""
    wanted = ov.Dimension(config.max_batch_size)
    if not settings.fixed_batch:
        wanted = ov.Dimension(1, config.max_batch_size)
    ragged = {spec.name for spec in config.inputs if spec.allow_ragged_batch}
    ragged |= {name for each in config.batch_inputs for name in each.targets}
    shapes = {}
    for port in inputs_of(model):
        if port.bounds and not port.names & ragged and (settings.fixed_batch or port.bounds[0] != (0, -1)):
            shapes[port.index] = model.input(port.index).partial_shape
            shapes[port.index][0] = wanted
    if shapes:
        with step("setting max batch size"):
            model.reshape(shapes)


def _convert(model: Any, config: ModelConfig) -> Any:
    """Adds conversions where the configuration has other datatypes than the model (BV8)."""
    wanted = [
        (ports, named(ports, spec.name), spec)
        for ports, specs in ((inputs_of(model), config.model_inputs), (outputs_of(model), config.model_outputs))
        for spec in specs
    ]
    differing = [(ports, port, spec) for ports, port, spec in wanted if port and port.datatype is not spec.datatype]
    if not differing:
        return model
    inputs = inputs_of(model)
    steps = ov.preprocess.PrePostProcessor(model)
    for ports, port, spec in differing:
        with step(f"setting precision for {spec.name}"):
            side = steps.input(port.index) if ports == inputs else steps.output(port.index)
            side.tensor().set_element_type(TYPES[spec.datatype])
    with step("setting precision"):
        return steps.build()
