"""The demo's repository, built once where a user has it too, and the embeddings to compare with."""

import os
from pathlib import Path

import build_repository
import numpy as np
import pytest
from numpy.typing import NDArray

REFERENCE = Path(__file__).resolve().parent / "reference"


@pytest.fixture(scope="session")
def demo_repository() -> Path:
    """The built repository; without the weights the tests are skipped on a person's machine and fail in CI."""
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
