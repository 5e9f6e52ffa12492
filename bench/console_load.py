"""Measures what an open page of the console costs a server under full load.

    python bench/console_load.py [--work floor-grpc-8] [--pairs 40] [--seconds 2] [--json FILE]

The load of a row of `tools/versus.py` runs all the time, and so does a headless chromium. In turn the list of models is
open and an empty page, in alternating order, so that a drifting machine affects both alike. Needs chromium and
playwright (`make test-console` installs it).

It prints the median and the quartiles of the ratio open/closed of the pairs, for the throughput by the server's
statistics and for the CPU time of the server per inference. The throughput should stay at 0.98 of that without.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.versus import MODELS, ORACLE, WORK, Server, Work, cpu_seconds, free_ports, settle  # noqa: E402  # needs the path that was just added

SERVE = (
    f"{sys.executable} -m halimede serve --model-repository={{repo}} --http-address=127.0.0.1 --grpc-address=127.0.0.1 "
    "--http-port={http} --grpc-port={grpc} --metrics-port={metrics} --metrics-config=summary_latencies=true"
)
LINK = re.compile(r"http://localhost:\d+/#token=[\w-]+")
LINK_SECONDS = 10.0
SETTLE_SECONDS = 1.0
"""After a page was opened or closed, until it has what it shows."""
FIGURES = ("throughput", "cpu")


def link_of(server: Server) -> str:
    """The link that the server prints."""
    limit = time.monotonic() + LINK_SECONDS
    while time.monotonic() < limit:
        if found := LINK.search(Path(server.log.name).read_text()):
            return found[0]
        time.sleep(0.05)
    raise RuntimeError("the server printed no link of its console")


def open_page(page: Any, link: str) -> None:
    page.goto("about:blank")
    if link:
        page.goto(link)
        page.get_by_text("live", exact=True).wait_for()


@contextmanager
def load(server: Server, work: Work) -> Iterator[None]:
    """perf_analyzer, until the end of the context."""
    port = server.http if work.protocol == "http" else server.grpc
    command = [str(ORACLE), "perf", "-m", work.model, "-i", work.protocol, "-u", f"127.0.0.1:{port}", *work.flags]
    command += ["--measurement-interval", "3600000"]
    command += [] if work.concurrency is None else ["--concurrency-range", str(work.concurrency)]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


def window(server: Server, model: str, seconds: float) -> dict[str, float]:
    """The throughput, and the CPU time per inference in microseconds."""
    pid = server.process.pid
    began, cpu, count = time.monotonic(), cpu_seconds(pid), server.served(model)
    time.sleep(seconds)
    took, cpu, count = time.monotonic() - began, cpu_seconds(pid) - cpu, server.served(model) - count
    return {"throughput": count / took, "cpu": cpu / max(count, 1) * 1e6}


def quartiles(values: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", choices=WORK, default="floor-grpc-8")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=2.0, help="with an open page, and as many with a closed one")
    parser.add_argument("--json", type=Path, help="a file for all windows")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    work = WORK[options.work]
    model = work.model
    windows: dict[str, list[dict[str, float]]] = {"open": [], "closed": []}
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        repository = Path(name) / "models"
        shutil.copytree(MODELS / model, repository / model)
        server = Server("a", f"{SERVE} --console-port={free_ports(1)[0]}", repository, {model})
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            settle([server])
            link = link_of(server)
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            with load(server, work):
                for turn in range(options.pairs):
                    for state in ("open", "closed") if turn % 2 else ("closed", "open"):
                        open_page(page, link if state == "open" else "")
                        time.sleep(SETTLE_SECONDS)
                        windows[state].append(window(server, model, options.seconds))
                    pair = [windows[state][-1]["throughput"] for state in ("open", "closed")]
                    print(f"{turn + 1}: {pair[0]:.0f} open, {pair[1]:.0f} closed, {pair[0] / pair[1]:.3f}", flush=True)
        finally:
            browser.close()
            server.stop()
    for figure in FIGURES:
        pairs = zip(windows["open"], windows["closed"], strict=True)
        print(f"{options.work} {figure}, open/closed: {quartiles([a[figure] / b[figure] for a, b in pairs])}")
    if options.json:
        options.json.write_text(json.dumps({"work": options.work, "windows": windows}, indent=1))


if __name__ == "__main__":
    main()
