"""Models under load at the same time: what they want together, and what was measured of them."""

from collections.abc import Callable, Sequence

import pytest

from halimede.analyze.group import Group, grouped
from halimede.analyze.measurements import Measurement, Member, together
from halimede.analyze.noise import Question
from halimede.analyze.ranking import Goal, Limits
from halimede.analyze.settings import ModelSettings
from halimede.analyze.space import Candidate, Config, Load, variant
from halimede.perf.statistics import Window
from tests.analyze.simulated import figures
from tests.analyze.test_noise import windows

CANDIDATE = Candidate((), Load(4))
LIMITED = Goal({"perf_latency_p99": 10.0}, {"perf_latency_p99": Limits(most=20.0)})


def part(name: str, rate: float, p99: float, others: float | None = 1.0) -> Measurement:
    found = figures(rate, p99, cpu_used_ram=100.0)
    return Measurement(CANDIDATE, found, {name: Member(batch=2.0)}, 0.01, 1.0, 1.5, 0.25, others)


def measured(rate: float, p99: float) -> Measurement:
    return together(CANDIDATE, {"a": part("a", rate, 5.0), "b": part("b", 10.0, p99)})


def test_throughput_is_the_sum_and_other_figures_are_the_worst() -> None:
    found = measured(30.0, 8.0)
    assert (found.throughput, found.figures["perf_latency_p99"], found.figures["cpu_used_ram"]) == (40.0, 8.0, 100.0)
    assert (found.figures["a:perf_throughput"], found.figures["b:perf_latency_p99"]) == (30.0, 8.0)
    assert set(found.members) == {"a", "b"}
    # The clients of each are among the others of the other one.
    assert (found.cores, found.overhead, found.others) == (1.5, 0.5, 0.75)
    assert together(CANDIDATE, {"a": part("a", 1.0, 1.0, None)}).others is None


@pytest.mark.parametrize(("is_exact", "expected"), [(False, [2.0, 16.0]), (True, [20.0, 20.0])])
def test_model_gets_no_more_clients_than_suit_it_unless_they_were_chosen(is_exact: bool, expected: list[float]) -> None:
    meters = [Told("a", {"max_batch_size": 0}), Told("b", {"max_batch_size": 4, "instance_group": [{"count": 1}]})]
    candidate = Candidate((variant("b", {"max_batch_size": 8}),), Load(20))
    found = Group("a,b", meters, is_exact).measure(candidate, Question())  # type: ignore[arg-type]
    assert [meter.loads for meter in meters] == [[each, each] for each in expected]
    assert found.candidate is candidate
    assert found.throughput == sum(expected)


class Told:
    """A meter that keeps the loads that it gets."""

    def __init__(self, model: str, config: Config) -> None:
        self.model, self.configs = model, {model: config}
        self.loads: list[float] = []

    def prepare(self, candidate: Candidate) -> None:
        self.loads.append(candidate.load.value)

    def under_load(self, candidate: Candidate, is_enough: object) -> Measurement:
        self.loads.append(candidate.load.value)
        return Measurement(candidate, figures(candidate.load.value, 1.0))


def test_no_model_is_measured_longer_than_the_others() -> None:
    even, uneven = (Windows(name, windows(*rates)) for name, rates in (("a", [1000] * 20), ("b", [900, 1100] * 10)))
    Group("a,b", [even, uneven], True).measure(CANDIDATE, Question(most_seconds=1.0))  # type: ignore[list-item]
    assert even.count == uneven.count == 5  # the uneven one needs the whole second


def test_model_that_fails_ends_the_measurement_of_the_others() -> None:
    even, failing = Windows("a", windows(*[900, 1100] * 10)), Windows("b", windows(1000))
    with pytest.raises(IndexError):
        Group("a,b", [even, failing], True).measure(CANDIDATE, Question())  # type: ignore[list-item]
    assert even.count <= 2


class Windows:
    """A meter whose windows are known. One more than there are is an error."""

    def __init__(self, model: str, found: Sequence[Window]) -> None:
        self.model, self.configs = model, {model: {"max_batch_size": 0}}
        self._found = found
        self.count = 0

    def prepare(self, candidate: Candidate) -> None:
        pass

    def under_load(self, candidate: Candidate, is_enough: Callable[[Sequence[Window]], bool]) -> Measurement:
        seen: list[Window] = []
        while not seen or not is_enough(seen):
            seen.append(self._found[len(seen)])
            self.count = len(seen)
        return Measurement(candidate, figures(1.0, 1.0))


def test_gains_are_weighted_and_each_model_keeps_its_constraints() -> None:
    group = grouped([ModelSettings("a", weighting=3), ModelSettings("b", LIMITED)])
    assert (group.name, [each.name for each in group.members]) == ("a,b", ["a", "b"])
    assert group.goal.objectives == {"a:perf_throughput": 3.0, "b:perf_latency_p99": 1.0}
    base = measured(30.0, 8.0)
    # `a` gains as much as `b` loses, and counts three times.
    assert group.goal.gain(measured(33.0, 8.8), base) == pytest.approx(2 / 4 * 3 / 31.5)
    assert group.goal.satisfies(base)
    assert set(group.goal.broken(measured(30.0, 21.0))) == {"b:perf_latency_p99"}
