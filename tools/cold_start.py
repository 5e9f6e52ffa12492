#!/usr/bin/env python3
"""Measures the time from the start of the process until the server is ready, with the demo's models.

    python -m tools.cold_start [--repository examples/model_repository] [--rounds 7] [--python FILE] [--json FILE]

Ready means that `/v2/health/ready` answers 200: all models are loaded and warmed up. A first round, which fills the
caches of the system and writes the bytecode that an installation has, does not count. It passes if the median is below
--most seconds. The CPU time is that of the server and its workers, also for their end.

`--python` is the interpreter of an environment in which a wheel is installed with what the models need. A clone takes
longer, because it checks whether its compiled modules are those of its sources.
"""

import argparse
import http.client
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from halimede import FORM
from tools.versus import free_ports

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS, STOP_SECONDS = 120.0, 60.0
TICK_SECONDS = 0.002
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""With that variable, which containers of developers often set, a start compiles 200 modules."""


def ready_after(repository: Path, log: Path, python: str = sys.executable) -> tuple[float, float]:
    """Starts a server, waits until it is ready, and ends it. Returns the seconds until it was ready, and those of CPU
    time. Raises SystemExit if it fails."""
    # Python imports from the working directory first.
    folder = ROOT if python == sys.executable else log.parent
    used = _cpu_seconds()
    port, grpc, metrics = free_ports(3)
    command = [python, "-m", "halimede", "serve", f"--model-repository={repository.resolve()}"]
    command += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", f"--http-port={port}", f"--grpc-port={grpc}"]
    with log.open("ab") as sink:
        began = time.perf_counter()
        command.append(f"--metrics-port={metrics}")
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env=ENVIRONMENT, cwd=folder)
    try:
        while not _is_ready(port):
            if process.poll() is not None or time.perf_counter() - began > START_SECONDS:
                raise SystemExit(f"the server did not become ready: ...{log.read_text()[-2000:]}")
            time.sleep(TICK_SECONDS)
        seconds = time.perf_counter() - began
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)
    return seconds, _cpu_seconds() - used


def _form_of(python: str, folder: str) -> str:
    """Whether the hot modules of the server are compiled."""
    if python == sys.executable:
        return FORM
    command = [python, "-c", "import halimede; print(halimede.FORM)"]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def _cpu_seconds() -> float:
    """Of all processes that this one, or one of them, has started and waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except OSError:  # the port opens when all models are loaded
        return False
    finally:
        connection.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, default=ROOT / "examples" / "model_repository")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--most", type=float, default=1.0, help="seconds; 0: only measure")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs the server")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        form = _form_of(options.python, folder)
        rounds = [ready_after(options.repository, log, options.python) for _ in range(options.rounds + 1)][1:]
    models = sum(1 for path in options.repository.iterdir() if path.is_dir())
    seconds = [each for each, _ in rounds]
    middle, cpu = median(seconds), median(each for _, each in rounds)
    print(
        f"{models} models ({form}): ready after {middle:.2f} s (median of {options.rounds}; best {min(seconds):.2f} s; "
        f"{cpu:.2f} s of CPU time)"
    )
    if options.json:
        document = {
            "models": models,
            "form": form,
            "median": round(middle, 3),
            "cpu": round(cpu, 3),
            "seconds": [round(each, 3) for each in seconds],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if options.most and middle > options.most else 0


if __name__ == "__main__":
    sys.exit(main())
