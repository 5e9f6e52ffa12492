"""What an operator wants to know in the end: which configuration, why, and what it costs. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from halimede.analyze.changes import changed, changes_to, text_of, with_changes
from halimede.analyze.checkpoint import Record
from halimede.analyze.measurements import Measurement
from halimede.analyze.ranking import SAME
from halimede.analyze.space import instances_of
from halimede.analyze.tables import Row, batching_text, config_of, instances_text, models_of
from halimede.analyze.tags import tag_of

FULL = 0.9
"""A machine that is busy for this share of the time is the limit."""
BUSY = 0.8
OTHERS = 0.3
"""Cores that other programs may use without a remark."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The best measurement of a model, and the best one of its configuration as it is."""

    record: Record
    best: Measurement
    default: Measurement | None
    cores: int

    @property
    def name(self) -> str:
        return self.record.names.of(self.best.candidate.setup)

    @property
    def is_default(self) -> bool:
        return not self.best.candidate.setup


def answer_of(record: Record, cores: int) -> Answer | None:
    """None if nothing was measured. Of several configurations that are equally good, the one that changes least is the
    answer."""
    settled = record.settled()
    best = record.goal.best(settled)
    if best is None:
        return None
    default = record.goal.best([each for each in settled if not each.candidate.setup])
    equal = [each for each in settled if record.goal.compare(best, each) <= SAME and record.goal.satisfies(each)]
    if equal and record.goal.satisfies(best):
        best = min(equal, key=lambda each: (_size(record, each), -each.throughput))
    return Answer(record, best, default, cores)


def _size(record: Record, found: Measurement) -> tuple[float, ...]:
    """What a configuration takes: instances, the number of changes, and load."""
    count = sum(instances_of(config_of(record, found, model)) for model in models_of(record))
    return count, sum(len(each.fields) for each in found.candidate.setup), found.candidate.load.value


def frontier(found: Sequence[Measurement]) -> list[Measurement]:
    """The measurements that no other one beats in both throughput and p99, by throughput."""
    front: list[Measurement] = []
    for each in sorted(found, key=lambda each: (-each.throughput, each.figures["perf_latency_p99"])):
        if not front or each.figures["perf_latency_p99"] < front[-1].figures["perf_latency_p99"]:
            front.append(each)
    return front[::-1]


# ---- in words


def lines(answer: Answer) -> Iterator[str]:
    """The answer, without the text of the configuration."""
    record, best = answer.record, answer.best
    yield f"{record.names.model}: {_what(answer)}"
    yield f"  {'throughput':<11} {_compared(answer, 'perf_throughput')}"
    for tag in dict.fromkeys(("perf_latency_p99", *record.goal.objectives, *record.goal.constraints)):
        if tag != "perf_throughput" and tag in best.figures:
            yield f"  {tag.removeprefix('perf_latency_'):<11} {_compared(answer, tag)}"
    yield f"  {'why':<11} {why(answer)}"
    yield f"  {'memory':<11} {memory(answer)}"
    yield f"  {'more cores':<11} {more_cores(answer)}"


def _what(answer: Answer) -> str:
    best = answer.best
    load = best.candidate.load
    clients = f"{load.value:g} requests/s" if load.is_rate else f"{load.value:g} client{'s' * (load.value != 1)}"
    row = Row(answer.record, best)
    parts = [
        f"{model + ': ' if len(models_of(answer.record)) > 1 else ''}instances {instances_text(config)}, "
        f"max_batch_size {batching_text(config)}"
        for model in models_of(answer.record)
        for config in [config_of(answer.record, best, model)]
    ]
    head = f"{row.name} is best, with {clients}" if not answer.is_default else f"it is best as it is, with {clients}"
    return f"{head} ({'; '.join(parts)})"


def _compared(answer: Answer, tag: str) -> str:
    value, unit = answer.best.figures[tag], tag_of(tag).unit
    text = f"{_number(value)} {unit}"
    if answer.default is not None and not answer.is_default and tag in answer.default.figures:
        before = answer.default.figures[tag]
        change = f", {value / before - 1:+.0%}" if before else ""
        text += f" (as it is: {_number(before)}{change})"
    limits = answer.record.goal.constraints.get(tag)
    if limits is not None:
        bounds = [f"at most {limits.most:g}"] * (limits.most != float("inf"))
        bounds += [f"at least {limits.least:g}"] * (limits.least != float("-inf"))
        text += f"; {' and '.join(bounds)} wanted"
    return text


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def why(answer: Answer) -> str:
    """Which constraint or which part of the system is the limit."""
    goal, best = answer.record.goal, answer.best
    broken = goal.broken(best)
    if broken:
        tag = max(broken, key=lambda each: broken[each])
        return f"no configuration meets the constraint on {tag}; this one comes nearest"
    more = [each for each in _own(answer) if each.candidate.load.value > best.candidate.load.value]
    heavier = min(more, key=lambda each: each.candidate.load.value, default=None)
    if heavier is not None and (over := goal.broken(heavier)):
        tag = max(over, key=lambda each: over[each])
        return (
            f"the constraint on {tag} binds: with {heavier.candidate.load.value:g} it is "
            f"{_number(heavier.figures[tag])} {tag_of(tag).unit}"
        )
    limit = bottleneck(answer)
    gains = ""
    if heavier is not None:
        gain = heavier.throughput / best.throughput - 1
        gains = f"with {heavier.candidate.load.value:g} throughput changes by {gain:+.0%}; "
    return gains + limit


def _own(answer: Answer) -> list[Measurement]:
    setup = answer.best.candidate.setup
    return [each for each in answer.record.measurements if each.candidate.setup == setup]


def bottleneck(answer: Answer) -> str:
    best = answer.best
    if best.cores is not None and best.cores + best.overhead >= FULL * answer.cores:
        return f"the {answer.cores} cores of the machine are busy"
    for model, member in sorted(best.members.items(), key=lambda item: -item[1].queue):
        count = instances_of(config_of(answer.record, best, model)) if model in answer.record.configs else 1
        if member.busy >= BUSY * count:
            return f"the instances of {model} are busy {min(1.0, member.busy / count):.0%} of the time"
    if best.overhead >= FULL:
        return "the clients are the limit, and the server may be faster"
    if best.others is not None and best.others >= OTHERS:
        return "other programs are the limit: measure again on an idle machine"
    return "neither the instances nor the cores are busy all the time"


def memory(answer: Answer) -> str:
    """What the configuration costs."""
    used = answer.best.figures.get("cpu_used_ram")
    if used is None:
        return "unknown, because the server is on another machine, or not ours to see"
    text = f"the server uses {used:,.0f} MB"
    before = answer.default.figures.get("cpu_used_ram") if answer.default is not None else None
    if before is not None and not answer.is_default:
        text += f", and {before:,.0f} MB as it was"
    if (gpu := answer.best.figures.get("gpu_used_memory")) is not None:
        text += f"; GPUs {gpu:,.0f} MB"
    return text


def more_cores(answer: Answer) -> str:
    """What another core would give, at most."""
    best = answer.best
    if best.cores is None or not best.cores:
        return "unknown, because the server is on another machine, or not ours to see"
    of_one = best.throughput / best.cores
    used = f"the server uses {best.cores:.1f} of {answer.cores} cores, the clients {best.overhead:.1f}"
    if best.others is not None and best.others >= OTHERS:
        used += f", other programs {best.others:.1f}"
        return f"{used}: unknown while they run"
    if best.cores + best.overhead < FULL * answer.cores:
        return f"{used}: another one would not help"
    return f"{used}: another one gives at most {_number(of_one)} inferences/s more"


# ---- the configuration


def texts(answer: Answer, files: Mapping[str, str]) -> dict[str, str]:
    """The texts of the configurations that change, by model. `files` has those of the repository, whose comments are
    kept; others come from the server. Raises Invalid if a text cannot be changed."""
    return setup_texts(answer.record, answer.best, files)


def setup_texts(record: Record, found: Measurement, files: Mapping[str, str]) -> dict[str, str]:
    texts = {}
    for each in found.candidate.setup:
        if each.model in files:
            texts[each.model] = with_changes(files[each.model], each.fields)
        else:
            base = record.configs[each.model]
            texts[each.model] = text_of(changed(base, changes_to(found.candidate.setup, each.model)))
    return texts
