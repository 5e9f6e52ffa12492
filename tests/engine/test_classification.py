"""Outputs as their largest values, and the reply slot that makes them so."""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from halimede.engine.classification import (
    MAX_CLASS_BYTES,
    MOST_ELEMENTS,
    OFFLOAD_WORK,
    ClassifyingReply,
    classified,
    largest,
)
from halimede.errors import Cancelled, Error, Internal, Invalid, Unsupported
from halimede.requests import Answer, InferResponse
from halimede.tensors import (
    BYTES,
    DATATYPES,
    FP32,
    FP64,
    INT64,
    DataType,
    HostMemory,
    Tensor,
    array_of,
    split_bytes,
    tensor_of,
)
from tests.fakes import RecordingReply, UnreachableMemory

ORDERED = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64")


def floats(*values: float, shape: tuple[int, ...] | None = None) -> Tensor:
    return tensor_of("O", FP32, np.array(values, np.float32).reshape(shape or (len(values),)))


def texts(tensor: Tensor) -> list[str]:
    assert tensor.datatype is BYTES
    return [text.decode("utf-8", "surrogateescape") for text in array_of(tensor).reshape(-1).tolist()]


def test_largest_values_come_first_with_their_places() -> None:
    made = classified(floats(0.9, -3, 7.25), 2, (), batching=False)
    assert (made.name, made.shape, texts(made)) == ("O", (2,), ["7.250000:2", "0.900000:0"])


@pytest.mark.parametrize("name", ORDERED)
def test_every_ordered_datatype_has_its_extremes(name: str) -> None:
    datatype = DATATYPES[name]
    whole = datatype.numpy.kind in "iu"
    limits: Any = np.iinfo(datatype.numpy) if whole else np.finfo(datatype.numpy)
    values = np.array([1, limits.min, limits.max, 2], datatype.numpy)
    wanted = [f"{values[i]}:{i}" if whole else f"{float(values[i]):f}:{i}" for i in (2, 3, 0)]
    assert texts(classified(tensor_of("O", datatype, values), 3, (), batching=False)) == wanted


@pytest.mark.parametrize("name", ["BOOL", "FP16", "BF16", "BYTES"])
def test_datatype_without_order_is_refused(name: str) -> None:
    datatype = DATATYPES[name]
    tensor = Tensor("O", datatype, (1,), HostMemory(bytes(datatype.size or 4)))
    with pytest.raises(Invalid) as caught:
        classified(tensor, 1, (), batching=False)
    assert str(caught.value) == f"class result not available for output due to unsupported type '{name}'"


@pytest.mark.parametrize(
    ("classes", "batching", "shape", "wanted"),
    [
        (2, True, (2, 3), (2, 2)),
        (9, True, (2, 3), (2, 3)),
        (4, True, (1, 2, 3), (1, 4)),
        (4, False, (2, 3), (4,)),
        (9, False, (6,), (6,)),
        (0, False, (6,), (0,)),
        (0, True, (6, 1), (6, 0)),
    ],
)
def test_shape_is_items_and_classes(
    classes: int, batching: bool, shape: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    made = classified(floats(*range(6), shape=shape), classes, (), batching)
    assert made.shape == wanted
    assert len(split_bytes(made.memory.host(), int(np.prod(wanted)))) == np.prod(wanted)


@pytest.mark.parametrize(
    ("shape", "batching", "wanted"), [((0,), False, (0,)), ((0, 3), True, (0, 2)), ((2, 0), True, (2, 0))]
)
def test_nothing_has_no_classes(shape: tuple[int, ...], batching: bool, wanted: tuple[int, ...]) -> None:
    made = classified(Tensor("O", FP32, shape, HostMemory(b"")), 2, (), batching)
    assert (made.shape, made.memory.byte_size) == (wanted, 0)


def test_items_of_a_batch_are_apart() -> None:
    made = classified(floats(1, 2, 3, 6, 5, 4, shape=(2, 3)), 2, ("a", "b", "c"), batching=True)
    assert texts(made) == ["3.000000:2:c", "2.000000:1:b", "6.000000:0:a", "5.000000:1:b"]


def test_labels_stand_where_there_are_any() -> None:
    made = classified(floats(4, 3, 2, 1), 4, ("cat", "", "h\u00e9\udcff\r"), batching=False)
    assert texts(made) == ["4.000000:0:cat", "3.000000:1", "2.000000:2:h\u00e9\udcff\r", "1.000000:3"]
    assert bytes(made.memory.host()).count(b"h\xc3\xa9\xff\r") == 1


def test_floats_are_written_as_c_does() -> None:
    nans = struct.unpack("<2f", struct.pack("<2I", 0x7FC00000, 0xFFC00000))
    made = classified(floats(np.inf, 1e30, -1e-7, -np.inf, *nans), 6, (), batching=False)
    assert texts(made) == [
        "inf:0",
        "1000000015047466219876688855040.000000:1",
        "-0.000000:2",
        "-inf:3",
        "nan:4",
        "-nan:5",
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 19, 20, 25])
@pytest.mark.parametrize("name", ["UINT8", "INT32", "FP32"])
def test_equal_values_stand_in_their_order(name: str, count: int) -> None:
    values = np.array([[3, 1, 2, 3, 0, 2, 3, 1, 2, 3] * 2, [2] * 20, range(20)], DATATYPES[name].numpy)
    wanted = [sorted(range(20), key=lambda i: (-row[i], i))[:count] for row in values.tolist()]
    assert largest(values, count).tolist() == wanted


@pytest.mark.parametrize("count", [1, 3, 4])
def test_not_a_number_stands_with_minus_infinity(count: int) -> None:
    values = np.array([[np.nan, -np.inf, 1, np.nan], [np.nan] * 4], np.float32)
    assert largest(values, count).tolist() == [[2, 0, 1, 3][:count], [0, 1, 2, 3][:count]]


def test_many_items_are_each_classified() -> None:
    """More than are looked at in one go."""
    rows = MOST_ELEMENTS // 500 + 3
    values = np.random.default_rng(7).permutation(rows * 500).astype(np.int64).reshape(rows, 500)
    made = classified(tensor_of("O", INT64, values), 2, (), batching=True)
    places = np.argsort(-values, axis=1)[:, :2]
    wanted = [f"{values[i, place]}:{place}" for i in range(rows) for place in places[i]]
    assert made.shape == (rows, 2)
    assert texts(made) == wanted


def test_no_classes_cost_nothing() -> None:
    """What the real server answers to a count that is 0 in 32 bits; the output is not looked at for it."""
    made = classified(Tensor("O", FP32, (1_000_000, 1), UnreachableMemory(4_000_000)), 0, (), batching=True)
    assert (made.shape, made.memory.byte_size) == ((1_000_000, 0), 0)


def test_text_of_too_many_bytes_is_refused() -> None:
    values = Tensor("O", FP32, (3,), HostMemory(bytes(12)))
    labels = ["a" * (MAX_CLASS_BYTES // 2)] * 3
    assert classified(values, 1, labels, batching=False).shape == (1,)
    with pytest.raises(Invalid, match=r"^classification output tensor too large$"):
        classified(values, 2, labels, batching=False)


def test_item_of_too_many_elements_is_refused() -> None:
    few = Tensor("O", FP32, (2, MOST_ELEMENTS), HostMemory(bytes(8 * MOST_ELEMENTS)))
    assert classified(few, 1, (), batching=True).shape == (2, 1)
    many = Tensor("O", FP32, (MOST_ELEMENTS + 1,), HostMemory(b""))
    with pytest.raises(Invalid, match=r"^classification output tensor too large$"):
        classified(many, 1, (), batching=False)


class HeldWork:
    """An offload whose work is done when the test says so."""

    def __init__(self) -> None:
        self.held: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def __call__(self, work: Callable[[], Any], done: Callable[[Any], None], /) -> None:
        self.held.append((work, done))

    def run(self) -> None:
        work, done = self.held.pop(0)
        done(work())


def response(*outputs: Tensor) -> InferResponse:
    return InferResponse("q", "m", 3, list(outputs), {"p": 1})


def seen(answer: Answer) -> list[str] | str | None:
    if isinstance(answer, Error):
        return str(answer)
    return None if answer is None else texts(answer.outputs[0])


LARGE = tensor_of("O", INT64, np.arange(OFFLOAD_WORK))


def test_slot_changes_only_the_outputs_asked_for() -> None:
    reply, other = RecordingReply(), tensor_of("P", FP32, np.zeros(2, np.float32))
    ClassifyingReply(reply, {"O": 1}, {"O": ("x",)}, False, HeldWork()).send(response(floats(1), other), True)
    [(answer, final)] = reply.answers
    assert isinstance(answer, InferResponse)
    assert (answer.id, answer.model_name, answer.model_version, answer.parameters, final) == (
        *("q", "m", 3, {"p": 1}),
        True,
    )
    assert texts(answer.outputs[0]) == ["1.000000:0:x"]
    assert answer.outputs[1] is other


@pytest.mark.parametrize("answer", [None, Internal("broken")])
def test_slot_passes_on_what_has_no_outputs(answer: Answer) -> None:
    reply = RecordingReply()
    ClassifyingReply(reply, {"O": 1}, {}, False, HeldWork()).send(answer, True)
    assert reply.answers == [(answer, True)]


def test_slot_answers_with_what_is_wrong() -> None:
    reply = RecordingReply()
    slot = ClassifyingReply(reply, {"O": 1}, {}, False, HeldWork())
    slot.send(response(Tensor("O", FP32, (1,), UnreachableMemory(4))), False)
    slot.send(response(Tensor("O", FP32, (2,), HostMemory(b"1234"))), True)
    assert [type(answer) for answer, _ in reply.answers] == [Unsupported, Invalid]
    assert [final for _, final in reply.answers] == [False, True]


def test_large_output_is_classified_elsewhere_and_keeps_the_order() -> None:
    reply, work = RecordingReply(), HeldWork()
    slot = ClassifyingReply(reply, {"O": 1}, {}, False, work)
    assert not slot.send(response(LARGE), False)
    assert not slot.send(response(floats(5)), True)
    assert reply.answers == []
    assert len(work.held) == 1, "the second could be done before the first"
    work.run()
    work.run()
    assert [(seen(answer), final) for answer, final in reply.answers] == [
        ([f"{OFFLOAD_WORK - 1}:{OFFLOAD_WORK - 1}"], False),
        (["5.000000:0"], True),
    ]


@pytest.mark.parametrize("writable", [True, False])
def test_sender_goes_on_when_the_last_is_sent_and_there_is_room(writable: bool) -> None:
    reply, work, calls = RecordingReply(writable=writable), HeldWork(), list[int]()
    slot = ClassifyingReply(reply, {"O": 1}, {}, False, work)
    slot.send(response(LARGE), False)
    slot.send(response(LARGE), False)
    slot.on_writable(lambda: calls.append(1))
    work.run()
    assert calls == []
    work.run()
    assert (len(calls), len(reply.resumes)) == ((1, 0) if writable else (0, 1))


def test_sender_waits_for_the_slot_behind_when_nothing_is_under_way() -> None:
    reply = RecordingReply(writable=False)
    slot = ClassifyingReply(reply, {"O": 1}, {}, False, HeldWork())
    assert not slot.send(response(floats(1)), False)
    slot.on_writable(lambda: None)
    assert len(reply.resumes) == 1


@pytest.mark.parametrize(
    ("shape", "classes", "datatype", "elsewhere"),
    [
        ((490, 2), 1, FP32, False),
        ((501, 2), 1, FP32, True),
        ((4, 100), 100, FP32, False),
        ((4, 200), 200, FP32, True),
        ((8, 100), 5, FP64, False),
        ((9, 100), 5, FP64, True),
        ((1, OFFLOAD_WORK + 1), 1, FP32, True),
        ((1_000_000, 1), 0, FP32, False),
    ],
)
def test_what_takes_more_than_half_a_millisecond_is_classified_elsewhere(
    shape: tuple[int, ...], classes: int, datatype: DataType, elsewhere: bool
) -> None:
    work = HeldWork()
    output = tensor_of("O", datatype, np.zeros(shape, datatype.numpy))
    ClassifyingReply(RecordingReply(), {"O": classes}, {}, True, work).send(response(output), True)
    assert bool(work.held) is elsewhere


def test_cancelled_output_is_not_classified() -> None:
    reply, work = RecordingReply(), HeldWork()
    slot = ClassifyingReply(reply, {"O": 1}, {}, False, work)
    slot.send(response(Tensor("O", FP32, (OFFLOAD_WORK,), UnreachableMemory(4 * OFFLOAD_WORK))), True)
    slot.cancel()
    work.run()
    assert isinstance(reply.error, Cancelled)


def test_cancelled_responses_are_dropped_up_to_the_last() -> None:
    reply, work, calls = RecordingReply(), HeldWork(), list[int]()
    slot = ClassifyingReply(reply, {"O": 1}, {}, False, work)
    slot.send(response(LARGE), False)
    slot.on_writable(lambda: calls.append(1))
    slot.cancel()
    assert slot.send(response(LARGE), False)
    work.run()
    assert (calls, reply.answers, work.held) == ([1], [], [])
    slot.send(None, True)
    assert reply.answers == [(None, True)]


def test_slot_tells_when_all_was_sent() -> None:
    reply, work, sent = RecordingReply(), HeldWork(), list[int]()
    slot = ClassifyingReply(reply, {"O": 1}, {}, False, work)
    slot.send(response(floats(1)), False)
    assert not slot.under_way
    slot.send(response(LARGE), False)
    slot.send(None, True)
    assert slot.under_way
    slot.when_sent(lambda: sent.append(reply.finals))
    work.run()
    assert sent == []
    work.run()
    assert (sent, slot.under_way) == ([1], False)
