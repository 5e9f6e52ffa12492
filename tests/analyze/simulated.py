"""A server of theory: instances that run batches, on a number of cores, with a closed loop of clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from halimede.analyze.changes import changed, changes_to
from halimede.analyze.measurements import Measurement, Member
from halimede.analyze.searches import Search
from halimede.analyze.space import Candidate, Config, batch_limit, delay_of, instances_of

CONFIG: Config = {
    "name": "m",
    "max_batch_size": 8,
    "dynamic_batching": {},
    "instance_group": [{"name": "m", "kind": "KIND_CPU", "count": 1}],
}


@dataclass
class Simulated:
    """`base` seconds of an execution, `each` seconds for each request in it; at most `cores` executions at a time have
    their full speed. `asked` has all candidates that were measured."""

    base: float = 0.004
    each: float = 0.0005
    cores: float = 2.0
    overhead: float = 0.0002
    model: str = "m"
    config: Config = field(default_factory=lambda: CONFIG)
    refuses_batches_above: int = 10_000
    asked: list[Candidate] = field(default_factory=list)

    def measure(self, candidate: Candidate) -> Measurement | None:
        self.asked.append(candidate)
        config = changed(self.config, changes_to(candidate.setup, self.model))
        if batch_limit(config) > self.refuses_batches_above:
            return None
        count, clients = instances_of(config), candidate.load.value
        batch = min(float(max(1, batch_limit(config))), max(1.0, clients / count))
        used = min(float(count), clients)
        seconds = (self.base + self.each * batch) * max(1.0, used / self.cores) + delay_of(config) / 1e6
        rate = min(used * batch / seconds, clients / (seconds + self.overhead))
        latency = clients / rate * 1000
        figures = {"perf_throughput": rate, "perf_latency_avg": latency, "perf_latency_p99": latency * 1.3}
        member = Member(batch, rate / batch * seconds, seconds, max(0.0, latency / 1000 - seconds))
        return Measurement(candidate, figures, {self.model: member}, 0.01, 1.0)

    def run(self, search: Search) -> list[Measurement]:
        """All that a search measures."""
        found: list[Measurement] = []
        known: dict[Candidate, Measurement | None] = {}
        try:
            candidate = next(search)
            while True:
                if candidate not in known:
                    known[candidate] = self.measure(candidate)
                measured = known[candidate]
                if measured is not None and measured not in found:
                    found.append(measured)
                candidate = search.send(measured)
        except StopIteration:
            return found


def figures(rate: float, p99: float, **more: float) -> Mapping[str, float]:
    return {"perf_throughput": rate, "perf_latency_avg": p99 / 2, "perf_latency_p99": p99, **more}
