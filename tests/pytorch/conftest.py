"""Models of torch. `make test` leaves these tests out, because torch is not among what it installs; `make test-torch`
runs them."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.compat.serving import Serving
from tests.pytorch.served import Served

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that loads models when a test asks for them. At the end it must stop with status 0."""
    folder = tmp_path_factory.mktemp("torch")
    repository = folder / "models"
    repository.mkdir()
    flags = ("--model-control-mode=explicit", "--log-verbose=1")
    with Serving(repository, folder / "server.log", *flags) as serving:
        yield Served(serving.wait_until_live(), repository)
        assert serving.stop() == 0, serving.log_text()[-3000:]
