"""A server of ours for one measurement, at a Unix socket instead of a port (`--service-kind triton_c_api`, X2)."""

import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from halimede.errors import Invalid
from halimede.perf.clients.io import Target
from halimede.perf.launch import Launched
from halimede.perf.options import UNIX, Options
from halimede.perf.server import SERVICE, Asker, target_of
from halimede.protocol import inference_pb2 as pb

LOAD_SECONDS = 600.0
"""How long the load of a model may take."""


class OwnServer(Launched):
    """Serves the model, and those that it calls. `options` are those of the run, with the URL of the server."""

    def __init__(self, options: Options) -> None:
        """Raises Invalid."""
        for each in options.model_repositories:
            if not Path(each).is_dir():
                raise Invalid(f"the model repository '{each}' is no folder")
        self._folder = Path(mkdtemp(prefix="halimede-perf-"))
        self.options = replace(options, url=f"{UNIX}{self._folder / 'grpc'}")
        command = [sys.executable, "-m", "halimede", "serve", "--model-control-mode=explicit"]
        command += [f"--model-repository={each}" for each in options.model_repositories]
        command += [f"--grpc-address={self.options.url}", "--allow-http=false", "--allow-metrics=false"]
        command.append("--allow-client-shm=true")
        super().__init__(command, {})

    def load(self) -> None:
        """Waits until the server is there, and loads the models. Raises Unavailable, or Refused with its text."""
        target, names = target_of(self.options), [*(name for name, _ in self.options.composing), self.options.model]
        self.wait_until(partial(_ask, target, "ServerLive", pb.ServerLiveRequest()))
        for name in names:
            _ask(target, "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name=name))

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        super().kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def _ask(target: Target, method: str, request: Any) -> None:
    asker = Asker(target, True, limit=LOAD_SECONDS)
    try:
        asker.grpc(SERVICE + method, request.SerializeToString())
    finally:
        asker.close()
