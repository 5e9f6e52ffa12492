"""Which folders have changed and settled (R9, D17). The clock is moved by hand."""

from itertools import pairwise

from halimede.models.repository import Fingerprint, Look
from halimede.models.resizing import MODEL_FOLDER
from halimede.models.watching import MAX_POLLS_BETWEEN_TRIES, Todo, Watch

SETTLE, INTERVAL = 20, 100
OLD = -1000


def files(*names: str, size: int = 1) -> Fingerprint:
    return tuple((name, (size, size)) for name in names)


class Watched:
    """One model `m` that is looked at now and then."""

    def __init__(self) -> None:
        self.watch = Watch(SETTLE, INTERVAL)
        self.now = 1000

    def look(
        self, fingerprint: Fingerprint | None, after: int = 0, changed_at: int | None = None, busy: str = ""
    ) -> Todo:
        """`after` so long; changed just now unless told otherwise."""
        self.now += after
        at = self.now if changed_at is None else changed_at
        found = {} if fingerprint is None else {"m": Look(fingerprint, at)}
        return self.watch.look(found, busy, self.now, self.now)


def test_folder_that_was_there_for_long_is_loaded_at_once_and_once() -> None:
    watched = Watched()
    assert watched.look(files("a"), changed_at=OLD) == Todo(("m",), ())
    watched.watch.loaded("m")
    assert watched.look(files("a"), INTERVAL, OLD) == Todo((), ())


def test_folder_that_grows_is_not_loaded_until_it_stays() -> None:
    watched = Watched()
    for size in range(5):
        todo = watched.look(files("a", size=size), SETTLE - 1)
        assert todo == Todo((), (), ("m",), watched.now + SETTLE)
    assert watched.look(files("a", size=4), SETTLE - 1).load == ()
    assert watched.look(files("a", size=4), 1).load == ("m",)


def test_look_that_takes_long_makes_no_folder_older_than_it_was_seen_to_be() -> None:
    """The machine stalled after the files were looked at, and before it was asked what time it is."""
    watched = Watched()
    watched.look(files("a"))
    found = {"m": Look(files("a"), watched.now)}
    late, then = watched.now + SETTLE, watched.now + SETTLE - 1
    assert watched.watch.look(found, "", late, then, late - then).load == ()
    assert watched.watch.look(found, "", late + 1, late, 1).load == ("m",)


def test_folder_that_keeps_the_times_of_its_copy_settles_all_the_same() -> None:
    """`cp -p`: the files are old, the folder is not."""
    watched = Watched()
    assert watched.look(files("a"), changed_at=1000).load == ()
    assert watched.look(files("a", "b"), SETTLE - 1, 1019).load == ()
    assert watched.look(files("a", "b"), SETTLE, 1019).load == ("m",)


def test_clock_of_the_files_that_is_ahead_delays_nothing_for_ever() -> None:
    watched = Watched()
    assert watched.look(files("a"), changed_at=10**9).load == ()
    assert watched.look(files("a"), SETTLE, 10**9).load == ("m",)


def test_folder_that_is_replaced_is_not_unloaded_meanwhile() -> None:
    watched = Watched()
    watched.look(files("a"), changed_at=OLD)
    watched.watch.loaded("m")
    assert watched.look(None, INTERVAL) == Todo((), (), ("m",), watched.now + SETTLE)
    assert watched.look(files("a"), 1, OLD) == Todo((), ())
    assert watched.look(None, 1).unload == ()
    assert watched.look(None, SETTLE).unload == ("m",)
    assert watched.look(None, SETTLE) == Todo((), ())


def test_model_that_failed_is_tried_again_later_and_later_and_at_once_when_it_changed() -> None:
    watched, times = Watched(), []
    watched.look(files("a"), changed_at=OLD)
    watched.watch.failed("m", watched.now)
    for _ in range(100):
        if watched.look(files("a"), INTERVAL, OLD).load:
            times.append(watched.now)
            watched.watch.failed("m", watched.now)
    waits = [(after - before) // INTERVAL for before, after in pairwise(times)]
    assert waits == [2, 4, 8, 16, 16, 16, 16, 16]
    assert max(waits) == MAX_POLLS_BETWEEN_TRIES
    assert watched.look(files("a", "b"), 1, OLD).load == ("m",)


def test_model_that_is_being_loaded_is_left_alone() -> None:
    watched = Watched()
    watched.look(files("a"), changed_at=OLD)
    assert watched.look(files("b"), INTERVAL, OLD, busy="m") == Todo((), ())
    assert watched.look(files("b"), 1, OLD).load == ("m",)


def test_files_that_changed_during_a_load_must_settle_again() -> None:
    watched = Watched()
    watched.look(files("a"), changed_at=OLD)
    assert not watched.watch.changed("m", {"b"}, watched.now)
    watched.watch.failed("m", watched.now)
    assert watched.look(files("a", "b"), 1).load == ()
    assert watched.look(files("a", "b"), SETTLE).load == ("m",)


def test_files_that_the_model_writes_itself_are_passed_over_the_second_time() -> None:
    watched = Watched()
    watched.look(files("a"), changed_at=OLD)
    assert not watched.watch.suspected
    assert not watched.watch.changed("m", {"log"}, watched.now)
    watched.watch.failed("m", watched.now)
    assert watched.watch.suspected
    assert watched.look(files("a", "log"), SETTLE, OLD).load == ("m",)
    assert watched.watch.changed("m", {"log"}, watched.now)
    watched.watch.loaded("m")
    assert not watched.watch.suspected
    assert watched.look((*files("a"), *files("log", size=9)), INTERVAL, OLD) == Todo((), ())
    assert watched.look(files("a", "log", size=2), INTERVAL, OLD).load == ("m",)
    assert watched.watch.changed("m", {"log"}, watched.now)


def test_folder_that_vanishes_during_every_load_is_never_accepted() -> None:
    watched = Watched()
    for _ in range(4):
        watched.look(files("a"), INTERVAL, OLD)
        assert not watched.watch.changed("m", {MODEL_FOLDER}, watched.now)
        watched.watch.failed("m", watched.now)
