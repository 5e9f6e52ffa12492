"""Several models under load at the same time (`run_config_profile_models_concurrently_enable`, X46). Blocks; there is a
thread for each model while it is measured.

To a session a group is one model. Its configuration has the form of an ensemble of its members, so they are what is
tuned.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, BrokenBarrierError
from typing import Any

from halimede.analyze.changes import places
from halimede.analyze.measurements import Measurement, together
from halimede.analyze.meter import Meter
from halimede.analyze.noise import Question, stop_rule
from halimede.analyze.ranking import Goal
from halimede.analyze.settings import ModelSettings
from halimede.analyze.space import Candidate, Config
from halimede.errors import Invalid
from halimede.perf.statistics import Window

ONE_PROCESS = ("--processes", "1")
"""The load of each model comes from one process: more of them would be forked while other threads run."""


def grouped(models: Sequence[ModelSettings]) -> ModelSettings:
    """How models are profiled together: a gain is that of all models, weighted, and each keeps its own constraints.

    Raises Invalid if they cannot be.
    """
    first = models[0]
    for each in models:
        if each.changes:
            raise Invalid(f"'{each.name}' has model_config_parameters, and models that get load together are searched")
        if _load_of(each) != _load_of(first):
            raise Invalid(f"'{first.name}' and '{each.name}' get load together: their bounds and loads must be equal")
    objectives: dict[str, float] = {}
    for each in models:
        whole = sum(each.goal.objectives.values()) or 1.0
        for tag, weight in each.goal.objectives.items():
            objectives[f"{each.name}:{tag}"] = each.weighting * weight / whole
    constraints = {f"{each.name}:{tag}": limits for each in models for tag, limits in each.goal.constraints.items()}
    name = ",".join(each.name for each in models)
    return replace(first, name=name, goal=Goal(objectives, constraints), cpu_only=False, members=tuple(models))


def _load_of(own: ModelSettings) -> tuple[object, ...]:
    return own.bounds, own.batch_sizes, own.loads, own.is_rate


class Group:
    """Measures models at the same time. Has the methods of a Meter.

    A candidate's number of clients is that of each model if the user chose it (`is_exact`). Otherwise a model gets no
    more of them than twice the requests that its instances can run at a time.
    """

    def __init__(self, name: str, meters: Sequence[Meter], is_exact: bool) -> None:
        self.model, self._meters, self._is_exact = name, tuple(meters), is_exact
        steps = [{"model_name": each.model} for each in meters]
        whole: dict[str, Any] = {"name": name, "platform": "ensemble", "ensemble_scheduling": {"step": steps}}
        self.configs: Mapping[str, Config] = {name: whole}
        for meter in meters:
            self.configs = {**self.configs, **meter.configs}

    def check(self) -> None:
        for meter in self._meters:
            meter.check()

    def measure(self, candidate: Candidate, question: Question) -> Measurement:
        """Raises what `Meter.measure` raises."""
        own = [self._own(meter, candidate) for meter in self._meters]
        for meter, each in zip(self._meters, own, strict=True):
            meter.prepare(each)
        end = _End(len(self._meters))

        def measured(number: int) -> Measurement:
            try:
                return self._meters[number].under_load(own[number], end.rule(number, stop_rule(question)))
            except BaseException:
                end.cancel()
                raise

        with ThreadPoolExecutor(len(self._meters)) as pool:
            parts = list(pool.map(measured, range(len(self._meters))))
        return together(candidate, {meter.model: part for meter, part in zip(self._meters, parts, strict=True)})

    def _own(self, meter: Meter, candidate: Candidate) -> Candidate:
        """The candidate with the load of one model."""
        load = candidate.load
        if self._is_exact or load.is_rate:
            return candidate
        value = min(load.value, 2 * places(meter.configs, candidate.setup))
        return replace(candidate, load=replace(load, value=value))

    def restore(self) -> None:
        for meter in reversed(self._meters):  # the first one knows what was loaded before
            meter.restore()

    def close(self) -> None:
        for meter in self._meters:
            meter.close()


class _End:
    """The end of a measurement for all models: as soon as each has enough, or one has failed. Their windows end
    together, so that none is measured while another has no load."""

    def __init__(self, count: int) -> None:
        self._has_enough = [False] * count
        self._is_over = False
        self._windows = Barrier(count, self._judge)

    def _judge(self) -> None:
        self._is_over = all(self._has_enough)

    def cancel(self) -> None:
        """Ends the measurement of the others."""
        self._windows.abort()

    def rule(self, number: int, own: Callable[[Sequence[Window]], bool]) -> Callable[[Sequence[Window]], bool]:
        def is_enough(windows: Sequence[Window]) -> bool:
            self._has_enough[number] = own(windows)
            try:
                self._windows.wait()
            except BrokenBarrierError:
                return True
            return self._is_over

        return is_enough
