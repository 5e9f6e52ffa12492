"""A started server whose models the tests write and load one by one, and questions to it over HTTP."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient import http
from tritonclient.utils import triton_to_np_dtype

from tests.compat.serving import Serving

Inputs = Mapping[str, tuple[str, Any]]
"""By name the datatype and the values."""


@dataclass
class Served:
    """`serving` is the server; `repository` the folder of its models."""

    serving: Serving
    repository: Path
    _numbers: Any = field(default_factory=count)

    def write(self, config: str | None, save: Callable[[Path], object], file: str = "model.pt") -> str:
        """Writes a model; its name. `config` has no backend if it says `platform` or `backend` itself."""
        name = f"m{next(self._numbers)}"
        version = self.repository / name / "1"
        version.mkdir(parents=True)
        save(version / file)
        if config is not None:
            named = "platform:" in config or "backend:" in config
            (version.parent / "config.pbtxt").write_text(("" if named else 'backend: "pytorch"\n') + config)
        return name

    def load(self, name: str) -> str:
        """The reason for which a model does not load; empty if it does."""
        status, answer = self.serving.ask(f"/v2/repository/models/{name}/load", b"{}")
        return "" if status == 200 else str(answer["error"])

    def loaded(self, config: str | None, save: Callable[[Path], object], file: str = "model.pt") -> str:
        """Writes and loads a model; its name."""
        name = self.write(config, save, file)
        assert self.load(name) == ""
        return name

    def refused(self, config: str | None, save: Callable[[Path], object], file: str = "model.pt") -> str:
        """Why a new model does not load."""
        reason = self.load(self.write(config, save, file))
        assert reason
        return reason

    def infer(self, name: str, inputs: Inputs, outputs: Sequence[str] = (), **sequence: Any) -> dict[str, Any]:
        """The outputs by name, from the official client. Raises InferenceServerException."""
        with http.InferenceServerClient(self.serving.http_url, network_timeout=60) as client:
            given = []
            for tensor, (datatype, values) in inputs.items():
                array = np.asarray(values, triton_to_np_dtype(datatype))
                one = http.InferInput(tensor, list(array.shape), datatype)
                given.append(one.set_data_from_numpy(array))
            wanted = [http.InferRequestedOutput(each) for each in outputs] or None
            answer = client.infer(name, given, outputs=wanted, **sequence)
            names = [each["name"] for each in answer.get_response()["outputs"]]
            return {each: answer.as_numpy(each) for each in names}

    def fails(self, name: str, inputs: Inputs) -> tuple[int, str]:
        """Status and text of a request that fails."""
        body = {
            "inputs": [
                {"name": each, "datatype": kind, "shape": list(np.shape(values)), "data": values}
                for each, (kind, values) in inputs.items()
            ]
        }
        status, answer = self.serving.ask(f"/v2/models/{name}/infer", json.dumps(body).encode())
        assert status != 200, answer
        return status, str(answer["error"])

    def config(self, name: str) -> dict[str, Any]:
        """What the server says of a model's configuration."""
        status, answer = self.serving.ask(f"/v2/models/{name}/config")
        assert status == 200, answer
        return dict(answer)

    def log(self, mark: str) -> list[str]:
        """The lines of the log that have a text."""
        return [line for line in self.serving.log_text().splitlines() if mark in line]
