"""The table, as a terminal shows it."""

import json
from io import StringIO

from rich.console import Console

from halimede.top.rates import document, rates
from halimede.top.sample import Counted, Machine, ModelSample, Snapshot
from halimede.top.screen import screen

BEFORE = Snapshot(1.0, "triton", "2.51.0", {("m", "1"): ModelSample(), ("quiet", "2"): ModelSample()}, has_metrics=True)
AFTER = Snapshot(
    2.0,
    "triton",
    "2.51.0",
    {
        ("m", "1"): ModelSample(
            40, 10, Counted(1234, 1234 * 2_500_000), Counted(3, 3), Counted(1234, 0), pending=5, instances=2, busy=1
        ),
        ("quiet", "2"): ModelSample(),
    },
    Machine(0.75, 2 * 2**30, 8 * 2**30, (("GPU-1", 0.95),)),
    True,
)


def shown(before: Snapshot, after: Snapshot, trouble: str = "", width: int = 160) -> list[str]:
    console = Console(width=width, file=StringIO(), record=True)
    console.print(screen("http://x:8000", after, rates(before, after), width, trouble))
    return [line.rstrip() for line in console.export_text().splitlines() if line.strip()]


def test_head_has_totals() -> None:
    head, *_ = shown(BEFORE, AFTER)
    assert head.split("  ") == [
        "triton 2.51.0",
        "http://x:8000",
        "2 models",
        "1,234 req/s",
        "cpu 75%",
        "memory 2.0/8.0 GiB",
        "gpu0 95%",
    ]


def test_row_has_a_dash_for_unknown_values() -> None:
    _, titles, _, busy, quiet = shown(BEFORE, AFTER)
    assert titles.split()[:6] == ["model", "req/s", "fail/s", "inf/s", "batch", "ms"]
    assert busy.split() == ["m:1", "1,234", "3.0", "40.0", "4.0", "2.50", "-", "0", "-", "5", "-", "1/2", "-", "-"]
    assert quiet.split() == ["quiet:2", "0", "0", "0", *("-",) * 10]


def test_trouble_is_below_the_last_figures() -> None:
    assert shown(BEFORE, AFTER, "http://x:8000 cannot be reached")[-1] == "http://x:8000 cannot be reached"


def test_missing_metrics_are_mentioned() -> None:
    assert shown(Snapshot(1.0), Snapshot(2.0))[-1].startswith("no metrics found, so no queues")


def test_narrow_terminal_shows_the_main_columns() -> None:
    _, titles, _, busy, _ = shown(BEFORE, AFTER, width=80)
    assert titles.split() == ["model", "req/s", "fail/s", "ms", "waiting", "busy"]
    assert busy.split() == ["m:1", "1,234", "3.0", "2.50", "5", "1/2"]


def test_document_has_everything_by_name() -> None:
    found = document("u", BEFORE, AFTER, rates(BEFORE, AFTER))
    assert (found["url"], found["server"]["version"], found["seconds"], found["metrics"]) == ("u", "2.51.0", 1.0, True)
    assert found["machine"]["gpu_utilization"] == {"GPU-1": 0.95}
    assert [model["name"] for model in found["models"]] == ["m", "quiet"]
    assert found["models"][0]["requests"] == 1234.0
    assert json.loads(json.dumps(found)) == found
