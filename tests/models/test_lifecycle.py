import sys
from collections.abc import Callable

import pytest

from halimede.errors import Error, NotFound, Unavailable
from halimede.models import lifecycle
from halimede.models.lifecycle import ModelTable, VersionState
from halimede.models.version import ModelVersion
from tests.fakes import ManualLoop, RecordingObserver, RecordingReply
from tests.models.configs import asking, config_of, given, spec
from tests.models.fakes import loaded


def version(number: int, name: str = "m") -> ModelVersion:
    config = config_of(spec("INPUT0", "INT32", [1]), outputs=[spec("INPUT0", "INT32", [1])], name=name)
    return ModelVersion(loaded(config, number), ManualLoop(), RecordingObserver(), lambda one: None)


def publish(table: ModelTable, *versions: ModelVersion, closed: Callable[[ModelVersion], None] | None = None) -> None:
    table.publish(versions[0].name, versions, closed or (lambda version: None))


def states(table: ModelTable, name: str = "m") -> dict[int, tuple[VersionState, str]]:
    record = table.get(name)
    assert record is not None
    return {number: (one.state, one.reason) for number, one in record.versions.items()}


def test_latest_version_answers_unless_another_is_asked_for() -> None:
    table = ModelTable()
    versions = {number: version(number) for number in (10, 2, 3)}
    publish(table, *versions.values())
    assert table.find("m", -1) is versions[10]
    assert table.find("m", 2) is versions[2]
    assert [one.number for one in table.ready_versions("m")] == [2, 3, 10]
    assert table.ready_versions("other") == []


@pytest.mark.parametrize(
    ("name", "number", "kind", "text"),
    [
        ("nope", -1, NotFound, "Request for unknown model: 'nope' is not found"),
        ("nope", 1, NotFound, "Request for unknown model: 'nope' is not found"),
        ("broken", -1, NotFound, "Request for unknown model: 'broken' is not found"),
        ("good", 9, NotFound, "Request for unknown model: 'good' version 9 is not found"),
        ("unready", -1, NotFound, "Request for unknown model: 'unready' has no available versions"),
        ("unready", 1, Unavailable, "Request for unknown model: 'unready' version 1 is not at ready state"),
        ("unready", 7, NotFound, "Request for unknown model: 'unready' version 7 is not found"),
    ],
)
def test_find_raises_the_reason(name: str, number: int, kind: type[Error], text: str) -> None:
    """Triton's texts and kinds of errors (H14)."""
    table = ModelTable()
    publish(table, version(1, "good"))
    table.refuse("unready", 1, "Internal: broke")
    table.refuse("broken", None, "Invalid argument: bad configuration")
    with pytest.raises(kind) as raised:
        table.find(name, number)
    assert (type(raised.value), str(raised.value)) == (kind, text)


def test_latest_version_that_could_not_be_loaded_leaves_the_older_one() -> None:
    table = ModelTable()
    publish(table, version(1))
    table.refuse("m", 2, "Internal: broke")
    assert table.find("m", -1).number == 1
    assert states(table) == {1: (VersionState.READY, ""), 2: (VersionState.UNAVAILABLE, "Internal: broke")}


def test_retired_version_takes_no_request_and_is_closed_once_idle() -> None:
    table = ModelTable()
    old, new = version(1), version(2)
    publish(table, old, new)
    closed: list[ModelVersion] = []
    table.retire("m", [new], closed.append)
    assert closed == [new]
    assert table.find("m", -1) is old
    assert states(table)[2] == (VersionState.UNLOADING, "")
    table.gone(new)
    assert states(table)[2] == (VersionState.UNAVAILABLE, "unloaded")
    with pytest.raises(Unavailable, match="version 2 is not at ready state"):
        table.find("m", 2)


def test_retired_version_waits_for_the_inferences_that_hold_it() -> None:
    """(R14)"""
    table, reply = ModelTable(), RecordingReply()
    loop = ManualLoop()
    config = config_of(spec("INPUT0", "INT32", [1]), outputs=[spec("INPUT0", "INT32", [1])])
    one = ModelVersion(loaded(config), loop, RecordingObserver(), lambda inference: None)
    publish(table, one)
    begun = one.infer(1, asking(given("INPUT0", "INT32", [1])), reply, 0)
    one.submit(begun)
    closed: list[ModelVersion] = []
    table.retire("m", [one], closed.append)
    assert closed == []
    assert states(table) == {1: (VersionState.UNLOADING, "")}
    late = RecordingReply()
    one.submit(one.infer(2, asking(given("INPUT0", "INT32", [1])), late, 0))
    assert isinstance(late.error, Unavailable)
    loop.run_until(lambda: bool(closed))
    assert reply.response.model_version == 1
    assert closed == [one]
    assert states(table) == {1: (VersionState.UNLOADING, "")}  # what it holds is still to be given back
    one.close()
    table.gone(one)
    assert states(table) == {1: (VersionState.UNAVAILABLE, "unloaded")}


def test_versions_that_came_and_went_cost_later_ones_nothing() -> None:
    """A client may load the same model again and again, each time with hundreds of other versions."""

    def steps_of(rounds: int) -> int:
        table, steps = ModelTable(), 0
        for number in range(rounds):
            publish(table, *(version(100 * number + each) for each in range(1, 51)))

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal steps
            steps += 1

        more = [version(100 * rounds + each) for each in range(1, 51)]
        sys.setprofile(count)
        publish(table, *more)
        sys.setprofile(None)
        assert [each.number for each in table.ready_versions("m")] == [each.number for each in more]
        return steps

    assert steps_of(20) <= steps_of(1) + 20


def test_look_at_one_version_costs_the_same_among_many() -> None:
    """A load asks for each of its versions whether it serves."""

    def steps_of(others: int) -> int:
        table, steps = ModelTable(), 0
        publish(table, version(1))
        for number in range(2, others):
            table.refuse("m", number, "Internal: broke")

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal steps
            steps += 1

        sys.setprofile(count)
        found = table.serves("m", 1), table.serves("m", 2), table.serves("m", others), table.serves("other", 1)
        sys.setprofile(None)
        assert found == (True, False, False, False)
        return steps

    assert steps_of(500) == steps_of(5)


def test_versions_that_do_not_serve_are_forgotten_if_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "MAX_UNAVAILABLE_VERSIONS", 2)
    table = ModelTable()
    table.refuse("other", 1, "Internal: broke")
    for number in (2, 3):
        publish(table, one := version(number), closed=table.gone)
        assert table.find("m", -1) is one
    table.refuse("m", 2, "Internal: broke")
    assert set(table.keys()) == {"other", "m"}
    publish(table, version(4), closed=table.gone)
    assert table.keys() == ["m"]
    assert states(table) == {
        2: (VersionState.UNAVAILABLE, "Internal: broke"),
        3: (VersionState.UNAVAILABLE, "unloaded"),
        4: (VersionState.READY, ""),
    }
    table.loading("m", [2])
    table.refuse("m", 5, "Internal: broke")
    assert set(states(table)) == {2, 3, 4, 5}
    table.refuse("m", 2, "Internal: broke again")
    assert set(states(table)) == {2, 4, 5}
    publish(table, version(5), closed=table.gone)
    table.forget_failures("m")
    assert set(states(table)) == {5}


def test_version_whose_end_comes_after_its_successor_failed_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "MAX_UNAVAILABLE_VERSIONS", 1)
    table, old = ModelTable(), version(1)
    publish(table, old)
    table.retire("m", [old], lambda closed: None)
    table.loading("m", [1])
    table.gone(old)
    table.refuse("m", 2, "Internal: broke")
    assert states(table) == {1: (VersionState.LOADING, ""), 2: (VersionState.UNAVAILABLE, "Internal: broke")}


def test_reasons_of_failed_loads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "MAX_REASONS", 30_000)
    table = ModelTable()
    for number in range(1, 6):
        table.refuse("m", number, "x" * 1_000_000)
    table.refuse("m", 6, "short")
    lengths = [len(reason) for _, reason in states(table).values()]
    assert lengths == [259, 259, 8195, 8195, 8195, 5]
    for _ in range(5):
        table.refuse("n", None, "y" * 5000)
    record = table.get("n")
    assert record is not None
    assert len(record.reason) in (259, 5000)


def test_end_of_a_version_leaves_its_successor_alone() -> None:
    table, old, new = ModelTable(), version(1), version(1)
    publish(table, old)
    table.retire("m", [old], lambda closed: None)
    table.loading("m", [1])
    assert states(table) == {1: (VersionState.LOADING, "")}
    publish(table, new)
    table.gone(old)
    assert states(table) == {1: (VersionState.READY, "")}


@pytest.mark.parametrize("held", [True, False])
def test_version_of_a_removed_model_is_unloading_until_it_is_closed(held: bool) -> None:
    table, one = ModelTable(), version(1)
    publish(table, one)
    table.refuse("m", 2, "Internal: broke")
    if held:
        one.hold()
    table.retire("m", [one], lambda closed: None)
    table.forget_failures("m")
    assert states(table) == {1: (VersionState.UNLOADING, "")}
    assert not table.all_ready()
    table.gone(one)
    assert states(table) == {1: (VersionState.UNAVAILABLE, "unloaded")}
    assert table.all_ready()


def test_failed_load_is_reported_while_the_old_version_is_held() -> None:
    """As by the real server: only one that is ready stays what is known of it."""
    table, old = ModelTable(), version(1)
    publish(table, old)
    old.hold()
    table.retire("m", [old], table.gone)
    table.loading("m", [1])
    assert states(table) == {1: (VersionState.LOADING, "")}
    table.refuse("m", 1, "Internal: broke")
    old.let_go()
    assert states(table) == {1: (VersionState.UNAVAILABLE, "Internal: broke")}
    assert not table.all_ready()


def test_published_versions_take_the_place_of_all_that_served() -> None:
    """One number is replaced, another is gone, a third one is new (R11, R12)."""
    table = ModelTable()
    old, gone = version(1), version(2)
    publish(table, old, gone)
    new, more = version(1), version(3)
    closed: list[ModelVersion] = []
    publish(table, new, more, closed=closed.append)
    assert set(closed) == {old, gone}
    for each in closed:
        table.gone(each)
    assert [table.find("m", 1), table.find("m", 3), table.find("m", -1)] == [new, more, more]
    assert states(table) == {
        1: (VersionState.READY, ""),
        2: (VersionState.UNAVAILABLE, "unloaded"),
        3: (VersionState.READY, ""),
    }


def test_version_that_serves_is_not_touched_by_a_load_that_fails() -> None:
    """(R11)"""
    table = ModelTable()
    publish(table, version(1))
    table.loading("m", [1, 2])
    assert states(table) == {1: (VersionState.READY, ""), 2: (VersionState.LOADING, "")}
    table.refuse("m", 1, "Internal: broke")
    table.refuse("m", 2, "Internal: broke")
    assert states(table) == {1: (VersionState.READY, ""), 2: (VersionState.UNAVAILABLE, "Internal: broke")}


def test_table_lists_models_by_name() -> None:
    table = ModelTable()
    for name in ("b", "c", "a"):
        table.loading(name)
    assert [record.name for record in table] == ["a", "b", "c"]
    assert sorted(table.keys()) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("steps", "ready"),
    [
        ([], True),
        (["publish"], True),
        (["loading"], True),
        (["loading 1"], False),
        (["publish", "refuse"], False),
        (["refuse all"], True),
        (["barren"], False),
        (["barren", "publish"], True),
        (["barren", "refuse all"], True),
        (["publish", "retire"], False),
        (["publish", "retire", "gone"], True),
        (["publish", "loading"], True),
    ],
)
def test_strict_readiness_wants_every_model_ready_or_unloaded(steps: list[str], ready: bool) -> None:
    """A model with an invalid configuration does not count, as in Triton (H8)."""
    table, one = ModelTable(), version(1)
    for step in steps:
        match step:
            case "publish":
                publish(table, one)
            case "loading":
                table.loading("m")
            case "loading 1":
                table.loading("m", [1])
            case "barren":
                table.refuse("m", None, "Invalid argument: no version", no_usable_version=True)
            case "refuse":
                table.refuse("m", 2, "Internal: broke")
            case "refuse all":
                table.refuse("m", None, "Invalid argument: bad")
            case "retire":
                table.retire("m", [one], lambda closed: None)
            case "gone":
                table.gone(one)
    assert table.all_ready() is ready
