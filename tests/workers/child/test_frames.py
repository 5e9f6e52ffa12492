"""Frames both ways: whole, byte by byte, cut off, and nonsense."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.workers.child import frames
from halimede.workers.child.frames import ALIGNMENT, Assembler, Frame, FrameError

NUMBER = struct.Struct("<q")


def assembled(raw: bytes, step: int = 1 << 20) -> list[Frame]:
    """The frames of a stream that arrives in pieces of at most `step` bytes."""
    assembler = Assembler()
    found: list[Frame] = []
    at = 0
    while at < len(raw):
        space = assembler.space()
        piece = raw[at : at + min(step, len(space))]
        space[: len(piece)] = piece
        found += assembler.received(len(piece))
        at += len(piece)
    return found


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
tensors = st.lists(
    st.tuples(
        texts,
        st.integers(1, 14),
        st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4).map(tuple),
        st.binary(max_size=300),
    ),
    max_size=4,
)


@given(
    kind=st.integers(frames.START, frames.LOG),
    batch=st.integers(0, (1 << 64) - 1),
    moments=st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 62)),
    text=texts,
    names=st.lists(texts, max_size=4).map(tuple),
    parameters=st.dictionaries(texts, st.booleans() | st.integers() | st.floats(allow_nan=False) | texts, max_size=4),
    carried=tensors,
    step=st.sampled_from([1, 3, 64, 1 << 20]),
)
def test_frame_comes_out_as_it_went_in(
    kind: int,
    batch: int,
    moments: tuple[int, int],
    text: str,
    names: tuple[str, ...],
    parameters: dict[str, Any],
    carried: list[tuple[str, int, tuple[int, ...], bytes]],
    step: int,
) -> None:
    meta = [frames.text_record(text), frames.names_record(names), frames.parameters_record(parameters), NUMBER.pack(-7)]
    meta += [frames.tensor_record(name, number, shape, len(raw)) for name, number, shape, raw in carried]
    raw = b"".join(frames.frame(kind, meta, [raw for *_, raw in carried], batch, 5, 1, moments))

    (frame,) = assembled(raw, step)

    assert (frame.kind, frame.batch, frame.count, frame.flags) == (kind, batch, 5, 1)
    assert (frame.first_moment, frame.second_moment) == moments
    assert frame.text() == text
    assert frame.names() == names
    assert frame.parameters() == parameters
    assert frame.unpack(NUMBER) == (-7,)
    for name, number, shape, content in carried:
        *fields, view = frame.tensor()
        assert fields == [name, number, shape]
        assert bytes(view) == content
        assert not content or address(view) % ALIGNMENT == 0


@given(names=st.lists(texts, max_size=4).map(tuple), carried=tensors)
def test_form_is_read_at_once_as_it_is_one_by_one(
    names: tuple[str, ...], carried: list[tuple[str, int, tuple[int, ...], bytes]]
) -> None:
    records = b"".join(frames.tensor_record(name, number, shape, len(raw)) for name, number, shape, raw in carried)
    form = frames.names_record(names) + records
    contents = [raw for *_, raw in carried]
    meta = [form, records, NUMBER.pack(5)]
    (frame,) = assembled(b"".join(frames.frame(frames.REQUESTS, meta, contents + contents)))
    read, found = frame.form(len(form))
    assert read == names
    for listed in (found, frame.tensors(len(records))):
        assert [(*fields, bytes(view)) for *fields, view in listed] == carried
        assert all(not view or address(view) % ALIGNMENT == 0 for *_, view in listed)
    assert frame.unpack(NUMBER) == (5,)


def test_long_forms_are_not_kept() -> None:
    caches = (frames._form, frames._names, frames._all_tensor_fields)
    before = [cache.cache_info().currsize for cache in caches]
    for number in range(3):
        names = frames.names_record(tuple(f"{number}{'x' * 40}{i}" for i in range(50)))
        form = names + b"".join(frames.tensor_record(f"{'y' * 40}{i}", 11, (number,), 0) for i in range(50))
        (frame,) = assembled(b"".join(frames.frame(frames.REQUESTS, [form], [b""] * 50)))
        assert [len(part) for part in frame.form(len(form))] == [50, 50]
    assert [cache.cache_info().currsize for cache in caches] == before


@pytest.mark.parametrize("records", [b"\0\0", b"\1", b"\x10\0\x0b\1\0\0", b"\x0e\0\x0b\0\0\0" + b"\xff" * 8])
def test_records_of_tensors_that_make_no_sense_are_malformed(records: bytes) -> None:
    (frame,) = assembled(b"".join(frames.frame(frames.ANSWERS, [records])))
    with pytest.raises(frames.MALFORMED):
        frame.tensors(len(records))


def test_parameter_types_survive() -> None:
    parameters = {"yes": True, "one": 1, "half": 0.5, "word": "True", "huge": 1 << 80}
    (frame,) = assembled(b"".join(frames.frame(frames.ANSWERS, [frames.parameters_record(parameters)])))
    assert [(name, type(value)) for name, value in frame.parameters().items()] == [
        (name, type(value)) for name, value in parameters.items()
    ]


def test_parameters_are_as_many_as_a_client_likes() -> None:
    parameters = {str(number): number for number in range(70_000)}
    (frame,) = assembled(b"".join(frames.frame(frames.REQUESTS, [frames.parameters_record(parameters)])))
    assert frame.parameters() == parameters


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_frames_that_follow_each_other_are_told_apart(step: int) -> None:
    sizes = [0, 1, 5000, 70_000, 3, 64 << 10, 200_000, 0]
    stream = b""
    for number, size in enumerate(sizes):
        content = bytes([number]) * size
        stream += b"".join(
            frames.frame(frames.REQUESTS, [frames.tensor_record("x", 2, (size,), size)], [content], number)
        )

    found = assembled(stream, step)

    assert [frame.batch for frame in found] == list(range(len(sizes)))
    for number, (frame, size) in enumerate(zip(found, sizes, strict=True)):
        assert bytes(frame.tensor()[3]) == bytes([number]) * size


def test_small_frames_do_not_share_bytes() -> None:
    def raw(value: int) -> bytes:
        return b"".join(frames.frame(frames.REQUESTS, [frames.tensor_record("x", 2, (4,), 4)], [bytes([value] * 4)]))

    first, second = assembled(raw(1) + raw(2))
    kept = np.frombuffer(first.tensor()[3], np.uint8)
    np.frombuffer(second.tensor()[3], np.uint8)[:] = 9
    assert kept.tolist() == [1, 1, 1, 1]
    assert kept.flags.writeable


def test_large_tensors_are_not_copied_into_a_frame() -> None:
    content = memoryview(bytes(1 << 20))
    buffers = frames.frame(frames.REQUESTS, [frames.tensor_record("x", 2, (1 << 20,), 1 << 20)], [content])
    assert any(buffer is content for buffer in buffers)


def test_unfinished_frame_is_kept_back() -> None:
    raw = b"".join(frames.frame(frames.ANSWERS, [frames.text_record("text")]))
    for cut in range(len(raw)):
        assert assembled(raw[:cut]) == []


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"x" * 200, id="no magic"),
        pytest.param(frames.HEADER.pack(b"HLM2", 99, 0, 0, 0, 56, 0, 0, 0, 0), id="unknown kind"),
        pytest.param(frames.HEADER.pack(b"HLM2", 6, 0, 0, 100, 56, 0, 0, 0, 0), id="records beyond the frame"),
    ],
)
def test_stream_without_a_frame_is_refused(raw: bytes) -> None:
    with pytest.raises(FrameError):
        assembled(raw)


@given(st.binary(max_size=200), st.sampled_from(["text", "names", "parameters", "tensor", "rest"]))
def test_records_of_nonsense_raise_only_what_is_declared(raw: bytes, reading: str) -> None:
    (frame,) = assembled(b"".join(frames.frame(frames.ANSWERS, [raw])))
    try:
        getattr(frame, reading)()
    except frames.MALFORMED:
        return
    assert frame._at <= len(raw)


def test_records_that_are_too_long_are_no_frame() -> None:
    raw = b"".join(frames.frame(frames.FAILED, [b"12345"]))
    for most, fits in ((0, True), (5, True), (4, False)):
        assembler = Assembler(most_records=most)
        assembler.space()[: len(raw)] = raw
        if fits:
            assert [frame.message() for frame in assembler.received(len(raw))] == ["12345"]
        else:
            with pytest.raises(FrameError, match="5 bytes, and 4 are allowed"):
                assembler.received(len(raw))


@pytest.mark.parametrize("more", ["", "x", "\ud800"])
def test_text_of_an_error_is_cut(more: str) -> None:
    text = "é" * frames.MAX_MESSAGE_CHARACTERS + more
    note = f"... ({len(text)} characters)"
    shown = text if not more else text[: frames.MAX_MESSAGE_CHARACTERS - len(note)] + note
    assert frames.cut(text) == shown
    # The server cuts what a child may have cut.
    assert frames.cut(shown) == shown
    # A child that sends more than it should.
    (frame,) = assembled(b"".join(frames.frame(frames.FAILED, [text.encode("utf-8", "replace")])))
    assert frame.message() == shown


def test_parameters_that_are_too_many_are_refused() -> None:
    record = frames.parameters_record({"a": 1, "b": 2})
    for most, fits in ((0, True), (2, True), (1, False)):
        (frame,) = assembled(b"".join(frames.frame(frames.ANSWERS, [record])))
        if fits:
            assert frame.parameters(most) == {"a": 1, "b": 2}
        else:
            with pytest.raises(FrameError, match="2 parameters, and 1 are allowed"):
                frame.parameters(most)
