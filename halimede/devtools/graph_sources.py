"""Where `halimede graph` gets configurations and times: from model repositories, or from a running server. Blocks."""

import json
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from halimede.checking.model import review_model
from halimede.config import read
from halimede.devtools.graph_pipeline import LATEST, Config, Times
from halimede.errors import Error, NotFound, Unavailable
from halimede.http_client import Refused, fetch_json, with_scheme
from halimede.models.backend_pool import pool_to_look
from halimede.models.loader import LoadOptions
from halimede.models.repository import FoundModel, scan
from halimede.options import suggestion

LIMIT = 5.0


class Folders:
    """Model repositories on this machine. Loads nothing and runs no code of a model.

    So a Python model that only its code configures has no inputs and outputs. Raises Invalid for a path that is not a
    repository.
    """

    def __init__(self, repositories: Sequence[str]) -> None:
        self._repositories = ", ".join(repositories)
        self._models = scan(repositories).models

    def config_of(self, model: str, version: int) -> Config:
        found = self._models.get(model)
        if found is None:
            hint = suggestion(model, tuple(self._models))
            raise NotFound(f"no model '{model}' in {self._repositories}{hint}")
        return described(found)

    @staticmethod
    def times_of(model: str, version: int) -> Times | None:
        return None


class Running:
    """A server that speaks Triton's protocol, at its HTTP port. Asks for each configuration once."""

    def __init__(self, url: str) -> None:
        self._url = with_scheme(url).rstrip("/")
        self._configs: dict[tuple[str, int], Config] = {}

    def config_of(self, model: str, version: int) -> Config:
        if (model, version) not in self._configs:
            try:
                found = self._json(f"{_path(model, version)}/config")
            # The server answered: it does not know the model, and may know one of a similar name.
            except Refused as error:
                # The index also lists models that are not loaded.
                others = [name for name in self._names() if name != model]
                raise NotFound(f"{error}{suggestion(model, others)}") from None
            if not isinstance(found, dict):
                raise Unavailable(f"{self._url} is no inference server: a configuration is not an object")
            self._configs[model, version] = found
        return self._configs[model, version]

    def times_of(self, model: str, version: int) -> Times | None:
        """The times of a version, or of the newest one; None if there are no statistics."""
        try:
            told = self._json(f"{_path(model, version)}/stats")
            return times_in(told.get("model_stats", ()))
        # The graph is of use without times too.
        except (Error, AttributeError, KeyError, TypeError, ValueError):
            return None

    def _names(self) -> list[str]:
        """The names of all models; none if the server does not answer."""
        try:
            return [str(entry["name"]) for entry in self._json("/v2/repository/index", b"{}")]
        except (Error, TypeError, KeyError):
            return []

    def _json(self, path: str, sent: bytes | None = None) -> Any:
        return fetch_json(self._url, path, LIMIT, sent)


def _path(model: str, version: int) -> str:
    name = urllib.parse.quote(model, safe="")
    return f"/v2/models/{name}" + (f"/versions/{version}" if version != LATEST else "")


def times_in(statistics: Sequence[Mapping[str, Any]]) -> Times | None:
    """The times of the newest version in the statistics of a model."""
    if not statistics:
        return None
    # Steps of an ensemble ask for the latest version unless they name one.
    newest = max(statistics, key=lambda entry: int(entry["version"]))
    stats = newest.get("inference_stats", {})
    compute = [_mean(stats, name) for name in ("compute_input", "compute_infer", "compute_output")]
    requests = int(stats.get("success", {}).get("count", 0))
    return Times(requests, _mean(stats, "queue"), sum(compute), _mean(stats, "success"))


def _mean(stats: Mapping[str, Any], name: str) -> float:
    entry = stats.get(name, {})
    count = int(entry.get("count", 0))
    return int(entry.get("ns", 0)) / count if count else 0.0


def described(found: FoundModel) -> dict[str, Any]:
    """The configuration as the protocol's JSON.

    Missing inputs and outputs come from the model file, if they can be read without running code of the model. Raises
    Error.
    """
    draft = read(found.folder)
    text = draft.json()
    # An ensemble has no file that could complete it.
    if draft.needs_description and not draft.is_ensemble:
        text = _completed(found) or text
    config: dict[str, Any] = json.loads(text)
    return config


def _completed(found: FoundModel) -> str | None:
    options = LoadOptions()
    with pool_to_look(options.settings) as backends:
        config = review_model(found, backends, options).config
    return None if config is None else config.json
