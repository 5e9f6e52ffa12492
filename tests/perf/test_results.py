import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.errors import Invalid
from halimede.perf.options import Options
from halimede.perf.plot import draw
from halimede.perf.results import comparison, document_of, histogram, noise_of, read_document, verdict
from halimede.perf.statistics import ClientStats, Counts, Level, ServerStats, Window, merged

MS = 1_000_000


def window(requests: int, latency: int = MS) -> Window:
    latencies = np.full(requests, latency, np.int64)
    client = ClientStats(requests, duration=1000 * MS, latencies=latencies, timeline=((0.5, 8.0), (1.0, 12.0)))
    server = ServerStats(Counts(successes=2, total_ns=4_000_000, queued=2, queue_ns=2_000_000))
    return Window(client, server, 20.0, float(requests))


def level(clients: int, *requests: int) -> Level:
    windows = tuple(map(window, requests))
    return Level(False, clients, merged(windows), True, windows)


def document(*rounds: Sequence[Level]) -> dict[str, Any]:
    made = document_of(rounds, Options(model="m"), "1.0", "2026-01-01T00:00:00+00:00", 2)
    copied: dict[str, Any] = json.loads(json.dumps(made))
    return copied


def test_document_has_levels_with_their_rounds() -> None:
    made = document([level(1, 100), level(2, 200)], [level(1, 110), level(2, 190)])
    assert [each["value"] for each in made["levels"]] == [1, 2]
    first, second = made["levels"][0]["rounds"]
    assert (first["throughput"], second["throughput"]) == (100, 110)
    assert first["latency_us"]["p99"] == 1000
    assert first["server"]["queue_us"] == 1000
    assert first["timeline"] == [[0.5, 8.0], [1.0, 12.0]]


def test_histogram_counts_every_latency() -> None:
    buckets = histogram(np.array([900_000, 1_000_000, 1_000_000, 5_000_000], np.int64))
    assert sum(count for _, count in buckets) == 4
    assert buckets[0][0] >= 900
    assert buckets[-1][0] >= 5000
    assert histogram(np.empty(0, np.int64)) == []


def test_noise_is_that_of_rounds_or_of_the_windows_of_one() -> None:
    assert noise_of(document([level(1, 100)], [level(1, 110)])["levels"][0]) == pytest.approx(10 / 105)
    assert noise_of(document([level(1, 100, 120, 100)])["levels"][0]) == pytest.approx(0.2)


def test_difference_within_the_noise_is_none() -> None:
    a, b = document([level(1, 100)], [level(1, 110)]), document([level(1, 104)], [level(1, 112)])
    text = comparison(a, b, ("a.json", "b.json"))
    assert "equal within the noise" in text
    assert text.endswith("A and B are equal within the noise.")


def test_larger_difference_has_a_verdict() -> None:
    a, b = document([level(1, 100), level(2, 99)]), document([level(1, 150), level(4, 9)])
    text = comparison(a, b, ("a.json", "b.json"))
    assert "B is faster by 50.0%" in text
    assert text.endswith("B is faster than A at 1 of 1 levels, and nowhere slower.")
    assert comparison(b, a, ("b", "a")).endswith("B is slower than A at 1 of 1 levels, and nowhere faster.")
    assert verdict(0.5, 0.1) == "B is slower by 50.0%"


def test_documents_without_a_common_level_are_refused() -> None:
    with pytest.raises(Invalid, match="have no level in common"):
        comparison(document([level(1, 1)]), document([level(2, 1)]), ("a", "b"))


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "cannot be read"), ("{", "is no file of --json"), ('{"format": 0}', "no file of --json")],
)
def test_other_files_are_refused(tmp_path: Path, content: str | None, text: str) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(Invalid, match=text):
        read_document(str(path))


@pytest.mark.parametrize(
    ("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.html", b"<!doctype html>")]
)
def test_plot_is_a_picture_or_a_page(tmp_path: Path, name: str, begins: bytes) -> None:
    draw(document([level(1, 100), level(2, 200)]), tmp_path / name)
    content = (tmp_path / name).read_bytes()
    assert content.startswith(begins)
    assert len(content) > 10_000
