"""Restarts three replicas one by one behind a load balancer, under load, and prints what the clients saw.

`python -m tests.deploy.rolling haproxy --rate 2000` runs until each replica was restarted `--rounds` times. The exit
status is 1 if a request failed.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.deploy.load import STEP_SECONDS, Load
from tests.deploy.replicas import CONFIGURATIONS, REPLICAS, Balancer, Haproxy, Nginx, Replicas

BALANCERS: dict[str, type[Balancer]] = {"haproxy": Haproxy, "nginx": Nginx}
LOADED_SECONDS = 2.0
"""How long all replicas serve under load before the first restart, and after the last one."""
SHARE_OF_SEQUENCES = 0.1
"""The part of the requests that belong to sequences."""


def retry_policy() -> tuple[tuple[str, Any], ...]:
    """The options of a gRPC channel with the retries of `deploy/replicas/`."""
    text = json.dumps(json.loads((CONFIGURATIONS / "grpc_service_config.json").read_text()))
    return (("grpc.service_config", text),)


def mixed_load(balancer: Balancer, rate: float) -> Load:
    """Nine of ten requests go to `good`, half of them over gRPC. The others are steps of sequences. Behind nginx all
    sequences are streams, because it cannot keep others at a replica that shuts down."""
    keeps = isinstance(balancer, Haproxy)
    clients = max(3, round(rate * SHARE_OF_SEQUENCES * STEP_SECONDS))
    return Load(
        balancer.http_port,
        f"127.0.0.1:{balancer.grpc_port}",
        # HAProxy itself sends calls again; so these clients must see no failure without retries of their own.
        (("grpc.enable_retries", 0),) if keeps else retry_policy(),
        http_rate=rate * (1 - SHARE_OF_SEQUENCES) / 2,
        grpc_rate=rate * (1 - SHARE_OF_SEQUENCES) / 2,
        http_sequences=clients // 3 if keeps else 0,
        grpc_sequences=clients // 3 if keeps else 0,
        streams=clients - 2 * (clients // 3) if keeps else clients,
    )


async def roll(replicas: Replicas, balancer: Balancer, load: Load, rounds: int = 1) -> None:
    """Restarts each replica `rounds` times while the load runs."""
    running = asyncio.create_task(load.run())
    try:
        await asyncio.sleep(LOADED_SECONDS)
        for n in (n for _ in range(rounds) for n in range(REPLICAS)):
            await asyncio.to_thread(balancer.before_end, n)
            await asyncio.to_thread(replicas.terminate, n)
            await asyncio.to_thread(replicas.start, n)
            await asyncio.to_thread(balancer.after_start, n)
        await asyncio.sleep(LOADED_SECONDS)
    finally:
        load.stop.set()
        await running


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("balancer", choices=BALANCERS)
    parser.add_argument("--rate", type=float, default=2000, help="requests a second (2000)")
    parser.add_argument("--rounds", type=int, default=1, help="restarts of each replica (1)")
    given = parser.parse_args(arguments)
    with TemporaryDirectory() as folder, Replicas(Path(folder)) as replicas:
        replicas.start(*range(REPLICAS))
        with BALANCERS[given.balancer](Path(folder), replicas) as balancer:
            load = mixed_load(balancer, given.rate)
            asyncio.run(roll(replicas, balancer, load, given.rounds))
    print(load.table())
    for failure in load.failures()[:20]:
        print(failure)
    return 1 if load.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
