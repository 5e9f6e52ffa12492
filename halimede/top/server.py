"""Takes snapshots of a server over HTTP. Each request blocks for at most LIMIT seconds. One thread."""

import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from halimede.errors import Unavailable
from halimede.http_client import fetch, fetch_json, with_scheme
from halimede.top.sample import Key, Machine, Sample, Snapshot, machine_of, models_of, read_metrics

LIMIT = 3.0
METRICS_PORT = 8002


class Server:
    """A server whose HTTP port is at `url`.

    Its metrics are at `metrics_url`, which may lack the path. If it is empty, they are searched at port 8002 of the
    same machine and at `/metrics` of the HTTP port.
    """

    def __init__(self, url: str, metrics_url: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._url = with_scheme(url).rstrip("/")
        self._places = [_with_path(with_scheme(metrics_url))] if metrics_url else []
        if not metrics_url:
            host = urllib.parse.urlsplit(self._url).hostname or "localhost"
            # An IPv6 address, which urlsplit returns without its brackets.
            host = f"[{host}]" if ":" in host else host
            self._places = [f"http://{host}:{METRICS_PORT}/metrics", f"{self._url}/metrics"]
        self._clock = clock
        self._instances: dict[Key, int] = {}

    @property
    def url(self) -> str:
        return self._url

    def snapshot(self) -> Snapshot:
        """Raises Unavailable if the server does not answer, or is not an inference server."""
        facts = self._json("/v2")
        metrics = self._metrics()
        statistics = self._json("/v2/models/stats")
        # After the statistics have arrived: rates are computed from them.
        at = self._clock()
        told = metrics or []
        # Triton's metrics do not have the number of instances.
        if not any(sample.name == "halimede_instances" for sample in told):
            self._ask_for_instances(statistics)
        try:
            models = models_of(statistics, told, self._instances)
            name, version = str(facts["name"]), str(facts["version"])
        except (ValueError, KeyError, TypeError) as error:
            raise Unavailable(f"{self._url} is no inference server: {error}") from None
        machine = machine_of(told) if told else Machine()
        return Snapshot(at, name, version, models, machine, metrics is not None)

    def _ask_for_instances(self, statistics: Any) -> None:
        """Reads the number of instances from the configurations, once for each version."""
        for entry in statistics.get("model_stats", ()) if isinstance(statistics, dict) else ():
            key = str(entry.get("name", "")), str(entry.get("version", ""))
            # A configuration changes only with a new load, and asking for each of many models is slow.
            if key in self._instances:
                continue
            name = urllib.parse.quote(key[0], safe="")
            config = self._json(f"/v2/models/{name}/versions/{key[1]}/config")
            groups = config.get("instance_group", []) if isinstance(config, dict) else []
            self._instances[key] = sum(
                int(group.get("count", 1)) * max(1, len(group.get("gpus", []))) for group in groups
            )

    def _metrics(self) -> list[Sample] | None:
        """None if there are no metrics. After they were found once, only that place is asked."""
        for place in self._places:
            try:
                text = fetch(place, "", LIMIT).decode(errors="replace")
            except Unavailable:  # metrics are optional
                continue
            samples = list(read_metrics(text))
            # Something else may answer at the port of the metrics.
            if samples:
                self._places = [place]
                return samples
        return None

    def _json(self, path: str) -> Any:
        return fetch_json(self._url, path, LIMIT)


def _with_path(url: str) -> str:
    """The URL of metrics, with `/metrics` if it has no path."""
    parts = urllib.parse.urlsplit(url)
    return parts._replace(path="/metrics").geturl() if parts.path in ("", "/") else url
