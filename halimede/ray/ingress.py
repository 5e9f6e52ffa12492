"""The ports of one node: a replica of the deployment `Ingress`. On the event loop that Serve gives to it."""

import asyncio
import os
from typing import Any

import ray
import ray.util

from halimede.platform.offload import OffloadPool
from halimede.ray.port import RayPort
from halimede.ray.process import prepare
from halimede.ray.settings import Settings
from halimede.serving.identity_file import open_guard
from halimede.serving.ports import Ports
from halimede.traces import UNTRACED


class Ingress:
    """Opens the ports that the flags allow. What they receive goes to the replicas of the deployment `Engine`."""

    async def __init__(self, engines: Any, settings: Settings) -> None:  # type: ignore[misc]  # Serve awaits it
        prepare()
        options = settings.options(os.environ)
        loop = asyncio.get_running_loop()
        self._timeout = options.exit_timeout_secs
        self._offload = OffloadPool(loop)
        self._port = RayPort(engines, settings, loop)
        self._ports = Ports(options, self._port, UNTRACED, self._offload, open_guard(options))
        try:
            await self._ports.open()
        except BaseException:
            await self._ports.close(0)
            raise

    async def addresses(self) -> dict[str, str]:
        """Returns the open ports, as a client on another node reaches them."""
        node = ray.util.get_node_ip_address()
        places = {"http": self._ports.http, "grpc": self._ports.grpc, "metrics": self._ports.metrics}
        return {
            "node": ray.get_runtime_context().get_node_id(),
            **{name: place.replace("0.0.0.0:", f"{node}:", 1) for name, place in places.items()},
        }

    async def __del__(self) -> None:
        """Serve calls this when the ingress must leave. Requests that have come are answered."""
        self._port.announce_exit()
        await self._ports.close(self._timeout)
        self._offload.close()
