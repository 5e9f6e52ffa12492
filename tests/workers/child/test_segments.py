"""Tensors in shared memory: two ends of a connection in one process."""

import gc
import os
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from halimede.workers.child import frames, segments
from halimede.workers.child.frames import Assembler, Frame, FrameError
from halimede.workers.child.segments import (
    FREE_SEGMENTS,
    LEAST_BYTES,
    MOST_SEGMENTS,
    SegmentError,
    SegmentReader,
    SegmentWriter,
)
from tests.processes import open_descriptors

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd")


class Ends:
    """A writer, the reader of what it writes, and the frames between them."""

    def __init__(self) -> None:
        self.sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.writer, self.reader = SegmentWriter(self.sockets[0]), SegmentReader(self.sockets[1])
        self._to_reader, self._to_writer = Assembler(self.reader), Assembler(None, self.writer)

    def sent(self, *tensors: Any) -> tuple[Frame, int]:
        """The frame with these tensors as it arrives, and how many bytes went through the socket."""
        meta = [frames.tensor_record(f"t{i}", 2, (len(each),), len(each)) for i, each in enumerate(tensors)]
        buffers = frames.frame(frames.REQUESTS, meta, list(tensors), 1, 1, segments=self.writer)
        [frame] = deliver(self._to_reader, buffers)
        return frame, sum(map(len, buffers))

    def tell(self) -> None:
        """Delivers RELEASE and FORGET, as the next frames of both sides do."""
        if self.reader.unused:
            assert deliver(self._to_writer, [frames.numbers_frame(frames.RELEASE, self.reader.unused)]) == []
        if self.writer.forgotten:
            assert deliver(self._to_reader, [frames.numbers_frame(frames.FORGET, self.writer.forgotten)]) == []


def deliver(assembler: Assembler, buffers: list[Any]) -> list[Frame]:
    found: list[Frame] = []
    data = b"".join(bytes(each) for each in buffers)
    while data:
        space = assembler.space()
        part, data = data[: len(space)], data[len(space) :]
        space[: len(part)] = part
        found += assembler.received(len(part))
    return found


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    for each in made.sockets:
        each.close()


def some(size: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 255, size, np.uint8)


def test_large_tensors_do_not_go_through_the_socket(ends: Ends) -> None:
    one, two, nothing = some(LEAST_BYTES, 1), some(777, 2), some(0)
    frame, size = ends.sent(one.data, two.tobytes(), nothing.data, one)
    assert size < 1000
    read = [np.frombuffer(frame.tensor()[3], np.uint8) for _ in range(4)]
    assert [each.tolist() for each in read] == [each.tolist() for each in (one, two, nothing, one)]
    assert all(each.ctypes.data % frames.ALIGNMENT == 0 for each in read if len(each))


def test_small_tensors_go_through_the_socket(ends: Ends) -> None:
    data = some(LEAST_BYTES - 1)
    frame, size = ends.sent(data.data)
    assert size > len(data)
    assert bytes(frame.tensor()[3]) == data.tobytes()


def test_segment_is_used_again_once_the_last_view_is_gone(ends: Ends) -> None:
    frame, _ = ends.sent(some(LEAST_BYTES).data)
    view = np.frombuffer(frame.tensor()[3], np.uint8)[5:]
    del frame
    gc.collect()
    ends.tell()
    other, _ = ends.sent(some(LEAST_BYTES, 1).data)
    first = view.copy()
    assert view.tolist() == first.tolist() == some(LEAST_BYTES)[5:].tolist()
    del view, other
    before = open_descriptors()
    for seed in range(10):
        ends.tell()
        frame, _ = ends.sent(some(LEAST_BYTES, seed).data)
        assert bytes(frame.tensor()[3]) == some(LEAST_BYTES, seed).tobytes()
        del frame
    assert len(ends.reader._known) == 2
    assert open_descriptors() == before


def test_segments_that_nobody_needs_are_given_back(ends: Ends) -> None:
    kept = [ends.sent(some(LEAST_BYTES).data)[0] for _ in range(FREE_SEGMENTS + 3)]
    assert len(ends.reader._known) == FREE_SEGMENTS + 3
    kept.clear()
    ends.tell()
    assert len(ends.reader._known) == FREE_SEGMENTS


def test_both_ends_give_their_segments_back_when_they_are_closed(ends: Ends) -> None:
    """At once, while both objects exist: what refers to a dead worker may live until the next garbage collection. A
    view keeps its own segment."""
    before = open_descriptors()
    view = np.frombuffer(ends.sent(some(LEAST_BYTES).data)[0].tensor()[3], np.uint8)
    ends.sent(some(LEAST_BYTES, 1).data)
    assert open_descriptors() == before + 4
    ends.writer.close()
    ends.reader.close()
    assert open_descriptors() == before - 2 + 1
    assert view.tolist() == some(LEAST_BYTES).tolist()
    del view
    assert open_descriptors() == before - 2


def test_frames_carry_their_tensors_if_too_many_segments_are_in_use(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [ends.sent(some(LEAST_BYTES).data) for _ in range(MOST_SEGMENTS + 1)]
    assert [size > LEAST_BYTES for _, size in kept] == [False] * MOST_SEGMENTS + [True]
    del kept
    ends.tell()
    monkeypatch.setattr(segments, "MOST_BYTES", 3 * LEAST_BYTES)
    assert ends.sent(some(4 * LEAST_BYTES).data)[1] > 4 * LEAST_BYTES


def test_frames_carry_their_tensors_if_the_system_has_no_memory(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(descriptor: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", refused)
    before = open_descriptors()
    assert ends.sent(some(LEAST_BYTES).data)[1] > LEAST_BYTES
    monkeypatch.delattr("os.memfd_create")
    assert ends.sent(some(LEAST_BYTES).data)[1] > LEAST_BYTES
    assert open_descriptors() == before


def announce(ends: Ends, number: int, descriptor: int) -> None:
    socket.send_fds(ends.sockets[0], [number.to_bytes(8, "little")], [descriptor])


def test_segment_that_could_be_made_shorter_is_refused(ends: Ends) -> None:
    descriptor = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, LEAST_BYTES)
    announce(ends, 7, descriptor)
    before = open_descriptors()
    with pytest.raises(SegmentError, match="it may be made shorter"):
        ends.reader.view(7)
    os.close(descriptor)
    assert open_descriptors() == before - 1


def test_file_that_is_no_memfd_is_refused(ends: Ends) -> None:
    with open("/dev/null", "rb") as file:  # noqa: PTH123 - a descriptor
        announce(ends, 7, file.fileno())
    with pytest.raises(SegmentError):
        ends.reader.view(7)


def test_announcement_without_a_descriptor_is_refused(ends: Ends) -> None:
    ends.sockets[0].send((7).to_bytes(8, "little"))
    with pytest.raises(SegmentError, match="makes no sense"):
        ends.reader.view(7)


def test_frame_that_names_an_unknown_segment_is_refused(ends: Ends) -> None:
    header = frames.HEADER.pack(b"HLM2", frames.ANSWERS, 0, 0, 0, frames.HEADER.size, 0, 0, 0, 9)
    with pytest.raises(FrameError, match="unknown segment"):
        deliver(Assembler(ends.reader), [header])
    with pytest.raises(FrameError, match="there are none"):
        deliver(Assembler(), [header])


def test_tensor_that_reaches_over_the_end_of_its_segment_is_refused(ends: Ends) -> None:
    meta = [frames.tensor_record("t", 2, (2 * LEAST_BYTES,), 2 * LEAST_BYTES)]
    buffers = frames.frame(frames.ANSWERS, meta, [some(LEAST_BYTES)], 1, 1, segments=ends.writer)
    [frame] = deliver(Assembler(ends.reader), buffers)
    with pytest.raises(FrameError, match="over the end"):
        frame.tensor()
