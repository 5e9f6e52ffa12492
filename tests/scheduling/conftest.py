from collections.abc import Callable, Iterator

import pytest

from tests.scheduling.rig import Rig


@pytest.fixture(params=["thread", "loop"])
def place(request: pytest.FixtureRequest) -> str:
    """Where the model runs: on a thread of its instance, or placed on the loop."""
    return str(request.param)


@pytest.fixture
def rigs(place: str) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(*args: object, **options: object) -> Rig:
        made.append(Rig(*args, on_loop=place == "loop", **options))  # type: ignore[arg-type] # passed through
        return made[-1]

    yield make
    for rig in made:
        rig.runner.close()
