"""The sequence batcher of a model: values, defaults, and checks in Triton's words and order (S54 to S66).

The states of sequences are in `states`. Knows the protobuf message and nothing of schedulers. Pure, any thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from halimede.config.message import Message
from halimede.config.states import StateSpec, states_of
from halimede.protocol import model_config_pb2 as pb
from halimede.tensors import BOOL, BY_NUMBER, BYTES, FP32, INT32, INT64, UINT32, UINT64, DataType

DEFAULT_IDLE_US = 1_000_000
"""How long a sequence may be idle if the configuration does not say (S56)."""


class ControlKind(Enum):
    """What a control input tells the model about its request (S58)."""

    START = "CONTROL_SEQUENCE_START"
    READY = "CONTROL_SEQUENCE_READY"
    END = "CONTROL_SEQUENCE_END"
    CORRID = "CONTROL_SEQUENCE_CORRID"


@dataclass(frozen=True, slots=True)
class Control:
    """A control input, which the server adds to each request (S58).

    `when` has its values for false and for true; a correlation id does not use them.
    """

    kind: ControlKind
    name: str
    datatype: DataType
    when: tuple[float, float] = (0, 1)


@dataclass(frozen=True, slots=True)
class DirectStrategy:
    """Each sequence keeps one row of the batches of one instance (S61).

    A batch waits for at most `max_queue_delay_us` until the fraction `minimum_slot_utilization` of its rows is ready.
    If either is 0, it does not wait (S62).
    """

    max_queue_delay_us: int = 0
    minimum_slot_utilization: float = 0.0


@dataclass(frozen=True, slots=True)
class OldestStrategy:
    """A dynamic batcher takes the oldest requests of the candidate sequences of an instance, one of each (S63).

    `max_candidate_sequences` is per instance; 0 stands for the maximum batch size. `preferred_batch_sizes` are sorted.
    """

    max_candidate_sequences: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    """The settings of a sequence batcher (S54).

    A sequence ends after `max_idle_us` without a request (S56). `iterative`: each request is a sequence of its own,
    which runs again until the model finishes it (S72).
    """

    strategy: DirectStrategy | OldestStrategy
    max_idle_us: int = DEFAULT_IDLE_US
    controls: tuple[Control, ...] = ()
    iterative: bool = False
    states: tuple[StateSpec, ...] = ()

    def control(self, kind: ControlKind) -> Control | None:
        """The control input of this kind; None if the model has none."""
        return next((control for control in self.controls if control.kind is kind), None)


_FLAGS = (ControlKind.START, ControlKind.END, ControlKind.READY)
"""The kinds with values for false and true, in Triton's order of checks."""
_VALUE_FIELDS = {"int32_false_true": INT32, "fp32_false_true": FP32, "bool_false_true": BOOL}
"""The fields with the values for false and true, and their datatypes."""
_ID_TYPES = (UINT64, INT64, UINT32, INT32, BYTES)


def fill_sequence_defaults(message: Message) -> None:
    """Fills in the idle time, and a preferred batch size for the oldest strategy. Changes the message."""
    batcher = message.sequence_batching
    if not batcher.max_sequence_idle_microseconds:
        batcher.max_sequence_idle_microseconds = DEFAULT_IDLE_US
    if batcher.HasField("oldest") and not batcher.oldest.preferred_batch_size and message.max_batch_size > 0:
        batcher.oldest.preferred_batch_size.append(message.max_batch_size)


def sequence_problems(message: Message) -> Iterator[str]:
    """What is wrong with the sequence batcher of a configuration that has one (S60, S62)."""
    batcher, model = message.sequence_batching, message.name
    for kind in _FLAGS:
        yield from _control_problems(batcher, kind, model)
    yield from _control_problems(batcher, ControlKind.CORRID, model)
    if batcher.HasField("oldest"):
        for size in batcher.oldest.preferred_batch_size:
            if size <= 0:
                yield f"sequence batching preferred batch size must be positive for {model}"
            if size > message.max_batch_size:
                yield f"sequence batching preferred batch size must be <= max batch size for {model}"
    if batcher.HasField("direct") and not 0.0 <= batcher.direct.minimum_slot_utilization <= 1.0:
        yield f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {model}"


def _control_problems(batcher: Any, kind: ControlKind, model: str) -> Iterator[str]:
    """Checks the names of all control inputs, and the other fields of those of one kind."""
    names: set[str] = set()
    found = 0
    for control_input in batcher.control_input:
        name = control_input.name
        if not name:
            yield f"sequence batching control tensor must have a name for {model}"
        if name in names:
            yield f"sequence batching control tensor '{name}' is specified for multiple control kinds for {model}"
        names.add(name)
        for control in control_input.control:
            if _kind(control) is not kind:
                continue
            found += 1
            if found > 1:
                yield f"sequence batching specifies multiple {kind.value} tensors for {model}"
            check = _id_problems if kind is ControlKind.CORRID else _flag_problems
            yield from check(control, kind.value, model)


def _flag_problems(control: Any, kind: str, model: str) -> Iterator[str]:
    given = [field for field in _VALUE_FIELDS if getattr(control, field)]
    names = "'int32_false_true', 'fp32_false_true'"
    if not given:
        yield f"sequence batching must specify either {names} or 'bool_false_true' for {kind} for {model}"
    if len(given) > 1:
        yield f"sequence batching specifies more than one from {names} and 'bool_false_true' for {kind} for {model}"
    for field in given:
        if len(getattr(control, field)) != 2:
            yield f"sequence batching control '{field}' must have exactly 2 entries for {kind} for {model}"


def _id_problems(control: Any, kind: str, model: str) -> Iterator[str]:
    if any(getattr(control, field) for field in _VALUE_FIELDS):
        yield (
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            f"{kind} for {model}"
        )
    if BY_NUMBER.get(control.data_type) not in _ID_TYPES:
        yield (
            f"unexpected data type for control {kind} for {model}. Allowed data types are TYPE_UINT64, TYPE_INT64, "
            "TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )


def sequence_batching_of(message: Message) -> SequenceBatching | None:
    """The sequence batcher of a message that passed its checks."""
    if not message.HasField("sequence_batching"):
        return None
    batcher = message.sequence_batching
    return SequenceBatching(
        strategy=_oldest(batcher.oldest) if batcher.HasField("oldest") else _direct(batcher.direct),
        max_idle_us=batcher.max_sequence_idle_microseconds,
        controls=tuple(_control(each.name, control) for each in batcher.control_input for control in each.control),
        iterative=batcher.iterative_sequence,
        states=states_of(message),
    )


def _direct(strategy: Any) -> DirectStrategy:
    return DirectStrategy(strategy.max_queue_delay_microseconds, strategy.minimum_slot_utilization)


def _oldest(strategy: Any) -> OldestStrategy:
    return OldestStrategy(
        max_candidate_sequences=max(0, strategy.max_candidate_sequences),
        preferred_batch_sizes=tuple(sorted(set(strategy.preferred_batch_size))),
        max_queue_delay_us=strategy.max_queue_delay_microseconds,
        preserve_ordering=strategy.preserve_ordering,
    )


def _control(name: str, control: Any) -> Control:
    kind = _kind(control)
    if kind is ControlKind.CORRID:
        return Control(kind, name, BY_NUMBER[control.data_type])
    field = next(field for field in _VALUE_FIELDS if getattr(control, field))
    false, true = getattr(control, field)
    return Control(kind, name, _VALUE_FIELDS[field], (false, true))


def _kind(control: Any) -> ControlKind:
    return ControlKind(pb.ModelSequenceBatching.Control.Kind.Name(control.kind))
