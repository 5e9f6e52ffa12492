"""A cluster for the tests that need one. Ray asks nobody and reports to nobody."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray.cluster import Nodes

ROOT = Path(__file__).parents[2]

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# The processes of the cluster find the same sources as this one.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    pytest.importorskip("ray", reason="Ray is not installed: make test-ray")
    nodes = Nodes()
    yield nodes
    nodes.close()
