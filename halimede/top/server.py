"""Asks a server over HTTP. Blocks, for LIMIT seconds at most a question; one thread."""

import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from halimede.errors import Unavailable
from halimede.http_client import fetch, fetch_json, with_scheme
from halimede.top.exposition import Sample, read_metrics
from halimede.top.sample import Key, Look, Machine, machine_of, models_of

LIMIT = 3.0
METRICS_PORT = 8002


class Server:
    """`url` is the server's HTTP port; its metrics are at `metrics_url`, or, where none is given, at port 8002 of the
    same machine, or at `/metrics` of the HTTP port."""

    def __init__(self, url: str, metrics_url: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._url = with_scheme(url).rstrip("/")
        self._places = [with_scheme(metrics_url)] if metrics_url else []
        if not metrics_url:
            host = urllib.parse.urlsplit(self._url).hostname or "localhost"
            host = f"[{host}]" if ":" in host else host
            self._places = [f"http://{host}:{METRICS_PORT}/metrics", f"{self._url}/metrics"]
        self._clock = clock
        self._instances: dict[Key, int] = {}

    @property
    def url(self) -> str:
        return self._url

    def look(self) -> Look:
        """Raises Unavailable where the server cannot be asked, or is none."""
        facts = self._json("/v2")
        metrics = self._metrics()
        statistics = self._json("/v2/models/stats")
        at = self._clock()
        told = metrics or []
        if not any(sample.name == "halimede_instances" for sample in told):
            self._ask_for_instances(statistics)
        try:
            models = models_of(statistics, told, self._instances)
            name, version = str(facts["name"]), str(facts["version"])
        except (ValueError, KeyError, TypeError) as error:
            raise Unavailable(f"{self._url} is no inference server: {error}") from None
        machine = machine_of(told) if told else Machine()
        return Look(at, name, version, models, machine, metrics is not None)

    def _ask_for_instances(self, statistics: Any) -> None:
        """How many instances the configurations ask for: once for each version."""
        for entry in statistics.get("model_stats", ()) if isinstance(statistics, dict) else ():
            key = str(entry.get("name", "")), str(entry.get("version", ""))
            if key in self._instances:
                continue
            name = urllib.parse.quote(key[0], safe="")
            config = self._json(f"/v2/models/{name}/versions/{key[1]}/config")
            groups = config.get("instance_group", []) if isinstance(config, dict) else []
            self._instances[key] = sum(
                int(group.get("count", 1)) * max(1, len(group.get("gpus", []))) for group in groups
            )

    def _metrics(self) -> list[Sample] | None:
        """None where there are none; where they were found once, there alone they are looked for."""
        for place in self._places:
            try:
                text = fetch(place, "", LIMIT).decode(errors="replace")
            except Unavailable:
                continue
            samples = list(read_metrics(text))
            if samples:
                self._places = [place]
                return samples
        return None

    def _json(self, path: str) -> Any:
        return fetch_json(self._url, path, LIMIT)
