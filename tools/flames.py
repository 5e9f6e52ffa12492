#!/usr/bin/env python3
"""Draws flame graphs (SVG) of the server's Python time under the load of perf_analyzer.

    python -m tools.flames [--work floor-http-8 floor-grpc-8] [--seconds 10] [--to bench/results]

Starts one server for each row of `versus.py`, with the models and the load of that row. py-spy samples threads while
they hold the interpreter lock, so waiting for the network is not included. A graph is the file `flame-ROW.svg`, without
scripts; its tooltips show function, share and samples. py-spy comes with the extra `bench` and needs the right to trace
another process.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tools.versus import MODELS, ORACLE, WORK, Server, settle

ROOT = Path(__file__).resolve().parent.parent
RATE = 400
"""Samples per second. Each one stops the server for a moment."""
WARM_SECONDS = 1.5
FLAGS = (
    "--model-repository={repo} --allow-client-shm=true --http-address=127.0.0.1 --grpc-address=127.0.0.1 "
    "--metrics-address=127.0.0.1 --http-port={http} --grpc-port={grpc} --metrics-port={metrics}"
)

_INTERACTIVE = re.compile(
    r"<script.*?</script>|<!--.*?-->| onload=\"[^\"]*\"|<text id=\"(?:details|unzoom|search|matched)\".*?</text>",
    re.DOTALL,
)
_TITLE = re.compile(r'(<text id="title"[^>]*>).*?(</text>)', re.DOTALL)
_PATH = re.compile(r"(?<=\()/[^():]*(?=[:)])")
_PACKAGES = re.compile(r".*/(?:site-packages|python3\.\d+)/")


def tidy(svg: str, title: str) -> str:
    """Removes the scripts of a graph, sets its title, and shortens paths to those of imports. Raises ValueError if a
    path of this machine remains."""
    svg = _TITLE.sub(rf"\g<1>{title}\g<2>", _INTERACTIVE.sub("", svg))
    svg = _PATH.sub(lambda path: _PACKAGES.sub("", path[0]).rpartition(f"{ROOT}/")[2].lstrip("/"), svg)
    for own in (ROOT, Path.home(), Path(sys.prefix), Path(sys.base_prefix), Path(tempfile.gettempdir())):
        if f"{own}/" in svg:
            raise ValueError(f"the graph names {own}")
    return svg


def record(server: Server, seconds: float, to: Path) -> None:
    """Samples a server under load, and writes the graph. Raises RuntimeError if py-spy fails."""
    spy = Path(sys.executable).with_name("py-spy")
    command = [str(spy), "record", "--gil", "--function", "--rate", str(RATE), "--duration", str(round(seconds))]
    command += ["--format", "flamegraph", "--output", str(to), "--pid", str(server.process.pid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * seconds + 60, check=False)
    if done.returncode or not to.exists():
        raise RuntimeError(f"py-spy: {(done.stderr or done.stdout).strip()[-500:]}")


def flame(name: str, seconds: float, folder: Path) -> str:
    """Runs the load of one row, and returns its graph."""
    repo = folder / "models"
    shutil.copytree(MODELS / WORK[name].model, repo / WORK[name].model, ignore=shutil.ignore_patterns("__pycache__"))
    server = Server("a", f"{sys.executable} -m halimede serve {FLAGS}", repo, {WORK[name].model})
    try:
        settle([server])
        server.check(WORK[name])
        # perf_analyzer measures three windows. Together they must be longer than the sampling.
        load = threading.Thread(target=server.measure, args=(name, (seconds + 2 * WARM_SECONDS) / 2), daemon=True)
        load.start()
        time.sleep(WARM_SECONDS)
        record(server, seconds, folder / "raw.svg")
        load.join(60 + 10 * seconds)
    finally:
        server.stop()
    return tidy((folder / "raw.svg").read_text(), f"{name}: Python time of the server")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", default=["floor-http-8", "floor-grpc-8"], metavar="NAME")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--to", type=Path, default=ROOT / "bench" / "results")
    options = parser.parse_args()
    if unknown := [name for name in options.work if name not in WORK]:
        parser.error(f"no such work: {' '.join(unknown)}")
    subprocess.run([str(ORACLE), "install"], check=True, stdout=subprocess.DEVNULL)
    options.to.mkdir(parents=True, exist_ok=True)
    for name in options.work:
        with tempfile.TemporaryDirectory(prefix="flames-") as folder:
            path = options.to / f"flame-{name}.svg"
            path.write_text(flame(name, options.seconds, Path(folder)))
            print(f"{path.name}: {path.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
