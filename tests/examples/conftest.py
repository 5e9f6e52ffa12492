"""The demo's repository, built in the folder where users build it too, and the reference embeddings."""

import os
from collections.abc import Iterator
from pathlib import Path

import build_repository
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.compat.serving import Serving

REFERENCE = Path(__file__).resolve().parent / "reference"


@pytest.fixture(scope="session")
def demo_repository() -> Path:
    """The built repository. Without the weights the tests are skipped, and fail in CI."""
    try:
        build_repository.build()
    except build_repository.DownloadError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    return build_repository.REPOSITORY


@pytest.fixture(scope="session")
def reference() -> NDArray[np.float32]:
    """FP32 [12, 384], one row for each of the demo's sentences; see reference/make_reference.py."""
    vectors: NDArray[np.float32] = np.load(REFERENCE / "reference.npy")
    return vectors


@pytest.fixture(scope="session")
def demo_server(demo_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The server on the demo's models: `http_url` and `grpc_url` are `host:port`."""
    with Serving(demo_repository, tmp_path_factory.mktemp("demo") / "server.log") as serving:
        serving.wait_until_live()
        yield serving
        assert serving.stop() == 0, serving.log_text()[-3000:]
