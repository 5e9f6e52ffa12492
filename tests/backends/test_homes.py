"""The home of each model decides which backend it gets, and no other home is created."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from halimede.backends.api import Backend
from halimede.backends.child.backend import ChildBackend
from halimede.backends.homes import BackendOfTwoHomes
from halimede.backends.traits import Home, Traits
from halimede.errors import Error, Unavailable
from halimede.models.loader import LoadOptions, LoadResult, load
from halimede.models.repository import FoundModel
from tests.backends.fakes import context, idle_loop
from tests.models.fakes import FakeBackend, OneBackend

TRAITS = Traits("fake", homes=(Home.SERVER, Home.CHILD))
CONFIG = """
backend: "fake"
input { name: "x" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_INT32 dims: [ 1 ] }
"""
IN_SERVER = 'parameters { key: "HOME" value: { string_value: "server" } }'


class OnOneGpu(FakeBackend):
    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        return gpus[:1]


class Homes:
    """A backend of two homes, and how often it was created in the server."""

    def __init__(self, settings: dict[str, str], errors: Sequence[Error] = ()) -> None:
        self.created = 0
        self._errors = list(errors)
        self._settings = settings

    def __enter__(self) -> "Homes":
        self._idle = idle_loop()
        self.backend = BackendOfTwoHomes(TRAITS, context(self._idle.__enter__(), self._settings), self._create)
        return self

    def __exit__(self, *_: object) -> None:
        self.backend.close()
        self._idle.__exit__(None, None, None)

    def _create(self) -> Backend:
        if self._errors:
            raise self._errors.pop()
        self.created += 1
        return OnOneGpu()

    def load(self, root: Path, text: str) -> LoadResult:
        (root / "m" / "1").mkdir(parents=True, exist_ok=True)
        (root / "m" / "config.pbtxt").write_text(text)
        return load(FoundModel("m", root / "m"), (1,), OneBackend(self.backend), LoadOptions(gpus=(0, 1)))


@pytest.fixture
def in_children() -> Iterator[Homes]:
    with Homes({"home": "child"}) as homes:
        yield homes


def test_home_in_the_server_is_created_for_the_first_model_there(in_children: Homes) -> None:
    assert isinstance(in_children.backend.of_model({}, "m"), ChildBackend)
    assert in_children.created == 0
    first, second = (in_children.backend.of_model({"HOME": "server"}, name) for name in "mn")
    assert first is second
    assert in_children.created == 1


def test_home_in_the_server_is_not_created_if_all_models_choose_children() -> None:
    with Homes({}) as homes:
        assert isinstance(homes.backend.of_model({"HOME": "child"}, "m"), ChildBackend)
        assert homes.created == 0


def test_model_has_the_gpus_of_its_own_home(in_children: Homes, tmp_path: Path) -> None:
    """The default home cannot even be asked: there is no such backend to import."""
    [version] = in_children.load(tmp_path, CONFIG + IN_SERVER).opened
    assert [place.device_id for place in version.places] == [0]
    version.close()


def test_runtime_that_is_not_installed_fails_the_load_and_is_tried_again(tmp_path: Path) -> None:
    with Homes({}, [Unavailable("not installed")]) as homes:
        assert str(homes.load(tmp_path, CONFIG).failures[1]) == "not installed"
        [version] = homes.load(tmp_path, CONFIG).opened
        version.close()
