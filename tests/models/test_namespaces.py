"""Models of one name in several namespaces, and what the name finds (R20)."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from halimede.errors import Error, Invalid, NotFound
from halimede.models.lifecycle import NamespacedTable
from halimede.models.version import ModelVersion
from halimede.scheduling.inference import Inference
from tests.fakes import ManualLoop, RecordingObserver
from tests.models.configs import config_of, spec
from tests.models.fakes import loaded


def version(key: str, name: str = "m", number: int = 1) -> ModelVersion:
    tensor = spec("x", "INT32", [-1])
    opened = replace(loaded(config_of(tensor, outputs=[tensor], name=name), number), key=key)

    def settled(inference: Inference) -> None:
        """Nobody asks."""

    return ModelVersion(opened, ManualLoop(), RecordingObserver(), settled)


def serve(table: NamespacedTable, key: str, name: str = "m", *numbers: int) -> list[ModelVersion]:
    table.loading(key, (), name)
    versions = [version(key, name, number) for number in numbers or (1,)]
    table.publish(key, versions, lambda version: None)
    return versions


def unload(table: NamespacedTable, key: str) -> None:
    table.retire(key, table.ready_versions(key), lambda version: None)


def refusal(find: Callable[[], object]) -> tuple[type, str]:
    with pytest.raises(Error) as caught:
        find()
    return type(caught.value), str(caught.value)


def test_name_of_one_model_finds_it() -> None:
    table = NamespacedTable()
    [old, new] = serve(table, "/a::m", "m", 1, 2)
    assert table.find("m", -1) is new
    assert table.find("m", 1) is old
    assert table.find("/a::m", 1) is old
    assert refusal(lambda: table.find("m", 9)) == (
        NotFound,
        "Request for unknown model: '/a::m' version 9 is not found",
    )


def test_name_of_two_models_finds_neither_until_one_is_unloaded() -> None:
    table = NamespacedTable()
    [one], [two] = serve(table, "/a::m"), serve(table, "/b::m")
    ambiguous = (
        "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity."
    )
    assert refusal(lambda: table.find("m", -1)) == (Invalid, ambiguous)
    assert (table.get("m"), table.ready_versions("m")) == (None, [])
    assert table.keys_of("m") == ["/a::m", "/b::m"]
    assert (table.find("/a::m", -1), table.find("/b::m", -1)) == (one, two)
    unload(table, "/a::m")
    assert table.find("m", 1) is two
    unload(table, "/b::m")
    assert refusal(lambda: table.find("m", -1)) == (NotFound, "Identifier of model 'm' is not found in global map")


def test_name_of_no_model_is_invalid() -> None:
    table = NamespacedTable()
    assert refusal(lambda: table.find("m", -1)) == (Invalid, "Request for unknown model: 'm' is not found")


def test_second_model_takes_the_name_from_the_first_while_it_loads() -> None:
    table = NamespacedTable()
    serve(table, "/a::m")
    table.loading("/b::m", [1], "m")
    assert refusal(lambda: table.find("m", -1))[0] is Invalid


def test_ensemble_that_waits_for_its_members_keeps_its_name() -> None:
    table = NamespacedTable()
    serve(table, "/a::m")
    unload(table, "/a::m")
    table.awaits_members("/a::m", True)
    waits = "Request for unknown model: '/a::m' has no available versions"
    assert refusal(lambda: table.find("m", -1)) == (NotFound, waits)
    (again,) = serve(table, "/a::m")
    assert table.find("m", -1) is again
    unload(table, "/a::m")
    assert refusal(lambda: table.find("m", -1)) == (NotFound, "Identifier of model 'm' is not found in global map")
