"""What clients can set while the server runs: what is logged, and what is traced (contract H121 to H124, G11, G12).

Holds the settings and checks what only the whole of them shows; what each value may be, the protocols have checked.
Event-loop thread only.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from halimede.errors import Invalid
from halimede.models.lifecycle import ModelTable
from halimede.options import LogOptions
from halimede.service.port import LogFacts, LogSettings, Query, TraceFacts, TraceSettings

Answers = Mapping[type[Query[Any]], Callable[[Any], Any]]


class Logging:
    """`apply` makes the log follow its settings."""

    def __init__(self, options: LogOptions, apply: Callable[[LogOptions], None]) -> None:
        self._options = options
        self._apply = apply
        self.answers: Answers = {LogSettings: self._answer}

    def _answer(self, query: LogSettings) -> LogFacts:
        """Raises the refusal that the question carries, after the changes before it."""
        changes: dict[str, Any] = dict(query.changes)
        if "verbose" in changes:
            changes["verbose"] = _verbosity(changes["verbose"])
        if changes:
            self._options = replace(self._options, **changes)
            self._apply(self._options)
        if query.refusal is not None:
            raise query.refusal
        now = self._options
        return LogFacts(now.file, now.info, now.warning, now.error, max(now.verbose, 0), now.format)


def _verbosity(value: int) -> int:
    """The level is a signed number of 32 bits in the real server, and what is below zero counts as none."""
    low = value & 0xFFFFFFFF
    return low if low < 1 << 31 else 0


class Tracing:
    """The settings in three layers: the server's own, those set for all models, those set for one (contract T2).

    Each layer holds the fields that were set there; what is not set is that of the layer below.
    """

    DEFAULT: Final = TraceFacts(level=(), rate=1000, count=-1, log_frequency=0, file="", mode="triton")

    def __init__(self, models: ModelTable) -> None:
        self._models = models
        self._layers: dict[str, dict[str, Any]] = {}
        self.answers: Answers = {TraceSettings: self._answer}

    def _answer(self, query: TraceSettings) -> TraceFacts:
        """Raises NotFound or Invalid for a model that does not serve, the refusal that the question carries, and
        Invalid for settings that cannot be (contract H123)."""
        if query.model:
            self._check_model(query.model)
        if query.refusal is not None:
            raise query.refusal
        if not query.changes:
            return self._facts(query.model, self._layers.get(query.model, {}))
        layer = {**self._layers.get(query.model, {}), **dict(query.changes)}
        layer = {field: value for field, value in layer.items() if value is not None}
        facts = self._facts(query.model, layer)
        if facts.level and (reason := _impossible(facts)):
            raise Invalid(f"Attempting to set invalid trace setting :{reason}")
        self._layers[query.model] = layer
        if not layer:
            del self._layers[query.model]
        return facts

    def _facts(self, model: str, layer: Mapping[str, Any]) -> TraceFacts:
        below = self._layers.get("", {}) if model else {}
        return replace(self.DEFAULT, **{**below, **layer})

    def _check_model(self, name: str) -> None:
        record = self._models.get(name)
        if record is None or not record.versions:
            self._models.find(name, -1)
        if not self._models.ready_versions(name):
            raise Invalid(f"Request for unknown model : {name}")


def _impossible(facts: TraceFacts) -> str:
    if not facts.rate:
        return "sample rate must be non-zero"
    return "" if facts.file else "trace file name is not given"
