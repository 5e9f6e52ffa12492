"""Rows of the direct strategy."""

from unittest.mock import Mock

import numpy as np
import pytest

from halimede.config.sequencing import Control, ControlKind
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Wake
from halimede.scheduling.sequences import Controls
from halimede.tensors import BYTES, INT32, UINT32, HostMemory, Tensor, array_of, tensor_of
from tests.scheduling.sequences.rig import CallRouter, direct


def _filled(slots: int = 3, **more: object) -> CallRouter:
    """A policy whose first sequences are 1, 2, 3 and have run once."""
    router = direct(slots, **more)  # type: ignore[arg-type]
    ones = [router.send(f"{i}", i, "S") for i in range(1, slots + 1)]
    router.next()
    router.end(*ones)
    return router


@pytest.mark.rows("S61")
def test_rows_up_to_the_last_that_is_ready() -> None:
    router = _filled()
    router.send("b", 2)
    assert router.next() == ["", "b"]


@pytest.mark.rows("S61", "S4")
def test_row_that_does_not_fit_waits_for_the_next_batch() -> None:
    router = _filled()
    a, b, c = router.send("a", 1, key="wide"), router.send("b", 2), router.send("c", 3, key="wide")
    assert router.next() == ["a", "", "c"]
    router.end(a, c)
    assert router.next() == ["", "b"]
    assert b.state is not None


@pytest.mark.rows("S61")
def test_row_of_no_sequence_says_so() -> None:
    controls = [
        Control(ControlKind.READY, "READY", INT32, (3, 7)),
        Control(ControlKind.CORRID, "ID", BYTES),
    ]
    router = direct(controls=controls)
    ones = [router.send(name, name, "S") for name in ("a", "b")]
    router.next()
    router.end(*ones)
    second, _ = router.try_("b", "b")
    texts = tensor_of("t", BYTES, np.array([[b"ab", b"c"]], object))
    second.request.inputs["t"] = texts
    batch = router.batch()
    assert isinstance(batch, Batch)
    null, real = ({name: array_of(t).tolist() for name, t in one.request.inputs.items()} for one in batch.rows)
    assert null == {"x": [[0]], "t": [[b"", b""]], "READY": [[3]], "ID": [[b""]]}
    assert real == {"x": [[0]], "t": [[b"ab", b"c"]], "READY": [[7]], "ID": [[b"b"]]}
    nobody = batch.rows[0]
    assert (nobody.outputs, nobody.states, nobody.cancelled) == ((), None, False)


def test_row_of_no_sequence_is_made_once_for_each_shape() -> None:
    router = direct(stateless=True)
    ones = [router.send(f"{i}", i, "S") for i in (1, 2)]
    router.next()
    router.end(*ones)

    def null(width: int) -> Inference:
        one, _ = router.try_("b", 2)
        one.request.inputs["x"] = Tensor("x", INT32, (1, width), HostMemory(bytes(4 * width)))
        batch = router.batch()
        assert isinstance(batch, Batch)
        router.end(one, instance=batch.instance)
        assert batch.rows[0].request.inputs["x"].shape == (1, width)
        return batch.rows[0]

    first = null(1)
    assert null(1) is first
    assert null(2) is not first


def test_batch_that_cannot_be_made_takes_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    router = _filled()
    b = router.send("b", 2)
    with monkeypatch.context() as patched:
        patched.setattr(Controls, "null", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            router.next()
    assert (b.waits, router.policy.waiting) == (True, 1)
    assert router.next() == ["", "b"]


@pytest.mark.rows("S59")
def test_id_of_32_bits_is_the_low_half() -> None:
    router = direct(controls=[Control(ControlKind.CORRID, "ID", UINT32)])
    one = router.send("a", 2**32 + 7, "S")
    router.next()
    assert array_of(one.request.inputs["ID"]).tolist() == [[7]]


def test_slot_is_given_on_as_soon_as_its_last_request_runs() -> None:
    router = direct(slots=1)
    a, b = router.send("a", 1, "SE"), router.send("b", 2, "S")
    assert b.sequence.instance < 0
    assert router.next() == ["a"]
    assert b.sequence.instance == 0
    router.end(a)
    assert router.next() == ["b"]


@pytest.mark.rows("S62")
def test_batch_waits_for_enough_rows_or_its_time() -> None:
    router = direct(slots=4, delay_ns=1000, utilization=0.5)
    a = router.send("a", 1, "S")
    assert router.next() == Wake(1100)
    router.now = 1099
    assert router.next() == Wake(1100)
    b = router.send("b", 2, "S")
    assert router.next() == ["a", "b"]
    router.end(a, b)
    router.send("b2", 2)
    router.now += 1000
    assert router.next() == ["", "b2"]


@pytest.mark.rows("S62")
@pytest.mark.parametrize(("delay_ns", "utilization"), [(0, 1.0), (1000, 0.0)])
def test_batch_does_not_wait_if_either_is_zero(delay_ns: int, utilization: float) -> None:
    router = direct(slots=4, delay_ns=delay_ns, utilization=utilization)
    router.send("a", 1, "S")
    assert router.next() == ["a"]


def test_utilization_is_a_number_of_32_bits() -> None:
    router = direct(slots=10, delay_ns=1000, utilization=float(np.float32(0.3)))
    for i in range(1, 3):
        router.send(f"{i}", i, "S")
    assert isinstance(router.next(), Wake)
    router.send("3", 3, "S")
    assert router.next() == ["1", "2", "3"]


def test_heads_that_have_run_are_forgotten() -> None:
    router = direct(slots=2, delay_ns=10**9, utilization=0.5)
    for i in range(1, 1000):
        one = router.send("a", i, "SE")
        assert router.next() == ["a"]
        router.end(one)
    assert len(router.policy._boards[0].heads) < 100  # type: ignore[attr-defined]


def test_instances_have_rows_of_their_own() -> None:
    router = direct(slots=2, instances=2)
    for i in range(1, 5):
        router.send(f"{i}", i, "S")
    assert [router.next(), router.next()] == [["1", "3"], ["2", "4"]]
    router.send("4b", 4)
    assert router.next() is None
    router.free.append(0)
    assert router.next() is None
    router.free.append(1)
    assert router.next() == ["", "4b"]


def test_input_in_memory_of_a_client_is_only_looked_at_for_its_shape() -> None:
    router = direct(slots=2)
    a, b = router.send("a", 1, "S"), router.send("b", 2, "S")
    router.next()
    router.end(a, b)
    one, _ = router.try_("b", 2)
    one.request.inputs["x"] = Tensor("x", INT32, (1, 3), HostMemory(b"\xff" * 12))
    batch = router.batch()
    assert isinstance(batch, Batch)
    assert array_of(batch.rows[0].request.inputs["x"]).tolist() == [[0, 0, 0]]
