"""Nodes that die and replicas that come and go under load, without a failed request."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compat.serving import write_model
from tests.ray.cluster import SLOW, Nodes, application, running, until, write_python
from tests.ray.test_cluster import answer, client_of

pytestmark = pytest.mark.ray


class Load:
    """Clients that ask one after the other until they are stopped. `outcomes` counts what they got."""

    def __init__(self, model: str, kinds: list[tuple[str, dict[str, str]]]) -> None:
        self.outcomes: Counter[str] = Counter()
        self._model = model
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=each) for each in kinds]

    def _ask(self, kind: str, place: dict[str, str]) -> None:
        numbers = np.array([1, 2, 3], np.int32)
        with client_of(kind, place) as client:
            while not self._over.is_set():
                try:
                    fine = answer(client, self._model, numbers).tolist() == [1, 2, 3]
                    outcome = "fine" if fine else "wrong"
                except Exception as error:  # counted, and the test fails with its text
                    outcome = f"{kind}: {error}"
                self.outcomes[outcome] += 1

    def more(self, count: int) -> None:
        """Waits until so many further requests were answered."""
        start = self.outcomes.total()
        until(lambda: self.outcomes.total() >= start + count, f"{count} requests are answered")

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def load(model: str, *kinds: tuple[str, dict[str, str]]) -> Iterator[Load]:
    load = Load(model, list(kinds))
    load.begin()
    try:
        yield load
    finally:
        load.end()


def test_node_dies_under_load_and_another_takes_its_place(nodes: Nodes, tmp_path: Path) -> None:
    write_model(tmp_path, "identity", "INT32")
    victim = nodes.others[0]
    engine = {"num_replicas": 3, "max_replicas_per_node": 1, "health_check_period_s": 1}
    with application("hardy", tmp_path, engine=engine, ingress={"num_replicas": 3}) as places:
        kept = [place for place in places if place["node"] != victim.node_id]
        assert len(kept) == 2
        with load("identity", *((kind, place) for place in kept for kind in ("http", "grpc"))) as clients:
            clients.more(100)
            nodes.kill(victim)
            clients.more(200)
            until(lambda: running("hardy") == 2, "the dead replica is counted out")
            nodes.others.append(nodes.add())
            until(lambda: running("hardy") == 3, "the new node has a replica")
            until(lambda: running("hardy", "Ingress") == 3, "the new node has an ingress")
            clients.more(100)
        assert set(clients.outcomes) == {"fine"}
        import halimede.ray

        fresh = [place for place in halimede.ray.addresses("hardy") if place["node"] == nodes.others[-1].node_id]
        with client_of("grpc", fresh[0]) as client:
            assert answer(client, "identity", np.array([5], np.int32)).tolist() == [5]


def test_replicas_follow_the_load(nodes: Nodes, tmp_path: Path) -> None:
    write_python(tmp_path, "slow", SLOW)
    scaling: dict[str, Any] = {
        "min_replicas": 1,
        "max_replicas": 3,
        "target_ongoing_requests": 2,
        "upscale_delay_s": 1,
        "downscale_delay_s": 2,
        "look_back_period_s": 2,
    }
    engine = {"autoscaling_config": scaling, "max_ongoing_requests": 8}
    with application("elastic", tmp_path, engine=engine) as (place,):
        assert running("elastic") == 1
        with load("slow", *[("grpc", place)] * 3, *[("http", place)] * 3) as clients:
            until(lambda: running("elastic") == 3, "three replicas for six clients")
            clients.more(20)
        assert set(clients.outcomes) == {"fine"}
        with load("slow", ("http", place)) as clients:
            until(lambda: running("elastic") == 1, "one replica for one client")
            clients.more(5)
        assert set(clients.outcomes) == {"fine"}


def test_first_request_wakes_a_replica(nodes: Nodes, tmp_path: Path) -> None:
    write_model(tmp_path, "identity", "INT32")
    engine = {"autoscaling_config": {"min_replicas": 0, "max_replicas": 1, "upscale_delay_s": 0}}
    with (
        application("sleeping", tmp_path, models_per_replica=1, engine=engine) as (place,),
        client_of("http", place) as client,
    ):
        assert client.is_server_ready()
        assert client.get_model_repository_index() == []
        assert running("sleeping") == 0
        assert answer(client, "identity", np.array([7], np.int32)).tolist() == [7]
        assert running("sleeping") == 1
