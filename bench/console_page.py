"""Measures what the pages of the console cost a browser over time: memory and processor time of each page.

    python bench/console_page.py [--minutes 60] [--json FILE]

Serves the demo's models (`make demo`) as `make serve` does, sends requests at a steady rate, some of which fail, and
opens the list of models and the page of one model in headless chromium, with traces recorded. Each minute it reads how
much memory the process of each page has, and how much processor time it took. Needs chromium and playwright (`make
test-console` installs it). Each page should stay under 100 MiB and 10 % of a core.

The memory of a page is what its process has for itself (`Private` of /proc/PID/smaps_rollup): the rest is chromium's
program, which all its pages share. `heap` is what the scripts use of it, before a collection of garbage.
"""

import argparse
import http.client
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.compat.serving import Serving  # noqa: E402  # needs the path that was just added
from tests.ports import free_ports  # noqa: E402

MODEL = "digits"
PAGES = {"models": "/", "model": f"/models/{MODEL}"}
FAILS_EACH = 500
"""One of so many requests has a wrong input."""
IMAGE = json.dumps({"inputs": [{"name": "image", "shape": [1, 8, 8], "datatype": "FP32", "data": [0.5] * 64}]})


@contextmanager
def served(folder: Path) -> Iterator[tuple[Serving, str]]:
    """The demo's server, and the link of its console."""
    log = folder / "log"
    port = free_ports(1)[0]
    flags = (f"--console-port={port}", "--metrics-config=summary_latencies=true")
    with Serving(ROOT / "examples" / "model_repository", log, *flags).wait_until_live() as server:
        server.until(lambda: "#token=" in server.log_text(), "printed no link")
        found = re.search(r"#token=([\w-]+)", server.log_text())
        assert found is not None
        yield server, f"http://localhost:{port}/#token={found[1]}"


@contextmanager
def load(url: str, rate: float) -> Iterator[None]:
    """`rate` requests per second to MODEL, one after the other, until the end of the context."""
    over = threading.Event()

    def send() -> None:
        host, port = url.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        due, sent = time.monotonic(), 0
        while not over.is_set():
            sent += 1
            body = '{"inputs": []}' if sent % FAILS_EACH == 0 else IMAGE
            connection.request("POST", f"/v2/models/{MODEL}/infer", body, {"Content-Type": "application/json"})
            connection.getresponse().read()
            due = max(due + 1 / rate, time.monotonic() - 1)
            over.wait(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def private_mib(pid: int) -> float:
    """The memory that a process does not share, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


class Watched:
    """One page in a browser of its own, because two pages of one site would share a process."""

    def __init__(self, playwright: Any, name: str, link: str, route: str) -> None:
        self.name = name
        self._browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = self._browser.new_context(viewport={"width": 1280, "height": 860})
        self._page = context.new_page()
        self._page.goto(link)
        self._page.evaluate("route => { location.hash = route }", route)
        self._page.locator("main h1, main .tiles").first.wait_for()
        self._page_session = context.new_cdp_session(self._page)
        self._page_session.send("Performance.enable")
        self._processes = self._browser.new_browser_cdp_session()
        self._last = (time.monotonic(), *self._spent())

    def switch_tracing_on(self) -> None:
        self._page.evaluate(
            """() => fetch("/api/tracing", { method: "POST", body: '{"on": true}',
              headers: { Authorization: `Bearer ${localStorage.getItem("console-token")}` } })"""
        )

    def _pids(self) -> dict[int, str]:
        return {each["id"]: each["type"] for each in self._processes.send("SystemInfo.getProcessInfo")["processInfo"]}

    def _page_pid(self) -> int:
        """The page's process: chromium has others that render its own surfaces, or wait for the next page."""
        renderers = [pid for pid, kind in self._pids().items() if kind == "renderer"]
        return max((pid for pid in renderers if b"--top-chrome-webui" not in command_of(pid)), key=cpu_seconds)

    def _spent(self) -> tuple[float, float]:
        """Processor seconds of the page's process, and of all processes of its browser."""
        return cpu_seconds(self._page_pid()), sum(map(cpu_seconds, self._pids()))

    def read(self) -> dict[str, float]:
        metrics = {each["name"]: each["value"] for each in self._page_session.send("Performance.getMetrics")["metrics"]}
        now, page, browser = time.monotonic(), *self._spent()
        since, page_before, browser_before = self._last
        self._last = (now, page, browser)
        return {
            "private_mib": round(private_mib(self._page_pid()), 1),
            "heap_mib": round(metrics["JSHeapUsedSize"] / 2**20, 1),
            "nodes": metrics["Nodes"],
            "listeners": metrics["JSEventListeners"],
            "cpu_percent": round(100 * (page - page_before) / (now - since), 2),
            "browser_cpu_percent": round(100 * (browser - browser_before) / (now - since), 2),
        }

    def heap_after_collection(self) -> float:
        self._page_session.send("HeapProfiler.collectGarbage")
        metrics = self._page_session.send("Performance.getMetrics")["metrics"]
        return round(next(each["value"] for each in metrics if each["name"] == "JSHeapUsedSize") / 2**20, 2)

    def close(self) -> None:
        self._browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second")
    parser.add_argument("--json", type=Path, help="a file for all samples")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with (
        tempfile.TemporaryDirectory() as name,
        served(Path(name)) as (server, link),
        sync_playwright() as playwright,
        load(server.http_url, options.rate),
    ):
        pages = [Watched(playwright, page, link, route) for page, route in PAGES.items()]
        pages[0].switch_tracing_on()
        samples: dict[str, list[dict[str, float]]] = {page.name: [] for page in pages}
        collected: dict[str, list[float]] = {page.name: [] for page in pages}
        for minute in range(1, options.minutes + 1):
            time.sleep(60)
            for page in pages:
                samples[page.name].append(page.read())
                print(minute, page.name, json.dumps(samples[page.name][-1]), flush=True)
                if minute in (2, options.minutes):
                    collected[page.name].append(page.heap_after_collection())
            if options.json:
                options.json.write_text(json.dumps({"samples": samples, "heap_collected_mib": collected}, indent=1))
        for page in pages:
            page.close()
    for name, kept in collected.items():
        print(f"{name}: {kept} MiB of heap after a collection, in the second minute and at the end")


if __name__ == "__main__":
    main()
