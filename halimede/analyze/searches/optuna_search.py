"""Search by the library optuna, of the extra `halimede[analyze]` (X38)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import optuna

from halimede.analyze.searches import Plan, Search, finish
from halimede.analyze.space import Candidate, doubling

FAILED = -1.0
"""The score of a candidate that could not be measured."""


@dataclass(frozen=True, slots=True)
class Trials:
    """How many candidates are tried: shares of the space, unless numbers are given, and how long without a gain."""

    min_percentage: float = 5.0
    max_percentage: float = 10.0
    least: int = 0
    most: int = 0
    early_exit: int = 10
    seed: int = 100
    use_formula: bool = False
    """Whether the number of clients follows from the configuration, instead of being searched."""

    def bounds(self, size: int) -> tuple[int, int]:
        least = self.least or math.ceil(size * self.min_percentage / 100)
        return least, max(least, self.most or math.ceil(size * self.max_percentage / 100))


def search_by_optuna(plan: Plan, trials: Trials) -> Search:
    """Measures the configuration as it is, then what the sampler proposes. The score is the gain over the former."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=trials.seed))
    loads = plan.loads or (() if trials.use_formula else doubling(plan.lowest, plan.highest))
    size = plan.space.size * len(plan.batch_sizes) * max(1, len(loads))
    least, most = trials.bounds(size)
    first = plan.loads[0] if plan.loads else plan.clients(plan.space.start)
    default = yield Candidate((), plan.load(first, plan.batch_sizes[0]))
    found = [default] if default is not None else []
    highest, since = -math.inf, 0
    for number in range(most):
        trial = study.ask()
        measured = yield _proposed(plan, trial, loads)
        score = FAILED
        if measured is not None:
            found.append(measured)
            score = plan.goal.compare(measured, default) if default is not None else 0.0
        study.tell(trial, score)
        since = 0 if score > highest else since + 1
        highest = max(highest, score)
        if number + 1 >= least and since >= trials.early_exit:
            break
    yield from finish(plan, found, sweeps=plan.has_sweep)


def _proposed(plan: Plan, trial: optuna.Trial, loads: Sequence[float]) -> Candidate:
    """What the sampler proposes. Without loads, the number of clients follows from the configuration."""
    point = tuple(
        axis.values.index(trial.suggest_categorical(f"{axis.model} {axis.kind.value}", axis.values))
        for axis in plan.space.axes
    )
    batch_size = trial.suggest_categorical("batch_size", plan.batch_sizes)
    value = trial.suggest_categorical("load", loads) if loads else plan.clients(point)
    return Candidate(plan.space.setup(point), plan.load(value, batch_size))
