"""Rows of the direct strategy."""

from unittest.mock import Mock

import numpy as np
import pytest

from halimede.config.sequencing import Control, ControlKind
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Wake
from halimede.scheduling.sequences import Controls
from halimede.tensors import BYTES, INT32, UINT32, HostMemory, Tensor, array_of, tensor_of
from tests.scheduling.sequences.rig import PolicyRig, direct


def _filled(slots: int = 3, **more: object) -> PolicyRig:
    """A policy whose first sequences are 1, 2, 3 and have run once."""
    rig = direct(slots, **more)  # type: ignore[arg-type]
    ones = [rig.send(f"{i}", i, "S") for i in range(1, slots + 1)]
    rig.next()
    rig.end(*ones)
    return rig


@pytest.mark.rows("S61")
def test_rows_up_to_the_last_that_is_ready() -> None:
    rig = _filled()
    rig.send("b", 2)
    assert rig.next() == ["", "b"]


@pytest.mark.rows("S61", "S4")
def test_row_that_does_not_fit_waits_for_the_next_batch() -> None:
    rig = _filled()
    a, b, c = rig.send("a", 1, key="wide"), rig.send("b", 2), rig.send("c", 3, key="wide")
    assert rig.next() == ["a", "", "c"]
    rig.end(a, c)
    assert rig.next() == ["", "b"]
    assert b.state is not None


@pytest.mark.rows("S61")
def test_row_of_no_sequence_says_so() -> None:
    controls = [
        Control(ControlKind.READY, "READY", INT32, (3, 7)),
        Control(ControlKind.CORRID, "ID", BYTES),
    ]
    rig = direct(controls=controls)
    ones = [rig.send(name, name, "S") for name in ("a", "b")]
    rig.next()
    rig.end(*ones)
    second, _ = rig.try_("b", "b")
    texts = tensor_of("t", BYTES, np.array([[b"ab", b"c"]], object))
    second.request.inputs["t"] = texts
    batch = rig.batch()
    assert isinstance(batch, Batch)
    null, real = ({name: array_of(t).tolist() for name, t in one.request.inputs.items()} for one in batch.rows)
    assert null == {"x": [[0]], "t": [[b"", b""]], "READY": [[3]], "ID": [[b""]]}
    assert real == {"x": [[0]], "t": [[b"ab", b"c"]], "READY": [[7]], "ID": [[b"b"]]}
    nobody = batch.rows[0]
    assert (nobody.outputs, nobody.states, nobody.cancelled) == ((), None, False)


def test_row_of_no_sequence_is_made_once_for_each_shape() -> None:
    rig = direct(stateless=True)
    ones = [rig.send(f"{i}", i, "S") for i in (1, 2)]
    rig.next()
    rig.end(*ones)

    def null(width: int) -> Inference:
        one, _ = rig.try_("b", 2)
        one.request.inputs["x"] = Tensor("x", INT32, (1, width), HostMemory(bytes(4 * width)))
        batch = rig.batch()
        assert isinstance(batch, Batch)
        rig.end(one, instance=batch.instance)
        assert batch.rows[0].request.inputs["x"].shape == (1, width)
        return batch.rows[0]

    first = null(1)
    assert null(1) is first
    assert null(2) is not first


def test_batch_that_cannot_be_made_takes_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = _filled()
    b = rig.send("b", 2)
    with monkeypatch.context() as patched:
        patched.setattr(Controls, "null", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            rig.next()
    assert (b.waits, rig.policy.waiting) == (True, 1)
    assert rig.next() == ["", "b"]


@pytest.mark.rows("S59")
def test_id_of_32_bits_is_the_low_half() -> None:
    rig = direct(controls=[Control(ControlKind.CORRID, "ID", UINT32)])
    one = rig.send("a", 2**32 + 7, "S")
    rig.next()
    assert array_of(one.request.inputs["ID"]).tolist() == [[7]]


def test_slot_is_reassigned_when_its_last_request_starts() -> None:
    rig = direct(slots=1)
    a, b = rig.send("a", 1, "SE"), rig.send("b", 2, "S")
    assert b.sequence.instance < 0
    assert rig.next() == ["a"]
    assert b.sequence.instance == 0
    rig.end(a)
    assert rig.next() == ["b"]


@pytest.mark.rows("S62")
def test_batch_waits_for_enough_rows_or_its_time() -> None:
    rig = direct(slots=4, delay_ns=1000, utilization=0.5)
    a = rig.send("a", 1, "S")
    assert rig.next() == Wake(1100)
    rig.now = 1099
    assert rig.next() == Wake(1100)
    b = rig.send("b", 2, "S")
    assert rig.next() == ["a", "b"]
    rig.end(a, b)
    rig.send("b2", 2)
    rig.now += 1000
    assert rig.next() == ["", "b2"]


@pytest.mark.rows("S62")
@pytest.mark.parametrize(("delay_ns", "utilization"), [(0, 1.0), (1000, 0.0)])
def test_batch_does_not_wait_if_either_is_zero(delay_ns: int, utilization: float) -> None:
    rig = direct(slots=4, delay_ns=delay_ns, utilization=utilization)
    rig.send("a", 1, "S")
    assert rig.next() == ["a"]


def test_utilization_is_a_number_of_32_bits() -> None:
    rig = direct(slots=10, delay_ns=1000, utilization=float(np.float32(0.3)))
    for i in range(1, 3):
        rig.send(f"{i}", i, "S")
    assert isinstance(rig.next(), Wake)
    rig.send("3", 3, "S")
    assert rig.next() == ["1", "2", "3"]


def test_heads_that_have_run_are_forgotten() -> None:
    rig = direct(slots=2, delay_ns=10**9, utilization=0.5)
    for i in range(1, 1000):
        one = rig.send("a", i, "SE")
        assert rig.next() == ["a"]
        rig.end(one)
    assert len(rig.policy._boards[0].heads) < 100  # type: ignore[attr-defined]


def test_instances_have_rows_of_their_own() -> None:
    rig = direct(slots=2, instances=2, stateless=True)
    for i in range(1, 5):
        rig.send(f"{i}", i, "S")
    assert [rig.next(), rig.next()] == [["1", "3"], ["2", "4"]]
    rig.send("4b", 4)
    assert rig.next() is None
    rig.free.append(0)
    assert rig.next() is None
    rig.free.append(1)
    assert rig.next() == ["", "4b"]


def test_input_in_memory_of_a_client_is_only_looked_at_for_its_shape() -> None:
    rig = direct(slots=2)
    a, b = rig.send("a", 1, "S"), rig.send("b", 2, "S")
    rig.next()
    rig.end(a, b)
    one, _ = rig.try_("b", 2)
    one.request.inputs["x"] = Tensor("x", INT32, (1, 3), HostMemory(b"\xff" * 12))
    batch = rig.batch()
    assert isinstance(batch, Batch)
    assert array_of(batch.rows[0].request.inputs["x"]).tolist() == [[0, 0, 0]]


@pytest.mark.rows("S68")
def test_request_waits_for_the_state_of_the_one_before_it() -> None:
    rig = direct(slots=2)
    first, other = rig.send("1S", 1, "S"), rig.send("2S", 2, "S")
    second, _ = rig.send("1", 1), rig.send("1b", 1)
    assert rig.next() == ["1S", "2S"]
    rig.end(other)  # the batch is over, and the first request is answered later
    assert not rig.policy.wants(0)
    assert rig.next() is None
    rig.send("2", 2)
    assert rig.next() == ["", "2"]
    rig.end()
    rig.policy.released(first, rig.now, False)
    assert rig.next() == ["1"]
    rig.end(second)
    assert rig.next() == ["1b"]


@pytest.mark.rows("S62")
def test_request_that_waits_for_a_state_is_no_head_of_a_batch() -> None:
    rig = direct(slots=2, delay_ns=50, utilization=1.0)
    first = rig.send("1S", 1, "S")
    rig.now += 50
    assert rig.next() == ["1S"]
    rig.end()
    rig.send("1", 1)
    rig.now += 10
    rig.send("2S", 2, "S")
    assert rig.next() == Wake(rig.now + 50)
    rig.policy.released(first, rig.now, False)
    assert rig.next() == ["1", "2S"]


def test_request_without_state_runs_before_the_answer_of_the_one_before_it() -> None:
    rig = direct(slots=1, stateless=True)
    rig.send("1S", 1, "S")
    rig.send("1", 1)
    assert rig.next() == ["1S"]
    rig.end()
    assert rig.next() == ["1"]


@pytest.mark.rows("S72")
def test_request_waits_for_an_iterative_one_that_may_run_again() -> None:
    rig = direct(slots=1, stateless=True, iterative=True)
    first = rig.send("1S", 1, "S")
    rig.send("1", 1)
    assert rig.next() == ["1S"]
    rig.end()
    assert rig.next() is None
    rig.policy.released(first, rig.now, True)
    assert rig.next() == ["1S"]
    rig.end(first)
    assert rig.next() == ["1"]
