"""Measures levels: gives the load processes their load, cuts windows, asks the server for its statistics, and judges
stability (X5 to X8, X23). One thread.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from halimede.errors import Error
from halimede.perf import report, schedules
from halimede.perf.fleet import Fleet
from halimede.perf.loads import Detail, Load
from halimede.perf.metrics import MetricsReader
from halimede.perf.options import GENERIC_ERROR, OPTION_ERROR, STABILITY_ERROR, Options
from halimede.perf.search import Search
from halimede.perf.server import Server
from halimede.perf.statistics import (
    END,
    START,
    Level,
    Records,
    ServerStats,
    Snapshot,
    Trend,
    Window,
    client_stats,
    merged,
    no_records,
    server_stats,
)
from halimede.perf.watch import Interrupted
from halimede.perf.workload import Workload

TICK = 0.1
"""Seconds between two looks at what happens."""
POLL = 1.0
"""Seconds between two looks at whether a counted window has enough requests (X6)."""
DEAD_SECONDS = 1.0
"""Seconds without a success, while requests fail, after which the server is taken to be gone."""
MARGIN = 1.2
"""A time window lasts this much longer than it was asked to (X6)."""
NO_REQUESTS = "No valid requests recorded within time interval. Please use a larger time window."
LOAD_FAILED = "Failed to maintain requested inference load. Worker thread(s) failed to generate concurrent requests."


class Failure(Error):
    """A measurement failed; what was measured before is kept. `status` is the exit status."""

    def __init__(self, message: str, status: int = GENERIC_ERROR) -> None:
        super().__init__(message)
        self.status = status


class Watcher(Protocol):
    """Who is told what happens, and when to stop."""

    def is_interrupted(self) -> bool: ...
    def told(self, server: ServerStats | None) -> None: ...
    def tick(self, title: str, recent: Records, seconds: float, share: float, failures: int) -> None: ...
    def clear(self) -> None: ...


@dataclass(slots=True)
class Experiment:
    """What `--profile-export-file` writes of a level: all requests of its windows, and when these began and ended."""

    is_rate: bool
    value: float
    boundaries: list[int] = field(default_factory=list)
    records: list[Records] = field(default_factory=list)
    details: list[Detail] = field(default_factory=list)


@dataclass(slots=True)
class Judged:
    """A level, or None if it was not reported, and what a search makes of it."""

    level: Level | None
    is_good: bool
    is_stable: bool


class Profiler:
    """Measures one level after the other. `levels` are the results, `experiments` the requests behind them."""

    def __init__(
        self,
        workload: Workload,
        options: Options,
        fleet: Fleet,
        server: Server | None,
        metrics: MetricsReader | None,
        watcher: Watcher,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        grow: Callable[[], bool],
    ) -> None:
        self._workload, self._options, self._model = workload, options, workload.model
        self._fleet, self._server, self._metrics, self._watcher = fleet, server, metrics, watcher
        self._say, self._warn, self._grow = say, warn, grow
        self.levels: list[Level] = []
        self.experiments: list[Experiment] = []
        self._pending: Records = no_records()
        self._begun = 0
        self._idle = 0
        self._sent = 0
        self._seed = 0
        self._warmed = 0
        self._before: Snapshot = {}

    @property
    def times(self) -> tuple[int, ...]:
        """The fixed schedule."""
        return self._workload.times

    # ---- searches

    def search(self, search: Search, is_rate: bool, is_linear: bool) -> None:
        """Measures the levels of a search. Raises Failure, Interrupted, and Error if the server cannot be asked."""
        value = next(search, None)
        count = 0
        judged = Judged(None, True, True)
        while value is not None:
            judged = self.measure(value, is_rate)
            count += 1
            try:
                value = search.send(judged.is_good)
            except StopIteration:
                break
        if is_linear and count == 1 and not judged.is_stable:
            raise Failure("Failed to obtain stable measurement.", STABILITY_ERROR)

    def measure(self, value: float, is_rate: bool, shown: bool = True) -> Judged:
        """Measures one level and reports it."""
        o = self._options
        if o.warmup_requests:
            self._warm_up(value, is_rate)
        if shown:
            self._say(report.heading(is_rate, value))
        self._begin(value, is_rate, o.request_count)
        try:
            windows, is_stable = self._windows(value, is_rate)
        finally:
            self._watcher.clear()
            self._fleet.stop()
        level = level_of(is_rate, value, windows, is_stable)
        return self._judge(level, is_rate)

    def _judge(self, level: Level, is_rate: bool) -> Judged:
        o = self._options
        limit = o.latency_threshold
        if limit and level.client.stabilizing // 1_000_000 >= limit:
            self._warn(f"Measured latency went over the set limit of {limit} msec. ")
            return Judged(None, False, level.is_stable)
        if not level.is_stable:
            self._warn(self._unstable(level, is_rate))
            return Judged(None, False, False)
        self.levels.append(level)
        self._say(report.level_text(level, self._model, o))
        return Judged(level, True, True)

    def _unstable(self, level: Level, is_rate: bool) -> str:
        o = self._options
        if is_rate:
            return "Failed to obtain stable measurement."
        what = "--measurement-interval" if o.mode == "time_windows" else "--measurement-request-count"
        return (
            f"Failed to obtain stable measurement within {o.max_trials} measurement windows for concurrency "
            f"{level.value:g}. Please try to increase the {what}."
        )

    # ---- load

    def _begin(self, value: float, is_rate: bool, limit: int) -> None:
        """Starts the load of a level."""
        # A counted load may be over before the first window begins.
        self._before = self._snapshot() if limit else {}
        self._fleet.begin(self._loads(value, is_rate, limit))
        self._pending = no_records()
        self._begun = 0

    def _loads(self, value: float, is_rate: bool, limit: int) -> list[Load]:
        o, count = self._options, len(self._fleet)
        limits = _parts(limit, count)
        if not is_rate:
            return [Load(part, each) for part, each in zip(_parts(int(value), count), limits, strict=True)]
        self._seed += 1
        begin = time.perf_counter_ns() + 10_000_000
        schedule = self._schedule(value)
        return [
            Load(0, each, begin, True, schedule, part, o.serial_sequences)
            for part, each in zip(_parts(o.sequences, count), limits, strict=True)
        ]

    def _schedule(self, rate: float) -> tuple[object, ...]:
        o = self._options
        if o.intervals_file:
            return "gaps", read_gaps(o.intervals_file)
        if o.fixed_schedule:
            # The first ones were the warm-up.
            rest = self._workload.times[self._warmed :]
            return "fixed", tuple(each - rest[0] for each in rest) if rest else ()
        return (o.distribution, rate, self._seed)

    def _warm_up(self, value: float, is_rate: bool) -> None:
        self._begin(value, is_rate, self._options.warmup_requests)
        while not self._fleet.is_drained:
            self._wait(TICK, "warm-up", 0.0)
        self._check_failures()
        self._warmed = self._options.warmup_requests

    # ---- windows

    def _windows(self, value: float, is_rate: bool) -> tuple[list[Window], bool]:
        """Windows until they agree or there are too many of them. Returns the last ones, and whether they agree."""
        o, trend, windows = self._options, Trend(), list[Window]()
        experiment = Experiment(is_rate, value)
        self.experiments.append(experiment)
        has_grown = False
        while True:
            number = len(trend.rates) + 1
            title = report.heading(is_rate, value)
            try:
                window = self._window(f"{title}, window {number}", experiment)
            except Interrupted:
                if windows:
                    self._keep(level_of(is_rate, value, windows, False))
                raise
            if self._is_overloaded(window) and not has_grown and self._grow():
                # The load processes were the limit. Begin again with more of them.
                has_grown = True
                self._fleet.stop()
                self._begin(value, is_rate, o.request_count)
                trend, windows = Trend(), []
                continue
            if not window.client.requests and o.request_count == 0 and number >= o.max_trials:
                raise Failure(NO_REQUESTS, OPTION_ERROR)
            windows = [*windows, window][-3:]
            has = bool(window.client.requests)
            trend.add(window.client.infer_per_sec if has else 0.0, window.client.stabilizing if has else float("inf"))
            if o.verbose and has:
                self._watcher.clear()
                self._say(report.pass_text(number, window.client))
            if self._fleet.failures:
                self._keep(level_of(is_rate, value, windows, False))
                self._check_failures()
            if o.request_count:
                return windows, True
            if trend.is_stable(o.stability):
                return windows, True
            if o.latency_threshold and trend.is_slow(o.latency_threshold * 1e6):
                break
            if number >= o.max_trials:
                break
        if not all(window.client.requests for window in windows):
            raise Failure(NO_REQUESTS, OPTION_ERROR)
        if o.asynchronous and trend.is_stable(o.stability, with_latency=False):
            self._warn("Warning: Request latency is not stabilizing. Please try lowering the request rate.")
            return windows, True
        return windows, False

    def _is_overloaded(self, window: Window) -> bool:
        return window.overhead > report.BUSY_PERCENT

    def quick(self, value: float, settle: float, seconds: float, windows: int) -> Level:
        """Measures a concurrency in so many windows, as `steady` does."""
        return self.steady(value, False, settle, seconds, lambda found: len(found) >= windows)

    def steady(
        self, value: float, is_rate: bool, settle: float, seconds: float, enough: Callable[[Sequence[Window]], bool]
    ) -> Level:
        """Measures a level in windows of so many seconds, after some time that does not count, until `enough` is true
        of them; without a judgement and a report. Raises what `search` raises."""
        self._begin(value, is_rate, 0)
        title = f"{value:g} requests/s" if is_rate else f"{value:.0f} client{'s' * (value > 1)}"
        experiment = Experiment(is_rate, value)
        self.experiments.append(experiment)
        found = list[Window]()
        try:
            self._wait(settle, title, 0.0)
            self._fleet.take()
            while not found or not enough(found):
                found.append(self._window(title, experiment, seconds))
                if self._fleet.failures:
                    self._keep(level_of(is_rate, value, found, False))
                    self._check_failures()
        finally:
            self._watcher.clear()
            self._fleet.stop()
        level = level_of(is_rate, value, found)
        if not level.client.requests:
            raise Failure(NO_REQUESTS, OPTION_ERROR)
        return level

    def grow(self) -> None:
        """Sends requests on streams, more and more at a time (X3), and keeps their records for the export. Raises what
        `search` raises."""
        o = self._options
        assert o.periodic is not None
        experiment = Experiment(False, 1)
        self.experiments.append(experiment)
        levels = o.periodic
        self._fleet.begin(
            [Load(int(levels.start), int(levels.end), grow_by=int(levels.step), grow_after=o.request_period)]
        )
        begun = time.perf_counter_ns()
        while not self._fleet.is_drained:
            self._wait(TICK, "periodic concurrency", min(1.0, self._fleet.total / levels.end))
        self._check_failures()
        experiment.records.append(self._fleet.take())
        experiment.details = self._fleet.details
        experiment.boundaries += [begun, time.perf_counter_ns()]

    def _keep(self, level: Level) -> None:
        """Keeps an unfinished level, if any of its requests was answered."""
        if level.client.requests:
            self.levels.append(level)

    def _window(self, title: str, experiment: Experiment, seconds: float = 0.0) -> Window:
        """Measures one window. The first begins now; each later one where the last one ended. `seconds` is its length;
        0 if the options decide."""
        if not self._begun:
            self._begun = time.perf_counter_ns()
            self._idle, self._sent = self._fleet.idle, self._fleet.sent
            self._before = self._before or self._snapshot()
        self._let_pass(title, seconds)
        end = time.perf_counter_ns()
        try:
            after = self._snapshot()
        except Error:
            # If requests fail too, that says more than the questions about statistics.
            self._fleet.catch_up(end)
            if self._fleet.failures:
                self._keep_partial()
                self._check_failures()
            raise
        self._fleet.catch_up(end)
        window = self._cut(end, after, experiment)
        self._begun, self._before = end, after
        return window

    def _let_pass(self, title: str, seconds: float) -> None:
        """Waits until the window is over."""
        o = self._options
        began = time.monotonic()
        if not seconds and o.mode == "time_windows":
            seconds = o.interval / 1000 * MARGIN
        if seconds:
            while (left := began + seconds - time.monotonic()) > 0:
                self._wait(min(TICK, left), title, 1 - left / seconds)
            return
        wanted, before = o.window_requests, self._fleet.total
        next_look = began + POLL
        while True:
            self._wait(TICK, title, min(1.0, (self._fleet.total - before) / wanted))
            if o.request_count:
                if self._fleet.is_drained:
                    return
            elif time.monotonic() >= next_look:
                next_look += POLL
                if self._fleet.total - before >= wanted:
                    return

    def _wait(self, seconds: float, title: str, share: float) -> None:
        """Gathers for a while. Raises Interrupted, and Failure if the server is gone."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._fleet.gather(left)
            if self._watcher.is_interrupted():
                self._on_interrupt()
        if self._metrics is not None:
            self._metrics.tick()
        since = (time.perf_counter_ns() - (self._begun or time.perf_counter_ns())) / 1e9
        self._watcher.tick(title, self._fleet.recent(), since, share, self._fleet.failures)
        if self._fleet.failures and time.monotonic() - self._fleet.last_success > DEAD_SECONDS:
            self._keep_partial()
            self._check_failures()

    def _on_interrupt(self) -> None:
        self._watcher.clear()
        self._fleet.stop()
        self._keep_partial()
        raise Interrupted

    def _keep_partial(self) -> None:
        """Makes a level of what the present window has so far."""
        if not self._begun or not self.experiments:
            return
        end = time.perf_counter_ns()
        experiment = self.experiments[-1]
        try:
            after = self._snapshot()
        except Error:  # the server is gone; the clients' figures are kept
            after = {}
        window = self._cut(end, after, experiment)
        self._keep(Level(experiment.is_rate, experiment.value, window, False))

    def _cut(self, end: int, after: Snapshot, experiment: Experiment) -> Window:
        """The window until `end`."""
        o = self._options
        records = np.concatenate([self._pending, self._fleet.take()])
        inside = records[:, END] <= end
        self._pending, records = records[~inside], records[inside]
        begin, until = self._begun, end
        if o.request_count and len(records):
            # A counted run lasts from its first request to its last answer (X8).
            begin = int(records[:, START].min())
            until = int(records[:, END].max())
        client = client_stats(records, begin, until, o.batch_size, o.percentile)
        duration = max(1, end - self._begun)
        idle, sent = self._fleet.idle, self._fleet.sent
        busy = 100 * max(0.0, 1 - (idle - self._idle) / (duration * max(1, len(self._fleet))))
        rate = (sent - self._sent) / (duration / 1e9)
        self._idle, self._sent = idle, sent
        if o.export_file:
            experiment.boundaries += [begin] if not experiment.boundaries else []
            experiment.boundaries.append(end)
            experiment.records.append(records)
            experiment.details += self._fleet.details
            self._fleet.details = []
        metrics = self._metrics.take() if self._metrics is not None else ()
        server = self._server_stats(after)
        self._watcher.told(server)
        return Window(client, server, busy, rate, metrics)

    def _server_stats(self, after: Snapshot) -> ServerStats | None:
        if self._server is None:
            return None
        model = self._model
        return server_stats((model.name, model.version), model.composing, self._before, after)

    def _snapshot(self) -> Snapshot:
        if self._server is None:
            return {}
        if self._model.composing:
            return self._server.statistics("", "")
        return self._server.statistics(self._model.name, self._model.version)

    def _check_failures(self) -> None:
        if self._fleet.failures:
            raise Failure(f"{LOAD_FAILED}\nThread [0] had error: {_without_code(self._fleet.failure)}\n")


def level_of(is_rate: bool, value: float, windows: Sequence[Window], is_stable: bool = True) -> Level:
    return Level(is_rate, value, merged(windows), is_stable, tuple(windows))


def _without_code(text: str) -> str:
    """The server's words, as perf_analyzer prints them."""
    return text.partition("] ")[2] if text.startswith("[") and "] " in text else text


def _parts(total: int, count: int) -> list[int]:
    """A number in almost equal parts."""
    whole, rest = divmod(total, count)
    return [whole + (number < rest) for number in range(count)]


def read_gaps(path: str) -> tuple[int, ...]:
    """The gaps of a file in nanoseconds. Raises Failure."""
    try:
        gaps = tuple(int(line) * 1000 for line in Path(path).read_text().split())
    except (OSError, ValueError) as error:
        raise Failure(f"failed to read the intervals of '{path}': {error}") from None
    if not gaps or sum(gaps) <= 0 or min(gaps) < 0:
        raise Failure(f"the intervals of '{path}' must be positive numbers of microseconds, one on each line")
    return gaps


def rate_of_file(path: str) -> float:
    return schedules.rate_of(read_gaps(path))


def print_now(text: str) -> None:
    """Prints at once, so that a pipe sees each level when it is done."""
    print(text)
    sys.stdout.flush()
