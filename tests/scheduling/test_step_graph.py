"""The graph of an ensemble's steps: which run for which outputs, and in which order tensors let them."""

import random
from collections.abc import Mapping, Sequence

import pytest

from halimede.scheduling.step_graph import MAX_COURSES, Course, Frame, StepGraph, StepLinks
from halimede.tensors import INT32, HostMemory, Tensor


def links(inputs: str, outputs: str) -> StepLinks:
    """Words like `X=x`: the model's name and the tensor."""
    pairs = [tuple(tuple(word.split("=")) for word in words.split()) for words in (inputs, outputs)]
    return StepLinks(*pairs)  # type: ignore[arg-type]  # pairs of words


def tensor(name: str, value: str = "") -> Tensor:
    return Tensor(name, INT32, (1,), HostMemory(value.encode()))


CHAIN = StepGraph(["IN"], ["OUT", "MID"], [links("X=IN", "Y=MID"), links("X=MID", "Y=OUT")])


def test_chain_runs_step_by_step() -> None:
    course = CHAIN.course(("OUT", "MID"))
    assert (course.steps, course.first) == ((0, 1), (0,))
    frame = course.begin({"IN": tensor("IN")})
    assert course.arrived(frame, 0, [tensor("Y", "mid")]) == [1]
    assert frame.outputs_left == 1
    assert course.arrived(frame, 1, [tensor("Y", "out")]) == []
    assert frame.outputs_left == 0
    values = [frame.values[number] for _, number in course.results]
    assert [bytes(value.memory.host()) for value in values if value is not None] == [b"out", b"mid"]


def test_steps_that_no_output_needs_do_not_run() -> None:
    course = CHAIN.course(("MID",))
    assert (course.steps, course.asked) == ((0,), (("Y",), ()))
    frame = course.begin({"IN": tensor("IN")})
    assert course.arrived(frame, 0, [tensor("Y")]) == []
    assert frame.outputs_left == 0


def test_output_that_only_the_client_reads_may_go_to_it_directly() -> None:
    assert CHAIN.course(("OUT", "MID")).direct == ((), (("Y", "OUT"),))
    assert CHAIN.course(("MID",)).direct == ((("Y", "MID"),), ())


def test_output_that_is_missing_lets_those_behind_it_run() -> None:
    """They miss an input that may be optional (contract S86)."""
    course = CHAIN.course(("OUT",))
    frame = course.begin({"IN": tensor("IN")})
    assert course.arrived(frame, 0, []) == [1]
    assert frame.values == [frame.values[0], None, None]


def test_step_waits_for_all_tensors_and_runs_once_for_one_read_twice() -> None:
    graph = StepGraph(
        ["IN"],
        ["OUT"],
        [links("X=IN", "A=a B=b"), links("X=IN", "A=c"), links("P=a Q=b R=a S=c", "Y=OUT")],
    )
    course = graph.course(("OUT",))
    assert course.first == (0, 1)
    frame = course.begin({"IN": tensor("IN")})
    assert course.arrived(frame, 0, [tensor("A"), tensor("B")]) == []
    assert course.arrived(frame, 1, [tensor("A")]) == [2]


def test_input_that_is_an_output_needs_no_step() -> None:
    graph = StepGraph(["IN"], ["IN", "OUT"], [links("X=IN", "Y=OUT")])
    course = graph.course(("IN",))
    assert (course.steps, course.begin({"IN": tensor("IN")}).outputs_left) == ((), 0)


def test_output_with_the_name_of_an_input_is_dropped() -> None:
    graph = StepGraph(["IN"], ["OUT"], [links("X=IN", "Y=IN"), links("X=IN", "Y=OUT")])
    assert graph.course(("OUT",)).steps == (1,)


def test_each_response_of_a_decoupled_step_is_a_frame_of_its_own() -> None:
    course = CHAIN.course(("OUT",))
    course.begin({"IN": tensor("IN")})
    for value in ("one", "two"):
        frame = course.fresh()
        assert course.arrived(frame, 0, [tensor("Y", value)]) == [1]
        assert course.arrived(frame, 1, [tensor("Y", value)]) == []
        assert frame.outputs_left == 0


def test_courses_are_remembered_within_bounds() -> None:
    assert CHAIN.course(("OUT",)) is CHAIN.course(("OUT",))
    names = [f"O{i}" for i in range(MAX_COURSES + 1)]
    graph = StepGraph(["IN"], names, [links("X=IN", f"Y={name}") for name in names])
    first = graph.course((names[0],))
    for name in names[1:]:
        graph.course((name,))
    assert graph.course((names[0],)) is not first


def random_graph(dice: random.Random) -> tuple[list[str], list[str], list[StepLinks]]:
    """Inputs, outputs, and steps in no order; every tensor is read or an output."""
    given = [f"I{i}" for i in range(dice.randint(1, 4))]
    tensors, steps = list(given), []
    for i in range(dice.randint(1, 15)):
        read = dice.choices(tensors, k=dice.randint(1, 3))
        made = [f"t{i}.{n}" for n in range(dice.randint(1, 3))]
        inputs = tuple((f"x{n}", name) for n, name in enumerate(read))
        steps.append(StepLinks(inputs, tuple((f"y{n}", name) for n, name in enumerate(made))))
        tensors += made
    read_by_any = {name for step in steps for _, name in step.inputs}
    outputs = [name for name in tensors if name not in read_by_any or dice.random() < 0.3]
    dice.shuffle(steps)
    return given, outputs or [tensors[-1]], steps


def by_definition(given: Sequence[str], steps: Sequence[StepLinks]) -> Mapping[str, str]:
    """What each tensor is: the term that makes it."""
    terms = {name: name for name in given}
    while len(terms) < len(given) + sum(len(step.outputs) for step in steps):
        for number, step in enumerate(steps):
            if all(name in terms for _, name in step.inputs):
                arguments = ",".join(terms[name] for _, name in step.inputs)
                terms.update((name, f"{number}.{put}({arguments})") for put, name in step.outputs)
    return terms


def play(course: Course, graph: StepGraph, given: Sequence[str], dice: random.Random) -> tuple[Frame, list[int]]:
    """Runs the steps that can run, in any order, each as soon or as late as it happens."""
    frame = course.begin({name: tensor(name, name) for name in given})
    ready, ran = list(course.first), []
    while ready:
        step = ready.pop(dice.randrange(len(ready)))
        ran.append(step)
        arguments = []
        for _, number in graph.reads[step]:
            value = frame.values[number]
            assert value is not None, "it began before all was there"
            arguments.append(bytes(value.memory.host()).decode())
        made = [tensor(put, f"{step}.{put}({','.join(arguments)})") for put in course.asked[step]]
        ready += course.arrived(frame, step, made)
    return frame, ran


@pytest.mark.parametrize("seed", range(150))
def test_random_graphs_give_the_expected_results(seed: int) -> None:
    dice = random.Random(seed)
    given, outputs, steps = random_graph(dice)
    graph, terms = StepGraph(given, outputs, steps), by_definition(given, steps)
    for wanted in (outputs, dice.sample(outputs, dice.randint(1, len(outputs)))):
        course = graph.course(wanted)
        frame, ran = play(course, graph, given, dice)
        assert sorted(ran) == list(course.steps)
        assert frame.outputs_left == 0
        values = [frame.values[number] for _, number in course.results]
        assert [bytes(v.memory.host()).decode() for v in values if v is not None] == [terms[name] for name in wanted]
        needed = " ".join(terms[name] for name in wanted)
        assert all(f"{step}." in needed for step in ran), "a step ran for nothing"
