"""Entries: what was encoded is decoded unchanged, and all other bytes are refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.cache import entries
from halimede.cache.entries import decoded, encoded, size_of
from halimede.errors import Invalid
from halimede.requests import Parameters
from halimede.tensors import BYTES, DATATYPES, INT32, DataType, HostMemory, Shape, Tensor, join_bytes

EXAMPLES = 60


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    datatype: DataType = draw(st.sampled_from(sorted(DATATYPES.values(), key=lambda d: d.number)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=4)))
    elements = 1
    for dim in shape:
        elements *= dim
    if datatype is BYTES:
        data = join_bytes([draw(st.binary(max_size=5)) for _ in range(elements)])
    else:
        data = draw(st.binary(min_size=elements * datatype.size, max_size=elements * datatype.size))
    return Tensor(draw(st.text(max_size=8)), datatype, shape, HostMemory(data))


NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
PARAMETERS = st.none() | st.dictionaries(st.text(max_size=4), st.booleans() | NUMBERS | st.text(), min_size=1)


def seen(tensor: Tensor) -> tuple[object, ...]:
    return tensor.name, tensor.datatype, tensor.shape, bytes(tensor.memory.host())


@given(st.lists(tensors(), max_size=4), PARAMETERS)
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
def test_entry_is_decoded_unchanged(outputs: list[Tensor], parameters: Parameters | None) -> None:
    entry = decoded(encoded(outputs, parameters))
    assert [seen(tensor) for tensor in entry.outputs] == [seen(tensor) for tensor in outputs]
    assert entry.parameters == parameters
    assert size_of(outputs) >= sum(tensor.memory.byte_size for tensor in outputs)


SAMPLE = encoded([Tensor("OUTPUT0", INT32, (1, 3), HostMemory(bytes(range(12))))], {"p": "x"})


@given(st.binary(max_size=64))
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Invalid, match="not an entry of a response cache"):
        decoded(data)


@pytest.mark.parametrize("length", range(len(SAMPLE)))
def test_truncated_entry_is_refused(length: int) -> None:
    with pytest.raises(Invalid):
        decoded(SAMPLE[:length])


def test_data_that_does_not_fill_its_shape_is_refused() -> None:
    wrong = SAMPLE.replace((3).to_bytes(8, "little"), (4).to_bytes(8, "little"))
    assert wrong != SAMPLE
    with pytest.raises(Invalid, match="of another size than its shape"):
        decoded(wrong)


def test_parameters_must_be_an_object_of_scalars() -> None:
    with pytest.raises(Invalid):
        decoded(SAMPLE.replace(b'{"p": "x"}', b'["p", "x"]'))
    with pytest.raises(Invalid):
        decoded(SAMPLE.replace(b'{"p": "x"}', b'{"p": "x"['))


@pytest.mark.parametrize(
    "words",
    [
        '{"p": null}',
        '{"p": [1]}',
        '{"p": {"q": 1}}',
        '{"p": 9223372036854775808}',
        '{"p": "\\ud800"}',
        '{"\\ud800": 1}',
    ],
)
def test_parameters_that_no_protocol_can_send_are_refused(words: str) -> None:
    fine = encoded([], {"p": "x"})
    head = fine.removesuffix(b'{"p": "x"}')
    with pytest.raises(Invalid):
        decoded(head[:-4] + len(words).to_bytes(4, "little") + words.encode())


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        (INT32, (-1, -1), bytes(4)),
        (INT32, (1,) * 33, bytes(4)),
        (BYTES, (-1,), bytes(4)),
        (BYTES, (2,), bytes(7)),
        (BYTES, (1 << 62, 1 << 62), b""),
    ],
)
def test_impossible_shape_is_refused(datatype: DataType, shape: Shape, data: bytes) -> None:
    with pytest.raises(Invalid, match="shape"):
        decoded(encoded([Tensor("x", datatype, shape, HostMemory(data))], None))


def test_entry_is_a_copy() -> None:
    data = bytearray(4)
    entry = encoded([Tensor("x", INT32, (1,), HostMemory(data))], None)
    data[0] = 1
    assert bytes(decoded(entry).outputs[0].memory.host()) == bytes(4)


@pytest.mark.parametrize("kind", ["outputs", "parameters"])
def test_entry_that_takes_long_to_read_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may have written it: one with a million parameters took the event loop two seconds."""
    tensor = Tensor("OUTPUT0", INT32, (1,), HostMemory(bytes(4)))
    most = entries.MAX_OUTPUTS if kind == "outputs" else entries.MAX_PARAMETER_BYTES - len('{"x": ""}')

    def entry(size: int) -> bytes:
        return encoded([tensor] * size, None) if kind == "outputs" else encoded([tensor], {"x": "y" * size})

    assert len(decoded(entry(most)).outputs) == (most if kind == "outputs" else 1)
    with pytest.raises(OverflowError, match="too many"):
        entry(most + 1)
    with monkeypatch.context() as more:
        more.setattr(entries, "MAX_OUTPUTS", most + 1)
        more.setattr(entries, "MAX_PARAMETER_BYTES", 2 * entries.MAX_PARAMETER_BYTES)
        large = entry(most + 1)
    with pytest.raises(Invalid, match="too many"):
        decoded(large)
