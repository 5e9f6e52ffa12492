"""Three replicas behind HAProxy, behind nginx, and behind gRPC's own load balancing. Each configuration is that of
`deploy/replicas/`. No request may fail under the retries that the configuration states."""

import asyncio
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from tests.deploy.load import Load
from tests.deploy.replicas import REPLICAS, Balancer, Haproxy, Replicas
from tests.deploy.rolling import BALANCERS, mixed_load, retry_policy, roll

pytestmark = pytest.mark.deploy
RATE = 300.0
"""Requests a second: low, so that two cores that also run other tests can carry them."""
SECONDS = 2.0


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    with Replicas(tmp_path) as replicas:
        yield replicas


@pytest.fixture(params=BALANCERS)
def balancer(request: pytest.FixtureRequest, replicas: Replicas, tmp_path: Path) -> Iterator[Balancer]:
    """A balancer in front of three replicas that are ready."""
    replicas.start(*range(REPLICAS))
    with BALANCERS[request.param](tmp_path, replicas) as balancer:
        yield balancer


def served(replicas: Replicas, n: int) -> int:
    """How many requests a replica has answered since its start."""
    lines = replicas.servers[n].metrics().splitlines()
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("nv_inference_request_success{"))


def test_rolling_restart(replicas: Replicas, balancer: Balancer) -> None:
    load = mixed_load(balancer, RATE)
    asyncio.run(roll(replicas, balancer, load))
    assert load.failures() == []
    assert load.answered > RATE * SECONDS, load.table()
    if isinstance(balancer, Haproxy):
        assert load.tallies["http"].resent == 0, "HAProxy keeps the connections of its clients"


def test_sequences_stay_with_their_replica(replicas: Replicas, balancer: Balancer) -> None:
    """Also those of single requests, which name their sequence in a header."""
    target = f"127.0.0.1:{balancer.grpc_port}"
    load = Load(balancer.http_port, target, http_sequences=6, grpc_sequences=6, streams=6)
    asyncio.run(during(load, asyncio.sleep(SECONDS)))
    assert load.failures() == []
    assert all(served(replicas, n) for n in range(REPLICAS))


def test_replica_is_killed(replicas: Replicas, balancer: Balancer) -> None:
    """Requests in flight there are sent again. Its sequences are lost with it, those of others go on."""
    load = mixed_load(balancer, RATE)

    async def kill() -> None:
        await asyncio.sleep(SECONDS)
        await asyncio.to_thread(replicas.kill, 1)
        await asyncio.sleep(SECONDS)

    if not isinstance(balancer, Haproxy):
        load.channel_options = retry_policy()
    asyncio.run(during(load, kill()))
    assert load.failures("http", "grpc") == []
    sequences = load.http_sequences + load.grpc_sequences + load.streams
    assert len(load.failures("http sequences", "grpc sequences", "streams")) <= sequences
    assert load.answered > RATE * SECONDS


def test_replica_is_added(replicas: Replicas, tmp_path: Path) -> None:
    """The balancer knows it from the start, as an address where nothing listens."""
    replicas.start(0, 1)
    with Haproxy(tmp_path, replicas) as balancer:
        load = mixed_load(balancer, RATE)

        async def add() -> None:
            await asyncio.sleep(SECONDS)
            await asyncio.to_thread(replicas.start, 2)
            await asyncio.to_thread(balancer.after_start, 2)
            await asyncio.sleep(SECONDS)

        asyncio.run(during(load, add()))
    assert load.failures() == []
    assert served(replicas, 2)


def test_balancing_by_the_client(replicas: Replicas) -> None:
    """A gRPC channel with the addresses of all replicas, and the service configuration of `deploy/replicas/`."""
    replicas.start(*range(REPLICAS))
    target = "ipv4:" + ",".join(f"127.0.0.1:{grpc}" for _, grpc, _ in replicas.ports)
    load = Load(0, target, retry_policy(), grpc_rate=RATE)

    async def disturb() -> None:
        await asyncio.sleep(SECONDS)
        assert all(served(replicas, n) for n in range(REPLICAS))
        await asyncio.to_thread(replicas.terminate, 0)
        await asyncio.to_thread(replicas.kill, 1)
        await asyncio.sleep(SECONDS)
        await asyncio.to_thread(replicas.start, 0)
        await asyncio.sleep(SECONDS)

    asyncio.run(during(load, disturb()))
    assert load.failures() == []
    assert served(replicas, 0), "the client has not come back"


async def during(load: Load, what: Awaitable[None]) -> None:
    """Runs a load while something happens."""
    running = asyncio.create_task(load.run())
    try:
        await what
    finally:
        load.stop.set()
        await running
