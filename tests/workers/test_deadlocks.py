"""Who waits for whom: rings of batches and calls, drawn by hand."""

from collections.abc import Collection

from halimede.workers.deadlocks import is_deadlocked


class ModelCall:
    """Waits for one of these batches; None if something else can see to it."""

    def __init__(self, blockers: "Collection[Batch] | None", guessed: bool = False) -> None:
        self._blockers = blockers
        self.guessed = guessed

    def blockers(self) -> "Collection[Batch] | None":
        return self._blockers


class Batch:
    def __init__(self) -> None:
        self.running = True
        self.waits_for: list[ModelCall] = []

    def calls(self, *blockers: "Batch", guessed: bool = False) -> "Batch":
        self.waits_for.append(ModelCall(blockers, guessed))
        return self


def hopeless(batch: Batch) -> bool:
    """The same, whether what is only likely counts or not."""
    sure = is_deadlocked(batch, guesses=False)
    assert is_deadlocked(batch, guesses=True) == sure
    return sure


def test_batch_that_computes_goes_on() -> None:
    assert not hopeless(Batch())


def test_batch_that_waits_for_itself_is_hopeless() -> None:
    batch = Batch()
    assert hopeless(batch.calls(batch))


def test_batch_that_gave_its_instance_back_waits_for_nobody() -> None:
    batch = Batch()
    batch.calls(batch).running = False
    assert not hopeless(batch)


def test_two_that_wait_for_each_other_are_hopeless() -> None:
    one, two = Batch(), Batch()
    one.calls(two)
    assert not hopeless(one)
    two.calls(one)
    assert hopeless(one)
    assert hopeless(two)


def test_long_ring_is_hopeless_from_everywhere() -> None:
    batches = [Batch() for _ in range(5)]
    for batch, following in zip(batches, [*batches[1:], batches[0]], strict=True):
        batch.calls(following)
    assert all(hopeless(batch) for batch in batches)


def test_call_that_one_other_instance_can_take_has_hope() -> None:
    batch, busy = Batch(), Batch()
    assert not hopeless(batch.calls(batch, busy))
    busy.calls(batch, busy)
    assert hopeless(batch), "two batches of a model with two instances, each of which calls the model"


def test_batch_with_one_call_that_can_be_answered_has_hope() -> None:
    batch = Batch().calls(Batch())
    assert not hopeless(batch.calls(batch))


def test_call_to_what_is_in_no_worker_has_hope() -> None:
    batch = Batch()
    batch.waits_for.append(ModelCall(None))
    assert not hopeless(batch.calls(batch))


def test_guess_counts_only_where_it_is_asked_for() -> None:
    batch = Batch()
    batch.calls(batch, guessed=True)
    assert not is_deadlocked(batch, guesses=False)
    assert is_deadlocked(batch, guesses=True)
