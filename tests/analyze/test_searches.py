"""What the searches measure, on a server of theory."""

import pytest

from halimede.analyze.measurements import Measurement
from halimede.analyze.ranking import Goal, Limits
from halimede.analyze.searches import Plan, Search
from halimede.analyze.searches.adaptive import adaptive
from halimede.analyze.searches.brute import brute, combinations, manual
from halimede.analyze.searches.quick import quick
from halimede.analyze.space import Bounds, Candidate, Load, Space, axes_of, variant
from tests.analyze.simulated import CONFIG, Simulated

LIMIT = Goal(constraints={"perf_latency_p99": Limits(most=30.0)})
SERVERS = (
    Simulated(),
    Simulated(base=0.05, each=0.0001),
    Simulated(base=0.0001, each=0.002),
    Simulated(base=0.01, each=0.01, cores=4),
    Simulated(base=0.001, each=0.00002, overhead=0.003),
    Simulated(config={**CONFIG, "max_batch_size": 128, "instance_group": [{"kind": "KIND_CPU", "count": 5}]}),
)


def plan_of(server: Simulated, goal: Goal | None = None, bounds: Bounds | None = None) -> Plan:
    bounds = bounds or Bounds()
    space = Space(tuple(axes_of("m", server.config, bounds)), {"m": server.config})
    return Plan(space, goal or Goal(), bounds)


def best_of(goal: Goal, found: list[Measurement]) -> Measurement:
    best = goal.best(found)
    assert best is not None
    return best


@pytest.mark.parametrize("server", SERVERS, ids=repr)
@pytest.mark.parametrize("goal", [Goal(), LIMIT], ids=["free", "limited"])
def test_adaptive_search_finds_what_brute_search_finds_in_a_fifth_of_the_measurements(
    server: Simulated, goal: Goal
) -> None:
    plan = plan_of(server, goal)
    server.asked.clear()
    everything = best_of(goal, server.run(brute(plan)))
    of_brute = len(server.asked)
    server.asked.clear()
    found = best_of(goal, server.run(adaptive(plan)))
    assert len(server.asked) <= of_brute / 5
    if goal.satisfies(everything):
        assert goal.satisfies(found)
        assert found.throughput >= everything.throughput * 0.95
    else:
        assert sum(goal.broken(found).values()) <= sum(goal.broken(everything).values()) * 1.05


@pytest.mark.parametrize("server", SERVERS[:2], ids=repr)
def test_quick_search_comes_near_brute_search(server: Simulated) -> None:
    plan = plan_of(server)
    everything = best_of(plan.goal, server.run(brute(plan)))
    server.asked.clear()
    found = best_of(plan.goal, server.run(quick(plan)))
    assert found.throughput >= everything.throughput * 0.9
    assert server.asked[0].setup == ()


def test_quick_search_takes_twice_as_many_clients_as_there_are_places() -> None:
    server = Simulated()
    plan = plan_of(server)
    walk: Search = quick(plan)
    first = next(walk)
    assert (first.setup, first.load) == ((), Load(16))  # 8 requests in a batch of one instance
    second = walk.send(server.measure(first))
    assert [each.fields["max_batch_size"] for each in second.setup] == [1]
    assert second.load == Load(2)


def test_brute_search_goes_through_instances_and_batch_sizes_in_order() -> None:
    server = Simulated()
    bounds = Bounds(max_instances=2, max_batch=4, max_concurrency=8)
    server.run(brute(plan_of(server, bounds=bounds)))
    shown = []
    for each in dict.fromkeys(candidate.setup for candidate in server.asked):
        fields = each[0].fields if each else {}
        shown.append((fields.get("instance_group", [{}])[0].get("count", 1), fields.get("max_batch_size", 8)))
    assert shown == [(1, 8), (1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)]
    of_default = [each.load.value for each in server.asked if not each.setup]
    assert of_default == [1, 2, 4, 8]


def test_brute_search_stops_when_more_clients_gain_nothing() -> None:
    server = Simulated(base=0.01, each=0.0, cores=1.0)
    server.run(brute(plan_of(server, bounds=Bounds(max_instances=1, max_batch=1))))
    smallest = [each.load.value for each in server.asked if each.setup]
    assert smallest == [1, 2, 4, 8]


def test_brute_search_looks_closer_where_a_constraint_is_first_broken() -> None:
    server = Simulated(base=0.01, each=0.0)
    bounds = Bounds(max_instances=1, max_batch=1, binary_steps=3)
    goal = Goal(constraints={"perf_latency_p99": Limits(most=75.0)})
    # One request takes 10 ms, so p99 is 13 ms for each client: at most 5 of them.
    server.run(brute(plan_of(server, goal, bounds)))
    smallest = [each.load.value for each in server.asked if each.setup]
    assert smallest[:4] == [1, 2, 4, 8]
    assert 5 in smallest[4:]
    assert len(smallest) <= 7


def test_configuration_that_the_server_refuses_ends_its_climb() -> None:
    server = Simulated(refuses_batches_above=8)
    found = server.run(adaptive(plan_of(server)))
    assert found
    assert all(each.candidate.setup == () or "16" not in each.candidate.setup[0].changes for each in found)


def test_adaptive_search_does_not_halve_loads_that_cannot_serve_more() -> None:
    """One request at a time: two clients are served as fast as one, and wait twice as long."""
    server = Simulated(base=0.02, each=0.0, config={**CONFIG, "max_batch_size": 0})
    bounds = Bounds(min_instances=1, max_instances=1)
    server.run(adaptive(plan_of(server, Goal(constraints={"perf_latency_p99": Limits(most=200.0)}), bounds)))
    loads = {each.load.value for each in server.asked}
    assert loads == {1, 2, 4, 8}


def test_adaptive_search_does_not_add_instances_to_idle_ones() -> None:
    server = Simulated(base=0.0001, each=0.0, overhead=0.01)
    server.run(adaptive(plan_of(server, bounds=Bounds(max_concurrency=16))))
    assert not [each for each in server.asked if each.setup and "instance_group" in each.setup[0].fields]


def test_adaptive_search_does_not_look_beyond_a_neighbour_that_is_clearly_worse() -> None:
    """Each instance computes on a core of its own, so two of three serve a third less, and one less still."""
    three = {**CONFIG, "instance_group": [{"name": "m", "kind": "KIND_CPU", "count": 3}]}
    server = Simulated(base=0.0001, each=0.002, cores=3.0, config=three)
    server.run(adaptive(plan_of(server, bounds=Bounds(max_instances=3))))
    counts = {
        each.setup[0].fields["instance_group"][0]["count"]
        for each in server.asked
        if each.setup and "instance_group" in each.setup[0].fields
    }
    assert counts == {2}


def test_loads_of_the_user_are_measured_as_they_are() -> None:
    server = Simulated()
    plan = Plan(plan_of(server).space, Goal(), Bounds(max_instances=1, max_batch=2), loads=(3, 7))
    server.run(brute(plan))
    assert {each.load.value for each in server.asked} == {3, 7}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"max_batch_size": [2, 4]}, [{"max_batch_size": 2}, {"max_batch_size": 4}]),
        ({"max_batch_size": 2}, [{"max_batch_size": 2}]),
        (
            {"dynamic_batching": {"max_queue_delay_microseconds": [1, 2]}},
            [{"dynamic_batching": {"max_queue_delay_microseconds": k}} for k in (1, 2)],
        ),
        ({"dynamic_batching": {}}, [{"dynamic_batching": {}}]),
        (
            {"instance_group": [{"kind": "KIND_CPU", "count": [1, 2]}]},
            [{"instance_group": [{"kind": "KIND_CPU", "count": k}]} for k in (1, 2)],
        ),
        (
            {"instance_group": [{"kind": "KIND_GPU", "count": 1}, {"kind": "KIND_CPU", "count": 1}]},
            [{"instance_group": [{"kind": "KIND_GPU", "count": 1}, {"kind": "KIND_CPU", "count": 1}]}],
        ),
        (
            {"instance_group": [[{"kind": "KIND_GPU", "count": 1}], [{"kind": "KIND_CPU", "count": 1}]]},
            [{"instance_group": [{"kind": kind, "count": 1}]} for kind in ("KIND_GPU", "KIND_CPU")],
        ),
        (
            {"dynamic_batching": {"preferred_batch_size": [[4, 8], [16]]}},
            [{"dynamic_batching": {"preferred_batch_size": each}} for each in ([4, 8], [16])],
        ),
        ({}, []),
    ],
)
def test_parameters_are_swept_in_all_combinations(parameters: dict[str, object], expected: list[object]) -> None:
    assert list(combinations(parameters)) == expected


def test_manual_search_measures_the_default_and_all_combinations() -> None:
    server = Simulated()
    plan = Plan(plan_of(server).space, Goal(), loads=(4,))
    server.run(manual(plan, "m", {"max_batch_size": [2, 4], "instance_group": [{"count": [1, 2]}]}))
    assert len(server.asked) == 1 + 4
    assert server.asked[1] == Candidate(
        (variant("m", {"max_batch_size": 2, "instance_group": [{"count": 1}]}),), Load(4)
    )


def test_optuna_search_repeats_itself_and_stays_within_its_trials() -> None:
    search = pytest.importorskip("halimede.analyze.searches.optuna_search")
    asked = []
    for _ in range(2):
        server = Simulated()
        found = server.run(search.search_by_optuna(plan_of(server), search.Trials(least=5, most=8, early_exit=3)))
        assert found
        asked.append(server.asked)
    assert asked[0] == asked[1]
    assert asked[0][0].setup == ()


@pytest.mark.parametrize(("size", "expected"), [(100, (5, 10)), (1000, (50, 100)), (10, (1, 1))])
def test_trials_of_optuna_are_shares_of_the_space(size: int, expected: tuple[int, int]) -> None:
    search = pytest.importorskip("halimede.analyze.searches.optuna_search")
    assert search.Trials().bounds(size) == expected
