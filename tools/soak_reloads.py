#!/usr/bin/env python3
"""Changes and reloads models under load, and checks that every request is answered.

    python -m tools.soak_reloads [--changes 200] [--clients 100] [--seed N] [--python 0.1] [--json FILE]

Starts `halimede serve` in explicit mode on free ports of 127.0.0.1 with two models that return their input: `native`
runs in the server, `worker` in worker processes. Clients send requests for the latest version without a pause.
Meanwhile random changes are made, and each is followed by a load: a file is touched, versions appear and disappear, the
version policy, the batch size or the number of instances changes. Some loads bring a configuration, and some must fail.
No model is unloaded, so no client may see an error.

It passes if all of this holds:
- every request was answered with status 200 and its own numbers;
- every load was answered as expected, and the index at the end agrees with the folders;
- a change of instances alone did not reset the statistics;
- the server's memory at the end is at most --most-growth MiB above that after the first quarter;
- SIGTERM ends the server with status 0.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools.versus import free_ports

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS, STOP_SECONDS, REQUEST_SECONDS = 60.0, 30.0, 60.0
VERSIONS = (1, 2, 3)
MODELS = ("native", "worker")
KINDS = ("touch", "versions", "policy", "batch size", "instances", "instances", "override", "broken")
"""The kinds of changes. Instances are twice as likely as the others."""

_PYTHON = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())])
"""


@dataclass
class Model:
    """A model's folder, and the state that the server should show."""

    folder: Path
    size: int = 4
    count: int = 1
    policy: str = "latest { num_versions: 1 }"
    present: set[int] = field(default_factory=lambda: {1})
    overridden: bool = False
    """Whether the serving configuration came with a load."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def served(self) -> list[int]:
        return sorted(self.present) if self.policy == "all {}" else [max(self.present)]

    def write(self, touched: bool = False) -> None:
        self.folder.mkdir(exist_ok=True)
        for version in VERSIONS:
            folder = self.folder / str(version)
            if version in self.present:
                folder.mkdir(exist_ok=True)
                if touched or not (folder / "model.py").exists():
                    (folder / "model.py").write_text(_PYTHON)
            elif folder.exists():
                (folder / "model.py").unlink()
                folder.rmdir()
        (self.folder / "config.pbtxt").write_text(self.config())

    def config(self, backend: str = "") -> str:
        return (
            f'backend: "{backend or ("identity" if self.name == "native" else "python")}"\n'
            f"max_batch_size: {self.size}\nversion_policy {{ {self.policy} }}\n"
            'input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }\n'
            'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }\n'
            f"instance_group {{ kind: KIND_CPU count: {self.count} }}\n"
            "dynamic_batching { }\n"
        )


@dataclass
class Result:
    changes: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    versions_seen: Counter[str] = field(default_factory=Counter)
    slowest_ms: float = 0.0
    seconds: float = 0.0
    growth_mib: float = 0.0
    problems: list[str] = field(default_factory=list)


class Client:
    """One HTTP/1.1 connection. `ask` raises OSError, EOFError or TimeoutError."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, body: bytes = b"") -> tuple[int, bytes]:
        async with asyncio.timeout(REQUEST_SECONDS):
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length")), 0)
            return int(lines[0].split()[1]), await reader.readexactly(length)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


class Soak:
    """The clients, the changes and the checks of one run."""

    def __init__(self, port: int, pid: int, repository: Path, options: argparse.Namespace) -> None:
        self._port = port
        self._pid = pid
        self._options = options
        self._random = random.Random(options.seed)
        self.models = [Model(repository / name) for name in MODELS]
        self.result = Result()
        self._over = False

    async def run(self) -> Result:
        began = time.monotonic()
        clients = [asyncio.create_task(self._client(number)) for number in range(self._options.clients)]
        control = Client(self._port)
        memory = 0.0
        try:
            for number in range(self._options.changes):
                await self._change(control)
                if number == self._options.changes // 4:
                    memory = _own_mib(self._pid)
            await asyncio.sleep(0.2)
            self.result.growth_mib = _own_mib(self._pid) - memory
            await self._check_index(control)
        finally:
            self._over = True
            await asyncio.gather(*clients)
            control.close()
        self.result.seconds = time.monotonic() - began
        return self.result

    async def _client(self, number: int) -> None:
        chance = random.Random(number)
        client, result = Client(self._port), self.result
        name = MODELS[number % 10 == 0]
        while not self._over:
            values = [chance.randrange(1000) for _ in range(3)]
            tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 3], "data": values}
            asked = time.monotonic()
            try:
                status, answer = await client.ask(f"/v2/models/{name}/infer", json.dumps({"inputs": [tensor]}).encode())
            except (OSError, EOFError, TimeoutError) as error:
                result.problems.append(f"no answer: {type(error).__name__}: {error}")
                return
            result.slowest_ms = max(result.slowest_ms, (time.monotonic() - asked) * 1000)
            result.requests += 1
            facts: Any = json.loads(answer)
            if status != 200 or facts["outputs"][0]["data"] != values:
                result.problems.append(f"{name} answers {status}: {answer.decode()[:300]}")
                return
            result.versions_seen[f"{name}:{facts['model_version']}"] += 1
        client.close()

    async def _change(self, control: Client) -> None:
        """Makes a random change, and loads the model."""
        chance, model = self._random, self.models[self._random.random() < self._options.python]
        kind = chance.choice(KINDS)
        self.result.changes[kind] += 1
        body = b""
        before = await self._count(control, model) if kind == "instances" and not model.overridden else 0
        model.overridden = kind == "override"
        if kind == "versions":
            model.present = set(chance.sample(VERSIONS, chance.randint(1, len(VERSIONS))))
        elif kind == "policy":
            model.policy = chance.choice(("all {}", "latest { num_versions: 1 }"))
        elif kind == "batch size":
            model.size = 1 + model.size % 8
        elif kind == "instances":
            model.count = 1 + model.count % 3
        elif kind == "override":
            body = self._override(model)
        model.write(touched=kind == "touch")
        if kind == "broken":
            (model.folder / "config.pbtxt").write_text(model.config("nope"))
        status, answer = await control.ask(f"/v2/repository/models/{model.name}/load", body)
        if (status == 200) == (kind == "broken"):
            self.result.problems.append(f"{kind}: load of {model.name} answered {status}: {answer.decode()[:300]}")
        if kind == "broken":
            model.write()
            status, _ = await control.ask(f"/v2/repository/models/{model.name}/load")
        elif before and await self._count(control, model) < before:
            self.result.problems.append("a change of instances reset the statistics")

    @staticmethod
    def _override(model: Model) -> bytes:
        config: dict[str, Any] = {
            "backend": "identity" if model.name == "native" else "python",
            "max_batch_size": model.size,
            "version_policy": {"all": {}} if model.policy == "all {}" else {"latest": {"num_versions": 1}},
            "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
            "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
            "instance_group": [{"kind": "KIND_CPU", "count": model.count}],
        }
        return json.dumps({"parameters": {"config": json.dumps(config)}}).encode()

    async def _count(self, control: Client, model: Model) -> int:
        """The inference count of the latest version."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(f"GET /v2/models/{model.name}/stats HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            text = (await reader.read(-1)).partition(b"\r\n\r\n")[2]
        finally:
            writer.close()
        return int(json.loads(text)["model_stats"][-1]["inference_count"])

    async def _check_index(self, control: Client) -> None:
        for model in self.models:
            await control.ask(f"/v2/repository/models/{model.name}/load")
        _, answer = await control.ask("/v2/repository/index", b'{"ready":true}')
        index = sorted((entry["name"], int(entry["version"])) for entry in json.loads(answer))
        wanted = sorted((model.name, version) for model in self.models for version in model.served)
        if index != wanted:
            self.result.problems.append(f"the index has {index}, the folders have {wanted}")


def _own_mib(pid: int) -> float:
    """Resident memory of the server itself, in MiB, without its workers: their number changes."""
    found = re.search(r"^VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def serve(repository: Path, log: Path, options: argparse.Namespace) -> Result:
    repository.mkdir(parents=True)
    for name in MODELS:
        Model(repository / name).write()
    http, grpc, metrics = free_ports(3)
    with log.open("ab") as sink:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "halimede", "serve", f"--model-repository={repository}"),
                *("--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--allow-code-upload=true"),
                *(f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"),
                *("--model-control-mode=explicit", "--load-model=*"),
            ],
            stdout=sink,
            stderr=sink,
            cwd=ROOT,
            start_new_session=True,
        )
    try:
        asyncio.run(_live(http, server, log))
        result = asyncio.run(Soak(http, server.pid, repository, options).run())
        server.send_signal(signal.SIGTERM)
        if server.wait(STOP_SECONDS):
            result.problems.append(f"exit status {server.returncode} after SIGTERM")
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    if "Traceback" in log.read_text():
        result.problems.append(f"a traceback in the log: ...{log.read_text()[-3000:]}")
    return result


async def _live(port: int, server: "subprocess.Popen[bytes]", log: Path) -> None:
    limit = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < limit:
        try:
            await Client(port).ask("/v2/repository/index")
        except OSError:
            await asyncio.sleep(0.05)
        else:
            return
    raise SystemExit(f"the server did not come up: ...{log.read_text()[-3000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak_reloads", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", type=float, default=0.1, help="share of the changes that go to `worker`")
    parser.add_argument("--most-growth", type=float, default=32.0, help="MiB of memory")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="halimede-reloads-") as folder:
        result = serve(Path(folder) / "models", Path(folder) / "server.log", options)
    if result.growth_mib > options.most_growth:
        result.problems.append(f"memory grew by {result.growth_mib:.1f} MiB")
    print(f"{sum(result.changes.values())} changes in {result.seconds:.1f} s: {dict(result.changes)}")
    print(f"{result.requests} requests of {options.clients} clients, the slowest {result.slowest_ms:.0f} ms")
    print(f"answered by {dict(sorted(result.versions_seen.items()))}")
    print(f"memory {result.growth_mib:+.1f} MiB since the first quarter")
    for problem, number in Counter(result.problems).most_common(10):
        print(f"FAILED ({number} times): {problem}")
    if options.json:
        options.json.write_text(json.dumps(asdict(result), indent=1) + "\n")
    print("FAILED" if result.problems else "PASSED")
    return bool(result.problems)


if __name__ == "__main__":
    sys.exit(main())
