"""Profiles one model: asks a search for candidates, has them measured, and keeps the results. Blocks; one thread."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from halimede.analyze.checkpoint import Checkpoints, Record
from halimede.analyze.group import Group
from halimede.analyze.interrupt import Interrupt
from halimede.analyze.measurements import Measurement, merged
from halimede.analyze.meter import Dropped, Meter
from halimede.analyze.names import Names
from halimede.analyze.noise import Question
from halimede.analyze.ranking import SAME
from halimede.analyze.searches import Plan, Search
from halimede.analyze.searches.adaptive import adaptive
from halimede.analyze.searches.brute import brute, manual
from halimede.analyze.searches.quick import quick
from halimede.analyze.settings import ModelSettings, Settings
from halimede.analyze.space import Axis, Candidate, Space, axes_of, batch_limit, members_of
from halimede.analyze.tables import Row, heading, progress
from halimede.errors import Invalid

SURE_IN_THE_END = 0.01
LONGER = 1.25
"""The best candidates are measured twice, each time for longer by this factor."""
CLEARLY = 0.1
"""The best one is not in doubt against a candidate that is worse by this share, whatever the noise."""
SHARPER = 0.85
"""A final measurement that breaks a constraint is repeated with this share of the load."""
TRIES = 3
Say = Callable[[str], None]


def space_of(settings: Settings, own: ModelSettings, meter: Meter | Group) -> Space:
    """The axes of a model: its own, or those of the models that it calls."""
    on_cpus, delays = {*settings.words("cpu_only_composing_models")}, settings.delays
    on_cpus |= {each.name for each in own.members if each.cpu_only}
    if own.members and "run_config_search_queue_delays" not in settings.given:
        delays = ()
    configs = {
        name: _on_cpu(config) if own.cpu_only or name in on_cpus else config for name, config in meter.configs.items()
    }
    axes: list[Axis] = []
    for name, config in configs.items():
        # A member must take the largest batch of its ensemble.
        whole = [batch_limit(each) for each in configs.values() if name in members_of(each)]
        least = max([own.bounds.min_batch, *whole])
        bounds = replace(own.bounds, min_batch=least, max_batch=max(least, own.bounds.max_batch))
        axes += axes_of(name, config, bounds, delays)
    return Space(tuple(axes), configs, bool(own.members))


def _on_cpu(config: Any) -> Any:
    group = {"kind": "KIND_CPU", "count": max(1, sum(int(each.get("count", 1)) for each in config["instance_group"]))}
    return {**config, "instance_group": [group]} if config.get("instance_group") else config


def search_of(settings: Settings, own: ModelSettings, plan: Plan, seed: int) -> tuple[str, Search]:
    """The name of the search that the user wants, and the search. Raises Invalid."""
    mode = "quick" if own.members else settings.text("run_config_search_mode")
    if own.changes:
        return "manual", manual(plan, own.name, own.changes)
    if settings.is_on("run_config_search_disable"):
        return "manual", manual(plan, own.name, {})
    if not plan.space.axes:
        return "loads", manual(plan, own.name, {})
    if mode == "optuna":
        try:
            from halimede.analyze.searches.optuna_search import Trials, search_by_optuna
        except ImportError:
            raise Invalid("this search needs a library: pip install 'halimede[analyze]'") from None
        trials = Trials(
            settings.number("min_percentage_of_search_space"),
            settings.number("max_percentage_of_search_space"),
            settings.number("optuna_min_trials"),
            settings.number("optuna_max_trials"),
            settings.number("optuna_early_exit_threshold"),
            seed,
            settings.is_on("use_concurrency_formula"),
        )
        return mode, search_by_optuna(plan, trials)
    return mode, {"brute": brute, "quick": quick, "adaptive": adaptive}[mode](plan)


class Session:
    """The profile of one model. What it finds is in `record`."""

    def __init__(
        self,
        settings: Settings,
        own: ModelSettings,
        meter: Meter | Group,
        checkpoints: Checkpoints,
        interrupt: Interrupt,
        say: Say,
        clear: Callable[[], None],
    ) -> None:
        self._settings, self._own, self._meter = settings, own, meter
        self._checkpoints, self._interrupt, self._say, self._clear = checkpoints, interrupt, say, clear
        self.record = self._start_record()
        self.dropped: dict[Candidate, str] = {}
        self._seconds = float(settings.values["measurement_seconds"])
        self._final = Question(sure=SURE_IN_THE_END, most_seconds=self._seconds * LONGER)
        self.seconds = 0.0

    def _start_record(self) -> Record:
        """That of the checkpoint, if it is about the same configurations; else a new one."""
        kept = self._checkpoints.records.get(self._own.name)
        protocol = self._settings.text("client_protocol")
        if kept is None or kept.configs != self._meter.configs or kept.protocol != protocol:
            kept = Record(Names(self._own.name), self._meter.configs, [], protocol=protocol)
        kept.goal = self._own.goal
        self._checkpoints.records[self._own.name] = kept
        return kept

    def run(self) -> None:
        """Searches, and measures the best ones again. Raises Invalid, Unavailable, and Interrupted after the second
        Ctrl-C; what was measured is in the record then."""
        settings, own = self._settings, self._own
        space = space_of(settings, own, self._meter)
        plan = Plan(
            space,
            own.goal,
            own.bounds,
            own.batch_sizes,
            own.loads,
            own.is_rate,
            settings.number("num_configs_per_model"),
            not settings.is_on("concurrency_sweep_disable"),
        )
        self.record.mode, search = search_of(settings, own, plan, 100)
        self._say(f"{own.name}: {self.record.mode} search{_size_text(space, self.record.mode)}\n")
        self._say(heading(self._width, own.is_rate))
        began = time.monotonic()
        try:
            self._drive(search)
            self._measure_finals(plan)
        finally:
            self.seconds = time.monotonic() - began
            self._clear()

    @property
    def _width(self) -> int:
        return len(self._own.name) + len("_config_default")

    def _drive(self, search: Search) -> None:
        try:
            candidate = next(search)
            while not self._interrupt.count:
                candidate = search.send(self._measured(candidate, self._question()))
        except StopIteration:
            pass
        finally:
            search.close()

    def _question(self) -> Question:
        """What the next measurement is to decide."""
        goal, rival = self._own.goal, 0.0
        if set(goal.objectives) == {"perf_throughput"}:
            rival = max((each.throughput for each in self.record.measurements if goal.satisfies(each)), default=0.0)
        limits = goal.constraints.get("perf_latency_p99")
        return Question(rival, limits.most * 1e6 if limits is not None else 0.0, most_seconds=self._seconds)

    def _measured(self, candidate: Candidate, question: Question) -> Measurement | None:
        """The result, from the checkpoint if it is there; None if the candidate cannot be measured."""
        if (known := self.record.find(candidate)) is not None:
            return known
        if candidate in self.dropped:
            return None
        try:
            found = self._meter.measure(candidate, question)
        except Dropped as error:
            self.dropped[candidate] = str(error)
            self._clear()
            self._say(f"{self.record.names.of(candidate.setup)} with {candidate.load.value:g}: dropped, {error}")
            return None
        self.record.measurements.append(found)
        self._checkpoints.save()
        self._clear()
        self._say(progress(self._width, Row(self.record, found), self._note(found)))
        return found

    def _note(self, found: Measurement) -> str:
        broken = self._own.goal.broken(found)
        if broken:
            return f"breaks {', '.join(sorted(broken))}"
        best = self._own.goal.best([each for each in self.record.measurements if each.candidate.is_final])
        if found.candidate.is_final:
            return "final, best" if best is found else "final"
        return "best" if self._own.goal.best(self.record.measurements) is found else ""

    def _measure_finals(self, plan: Plan) -> None:
        """Measures the best of the best configurations again, and the one as it is, in turn and for longer. What is
        clearly worse than the best needs no second look."""
        if self._interrupt.count or plan.loads:
            return
        tentative = [each for each in self.record.measurements if not each.candidate.is_final]
        chosen = self._own.goal.top(tentative, plan.top)
        default = self._own.goal.best([each for each in tentative if not each.candidate.setup])
        if default is not None and default not in chosen:
            chosen.append(default)
        chosen = [each for each in chosen if self._own.goal.compare(chosen[0], each) <= _doubt(chosen[0], each)]
        before = list(self.record.measurements)
        finals = [final for each in chosen if (final := self._measure_final(each)) is not None]
        finals = [each for each in finals if each not in before]
        for final in finals[: 0 if self._interrupt.count else None]:
            # In turn, so that what changes on the machine meanwhile does not count against one of them.
            self.record.measurements.remove(final)
            again = self._measured(final.candidate, self._final)
            if again is not None:
                self.record.measurements.remove(again)
            self.record.measurements.append(merged(final, again) if again is not None else final)
        self._checkpoints.save()

    def _measure_final(self, each: Measurement) -> Measurement | None:
        """One of the best again. If it breaks a constraint now, with less load."""
        load, found = each.candidate.load, None
        for _ in range(TRIES):
            if self._interrupt.count:
                break
            found = self._measured(Candidate(each.candidate.setup, load, is_final=True), self._final)
            if found is None or self._own.goal.satisfies(found) or not self._own.goal.satisfies(each):
                break
            load = replace(load, value=max(1, round(load.value * SHARPER)))
        return found


def _doubt(a: Measurement, b: Measurement) -> float:
    """Up to this difference, the noise of two measurements may hide which is better."""
    return min(CLEARLY, max(SAME, a.noise + b.noise))


def _size_text(space: Space, mode: str) -> str:
    if mode in ("manual", "loads"):
        return ""
    parts = []
    for axis in space.axes:
        name = {"instances": "instances", "max_batch_size": "batch sizes"}.get(axis.kind.value, "queue delays")
        whose = f" of {axis.model}" if len(space.models()) > 1 else ""
        parts.append(f"{len(axis.values)} {name}{whose}")
    return f" in {space.size} configurations: {' x '.join(parts)}"
