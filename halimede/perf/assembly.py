"""Puts the parts of a measurement together: what follows from the model, and the load processes."""

import os
from dataclasses import replace
from functools import partial

from halimede.perf.fleet import Fleet
from halimede.perf.model import Model
from halimede.perf.options import NO_LIMIT, Options, Range
from halimede.perf.profiler import Failure
from halimede.perf.workload import Workload


def completed(options: Options, model: Model) -> Options:
    """The options with what follows from the model."""
    if model.has_sequences and not options.asynchronous and not options.forced_sync:
        options = replace(options, asynchronous=True)
    return options


def check_model(options: Options, model: Model) -> None:
    """Refuses what the model cannot do. Raises Failure with perf_analyzer's texts."""
    o, levels = options, options.concurrency or Range()
    checks = (
        (
            o.batch_size > 1 and not model.max_batch_size,
            "can not specify batch size > 1 as the model does not support batching",
        ),
        (
            o.batch_size > 1 and model.has_sequences,
            "can not specify batch size > 1 when using a sequence model",
        ),
        (o.streaming and o.forced_sync, "can not use streaming with synchronous API"),
        (
            model.is_decoupled and not (o.asynchronous and o.streaming),
            "Decoupled models must be run with `--async` and `--streaming` and either `-i grpc` or "
            "`--service-kind=triton_c_api`",
        ),
        (
            model.has_sequences and o.concurrency is not None and levels.end == NO_LIMIT and o.asynchronous,
            "The 'end' concurrency can not be 0 for sequence models when using asynchronous API.",
        ),
        (
            bool(o.sequence_ids)
            and model.has_sequences
            and o.rate is None
            and o.sequence_ids < max(levels.start, levels.end),
            "sequence id range specified is smaller than the maximum possible concurrency, sequence id collision may "
            "occur.",
        ),
        (
            bool(o.sequence_ids) and o.rate is not None and o.sequence_ids < o.sequences,
            "sequence id range specified is smaller than the maximum possible number of sequences, sequence id "
            "collision may occur.",
        ),
    )
    for is_wrong, text in checks:
        if is_wrong:
            raise Failure(text)


# ---- processes


def fill(fleet: Fleet, workload: Workload, count: int) -> None:
    for number in range(count):
        fleet.add(partial(_serve, workload, number, count))


def _serve(workload: Workload, number: int, of: int, control: object) -> None:
    workload.serve(control, number, of)  # type: ignore[arg-type]


def grown(fleet: Fleet, workload: Workload, wanted: int) -> bool:
    """Replaces the load processes by twice as many, if the machine has cores for them and the user did not choose."""
    count = len(fleet) * 2
    if wanted or count > max(1, (os.cpu_count() or 1) // 2):
        return False
    fleet.close()
    fill(fleet, workload, count)
    return True
