"""The adaptive search of `halimede analyze` beside brute search, on the same space, with the same budget.

`python -m bench.analyze --json bench/results/analyze.json` profiles each model twice, then measures both in turn.
`digits` is a model of the demo. The others are held out: nothing was tuned on them. They wait instead of computing, so
their best configuration is known, and other programs disturb them little.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from halimede.analyze.answer import answer_of
from halimede.analyze.checkpoint import Checkpoints
from halimede.analyze.command_line import parse
from halimede.analyze.control import GrpcControl
from halimede.analyze.interrupt import Interrupt
from halimede.analyze.launch import LocalServer, Ports, free_ports
from halimede.analyze.measurements import Measurement
from halimede.analyze.meter import Meter, Place
from halimede.analyze.noise import Question
from halimede.analyze.session import Session
from halimede.analyze.tables import Row, config_of, instances_text
from halimede.perf.options import Options
from halimede.perf.server import target_of
from halimede.perf.watch import Watch

ROUNDS = 3
SPACE = ("--run-config-search-queue-delays", "0", "--measurement-seconds", "1")
"""The bounds of the program, without delays, which would make brute search three times as long."""
MODEL = """import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        rows = sum(pb_utils.get_input_tensor_by_name(each, "INPUT0").shape()[0] for each in requests)
        time.sleep({base} + {each} * rows)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(each, "INPUT0").as_numpy())]
            )
            for each in requests
        ]
"""
CONFIG = """backend: "python"
max_batch_size: 4
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A model and its budget in milliseconds. Held-out ones take `base` seconds and `each` seconds for each row."""

    name: str
    budget: float
    base: float = 0.0
    each: float = 0.0


CASES = (
    Case("digits", 20.0),
    Case("batches", 150.0, 0.03, 0.0002),
    Case("rows", 100.0, 0.002, 0.004),
    Case("mixed", 200.0, 0.02, 0.003),
)


def write_models(folder: Path) -> None:
    root = Path(__file__).resolve().parents[1]
    shutil.copytree(root / "examples" / "model_repository" / "digits", folder / "digits")
    for case in CASES:
        if case.base:
            (folder / case.name / "1").mkdir(parents=True)
            (folder / case.name / "1" / "model.py").write_text(MODEL.format(base=case.base, each=case.each))
            (folder / case.name / "config.pbtxt").write_text(CONFIG.format())


def profile(case: Case, mode: str, place: Place, folder: Path, repository: Path) -> tuple[Measurement, dict[str, Any]]:
    """The best measurement, and how long the search took."""
    words = ["profile", case.name, "-m", str(repository), "--run-config-search-mode", mode]
    settings = parse([*words, "--latency-budget", str(case.budget), *SPACE]).settings
    (own,) = settings.models
    control = GrpcControl(target_of(Options(url=place.url, protocol="grpc")))
    checkpoints = Checkpoints(folder / f"{case.name}-{mode}")
    checkpoints.check()
    checkpoints.start()
    watch = Watch(lambda: False, None)
    began = time.monotonic()
    meter = Meter(case.name, (), (), place, control, watch)
    try:
        session = Session(settings, own, meter, checkpoints, Interrupt(print), print, watch.clear)
        session.run()
    finally:
        meter.restore()
        meter.close()
        control.close()
    seconds = time.monotonic() - began
    answer = answer_of(session.record, os.cpu_count() or 1)
    assert answer is not None
    record = session.record
    config = config_of(record, answer.best)
    return answer.best, {
        "seconds": round(seconds, 1),
        "measurements": len(record.measurements),
        "configurations": len({each.candidate.setup for each in record.measurements}),
        "best": {
            "name": Row(record, answer.best).name,
            "instances": instances_text(config),
            "max_batch_size": config["max_batch_size"],
            "clients": answer.best.candidate.load.value,
        },
        "throughput_as_it_is": answer.default.throughput if answer.default is not None else None,
        "other_programs_used_cores": answer.best.others,
    }


def in_turn(case: Case, place: Place, found: Mapping[str, Measurement]) -> dict[str, Any]:
    """Throughput and p99 of both answers, measured one after the other, several times."""
    control = GrpcControl(target_of(Options(url=place.url, protocol="grpc")))
    meter = Meter(case.name, (), (), place, control, Watch(lambda: False, None))
    results: dict[str, list[Measurement]] = {mode: [] for mode in found}
    try:
        for number in range(ROUNDS):
            for mode in sorted(found, reverse=bool(number % 2)):
                question = Question(sure=0.01, most_seconds=3.0)
                results[mode].append(meter.measure(found[mode].candidate, question))
    finally:
        meter.restore()
        meter.close()
        control.close()
    return {
        mode: {
            "throughput": [round(each.throughput, 1) for each in measured],
            "p99_ms": [round(each.figures["perf_latency_p99"], 3) for each in measured],
        }
        for mode, measured in results.items()
    }


def run(case: Case, folder: Path, repository: Path) -> dict[str, Any]:
    with ExitStack() as stack:
        ports = Ports(*(f"127.0.0.1:{port}" for port in free_ports(3)))
        server = LocalServer("", repository, ports, [], {}, str(folder / f"{case.name}.log"))
        stack.callback(server.stop)
        server.wait()
        place = Place(ports.grpc, "grpc", server.pid)
        best, shown = {}, {}
        for mode in ("adaptive", "brute"):
            best[mode], shown[mode] = profile(case, mode, place, folder, repository)
        again = in_turn(case, place, best)
    rates = {mode: median(each["throughput"]) for mode, each in again.items()}
    return {
        "model": case.name,
        "is_held_out": bool(case.base),
        "budget_ms": case.budget,
        **shown,
        "in_turn": again,
        "throughput_of_brute": round(rates["adaptive"] / rates["brute"], 3),
        "time_of_brute": round(shown["adaptive"]["seconds"] / shown["brute"]["seconds"], 3),
        "measurements_of_brute": round(shown["adaptive"]["measurements"] / shown["brute"]["measurements"], 3),
    }


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="the file for the results")
    parser.add_argument("--models", default=",".join(case.name for case in CASES), help="which models")
    options = parser.parse_args(words)
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder / "models")
        for case in CASES:
            if case.name in options.models.split(","):
                results.append(run(case, folder, folder / "models"))
                one = results[-1]
                print(
                    f"{case.name}: {one['throughput_of_brute']:.1%} of the throughput of brute search "
                    f"in {one['time_of_brute']:.1%} of its time"
                )
                document = {"cores": os.cpu_count(), "rounds": ROUNDS, "space": SPACE, "models": results}
                if options.json is not None:
                    options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
