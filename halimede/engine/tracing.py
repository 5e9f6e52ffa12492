"""Which requests are traced: the trace settings of the server, of all models and of single models, and their counters
(T1, T2, H121 to H123, G11).

Front ends ask `Tracing` for each request while it is `on`; no other part of the engine uses it. `halimede.tracing`
writes the traces. Event-loop thread only.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, Final, Protocol

from halimede.engine_port import Query, TraceInfo, TraceSettings
from halimede.errors import Error, Invalid
from halimede.models.lifecycle import ModelTable
from halimede.options import TraceOptions
from halimede.requests import NULL_REPLY, InferRequest, Reply
from halimede.traces import (
    TENSORS,
    TIMESTAMPS,
    Context,
    RootTrace,
    Sampler,
    StampNames,
    TraceStream,
    WatchedReply,
    Watcher,
)
from halimede.tracing.files import FileStream, TraceFile
from halimede.tracing.writer import Writer

log = logging.getLogger(__name__)

Answers = Mapping[type[Query[Any]], Callable[[Any], Any]]

OPENTELEMETRY: Final = "opentelemetry"
DISK_SECONDS: Final = 5.0
"""Time at shutdown for traces to reach the disk."""
COLLECTOR_SECONDS: Final = 2.0
"""Time at shutdown for spans to reach the collector."""
_BITS = {"TIMESTAMPS": TIMESTAMPS, "TENSORS": TENSORS}


class Sink(Protocol):
    """Writes finished traces."""

    def take(self, root: RootTrace) -> None: ...


class Spans(Sink, Protocol):
    """Exports spans, for all settings. `close` waits at most `timeout` seconds."""

    def close(self, timeout: float) -> None: ...


class Setting:
    """The trace setting of a model, or of all models without one of their own.

    - `passing`: requests that pass untraced before the next trace
    - `left`: traces left of the count, -1 for any number
    - `open`: traces that began and have not ended
    - `possible`: something is traced and there is a place to write it
    - `active`: `possible`, and `left` is not 0

    `sink` writes the traces: a file of this setting, or one sink for all settings.
    """

    __slots__ = (
        "_closing",
        "_file",
        "_sink",
        "active",
        "info",
        "left",
        "level",
        "open",
        "passing",
        "possible",
        "rate",
    )

    def __init__(self, info: TraceInfo, sink: Sink) -> None:
        self.info = info
        self.rate = info.rate
        self.left = info.count
        self.level = sum(_BITS[level] for level in info.level)
        self.open = 0
        self._sink = sink
        self._file = sink if isinstance(sink, FileStream) else None
        self._closing = False
        self.possible = bool(self.level) and not impossible(info)
        self.active = self.possible and self.left != 0
        self.passing = self.rate - 1 if self.active and self.rate else 0

    def hits(self, forced: bool) -> bool:
        """Counts a request and returns whether it is traced (T1). `forced` ignores rate and count."""
        hit = forced and self.possible
        if self.passing:
            self.passing -= 1
        elif self.active and self.rate:
            hit = True
            self.passing = self.rate - 1
            if self.left > 0:
                self.left -= 1
                if not self.left:
                    self._stop()
        self.open += hit
        return hit

    def _stop(self) -> None:
        self.active = False
        self.passing = 0

    def take(self, root: RootTrace) -> None:
        self._sink.take(root)
        self.dropped()

    def dropped(self) -> None:
        self.open -= 1
        if self._file is not None and not self.open:
            if self.left == 0:
                self._file.finish()
            if self._closing:
                self._file.close()

    def close(self) -> None:
        """Another setting replaces this one. Traces in progress are still taken."""
        self._stop()
        self._closing = True
        if self._file is not None and not self.open:
            self._file.close()

    def abandon(self) -> None:
        """Closes the file. Traces in progress are lost."""
        if self._file is not None:
            self._file.close()


class _Both:
    """Takes a trace for the settings and for the watcher."""

    __slots__ = ("_setting", "_watched")

    def __init__(self, setting: Setting, watched: WatchedReply) -> None:
        self._setting = setting
        self._watched = watched

    def take(self, root: RootTrace) -> None:
        self._setting.take(root)
        self._watched.take(root)

    def dropped(self) -> None:
        self._setting.dropped()
        self._watched.dropped()


class Tracing(Sampler):
    """The trace settings in three layers: the command line's, those set for all models, those set for one model.

    Each layer holds the fields that were set in it; a field that is not set has the value of the layer below. `spans`
    takes the traces in mode `opentelemetry`.
    """

    def __init__(self, models: ModelTable, options: TraceOptions, writer: Writer, spans: Spans | None = None) -> None:
        self._models = models
        self._default = default_of(options)
        self._writer = writer
        self._spans = spans
        self._file = TraceFile(options.file)
        self._layers: dict[str, dict[str, Any]] = {}
        self._ids = count(1)
        self._said_tensors = False
        self._watcher: Watcher | None = None
        self.on = False
        self.takes_context = options.mode == OPENTELEMETRY
        self._global = self._setting(self._default)
        self._own: dict[str, Setting] = {}
        self._leaving: list[Setting] = []
        """Replaced settings with traces in progress."""
        self._look()
        reason = impossible(self._default)
        if self._default.level and reason:
            log.warning("tracing is off: %s", reason)
        self.answers: Answers = {TraceSettings: self._answer}

    # Which requests are traced.

    def passes(self, request: InferRequest) -> bool:
        setting = self._own.get(request.model_name, self._global)
        if self._watcher is not None:
            return False
        if not setting.passing or self.takes_context or not self._takes(request):
            return False
        setting.passing -= 1
        return True

    def traced(
        self,
        request: InferRequest,
        reply: Reply,
        front: StampNames,
        received: tuple[int, int],
        context: Context | None = None,
        tells_end: bool = True,
        gone: Callable[[], bool] = lambda: False,
    ) -> Reply:
        setting = self._own.get(request.model_name, self._global)
        if not self._takes(request):
            return reply
        hit = setting.hits(context is not None)
        watched = self._watcher.watch(reply) if self._watcher is not None else None
        if not hit and watched is None:
            return reply
        if hit and not setting.active:
            self._look()
        level = setting.level if hit else TIMESTAMPS
        if self.takes_context and level & TENSORS:
            self._refuse_tensors()
            level = TIMESTAMPS
        spans = self.takes_context and hit
        stream: TraceStream = setting
        if watched is not None:
            reply, stream = watched, _Both(setting, watched) if hit else watched
        root = request.trace = RootTrace(
            reply, stream, self._ids, level, front, received, context, spans, tells_end, gone
        )
        return root

    def watched_by(self, watcher: Watcher | None) -> None:
        self._watcher = watcher
        self._look()

    def _takes(self, request: InferRequest) -> bool:
        """Whether a model can answer the request. Others do not count towards the rate (H30)."""
        try:
            return request.decoupled_ok or not self._models.find(request.model_name, request.version).decoupled
        except Error:
            return False

    def undecoded(
        self, model: str, front: StampNames, received: tuple[int, int], context: Context | None = None
    ) -> None:
        setting = self._own.get(model, self._global)
        if not setting.hits(context is not None):
            return
        if not setting.active:
            self._look()
        if self._spans is None:
            setting.dropped()
        else:
            setting.take(RootTrace(NULL_REPLY, setting, self._ids, setting.level, front, received, context, True))

    def _refuse_tensors(self) -> None:
        if not self._said_tensors:
            self._said_tensors = True
            log.error("Tensor level tracing is not supported by the mode: opentelemetry")

    # Settings.

    def _answer(self, query: TraceSettings) -> TraceInfo:
        """Changes settings and returns those in force.

        Raises Invalid for a model that is unknown or not ready (H122, G11), the refusal that the query carries, and
        Invalid for settings that make no sense (H123).
        """
        if query.model:
            self._check_model(query.model)
        if query.refusal is not None:
            raise query.refusal
        if not query.changes:
            return self._shown(self._own.get(query.model, self._global))
        changes = dict(query.changes)
        if self.takes_context:
            changes.pop("log_frequency", None)  # it is a setting of files, and this mode has none
        model = query.model
        layer = {**self._layers.get(model, {}), **changes}
        layer = {field: value for field, value in layer.items() if value is not None}
        info = self._info(model, layer, "count" in changes)
        if info.level and (reason := impossible(info)):
            raise Invalid(f"Attempting to set invalid trace setting :{reason}")
        self._layers[model] = layer
        self._renew(model, info)
        return self._shown(self._own.get(model, self._global))

    def _info(self, model: str, layer: Mapping[str, Any], counts_anew: bool = False) -> TraceInfo:
        """The setting that results from a layer. The rest of a count stays, unless the count is set or cleared now."""
        if not model:
            info = replace(self._default, **layer)
            return info if counts_anew else replace(info, count=self._global.left)
        own = self._own.get(model)
        info = replace(self._global.info, **{"count": self._global.left, **layer})
        stays = own is not None and "count" in layer and not counts_anew
        return replace(info, count=own.left) if stays and own is not None else info

    def _renew(self, model: str, info: TraceInfo) -> None:
        """Replaces a setting; its counters start again. The settings of models are derived from the global one, so they
        are replaced together with it."""
        if not model:
            before, self._global = self._global, self._setting(info)
            self._replaced(before)
            for name in list(self._own):
                self._renew_own(name, self._info(name, self._layers[name]))
        else:
            self._renew_own(model, info)
        # Once: it looks at all of them.
        self._look()

    def _renew_own(self, model: str, info: TraceInfo) -> None:
        old = self._own.pop(model, None)
        if self._layers[model]:
            self._own[model] = self._setting(info)
        else:
            del self._layers[model]
        if old is not None:
            self._replaced(old)

    def _replaced(self, setting: Setting) -> None:
        setting.close()
        self._leaving = [one for one in (*self._leaving, setting) if one.open]

    def _setting(self, info: TraceInfo) -> Setting:
        return Setting(info, self._spans or FileStream(self._file, info.log_frequency, self._writer, info.count > 0))

    @staticmethod
    def _shown(setting: Setting) -> TraceInfo:
        return replace(setting.info, count=setting.left)

    def _check_model(self, name: str) -> None:
        # An unknown model has the same error (observed).
        if not self._models.ready_versions(name):
            raise Invalid(f"Request for unknown model : {name}")

    def _look(self) -> None:
        settings = (self._global, *self._own.values())
        self.on = self._watcher is not None or any(
            setting.possible if self.takes_context else setting.active for setting in settings
        )

    def close(self) -> None:
        """Writes the remaining traces. Blocks for at most `DISK_SECONDS` and `COLLECTOR_SECONDS`."""
        self.on = False
        for setting in (self._global, *self._own.values(), *self._leaving):
            setting.abandon()
        if not self._writer.close(DISK_SECONDS):
            log.error("shutdown: some traces were not written within the time limit and are lost")
        if self._spans is not None:
            self._spans.close(COLLECTOR_SECONDS)


def open_tracing(models: ModelTable, options: TraceOptions) -> Tracing:
    """The tracing that the options ask for. Raises Unsupported if mode `opentelemetry` lacks its packages."""
    writer = Writer()
    if options.mode != OPENTELEMETRY:
        return Tracing(models, options, writer)
    from halimede.tracing.spans import SpanExport, exporter_for  # slow to import, and few need it

    exporter = exporter_for(options.url, options.protocol)
    spans = SpanExport(writer, options.url, options.resource, options.batching, exporter)
    return Tracing(models, options, writer, spans)


def default_of(options: TraceOptions) -> TraceInfo:
    """The setting of the command line."""
    shown: tuple[tuple[str, tuple[str, ...]], ...] = ()
    if options.mode == OPENTELEMETRY:
        shown = (
            ("url", (options.url,)),
            ("resource", tuple(f"{name}={value}" for name, value in options.resource.items())),
            *((name, (str(value),)) for name, value in options.batching.items()),
        )
    return TraceInfo(
        options.level, options.rate, options.count, options.log_frequency, options.file, options.mode, shown
    )


def impossible(info: TraceInfo) -> str:
    """Why a trace level cannot be set with these settings, or an empty text (H123)."""
    if info.mode == OPENTELEMETRY:
        return ""
    if not info.rate:
        return "sample rate must be non-zero"
    return "" if info.file else "trace file name is not given"
