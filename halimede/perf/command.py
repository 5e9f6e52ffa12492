"""`halimede perf`: one run, from the options to the exit status. Main thread."""

import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import TypeVar

from halimede import __version__
from halimede.errors import Error
from halimede.perf import auto, report, search
from halimede.perf.assembly import check_model, completed, fill, grown
from halimede.perf.clients.io import Target
from halimede.perf.csv_file import SMALL_SAMPLE, composing_files, main_file
from halimede.perf.export import Tensors, export_document, write_json
from halimede.perf.fleet import Fleet
from halimede.perf.kinds import PAYLOAD, body_encoder, model_of_kind, sessions_of
from halimede.perf.metrics import MetricsReader
from halimede.perf.model import Model, model_of
from halimede.perf.options import GENERIC_ERROR, SUCCESS, TRITON, Options, Range
from halimede.perf.own_server import OwnServer
from halimede.perf.profiler import Experiment, Failure, Profiler, print_now, rate_of_file
from halimede.perf.requests import Tensor
from halimede.perf.results import comparison, document_of, read_document
from halimede.perf.server import Asker, GrpcServer, HttpServer, Server, target_of
from halimede.perf.sessions import Sessions
from halimede.perf.statistics import Level
from halimede.perf.watch import Interrupt, Interrupted, Watch, live_stream
from halimede.perf.workload import Workload, build
from halimede.platform.limits import allow_many_files


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


T = TypeVar("T")


class Stop(Exception):
    """The run cannot begin, for the reason that it carries."""


def run(options: Options) -> int:
    """Measures and reports. Returns the exit status (X26)."""
    with ExitStack() as stack:
        try:
            allow_many_files()  # each client has a connection
            if options.compare:
                return _compare(*options.compare)
            _check_files(options)
            return _Run(options, stack).all()
        except Stop as stop:
            _warn(f"error: {stop}\n")
        except Failure as failure:
            _warn(failure.message)
            return failure.status
        except Error as error:
            _warn(str(error))
        return GENERIC_ERROR


def _check_files(options: Options) -> None:
    """Opens the files of results before anything is measured. Raises Stop."""
    for plot in options.plots:
        if not plot.endswith((".png", ".svg", ".html")):
            raise Stop(f"cannot draw '{plot}': its name must end in .png, .svg or .html")
        if find_spec("matplotlib") is None:
            raise Stop("plots need a library: pip install 'halimede[perf]'")
    for name in (options.csv_file, options.export_file, options.json_file, *options.plots):
        if not name or name == "-":
            continue
        path = Path(name)
        is_there = path.exists()
        try:
            with path.open("ab"):
                pass
            if not is_there:
                path.unlink()
        except OSError as error:
            raise Stop(f"cannot write '{name}': {error.strerror}") from None


def _refuse_unserved(options: Options) -> None:
    """Names what perf_analyzer has and this does not serve yet. Raises Stop."""
    unserved = (
        (options.shared_memory == "cuda", "--shared-memory cuda"),
        (options.shared_memory != "none" and options.kind not in TRITON, f"--shared-memory with {options.kind}"),
        (options.mpi, "--enable-mpi"),
        (bool(options.tls.https_certificate_type != "PEM" or options.tls.https_key_type != "PEM"), "type DER"),
    )
    for is_asked_for, name in unserved:
        if is_asked_for:
            raise Stop(f"{name} is not supported")


def _compare(a: str, b: str) -> int:
    print(comparison(read_document(a), read_document(b), (a, b)))
    return SUCCESS


class _Run:
    """One run of the command."""

    def __init__(self, options: Options, stack: ExitStack) -> None:
        self._options, self._stack = options, stack
        self._rounds: list[list[Level]] = []
        self._own_server: OwnServer | None = None
        self._has_lost = False
        """Whether a file could not be written."""

    def all(self) -> int:
        o = self._options
        _refuse_unserved(o)
        if o.kind == "triton_c_api":
            own = self._own_server = _try("failed to start the server", partial(OwnServer, o))
            self._stack.callback(own.stop)
            _try("failed to load the model", own.load)
            o = self._options = own.options
        target = _try("failed to create client factory", partial(target_of, o))
        server = self._server(target)
        workload = self._workload(target, server)
        if o.data_paths:
            print_now(_read_text(workload))
        interrupt = Interrupt(print_now)
        if self._own_server is not None:
            interrupt.at_once = self._own_server.kill
        watch = Watch(interrupt.is_set, live_stream(o.live), shutil.get_terminal_size().columns)
        if o.session_concurrency:
            return self._converse(workload, interrupt, watch)
        has_statistics = server is not None and "statistics" in _try(
            "failed to get server extensions", server.extensions
        )
        return self._measure(workload, server if has_statistics else None, interrupt, watch)

    def _workload(self, target: Target, server: Server | None) -> Workload:
        """What to send. Also sets what is asked of the server, and completes the options."""
        o = self._options
        model = self._model_of_kind(target) if server is None else self._model(server)
        for name in sorted({*o.shapes} - {*model.inputs}):
            _warn(f"warning: the model has no input '{name}' that --shape could be about")
        o = self._options = completed(o, model)
        check_model(o, model)
        if o.trace and server is not None:
            _try("failed to set trace settings", partial(server.set_trace, o.trace))
        workload = _try("Failed to init manager inputs", partial(build, o, model, target, server, random.Random()))
        self._stack.callback(workload.close)
        if workload.regions and server is not None:
            self._stack.callback(_forget_regions, server)
        self._options = _with_schedule(o, workload)
        return workload

    def _measure(self, workload: Workload, server: Server | None, interrupt: Interrupt, watch: Watch) -> int:
        """Runs the load processes, measures, and writes the results. Returns the exit status."""
        o = self._options
        metrics = _metrics_reader(o)
        fleet = Fleet()
        self._stack.callback(fleet.close)
        fill(fleet, workload, o.processes or 1)
        if not o.automatic:
            print_now(report.settings(o, workload.model)[:-1])
        interrupt.install()
        self._stack.callback(interrupt.remove)
        grow = partial(grown, fleet, workload, o.processes)
        profiler = Profiler(workload, o, fleet, server, metrics, watch, print_now, _warn, grow)
        status, failure = SUCCESS, ""
        try:
            self._all_rounds(profiler)
        except Interrupted:
            status, failure = interrupt.status, "Received exit signal."
        except Failure as error:
            status, failure = error.status, error.message
        except Error as error:
            status, failure = GENERIC_ERROR, str(error)
        watch.clear()
        if failure:
            _warn(failure)
        self._write(profiler, workload.model, workload)
        return GENERIC_ERROR if self._has_lost else status

    def _all_rounds(self, profiler: Profiler) -> None:
        o = self._options
        for number in range(o.rounds):
            if o.rounds > 1:
                print_now(f"Round {number + 1} of {o.rounds}")
            begun = len(profiler.levels)
            try:
                self._search(profiler)
            finally:
                self._rounds.append(profiler.levels[begun:])

    def _server(self, target: Target) -> Server | None:
        """Whom to ask about the model; None for a service that knows no such questions."""
        o = self._options
        if o.kind not in TRITON:
            return None
        asker = self._asker(target)
        return GrpcServer(asker) if o.protocol == "grpc" else HttpServer(asker)

    def _asker(self, target: Target) -> Asker:
        asker = Asker(target, self._options.protocol == "grpc", self._options.headers)
        self._stack.callback(asker.close)
        return asker

    def _model_of_kind(self, target: Target) -> Model:
        return _try("failed to get model metadata", partial(model_of_kind, self._options, self._asker(target).grpc))

    def _converse(self, workload: Workload, interrupt: Interrupt, watch: Watch) -> int:
        """Runs conversations, and writes only the export (X30)."""
        o = self._options
        steps = [step for stream in workload.steps for batch in stream for step in batch]
        named = _try("Failed to init manager inputs", partial(sessions_of, steps))
        encoder = body_encoder(o, workload.target.authority)
        print_now(report.settings(o, workload.model)[:-1])
        interrupt.install()
        self._stack.callback(interrupt.remove)
        sessions = Sessions(workload.target, encoder, [turns for _, turns in named], o.session_concurrency)
        experiment = sessions.run(watch)
        if o.export_file:
            bodies = [[[Tensor(PAYLOAD, (1,), sessions.bodies[k])] for k in sorted(sessions.bodies)]]
            self._write_export([experiment], bodies)
        return GENERIC_ERROR if self._has_lost else interrupt.status

    def _model(self, server: Server) -> Model:
        o = self._options
        metadata = _try("failed to get model metadata", partial(server.metadata, o.model, o.version))
        config = _try("failed to get model config", partial(server.config, o.model, o.version))
        return _try(
            "failed to create model parser",
            partial(model_of, metadata, config, o.version, o.composing, o.shapes, server.config),
        )

    # ---- measuring

    def _search(self, profiler: Profiler) -> None:
        o = self._options
        if o.automatic:
            self._search_best(profiler)
            return
        if o.intervals_file:
            profiler.measure(rate_of_file(o.intervals_file), True, shown=False)
            return
        if o.fixed_schedule:
            profiler.measure(_mean_rate(profiler.times), True, shown=False)
            return
        if o.periodic is not None:
            profiler.grow()
            return
        is_rate = o.rate is not None
        levels = o.rate or o.concurrency or Range()
        if o.binary_search:
            profiler.search(search.binary(levels, not is_rate), is_rate, False)
        else:
            profiler.search(search.linear(levels), is_rate, True)

    def _search_best(self, profiler: Profiler) -> None:
        """Doubles the clients until that gains nothing, and measures the best number again with the time that is
        left."""
        o = self._options
        began = time.monotonic()
        seconds = max(auto.LEAST_LEVEL_SECONDS, o.seconds * auto.LEVEL_SHARE)
        print_now(f"Measuring {o.model} at {o.where()} over {o.protocol} for {o.seconds:g} seconds.\n\n{auto.TITLES}")
        levels: list[Level] = []
        clients = 1
        while clients <= auto.MAX_CLIENTS and not auto.is_flat(levels):
            # The last measurement is to have at least the time of two levels.
            if time.monotonic() - began > o.seconds - 3 * seconds and levels:
                break
            settle = seconds * auto.SETTLE_SHARE
            levels.append(profiler.quick(clients, settle, seconds - settle, 1))
            profiler.levels.append(levels[-1])
            print_now(auto.row(levels[-1]))
            clients *= 2
        left = max(3 * auto.LEAST_LEVEL_SECONDS, o.seconds - (time.monotonic() - began))
        chosen = auto.best(levels)
        final = profiler.quick(chosen.value, left * auto.SETTLE_SHARE, left * (1 - auto.SETTLE_SHARE) / 3, 3)
        print_now(f"\nAgain with {final.value:.0f}, for longer:\n{auto.row(final)}\n")
        profiler.levels[:] = [final if level is chosen else level for level in profiler.levels]
        print_now(auto.sentence(o.model, levels, final))

    # ---- results

    def _write(self, profiler: Profiler, model: Model, workload: Workload) -> None:
        o, levels = self._options, profiler.levels
        if o.export_file and (levels or o.periodic is not None):
            self._write_export(profiler.experiments, workload.tensors)
        if not levels:
            return
        shown = [level for level in levels if not level.is_stable and level.client.failed]
        for level in shown:
            print_now(report.level_text(level, model, o))
        if not o.automatic:
            print_now(report.summary(levels, o.percentile)[:-1])
        if o.csv_file:
            self._write_csv(levels, model)
        if o.json_file or o.plots:
            self._write_results()

    @contextmanager
    def _saving(self, name: object) -> Iterator[None]:
        """Says if a file cannot be written, and goes on with the others."""
        try:
            yield
        except OSError as error:
            _warn(f"error: cannot write '{name}': {error.strerror}")
            self._has_lost = True

    def _write_export(self, experiments: Sequence[Experiment], tensors: Tensors) -> None:
        offset, name = time.time_ns() - time.perf_counter_ns(), self._options.export_file
        document = export_document(experiments, self._options, tensors, offset, __version__)
        with self._saving(name):
            write_json(Path(name), document)

    def _write_results(self) -> None:
        o = self._options
        when = datetime.now(UTC).isoformat(timespec="seconds")
        document = document_of(self._rounds, o, __version__, when, os.cpu_count() or 1)
        if o.json_file == "-":
            print_now(json.dumps(document))
        elif o.json_file:
            with self._saving(o.json_file):
                write_json(Path(o.json_file), document)
        for plot in o.plots:
            from halimede.perf.plot import draw

            with self._saving(plot):
                draw(document, Path(plot))

    def _write_csv(self, levels: list[Level], model: Model) -> None:
        o = self._options
        text, small = main_file(levels, model, o.percentile, o.verbose_csv, o.collect_metrics and o.verbose_csv)
        for _ in range(small):
            _warn(SMALL_SAMPLE)
        files = {PurePath(o.csv_file): text, **composing_files(levels, model, o.csv_file)}
        for name, content in files.items():
            with self._saving(name):
                Path(name).write_text(content)


def _forget_regions(server: Server) -> None:
    with suppress(Error):  # the server may be gone
        server.unregister_all()


def _try(what: str, ask: Callable[[], T]) -> T:
    """The answer; Stop with what failed, and why."""
    try:
        return ask()
    except Error as error:
        raise Stop(f"{what}: {error}") from None


def _with_schedule(options: Options, workload: Workload) -> Options:
    """A fixed schedule is a counted run with the requests of the data (X3)."""
    if not options.fixed_schedule:
        return options
    count = len(workload.times) - options.warmup_requests
    if count <= 0:
        raise Failure("--warmup-request-count takes all requests of the schedule")
    return replace(options, request_count=count, mode="count_windows", window_requests=count)


def _mean_rate(times: Sequence[int]) -> float:
    span = times[-1] - times[0] if times else 0
    return round(len(times) / span * 1e9, 3) if span else float(len(times))


def _read_text(workload: Workload) -> str:
    """What perf_analyzer says of the data that it has read."""
    counts = workload.counts
    text = f" Successfully read data for {len(counts)} stream/streams"
    return f"{text} with {counts[0]} step/steps." if len(counts) == 1 else f"{text}."


def _metrics_reader(options: Options) -> MetricsReader | None:
    if not options.collect_metrics:
        return None
    url = options.metrics_url or f"{options.where().rpartition(':')[0] or 'localhost'}:8002/metrics"
    reader = MetricsReader(url, options.metrics_interval / 1000, _warn)
    _try("failed to query the metrics", reader.check)
    return reader
