"""Measures what an open page of the console costs a server under full load.

    python bench/console_load.py [--work floor-grpc-8] [--rounds 20] [--seconds 0.5] [--json FILE]

Runs the same load of `tools/versus.py` in pairs of rounds, with the list of models open in headless chromium and with
an empty page, in alternating order, so that a drifting machine affects both alike. The browser runs all the time. Needs
chromium and playwright (`make test-console` installs it).

It prints the median and the quartiles of the ratio open/closed of each pair, for the throughput and for the CPU time of
the server per inference. The throughput should stay at 0.98 of that without.
"""

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.versus import MODELS, WORK, Server, free_ports, settle  # noqa: E402  # needs the path that was just added

SERVE = (
    f"{sys.executable} -m halimede serve --model-repository={{repo}} --http-address=127.0.0.1 --grpc-address=127.0.0.1 "
    "--http-port={http} --grpc-port={grpc} --metrics-port={metrics} --metrics-config=summary_latencies=true"
)
LINK = re.compile(r"http://localhost:\d+/#token=[\w-]+")
LINK_SECONDS = 10.0
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


def quartiles(values: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", choices=WORK, default="floor-grpc-8")
    parser.add_argument("--rounds", type=int, default=20, help="pairs of rounds")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each of the three windows of a round")
    parser.add_argument("--json", type=Path, help="a file for all rounds")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    model = WORK[options.work].model
    rounds: dict[str, list[dict[str, float]]] = {"open": [], "closed": []}
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        repository = Path(name) / "models"
        shutil.copytree(MODELS / model, repository / model)
        server = Server("a", f"{SERVE} --console-port={free_ports(1)[0]}", repository, {model})
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            settle([server])
            link = link_of(server)
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            for turn in range(options.rounds):
                for state in ("open", "closed") if turn % 2 else ("closed", "open"):
                    open_page(page, link if state == "open" else "")
                    rounds[state].append(server.measure(options.work, options.seconds))
                pair = [rounds[state][-1]["throughput"] for state in ("open", "closed")]
                print(f"{turn + 1}: {pair[0]:.0f} open, {pair[1]:.0f} closed, {pair[0] / pair[1]:.3f}", flush=True)
        finally:
            browser.close()
            server.stop()
    for figure in FIGURES:
        pairs = zip(rounds["open"], rounds["closed"], strict=True)
        print(f"{options.work} {figure}, open/closed: {quartiles([a[figure] / b[figure] for a, b in pairs])}")
    if options.json:
        options.json.write_text(json.dumps({"work": options.work, "rounds": rounds}, indent=1))


if __name__ == "__main__":
    main()
