"""Measures candidates on a running server: loads their configurations, and has `halimede.perf` make the load. Blocks;
one thread.
"""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from halimede.analyze import processes
from halimede.analyze.changes import changes_to, override_of
from halimede.analyze.control import Control, NotReady, wait_until_ready
from halimede.analyze.measurements import Measurement, figures_of, members_in
from halimede.analyze.noise import SETTLE_SECONDS, WINDOW_SECONDS, Question, half_width, stop_rule
from halimede.analyze.space import Candidate, Config, batch_limit, is_ensemble, members_of
from halimede.errors import Error, Invalid, Unavailable
from halimede.http_client import fetch, with_scheme
from halimede.perf.assembly import check_model, completed, fill, grown
from halimede.perf.command_line import parse
from halimede.perf.fleet import Fleet
from halimede.perf.metrics import LIMIT, MetricsReader
from halimede.perf.model import model_of
from halimede.perf.options import Options
from halimede.perf.profiler import LOAD_FAILED, Failure, Profiler, Watcher
from halimede.perf.server import Asker, GrpcServer, HttpServer, Refused, Server, target_of
from halimede.perf.statistics import Window
from halimede.perf.workload import Workload, build
from halimede.platform.gpus import visible_gpus
from halimede.platform.machine import Processors

FIRST_SAMPLE_SECONDS = 5.0
"""Until a server has read its GPUs for the first time: the library for that takes its time to start."""


class Dropped(Error):
    """A candidate cannot be measured. The text says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the server is. `pid` is its process, if that is on this machine; `metrics` is the URL of its metrics."""

    url: str
    protocol: str
    pid: int | None = None
    metrics: str = ""


@dataclass(slots=True)
class _Bench:
    """What makes load of one batch size."""

    workload: Workload
    fleet: Fleet
    profiler: Profiler


class Meter:
    """Measures one model. `configs` are its configuration as it is, and those of the models that it calls."""

    def __init__(
        self,
        model: str,
        called: Sequence[str],
        perf_words: Sequence[str],
        place: Place,
        control: Control,
        watcher: Watcher,
        may_load: bool = True,
        seconds_of_metrics: float = 1.0,
    ) -> None:
        """Loads the model as it is. Raises Unavailable, Refused, Invalid or Failure."""
        self.model = model
        self._perf_words, self._place, self._control, self._watcher = tuple(perf_words), place, control, watcher
        self._may_load, self._seconds_of_metrics = may_load, seconds_of_metrics
        self._were = dict(control.states()) if may_load else {}
        self._changes: dict[str, dict[str, Any]] = {}
        """What is changed now, by model. Those that were loaded here are in it."""
        self._benches: dict[int, _Bench] = {}
        self._called = tuple(called)
        if may_load:
            for each in (*called, model):
                self._load(each, None)
                self._changes[each] = {}
        self.configs: dict[str, Config] = {}
        self._read_configs(model)
        for each in called:
            self._read_configs(each)
        options = self._options(1)
        asker = Asker(target_of(options), place.protocol == "grpc", options.headers)
        self._asker = asker
        self._server: Server = GrpcServer(asker) if place.protocol == "grpc" else HttpServer(asker)
        self._has_statistics = "statistics" in self._server.extensions()
        self._metrics = self._reader()

    def _read_configs(self, model: str) -> None:
        if model in self.configs:
            return
        config = self.configs[model] = self._control.config(model)
        for member in members_of(config) if is_ensemble(config) else ():
            self._read_configs(member)

    def _reader(self) -> MetricsReader | None:
        """Reads figures of GPUs, if the server has any. A server that has just started has none yet."""
        until = time.monotonic() + (FIRST_SAMPLE_SECONDS if visible_gpus(os.environ) else 0.0)
        while self._place.metrics:
            try:
                text = fetch(with_scheme(self._place.metrics), "", LIMIT).decode(errors="replace")
            except Unavailable:
                return None
            if "nv_gpu_memory_used_bytes{" in text:
                return MetricsReader(self._place.metrics, self._seconds_of_metrics, lambda text: None)
            if time.monotonic() >= until:
                return None
            time.sleep(0.05)
        return None

    # ---- configurations

    def _load(self, model: str, override: str | None) -> None:
        try:
            self._control.load(model, override)
        except Refused as error:
            if "explicit" in str(error) or "not allowed" in str(error):
                raise Unavailable(
                    f"the server does not load models by request: {error}. Start it with --model-control-mode=explicit"
                ) from None
            raise

    def apply(self, candidate: Candidate) -> None:
        """Loads the configurations of a candidate that are not loaded yet. Raises Dropped if the server refuses."""
        is_changed = False
        for model in self.configs:
            changes = changes_to(candidate.setup, model)
            if changes == self._changes.get(model, {}):
                continue
            if not self._may_load:
                raise Dropped("configurations are not changed, with --reload-model-disable")
            try:
                self._change(model, changes)
            except Invalid as error:
                raise Dropped(str(error)) from None
            except Refused as error:
                raise Dropped(f"the server refuses it: {error}") from None
            is_changed = True
        if is_changed:
            self._check_ready()

    def _check_ready(self) -> None:
        """Raises Dropped if an ensemble does not take the new members."""
        try:
            if is_ensemble(self.configs[self.model]):
                self._load(self.model, None)  # one that has failed does not come back by itself
            wait_until_ready(self._control, self.model)
        except (Refused, NotReady) as error:
            raise Dropped(str(error)) from None

    def _change(self, model: str, changes: dict[str, Any]) -> None:
        """Loads a model with other values. The configuration as it was is sent in full as well, because a load without
        one keeps the last one (H113)."""
        self._load(model, override_of(self.configs[model], changes))
        self._changes[model] = changes

    def restore(self) -> None:
        """Loads the configurations as they were, and unloads what was not loaded before."""
        if not self._may_load:
            return
        for model in self.configs:  # an ensemble goes before its members
            if self._were.get(model) != "READY":
                self._control.unload(model)
            elif self._changes.get(model):
                self._change(model, {})

    # ---- measuring

    def measure(self, candidate: Candidate, question: Question) -> Measurement:
        """Raises Dropped if the candidate cannot be measured, Unavailable if the server is gone, and Interrupted."""
        self.prepare(candidate)
        return self.under_load(candidate, stop_rule(question))

    def prepare(self, candidate: Candidate) -> None:
        """Loads the candidate, and builds its requests. Raises what `measure` raises."""
        load = candidate.load
        limit = changes_to(candidate.setup, self.model).get("max_batch_size", batch_limit(self.configs[self.model]))
        if load.batch_size > max(1, limit):
            raise Dropped(f"requests have a batch of {load.batch_size}, and the model takes {limit}")
        self.apply(candidate)
        with self._dropping():
            self._bench(load.batch_size)

    def under_load(self, candidate: Candidate, is_enough: Callable[[Sequence[Window]], bool]) -> Measurement:
        """Measures a candidate that is prepared, until `is_enough` is true of the windows. Raises what `measure`
        raises."""
        load, bench = candidate.load, self._bench(candidate.load.batch_size)
        began, used, machine = time.monotonic(), self._used(), Processors()
        with self._dropping():
            level = bench.profiler.steady(load.value, load.is_rate, SETTLE_SECONDS, WINDOW_SECONDS, is_enough)
        spent, busy = time.monotonic() - began, machine.look()
        figures = figures_of(level)
        pid = self._place.pid
        if pid is not None and (memory := processes.memory(pid)) is not None:
            figures["cpu_used_ram"] = memory
        cores = (self._used() - used) / spent if pid is not None else None
        clients = level.window.overhead * len(bench.fleet) / 100
        return Measurement(
            candidate,
            figures,
            members_in(level, self.model),
            half_width([window.client.infer_per_sec for window in level.windows]),
            level.client.seconds,
            cores,
            clients,
            max(0.0, busy * (os.cpu_count() or 1) - cores - clients)
            if busy is not None and cores is not None
            else None,
        )

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """Raises Dropped for what fails, unless the server is gone."""
        try:
            yield
        except (Failure, Unavailable) as error:
            self._control.is_ready(self.model)  # raises if the server is gone
            text = " ".join(str(error).split())
            raise Dropped(text.replace(f"{LOAD_FAILED} Thread [0] had error:", "requests fail:")) from None

    def _used(self) -> float:
        return processes.seconds_used(self._place.pid) if self._place.pid is not None else 0.0

    def _options(self, batch_size: int) -> Options:
        """The options of perf. What the analysis decides comes last, so that it counts."""
        words = [*self._perf_words, "-m", self.model, "-i", self._place.protocol, "-u", self._place.url]
        words += ["-b", str(batch_size)]
        if self.configs[self.model].get("model_transaction_policy", {}).get("decoupled"):
            words += ["--async", "--streaming"]
        if self._called:
            words += ["--bls-composing-models", ",".join(self._called)]
        return parse(words)[0]

    def _bench(self, batch_size: int) -> _Bench:
        """Builds the requests and starts the load process, once for each batch size."""
        if batch_size not in self._benches:
            options, server = self._options(batch_size), self._server
            metadata = server.metadata(options.model, options.version)
            config = server.config(options.model, options.version)
            model = model_of(metadata, config, options.version, options.composing, options.shapes, server.config)
            options = completed(options, model)
            check_model(options, model)
            workload = build(options, model, target_of(options), server, random.Random(batch_size))
            fleet = Fleet()
            fill(fleet, workload, options.processes or 1)
            grow = partial(grown, fleet, workload, options.processes)
            asked = server if self._has_statistics else None
            profiler = Profiler(workload, options, fleet, asked, self._metrics, self._watcher, _ignore, _ignore, grow)
            self._benches[batch_size] = _Bench(workload, fleet, profiler)
        return self._benches[batch_size]

    def check(self) -> None:
        """Builds the first requests, to find out what is wrong with them. Raises Invalid, Failure or Unavailable."""
        self._bench(1)

    def close(self) -> None:
        for bench in self._benches.values():
            bench.fleet.close()
            bench.workload.close()
        self._asker.close()


def _ignore(text: str) -> None:
    """What perf says of a level is said by the analysis itself."""
