"""Measures what the pages of the console cost a browser over time: memory and processor time of each page.

    python bench/console_page.py [--minutes 60] [--rate 50] [--json FILE]

Serves the demo's models (`make demo`) as `make serve` does, sends requests at a steady rate, some of which fail,
records traces, and opens the list of models and the page of one model in headless chromium. Each minute it reads how
much memory the process of each page has, and how much processor time it took. Each should stay under 100 MiB and 10 %
of a core.

The memory of a page is what its process has for itself (`Private` of /proc/PID/smaps_rollup): the rest is chromium's
program, which all its pages share. Nothing drives the browser, because one that is driven keeps what its pages load.
"""

import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.compat.serving import Serving  # noqa: E402  # needs the path that was just added
from tests.ports import free_ports  # noqa: E402

MODEL = "digits"
PAGES = {"models": "/", "model": f"/models/{MODEL}"}
FAILS_EACH = 500
"""One request of this number has a wrong input."""
IMAGE = json.dumps({"inputs": [{"name": "image", "shape": [1, 8, 8], "datatype": "FP32", "data": [0.5] * 64}]})


class Sample(NamedTuple):
    """Of one minute: MiB, and percent of one core by the page's process and by its whole browser."""

    private_mib: float
    cpu_percent: float
    browser_cpu_percent: float


@contextmanager
def served(folder: Path) -> Iterator[tuple[Serving, int, str]]:
    """The demo's server, and the port and the token of its console."""
    port = free_ports(1)[0]
    flags = (f"--console-port={port}", "--metrics-config=summary_latencies=true")
    with Serving(ROOT / "examples" / "model_repository", folder / "log", *flags).wait_until_live() as server:
        server.until(lambda: "#token=" in server.log_text(), "printed no link")
        found = re.search(r"#token=([\w-]+)", server.log_text())
        assert found is not None
        yield server, port, found[1]


def switch_tracing_on(port: int, token: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/api/tracing", '{"on": true}', {"Authorization": f"Bearer {token}"})
    assert connection.getresponse().status == 200
    connection.close()


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
    """The memory that a process does not share."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processes(session: int) -> dict[int, str]:
    """The commands of the processes of a session, by their ids."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                found[int(folder.name)] = (folder / "cmdline").read_text()
    return found


class Browser:
    """A page in a browser of its own, because two pages of one site would share a process."""

    def __init__(self, url: str, folder: Path) -> None:
        command = ["chromium", "--headless", "--no-sandbox", "--window-size=1280,860", f"--user-data-dir={folder}"]
        # Without this chromium prints the page and ends.
        command += ["--remote-debugging-port=0", url]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
        self._before = (time.monotonic(), 0.0, 0.0)

    def read(self) -> Sample:
        """What it cost since the last call."""
        found = processes(self._process.pid)
        # Chromium has other renderers for its own surfaces, and one that waits for the next page.
        pages = [pid for pid, line in found.items() if "--type=renderer" in line and "--top-chrome-webui" not in line]
        page = max(pages, key=cpu_seconds)
        then, page_then, browser_then = self._before
        self._before = now, page_now, browser_now = time.monotonic(), cpu_seconds(page), sum(map(cpu_seconds, found))
        share = 100 / (now - then)
        return Sample(private_mib(page), (page_now - page_then) * share, (browser_now - browser_then) * share)

    def close(self) -> None:
        for pid in (self._process.pid, *processes(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second")
    parser.add_argument("--json", type=Path, help="a file for all samples")
    options = parser.parse_args()
    samples: dict[str, list[Sample]] = {name: [] for name in PAGES}
    browsers: dict[str, Browser] = {}
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as (server, port, token):
        switch_tracing_on(port, token)
        try:
            for page, route in PAGES.items():
                browsers[page] = Browser(f"http://localhost:{port}/#{route}", Path(name) / page)
            with load(server.http_url, options.rate):
                for minute in range(1, options.minutes + 1):
                    time.sleep(60)
                    for page, browser in browsers.items():
                        samples[page].append(browser.read())
                        shown = samples[page][-1]
                        print(f"{minute} {page}: {shown[0]:.1f} MiB, {shown[1]:.2f} %, {shown[2]:.2f} %", flush=True)
        finally:
            for browser in browsers.values():
                browser.close()
    for page, found in samples.items():
        memory, cpu = [sample.private_mib for sample in found], [sample.cpu_percent for sample in found]
        print(
            f"{page}: MiB {memory[0]:.0f} first, {statistics.median(memory):.0f} median, {max(memory):.0f} most;",
            end="",
        )
        print(f" % of a core {statistics.median(cpu):.2f} median, {max(cpu):.2f} most")
    if options.json:
        options.json.write_text(
            json.dumps({page: [each._asdict() for each in samples[page]] for page in PAGES}, indent=1)
        )


if __name__ == "__main__":
    main()
